"""One virtual environment for each group of peers, pinned by `peers/<group>.txt`."""

import hashlib
import json
import os
import subprocess
import sys
import venv
from importlib.metadata import distributions
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parent
HOME = ROOT / ".benchmarks"
GROUPS = ("bare", "fast", "fastmcp", "openai-agents", "pydantic-ai", "langchain", "agentscope")
INSTALL_TIMEOUT_S = 900


def python_of(group: str) -> str:
    """Return the interpreter of a group of peers, creating its environment where needed.

    `guildry` is the interpreter that runs the benchmark; `fast` has the same packages as that one,
    and those of the extra `guildry[fast]`.
    """
    if group == "guildry":
        return sys.executable
    folder = HOME / group
    python, stamp = folder / "bin" / "python", folder / "pins.sha256"
    pinned = HERE / "peers" / f"{group}.txt"
    if group == "fast":
        pinned = _pins_of_this_environment(pinned)
    pins = pinned.read_bytes()
    wanted = hashlib.sha256(b"compiled" + pins + sys.version.encode()).hexdigest()
    if python.exists() and stamp.exists() and stamp.read_text(encoding="ascii") == wanted:
        return str(python)
    print(f"installing the peers of `{group}` (once)", file=sys.stderr, flush=True)
    uv = _uv()
    _install([uv, "venv", "-q", "--clear", "--python", sys.executable, str(folder)])
    # The pins are complete, so nothing is left to resolve.
    # Without compiled modules each start of a server would compile them; pip makes them as well.
    how = ["-q", "--no-deps", "--compile-bytecode", "--python", str(python)]
    _install([uv, "pip", "install", *how, "-r", str(pinned)])
    stamp.write_text(wanted, encoding="ascii")
    return str(python)


def _pins_of_this_environment(extra: Path) -> Path:
    """Return a file that pins what Guildry is installed with here, Guildry, and some more."""
    found = {
        f"{each.metadata['Name']}=={each.version}"
        for each in distributions()
        if each.metadata["Name"].lower() != "guildry"
    }
    lines = [*sorted(found), *extra.read_text(encoding="ascii").split(), f"-e {ROOT}"]
    file = HOME / "fast.txt"
    HOME.mkdir(exist_ok=True)
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return file


def clean_environment() -> dict[str, str]:
    """Return the environment of what is measured: this one without `PYTHON*` and `GUILDRY_*`.

    Some of them change how fast Python starts, such as `PYTHONDONTWRITEBYTECODE`.
    """
    own = ("PYTHON", "GUILDRY_")
    return {name: value for name, value in os.environ.items() if not name.startswith(own)}


def versions(python: str, names: list[str]) -> dict[str, str]:
    """Return the installed versions of some packages, as the environment itself reports them."""
    code = (
        "import json, sys\nfrom importlib.metadata import PackageNotFoundError, version\n"
        "found = {}\n"
        "for name in sys.argv[1:]:\n"
        "    try:\n        found[name] = version(name)\n"
        "    except PackageNotFoundError:\n        pass\n"
        "print(json.dumps(found))\n"
    )
    done = subprocess.run(
        [python, "-c", code, *names], capture_output=True, text=True, check=True, timeout=60
    )
    return dict(json.loads(done.stdout))


def _uv() -> str:
    folder = HOME / "uv"
    uv = folder / "bin" / "uv"
    if not uv.exists():
        venv.create(folder, with_pip=True, clear=True)
        _install([str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "uv>=0.13"])
    return str(uv)


def _install(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_TIMEOUT_S)
    if done.returncode:
        raise SystemExit(
            f"`{' '.join(command)}` failed ({done.returncode}):\n{done.stderr[-3000:]}"
        )

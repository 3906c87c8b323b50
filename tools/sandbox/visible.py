"""What of the file system a command needs to see so that it can run. Opens no sandbox.

Its program, the interpreters and libraries beside it, and the folders of the scripts that its words
name; nothing of what they work on.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

__all__ = ["SYSTEM", "SYSTEM_FILES", "needed", "unseen"]

SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/nix/store")
"""Programs and libraries of the system."""

SYSTEM_FILES: Final = (
    *("/etc/alternatives", "/etc/ca-certificates", "/etc/ca-certificates.conf", "/etc/fonts"),
    *("/etc/group", "/etc/hosts", "/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d"),
    *("/etc/localtime", "/etc/mime.types", "/etc/nsswitch.conf", "/etc/os-release", "/etc/passwd"),
    *("/etc/pki/ca-trust", "/etc/pki/tls/certs", "/etc/protocols", "/etc/services"),
    *("/etc/ssl/certs", "/etc/ssl/openssl.cnf", "/etc/timezone", "/etc/java-17-openjdk"),
)
"""What programs read of the system's configuration; no keys and no passwords."""

_SCRIPTS: Final = frozenset(
    {".py", ".pyz", ".js", ".mjs", ".cjs", ".ts", ".mts", ".sh", ".rb", ".pl", ".lua", ".jar"}
)
_SETTINGS: Final = "guildry.toml"
_BIN: Final = frozenset({"bin", "sbin", "Scripts"})
_LIBRARIES: Final = ("bin", "lib", "lib64", "libexec")
_MAX_LINKS: Final = 40
_SHEBANG_BYTES: Final = 256


def needed(command: Sequence[str], *, cwd: Path, path: str, home: Path) -> tuple[Path, ...]:
    """Return the files and folders besides the system's that a command needs to run.

    Args:
        command: its words.
        cwd: where relative words begin.
        path: where programs are looked for, as in `PATH`.
        home: the home folder, which is never needed as a whole.
    """
    found: dict[Path, None] = {}
    program = shutil.which(str(cwd / command[0]) if "/" in command[0] else command[0], path=path)
    starts = [] if program is None else [Path(program)]
    starts += [each for each in _named(command[1:], cwd) if each.suffix in _SCRIPTS]
    for start in starts:
        for each in _steps(start, path):
            found.update(dict.fromkeys(_around(each, home)))
    return tuple(each for each in found if not _is_system(each))


def unseen(command: Sequence[str], *, cwd: Path, seen: Sequence[Path]) -> tuple[str, ...]:
    """Return the words of a command that name something that is there, but not among `seen`."""
    shown = (*(Path(each) for each in SYSTEM), *seen)
    return tuple(
        str(each)
        for each in _named(command[1:], cwd)
        if not any(each.is_relative_to(folder) for folder in shown)
    )


def _named(words: Sequence[str], cwd: Path) -> Iterator[Path]:
    """Give the files and folders that words name, such as `a/b.py` and `--root=/x`."""
    for word in words:
        for text in {word, word.partition("=")[2]} - {""}:
            each = Path(os.path.normpath(cwd / os.path.expanduser(text)))
            if ("/" in text or "." in text) and len(text) < 4096 and os.path.exists(each):
                yield each


def _steps(start: Path, path: str) -> Iterator[Path]:
    """Give a program, what it links to, and the interpreter that it names, to the last."""
    at: Path | None = start
    for _ in range(_MAX_LINKS):
        if at is None:
            return
        yield at
        if at.is_symlink():
            at = Path(os.path.normpath(at.parent / at.readlink()))
        else:
            at = _interpreter(at, path)


def _interpreter(script: Path, path: str) -> Path | None:
    try:
        with script.open("rb") as file:
            first = file.read(_SHEBANG_BYTES).partition(b"\n")[0]
    except OSError:
        return None
    words = first[2:].decode(errors="replace").split() if first.startswith(b"#!") else []
    if words and Path(words[0]).name == "env":
        words = [word for word in words[1:] if not word.startswith("-") and "=" not in word]
    found = shutil.which(words[0], path=path) if words else None
    return None if found is None else Path(found)


def _around(file: Path, home: Path) -> list[Path]:
    """Return what a program or script needs beside it."""
    parts = file.parts
    if "node_modules" in parts:
        return [Path(*parts[: parts.index("node_modules") + 1])]
    folder = file.parent
    if folder.name in _BIN:
        prefix = folder.parent
        shared = prefix == home / ".local" or home.is_relative_to(prefix)
        if (prefix / "pyvenv.cfg").is_file() and not shared:
            return [prefix]
        inside = [prefix / name for name in _LIBRARIES if not (shared and name == "bin")]
        return [file, *(each for each in inside if each.is_dir())]
    if file.suffix not in _SCRIPTS or folder == Path("/tmp") or home.is_relative_to(folder):
        return [file]
    if (folder / _SETTINGS).exists():  # secrets may be in it, and beside it
        return [file, *sorted(folder.glob(f"*{file.suffix}"))]
    return [folder]


def _is_system(path: Path) -> bool:
    return any(path.is_relative_to(each) for each in SYSTEM)

"""A folder to begin from: configuration, a tool and a team."""

from pathlib import Path
from typing import Final

from guildry.errors import UsageError
from guildry.server.config import FILE_NAME, Settings

__all__ = ["create"]

_HEAD: Final = """\
# What Guildry does here. Flags win over GUILDRY_* variables, which win over this file.
# `guildry doctor` says whether all of it works.

"""

_BODY: Final = """
# Sources of tools: a Python file or folder, a URL, or a command line.
[plugs.hello]
source = "tools"

# [plugs.time]
# source = "uvx mcp-server-time --local-timezone=UTC"

# Models: any URL that speaks the OpenAI chat protocol.
# [models.local]
# url = "http://127.0.0.1:30000/v1"
# api_key_env = "MY_KEY"          # the variable that holds the key, if one is needed

# The HTTP endpoint beyond this machine: who may call, and over TLS.
# [http]
# tokens = "tokens.toml"          # made by `guildry token new`
# tls_certificate = "server.pem"
# tls_key = "server.key"
"""

_TOOL: Final = '''\
"""Tools: each public function with type hints and a docstring becomes one.

Save this file while Guildry serves, and every client sees the change.
"""

from pathlib import Path


def hello(name: str) -> str:
    """Greet somebody.

    Args:
        name: who is greeted.
    """
    return f"Hello, {name}!"


def list_files(folder: str, suffix: str = "") -> list[dict[str, object]]:
    """List the files below a folder, with their sizes in bytes.

    Args:
        folder: where to look.
        suffix: only names that end so, such as `.py`.
    """
    root = Path(folder).expanduser()
    return [
        {"path": path.relative_to(root).as_posix(), "size": path.stat().st_size}
        for path in sorted(root.rglob(f"*{suffix}"))
        if path.is_file()
    ]


def count_lines(file: str) -> int:
    """Count the lines of a text file.

    Args:
        file: its path.
    """
    return len(Path(file).expanduser().read_text(encoding="utf-8", errors="replace").splitlines())
'''

_TEAM: Final = """\
# A team: `guildry run survey "What is in this folder?"`, or the tool `team_survey`.
name = "survey"
description = "Survey a folder: what is in it, and how large its parts are."
pattern = "plan_and_execute"
tools = ["list_files", "count_lines", "read_reference"]

[planner]
instructions = "Split the folder into parts that can be looked at side by side."

[[workers]]
name = "reader"
instructions = "Look at one part of the folder with your tools, and report figures."
tools = ["list_files", "count_lines", "read_reference"]

[aggregator]
instructions = "Join the reports into one: sizes first, then what stands out."

[limits]
agents = 12
wall_s = 600
"""

_NAMED: Final = {"plugs_folder": "plugs"}
_LEFT_TO_TABLES: Final = {"plugs", "models", "http", "teams", "home", "folder", "flow_allow"}


def create(folder: Path) -> list[Path]:
    """Write the files into `folder`, and return them. Nothing that is there is overwritten.

    Raises:
        UsageError: one of the files is there already, or the folder cannot be written.
    """
    files = {
        FILE_NAME: _HEAD + _settings() + _BODY,
        "tools/hello.py": _TOOL,
        "teams/survey.toml": _TEAM,
    }
    there = [name for name in files if (folder / name).exists()]
    if there:
        named = ", ".join(f"`{name}`" for name in there)
        raise UsageError(f"`{folder}` has {named} already: choose another folder, or remove it")
    try:
        for name, text in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
    except OSError as error:
        raise UsageError(f"`{folder}` cannot be written: {error}. Choose another folder") from error
    return [folder / name for name in files]


def _settings() -> str:
    """Return every plain setting with its default, commented out."""
    lines = ['teams = ["teams"]', ""]
    for name, about in Settings.model_fields.items():
        if name not in _LEFT_TO_TABLES:
            value = _toml(name, about.get_default(call_default_factory=True, validated_data={}))
            lines.append(f"# {name} = {value}".ljust(32) + f"  # {about.description}")
    return "\n".join(lines) + "\n"


def _toml(name: str, value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple):
        return "[]"
    return f'"{value or _NAMED.get(name, "local")}"'

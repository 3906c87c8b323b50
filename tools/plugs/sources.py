"""What a source is: a Python file or folder, a URL, or a command line. Opens nothing itself."""

import os
import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from guildry.errors import PlugError
from guildry.tools.plugs.plug import Plug, PlugLimits, Wanted

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

__all__ = ["derive_name", "open_source"]

_URL: Final = re.compile(r"https?://", re.IGNORECASE)
_PATH_STARTS: Final = (".", "/", "~")
_NOISE: Final = frozenset({"mcp", "server", "www", "api", "modelcontextprotocol", "http", "https"})
_RUNNERS: Final = frozenset(
    {"python", "python3", "py", "node", "npx", "uvx", "uv", "bun", "bunx", "deno", "pipx", "sh"}
    | {"bash", "env", "run", "exec", "tool", "docker", "podman", "start", "x"}
)


def derive_name(source: str, folder: Path) -> str:
    """Return a short name for a source that was given none: `time` for `uvx mcp-server-time`.

    Args:
        source: as the caller wrote it.
        folder: where a relative path begins.
    """
    if _URL.match(source):
        parts = urlsplit(source)
        host = parts.hostname or ""
        labels = host.split(".")[:-1] if re.search(r"[a-z]", host.rpartition(".")[2]) else [host]
        words = _telling(".".join(labels)) or _telling(parts.path) or [host]
        return "_".join(words)
    if (path := _path_of(source, folder)) is not None:
        path = path.resolve()
        return path.stem if path.suffix == ".py" else path.name
    return _name_of_command(_split(source))


def _name_of_command(words: list[str]) -> str:
    if "-m" in words[:-1]:
        return _brief(words[words.index("-m") + 1])
    for word in words:
        stem = Path(word).stem if "/" not in word or word.endswith((".py", ".js")) else word
        plain = re.sub(r"[\d.]+$", "", Path(word).name)
        if not word.startswith("-") and plain not in _RUNNERS:
            return _brief(stem)
    return _brief(Path(words[0]).name)


def _brief(word: str) -> str:
    word = re.sub(r"(?<=.)@[^/]*$", "", word)  # a version: `package@1.2`
    last = word.rstrip("/").rpartition("/")[2]
    return "_".join(_telling(last) or [last])


def _telling(text: str) -> list[str]:
    return [
        word for word in re.split(r"[^A-Za-z0-9]+", text) if word and word.lower() not in _NOISE
    ]


def _split(source: str) -> list[str]:
    try:
        words = shlex.split(source)
    except ValueError as error:
        raise PlugError(source, f"it is no command line ({error})", "Close its quotes") from error
    if not words:
        raise PlugError(source, "it is empty", "Give a path, a URL or a command line")
    return words


def _path_of(source: str, folder: Path) -> Path | None:
    """Return the Python file or folder that a source is, or would be; None for a command line."""
    words = source.strip()
    path = os.path.join(folder, os.path.expanduser(source))
    is_python = os.path.isdir(path) or (path.endswith(".py") and os.path.isfile(path))
    looks_like_one = " " not in words and (words.endswith(".py") or words.startswith(_PATH_STARTS))
    if words and (is_python or (looks_like_one and not os.path.exists(path))):
        return Path(path)
    return None


def open_source(
    wanted: Wanted, name: str, folder: Path, limits: PlugLimits, tasks: "TaskGroup"
) -> Plug:
    """Return the plug for a source, not yet opened.

    Raises:
        PlugError: it is no command line, and nothing else either.
    """
    from guildry.tools.mcp.connection import Endpoint
    from guildry.tools.mcp.plug import McpPlug
    from guildry.tools.python.plug import PythonPlug

    source = wanted.source
    if _URL.match(source):
        return McpPlug(source, name, Endpoint(url=source), tasks=tasks, limits=limits)
    if (path := _path_of(source, folder)) is None:
        endpoint = Endpoint(command=tuple(_split(source)), env=wanted.options.env, folder=folder)
        return McpPlug(source, name, endpoint, tasks=tasks, limits=limits)
    return PythonPlug(source, name, path=path.resolve(), limits=limits)

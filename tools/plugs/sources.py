"""What a source is: a Python file or folder, a URL, or a command line. Opens nothing itself."""

import os
import re
import shlex
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol
from urllib.parse import urlsplit

from guildry.errors import PlugError
from guildry.tools.plugs.plug import Plug, PlugLimits, Wanted
from guildry.tools.plugs.special import Special, special_of

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from guildry.tools.mcp.servers import Servers

__all__ = ["Opening", "derive_name", "open_source"]

_URL: Final = re.compile(r"https?://", re.IGNORECASE)
_HEADER_NAME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE: Final = re.compile(r"[!-~](?:[ -~]*[!-~])?")
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
    if (special := special_of(source, folder)) is not None:
        return special.name
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


class Opening(Protocol):
    """Gives the plug for a source."""

    def __call__(
        self, wanted: Wanted, name: str, folder: Path, limits: PlugLimits, tasks: "TaskGroup", /
    ) -> Plug:
        """Return the plug, not yet opened. Raises `PlugError` where the source is none."""
        ...


def open_source(
    wanted: Wanted,
    name: str,
    folder: Path,
    limits: PlugLimits,
    tasks: "TaskGroup",
    *,
    servers: "Servers | None" = None,
) -> Plug:
    """Return the plug for a source, not yet opened.

    Args:
        wanted: the source, and what is said of it.
        name: on the board.
        folder: where relative paths are looked up and commands run.
        limits: how long each step may take.
        tasks: where a server is watched over.
        servers: what the MCP servers of the board share; each stands alone if None.

    Raises:
        PlugError: it is no command line, and nothing else either.
    """
    from guildry.tools.mcp.manifest import Endpoint
    from guildry.tools.mcp.plug import McpPlug

    source, options = wanted.source, wanted.options
    if (special := special_of(source, folder)) is not None:
        return _open_special(special, wanted, name, folder, limits, tasks, servers)
    if _URL.match(source):
        endpoint = Endpoint(url=source, headers=_checked(options.headers, source))
    elif (path := _path_of(source, folder)) is None:
        endpoint = Endpoint(
            command=tuple(_split(source)), env=options.env, folder=folder, sandbox=options.sandbox
        )
    else:
        from guildry.tools.python.plug import PythonPlug
        from guildry.tools.sandbox.confinement import wanted_sandbox

        sandbox = wanted_sandbox(options.sandbox, limits.sandbox)
        if sandbox is None:
            return PythonPlug(source, name, path=path.resolve(), limits=limits)
        from guildry.tools.sandbox.python_plug import SandboxedPython

        return SandboxedPython(
            source,
            name,
            path=path.resolve(),
            sandbox=sandbox,
            folder=folder,
            options=options,
            tasks=tasks,
            limits=limits,
            servers=servers,
        )
    return McpPlug(
        source, name, endpoint, tasks=tasks, limits=limits, options=options, servers=servers
    )


def _open_special(
    special: Special,
    wanted: Wanted,
    name: str,
    folder: Path,
    limits: PlugLimits,
    tasks: "TaskGroup",
    servers: "Servers | None",
) -> Plug:
    source = wanted.source
    if special.kind == "openapi":
        from guildry.tools.openapi.plug import OpenApiPlug

        return OpenApiPlug(source, name, special.where, wanted.options, limits)
    if special.kind == "package":
        from guildry.tools.plugs.entry_points import PackagePlug

        def opened(named: str) -> Plug:
            what = replace(wanted, source=named)
            return open_source(what, name, folder, limits, tasks, servers=servers)

        point = str(special.where)
        return PackagePlug(source, name, point, opened=opened, start_s=limits.start_s)
    raise PlugError(source, "it stands for several plugs", "Plug each of them by itself")


def _checked(headers: Mapping[str, str], source: str) -> Mapping[str, str]:
    """Return headers that can be sent. Elsewhere an error would quote the value of a wrong one."""
    for name, value in headers.items():
        if not _HEADER_NAME.fullmatch(name):
            why = f"{name!r} is no name of an HTTP header"
            raise PlugError(source, why, "Use letters, digits and `-`")
        if not _HEADER_VALUE.fullmatch(value):
            why = f"the value of the header `{name}` cannot be sent"
            cure = "It may hold printable ASCII characters only, and no space at its ends"
            raise PlugError(source, why, cure)
    return headers

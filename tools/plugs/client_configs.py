"""Files in which MCP clients name their servers, as plugs: one for each server.

Where the facts are from: code.claude.com/docs/en/mcp, code.visualstudio.com/docs/agents/reference/
mcp-configuration, cursor.com/docs/mcp, zed.dev/docs/ai/mcp, developers.openai.com/codex/mcp and
geminicli.com/docs/tools/mcp-server. Reads one file; starts nothing.
"""

import json
import os
import re
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from guildry.errors import PlugError
from guildry.tools.base import Json
from guildry.tools.plugs.assemblies import Expanded, inherited
from guildry.tools.plugs.options import PlugOptions
from guildry.tools.plugs.plug import Quarantined, Wanted
from guildry.tools.redaction import HIDDEN
from guildry.tools.schema import as_list, as_object

__all__ = ["Lookup", "read_config"]

Lookup = Callable[[str], str | None]
"""Gives the value of an environment variable, or None where it is not set."""

_MAX_BYTES: Final = 4 * 1024 * 1024
_KEYS: Final = ("mcpServers", "context_servers", "mcp_servers", "servers", "mcp")
_SLOT: Final = re.compile(r"\$\{([^{}]*)\}")
_BARE: Final = re.compile(r"\$([A-Za-z_][A-Za-z0-9_]*)")
_NAME: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_COMMENT: Final = re.compile(r'("(?:\\.|[^"\\])*+")|//[^\n]*|/\*(?:.*?\*/|.*)', re.DOTALL)
_COMMA: Final = re.compile(r'("(?:\\.|[^"\\])*+")|,(?=\s*[}\]])')
_LOOPBACK: Final = frozenset({"127.0.0.1", "localhost", "::1"})


class _Unfit(Exception):
    """Report an entry that cannot be a plug: why, and the cure."""


@dataclass(frozen=True, slots=True)
class _Places:
    """What `${…}` stands for besides variables."""

    lookup: Lookup
    home: Path
    folder: Path


def read_config(
    path: Path,
    *,
    source: str,
    options: PlugOptions,
    lookup: Lookup,
    own_port: int | None = None,
) -> Expanded:
    """Return the servers that a client's file names. Those that are switched off are not told of.

    Args:
        path: the file.
        source: how it was written, for errors.
        options: said of all of its servers; `env` answers `${env:NAME}` and `${input:NAME}` first.
        lookup: gives environment variables.
        own_port: where this server listens itself, so that it is not plugged into itself.

    Raises:
        PlugError: the file cannot be read, or names no servers.
    """
    servers = _servers(_parsed(path, source), source)
    places = _Places(
        lookup=lambda name: options.env.get(name) or lookup(name),
        home=Path.home(),
        folder=path.parent.parent if path.parent.name.startswith(".") else path.parent,
    )
    members: dict[str, Wanted] = {}
    left_out: list[Quarantined] = []
    for name, node in servers.items():
        entry = as_object(node)
        if entry is None or _is_off(entry) or _is_own(name, entry, own_port):
            continue
        try:
            wanted = _wanted(entry, places)
        except _Unfit as error:
            left_out.append(Quarantined(name, str(error)))
        else:
            members[name] = replace(wanted, options=inherited(options, wanted.options))
    return Expanded(members, tuple(left_out))


def _parsed(path: Path, source: str) -> Mapping[str, Json]:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        reason = f"it cannot be read ({error.strerror or error})"
        raise PlugError(source, reason, "Check the path") from error
    if len(data) > _MAX_BYTES:
        raise PlugError(source, f"it has over {_MAX_BYTES:,} bytes", "Give a client's settings")
    try:
        text = data.decode("utf-8-sig")
        found = _toml(text) if path.suffix.lower() == ".toml" else _json(text)
    except (ValueError, RecursionError) as error:
        raise PlugError(source, f"it cannot be read: {error}", "Mend it there") from error
    return as_object(found) or {}


def _toml(text: str) -> Json:
    import tomllib

    return tomllib.loads(text)


def _json(text: str) -> Json:
    """Return JSON, which may have comments and commas at ends as settings of editors do."""
    try:
        return json.loads(text)
    except ValueError:
        plain = _COMMENT.sub(lambda match: match[1] or " ", text)
        return json.loads(_COMMA.sub(lambda match: match[1] or "", plain))


def _servers(root: Mapping[str, Json], source: str) -> Mapping[str, Json]:
    for key in _KEYS:
        servers = as_object(root.get(key))
        if servers is not None and key == "mcp":  # in VS Code's settings, or opencode's
            servers = as_object(servers.get("servers")) or servers
        if servers is not None:
            return servers
    raise PlugError(
        source, "it names no MCP servers", f"Give a file with one of {', '.join(_KEYS[:4])}"
    )


def _is_off(entry: Mapping[str, Json]) -> bool:
    return entry.get("disabled") is True or entry.get("enabled") is False


def _is_own(name: str, entry: Mapping[str, Json], own_port: int | None) -> bool:
    """Tell whether an entry is Guildry itself, which would be plugged into itself."""
    if name.lower() == "guildry":
        return True
    if url := _url(entry):
        try:
            parts = urlsplit(url)
            return own_port is not None and parts.hostname in _LOOPBACK and parts.port == own_port
        except ValueError:
            return False
    words = [os.path.basename(str(word)) for word in _words(entry)[:4]]
    return any(re.fullmatch(r"guildry(\.exe|\.server.*)?", word) for word in words)


def _words(entry: Mapping[str, Json]) -> list[Json]:
    command = entry.get("command")
    told = as_object(command)  # as Zed had it
    if told is not None:
        return [told.get("path"), *as_list(told.get("args"))]
    return [*(as_list(command) or [command]), *as_list(entry.get("args"))]


def _url(entry: Mapping[str, Json]) -> str | None:
    for key in ("url", "httpUrl", "serverUrl"):
        if isinstance(found := entry.get(key), str) and found:
            return found
    return None


def _wanted(entry: Mapping[str, Json], places: _Places) -> Wanted:
    """Return the plug of an entry.

    Raises:
        _Unfit: it has neither command nor URL, or takes a value that is not there.
    """
    timeout_s = entry.get("tool_timeout_sec")
    limited = PlugOptions(call_timeout_s=timeout_s if _is_number(timeout_s) else None)
    if url := _url(entry):
        headers = _texts(entry.get("headers") or entry.get("http_headers"), places)
        for name, variable in _texts(entry.get("env_http_headers"), places).items():
            headers[name] = _variable(variable, places)
        if isinstance(token := entry.get("bearer_token_env_var"), str):
            headers["Authorization"] = f"Bearer {_variable(token, places)}"
        HIDDEN.hide(_taken(url, places))  # what is put into a URL is listed with it
        return Wanted(_filled(url, places), options=replace(limited, headers=headers))
    words = _words(entry)
    if not words[0] or not all(isinstance(word, str | int | float) for word in words):
        raise _Unfit("it has neither a `command` nor a `url`: give one of them")
    env = _environment(entry, places)
    command, taken = _command([str(word) for word in words], entry.get("cwd"), places)
    return Wanted(command, options=replace(limited, env={**taken, **env}))


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _environment(entry: Mapping[str, Json], places: _Places) -> dict[str, str]:
    env: dict[str, str] = {}
    if isinstance(file := entry.get("envFile"), str):
        env |= _env_file(Path(_filled(file, places)).expanduser(), places.folder)
    told = as_object(entry.get("command")) or entry
    env |= _texts(told.get("env") or entry.get("environment"), places)
    for name in as_list(entry.get("env_vars")):
        env[str(name)] = _variable(str(name), places)
    return env


def _env_file(path: Path, folder: Path) -> dict[str, str]:
    try:
        lines = (folder / path).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise _Unfit(f"its `envFile` cannot be read ({error}): check the path") from error
    pairs = (line.strip().removeprefix("export ").partition("=") for line in lines)
    return {
        name.strip(): value.strip().strip("\"'")
        for name, sign, value in pairs
        if sign and name[0] != "#"
    }


def _command(words: list[str], cwd: Json, places: _Places) -> tuple[str, dict[str, str]]:
    """Return a command line, and the variables that it takes.

    Values of variables do not stand in the command line, where they would be listed: a shell puts
    them in.
    """
    taken: dict[str, str] = {}
    written = [_shell_word(word, places, taken) for word in words]
    folder = f"cd {shlex.quote(_filled(cwd, places))} && " if isinstance(cwd, str) and cwd else ""
    if not taken and not folder:
        return " ".join(written), taken
    return shlex.join(["sh", "-c", f"{folder}exec {' '.join(written)}"]), taken


def _shell_word(word: str, places: _Places, taken: dict[str, str]) -> str:
    parts: list[str] = []
    end = 0
    for match in _SLOT.finditer(word):
        name, _ = _asked(match[1])
        if name is None or not _NAME.fullmatch(name):
            continue
        parts += [shlex.quote(_filled(word[end : match.start()], places)), f'"${{{name}}}"']
        taken[name] = _filled(match[0], places)
        end = match.end()
    rest = _filled(word[end:], places)
    parts += [shlex.quote(rest)] if rest or not parts else []
    return "".join(part for part in parts if part != "''" or len(parts) == 1)


def _texts(node: Json, places: _Places) -> dict[str, str]:
    """Return variables or headers, with what `${…}` and `$NAME` stand for."""
    texts: dict[str, str] = {}
    for name, value in (as_object(node) or {}).items():
        if value is None or isinstance(value, dict | list):
            raise _Unfit(f"the value of `{name}` is no text: write text")
        text = value if isinstance(value, str) else json.dumps(value)
        bare = _BARE.fullmatch(text)
        texts[name] = _variable(bare[1], places) if bare else _filled(text, places)
    return texts


def _variable(name: str, places: _Places) -> str:
    value = places.lookup(name)
    if value is None:
        raise _Unfit(f"it takes `{name}` from the environment, where it is not set: set it")
    return value


def _asked(said: str) -> tuple[str | None, str | None]:
    """Return the variable that `${…}` asks for, and the value where it is not set."""
    name, sign, usual = said.removeprefix("env:").partition(":-")
    is_one = said.startswith("env:") or bool(_NAME.fullmatch(name))
    if not is_one or name in ("userHome", "workspaceFolder", "workspaceFolderBasename"):
        return None, None
    return name, usual if sign else None


def _filled(text: str, places: _Places) -> str:
    """Return a text with what `${…}` stands for in it.

    Raises:
        _Unfit: nobody here can say what.
    """

    def value(match: re.Match[str]) -> str:
        said = match[1]
        name, usual = _asked(said)
        if name is not None:
            found = places.lookup(name)
            return (
                _variable(name, places) if found is None and usual is None else found or usual or ""
            )
        if said.startswith("input:"):
            found = places.lookup(said.removeprefix("input:"))
            if found is None:
                raise _Unfit(
                    f"it asks its client for the input `{said.removeprefix('input:')}`: give the"
                    " value in `env` of this plug, under that name"
                )
            return found
        return _place(said, places)

    return _SLOT.sub(value, text)


def _taken(text: str, places: _Places) -> list[str]:
    """Return the values of variables and inputs in a text."""
    names = (_asked(said)[0] or said.removeprefix("input:") for said in _SLOT.findall(text))
    return [value for name in names if (value := places.lookup(name))]


def _place(said: str, places: _Places) -> str:
    match said:
        case "userHome":
            return str(places.home)
        case "workspaceFolder":
            return str(places.folder)
        case "workspaceFolderBasename":
            return places.folder.name
        case "pathSeparator" | "/":
            return os.sep
        case _:
            raise _Unfit(f"`${{{said[:80]}}}` is known to its client alone: write the value")

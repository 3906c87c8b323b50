"""The MCP clients that Guildry installs itself into: where each keeps its servers, in what form.

Where the facts are from: code.claude.com/docs/en/mcp and modelcontextprotocol.io/docs/develop/
connect-local-servers (Claude), code.visualstudio.com/docs/agents/reference/mcp-configuration,
cursor.com/docs/mcp, developers.openai.com/codex/mcp, geminicli.com/docs/tools/mcp-server and
zed.dev/docs/ai/mcp. Reads and writes no file.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from guildry.errors import UsageError
from guildry.tools.registry import nearest

__all__ = ["CLIENTS", "Client", "Entry", "Machine", "Platform", "Scope", "client_named"]

Platform = Literal["linux", "macos", "windows"]

Scope = Literal["user", "project"]
"""For all that one user does, or for who works in one folder."""

Entry = dict[str, Any]
"""What a client's file says of one server."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What decides where files are.

    Args:
        platform: the operating system.
        home: the user's folder.
        folder: the project's folder.
        environment: variables, of which a few move a client's files.
    """

    platform: Platform
    home: Path
    folder: Path
    environment: Mapping[str, str]

    def moved(self, variable: str, *usual: str) -> Path:
        """Return the folder that a variable names, or the usual one below the home."""
        named = self.environment.get(variable)
        return Path(named) if named else self.home.joinpath(*usual)

    @property
    def settings(self) -> Path:
        """The folder in which programs keep their settings on this system."""
        if self.platform == "windows":
            return self.moved("APPDATA", "AppData", "Roaming")
        if self.platform == "macos":
            return self.home / "Library" / "Application Support"
        return self.moved("XDG_CONFIG_HOME", ".config")


@dataclass(frozen=True, slots=True, kw_only=True)
class Client:
    """One client.

    Args:
        name: as it is typed.
        title: as its maker calls it.
        key: the table of servers in its file.
        user: its file for one user; None for a client that is given a path.
        project: its file in a project, relative; None where it has none.
        kind: how its file is written; `json` may have comments.
        stdio: members of an entry besides `command` and `args`.
        http: the entry for a URL, where `{}` stands for it; None where it takes only commands.
        after: what is left to do by hand.
    """

    name: str
    title: str
    key: str
    user: Callable[[Machine], Path] | None
    project: str | None
    kind: Literal["json", "toml"] = "json"
    stdio: Mapping[str, Any]
    http: Mapping[str, str] | None
    after: str

    def file(self, machine: Machine, scope: Scope) -> Path:
        """Return the file that names its servers.

        Raises:
            UsageError: it has none for this scope.
        """
        if scope == "project":
            if self.project is None:
                raise UsageError(f"{self.title} has no settings for a project: use `--scope user`")
            return machine.folder / self.project
        if self.user is None:
            raise UsageError(f"`{self.name}` needs the path of its file: give it after the name")
        return self.user(machine)

    def folder(self, machine: Machine) -> Path:
        """Return the folder that it makes at its first start: where there is none, it is not there.

        Raises:
            UsageError: it is given a path.
        """
        if self.user is _claude_code and "CLAUDE_CONFIG_DIR" not in machine.environment:
            return machine.home / ".claude"
        return self.file(machine, "user").parent

    def entry(self, command: tuple[str, ...] = (), url: str | None = None) -> Entry:
        """Return what its file is to say of a server: a command to start, or where it is served.

        Raises:
            UsageError: it takes only commands.
        """
        if url is None:
            return {**self.stdio, "command": command[0], "args": list(command[1:])}
        if self.http is None:
            raise UsageError(
                f"the file of {self.title} takes commands only: leave `--http` out, or add the URL"
                " as a connector in its settings"
            )
        return {key: value.format(url) for key, value in self.http.items()}

    def governed(self) -> frozenset[str]:
        """Return the members of an entry that are Guildry's; others are the user's."""
        return frozenset({"command", "args", *self.stdio, *(self.http or ()), *_TRANSPORTS})


_TRANSPORTS: Final = ("type", "url", "httpUrl")
_URL: Final = {"url": "{}"}
_TYPED_URL: Final = {"type": "http", "url": "{}"}


def _claude_code(machine: Machine) -> Path:
    return machine.moved("CLAUDE_CONFIG_DIR") / ".claude.json"


def _claude_desktop(machine: Machine) -> Path:
    return machine.settings / "Claude" / "claude_desktop_config.json"


def _vscode(machine: Machine) -> Path:
    return machine.settings / "Code" / "User" / "mcp.json"


def _cursor(machine: Machine) -> Path:
    return machine.home / ".cursor" / "mcp.json"


def _codex(machine: Machine) -> Path:
    return machine.moved("CODEX_HOME", ".codex") / "config.toml"


def _gemini(machine: Machine) -> Path:
    return machine.home / ".gemini" / "settings.json"


def _zed(machine: Machine) -> Path:
    if machine.platform == "windows":
        return machine.settings / "Zed" / "settings.json"
    if machine.platform == "macos":
        return machine.home / ".config" / "zed" / "settings.json"
    return machine.settings / "zed" / "settings.json"


CLIENTS: Final[tuple[Client, ...]] = (
    Client(
        name="claude-desktop",
        title="Claude Desktop",
        key="mcpServers",
        user=_claude_desktop,
        project=None,
        stdio={},
        http=None,
        after="Quit Claude Desktop and start it again.",
    ),
    Client(
        name="claude-code",
        title="Claude Code",
        key="mcpServers",
        user=_claude_code,
        project=".mcp.json",
        stdio={"type": "stdio"},
        http=_TYPED_URL,
        after="`/mcp` in the next session shows it.",
    ),
    Client(
        name="vscode",
        title="VS Code",
        key="servers",
        user=_vscode,
        project=".vscode/mcp.json",
        stdio={"type": "stdio"},
        http=_TYPED_URL,
        after="`MCP: List Servers` in VS Code starts it.",
    ),
    Client(
        name="cursor",
        title="Cursor",
        key="mcpServers",
        user=_cursor,
        project=".cursor/mcp.json",
        stdio={},
        http=_URL,
        after="Turn it on under MCP in Cursor's settings.",
    ),
    Client(
        name="codex",
        title="Codex",
        key="mcp_servers",
        user=_codex,
        project=".codex/config.toml",
        kind="toml",
        stdio={},
        http=_URL,
        after="`/mcp` in the next session shows it.",
    ),
    Client(
        name="gemini-cli",
        title="Gemini CLI",
        key="mcpServers",
        user=_gemini,
        project=".gemini/settings.json",
        stdio={},
        http={"httpUrl": "{}"},
        after="`/mcp` in the next session shows it.",
    ),
    Client(
        name="zed",
        title="Zed",
        key="context_servers",
        user=_zed,
        project=".zed/settings.json",
        stdio={},
        http=_URL,
        after="The settings of Zed's agent panel show it.",
    ),
    Client(
        name="mcp-json",
        title="The file",
        key="mcpServers",
        user=None,
        project=None,
        stdio={},
        http=_TYPED_URL,
        after="Point your client at the file.",
    ),
)
"""The clients that are known; `mcp-json` is any other, by the path of its file."""


def client_named(name: str) -> Client:
    """Return the client of that name.

    Raises:
        UsageError: there is none; names the nearest, or all.
    """
    names = [client.name for client in CLIENTS]
    if name not in names:
        near = nearest(name, names)
        cure = f"did you mean `{near}`?" if near else f"there are {', '.join(names)}"
        raise UsageError(f"there is no client {name!r} here: {cure}")
    return CLIENTS[names.index(name)]

"""Clients: where each keeps its servers on each system, and what it says of one."""

from pathlib import Path

import pytest

from guildry.errors import UsageError
from guildry.server.install.clients import CLIENTS, Machine, Platform, client_named

HOME, FOLDER = Path("/home/ada"), Path("/work/project")
COMMAND = ("/bin/guildry", "serve", "--stdio")
ARGUMENTS = {"command": "/bin/guildry", "args": ["serve", "--stdio"]}
URL = "http://127.0.0.1:8765/mcp"

USER_FILES: dict[str, tuple[str, ...]] = {
    "claude-desktop": (
        ".config/Claude/claude_desktop_config.json",
        "Library/Application Support/Claude/claude_desktop_config.json",
        "AppData/Roaming/Claude/claude_desktop_config.json",
    ),
    "claude-code": (".claude.json",) * 3,
    "vscode": (
        ".config/Code/User/mcp.json",
        "Library/Application Support/Code/User/mcp.json",
        "AppData/Roaming/Code/User/mcp.json",
    ),
    "cursor": (".cursor/mcp.json",) * 3,
    "codex": (".codex/config.toml",) * 3,
    "gemini-cli": (".gemini/settings.json",) * 3,
    "zed": (
        ".config/zed/settings.json",
        ".config/zed/settings.json",
        "AppData/Roaming/Zed/settings.json",
    ),
}
PLATFORMS: tuple[Platform, ...] = ("linux", "macos", "windows")


def machine(platform: Platform, **environment: str) -> Machine:
    return Machine(platform, HOME, FOLDER, environment)


@pytest.mark.parametrize("name", USER_FILES)
@pytest.mark.parametrize("platform", PLATFORMS)
def test_the_file_of_a_user_is_where_the_client_looks(name: str, platform: Platform) -> None:
    file = client_named(name).file(machine(platform), "user")

    assert file == HOME / USER_FILES[name][PLATFORMS.index(platform)]


@pytest.mark.parametrize(
    ("name", "platform", "variable", "file"),
    [
        ("claude-desktop", "linux", "XDG_CONFIG_HOME", "Claude/claude_desktop_config.json"),
        ("claude-desktop", "windows", "APPDATA", "Claude/claude_desktop_config.json"),
        ("claude-code", "macos", "CLAUDE_CONFIG_DIR", ".claude.json"),
        ("vscode", "linux", "XDG_CONFIG_HOME", "Code/User/mcp.json"),
        ("vscode", "windows", "APPDATA", "Code/User/mcp.json"),
        ("codex", "linux", "CODEX_HOME", "config.toml"),
        ("zed", "linux", "XDG_CONFIG_HOME", "zed/settings.json"),
        ("zed", "windows", "APPDATA", "Zed/settings.json"),
    ],
)
def test_the_variables_that_move_a_file_are_heeded(
    name: str, platform: Platform, variable: str, file: str
) -> None:
    found = client_named(name).file(machine(platform, **{variable: "/moved"}), "user")

    assert found == Path("/moved") / file


def test_zed_on_macos_heeds_no_variable() -> None:
    moved = machine("macos", XDG_CONFIG_HOME="/moved", APPDATA="/moved")

    assert client_named("zed").file(moved, "user") == HOME / ".config/zed/settings.json"


def test_a_project_has_its_file_in_its_folder() -> None:
    found = {
        client.name: client.file(machine("linux"), "project").relative_to(FOLDER).as_posix()
        for client in CLIENTS
        if client.project is not None
    }

    assert found == {
        "claude-code": ".mcp.json",
        "vscode": ".vscode/mcp.json",
        "cursor": ".cursor/mcp.json",
        "codex": ".codex/config.toml",
        "gemini-cli": ".gemini/settings.json",
        "zed": ".zed/settings.json",
    }


def test_each_client_gets_an_entry_of_its_own_form() -> None:
    entries = {client.name: client.entry(COMMAND) for client in CLIENTS}
    served = {client.name: client.entry(url=URL) for client in CLIENTS if client.http is not None}

    assert entries == {
        "claude-desktop": ARGUMENTS,
        "claude-code": {"type": "stdio", **ARGUMENTS},
        "vscode": {"type": "stdio", **ARGUMENTS},
        "cursor": ARGUMENTS,
        "codex": ARGUMENTS,
        "gemini-cli": ARGUMENTS,
        "zed": ARGUMENTS,
        "mcp-json": ARGUMENTS,
    }
    assert served == {
        "claude-code": {"type": "http", "url": URL},
        "vscode": {"type": "http", "url": URL},
        "cursor": {"url": URL},
        "codex": {"url": URL},
        "gemini-cli": {"httpUrl": URL},
        "zed": {"url": URL},
        "mcp-json": {"type": "http", "url": URL},
    }
    assert {client.name: client.key for client in CLIENTS if client.key != "mcpServers"} == {
        "vscode": "servers",
        "codex": "mcp_servers",
        "zed": "context_servers",
    }


def test_a_client_is_known_by_the_folder_that_it_makes() -> None:
    claude = client_named("claude-code")

    assert claude.folder(machine("linux")) == HOME / ".claude"
    assert claude.folder(machine("linux", CLAUDE_CONFIG_DIR="/moved")) == Path("/moved")
    assert client_named("cursor").folder(machine("macos")) == HOME / ".cursor"


def test_what_a_client_cannot_do_is_said() -> None:
    desktop = client_named("claude-desktop")

    with pytest.raises(UsageError, match="no settings for a project: use `--scope user`"):
        desktop.file(machine("linux"), "project")
    with pytest.raises(UsageError, match="takes commands only: leave `--http` out"):
        desktop.entry(url=URL)
    with pytest.raises(UsageError, match="needs the path of its file"):
        client_named("mcp-json").file(machine("linux"), "user")
    with pytest.raises(UsageError, match="no client 'vs-code' here: did you mean `vscode`"):
        client_named("vs-code")
    with pytest.raises(UsageError, match="there are claude-desktop, claude-code, vscode"):
        client_named("??")

"""`install` and `uninstall` as processes: what they print and write, and that it starts."""

import json
import os
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client
from mcp.types import TextContent

TOOL = '''
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Hello, {name}!"
'''
URL = "http://127.0.0.1:8765/mcp"


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Desk:
    """A home and a project folder, and commands at work in them."""

    home: Path
    folder: Path

    @property
    def environment(self) -> dict[str, str]:
        gone = ("GUILDRY_", "XDG_", "CODEX_", "CLAUDE_", "APPDATA")
        kept = {key: value for key, value in os.environ.items() if not key.startswith(gone)}
        return {**kept, "HOME": str(self.home)}

    async def __call__(self, *args: str, **variables: str) -> Done:
        with anyio.fail_after(60):
            done = await anyio.run_process(
                [sys.executable, "-m", "guildry.server", *args],
                cwd=self.folder,
                env={**self.environment, **variables},
                check=False,
            )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    home, folder = tmp_path / "home", tmp_path / "project"
    (home / ".cursor").mkdir(parents=True)
    folder.mkdir()
    return Desk(home, folder)


async def test_what_was_written_starts_a_server_that_the_official_client_speaks_to(
    desk: Desk, tmp_path: Path
) -> None:
    (desk.folder / "greet.py").write_text(TOOL)
    (desk.folder / "guildry.toml").write_text('[plugs.greet]\nsource = "greet.py"\n')

    done = await desk("install", "mcp-json", "mcp.json", "--home", "state")
    entry = json.loads((desk.folder / "mcp.json").read_text())["mcpServers"]["guildry"]
    parameters = StdioServerParameters(**entry, cwd=tmp_path)
    with anyio.fail_after(60):
        async with Client(stdio_client(parameters)) as client:
            result = await client.call_tool("greet", {"name": "Ada"})

    assert done.code == 0, done.err
    assert os.path.isabs(entry["command"])
    assert entry["args"] == [
        *entry["args"][: entry["args"].index("--stdio") + 1],
        "--home",
        str(desk.folder / "state"),
        "--config",
        str(desk.folder / "guildry.toml"),
    ]
    (block,) = result.content
    assert isinstance(block, TextContent)
    assert block.text == "Hello, Ada!"


async def test_a_client_is_installed_into_looked_at_and_uninstalled(desk: Desk) -> None:
    file = desk.home / ".cursor/mcp.json"
    file.write_text('{"mcpServers": {"x": {"command": "y"}}}\n')

    looked = await desk("install", "cursor", "--dry-run")
    untouched = file.read_text()
    done = await desk("install", "cursor")
    again = await desk("install", "cursor")
    written = json.loads(file.read_text())
    gone = await desk("uninstall", "cursor")
    gone_again = await desk("uninstall", "cursor", "--json")

    assert [each.code for each in (looked, done, again, gone, gone_again)] == [0] * 5
    assert f"+++ {file}" in looked.out
    assert looked.out.endswith("Nothing was written.\n")
    assert untouched == file.read_text() == '{"mcpServers": {"x": {"command": "y"}}}\n'
    assert done.out.startswith(
        f"`guildry` is in {file}. The file before is mcp.json.guildry-backup"
    )
    assert "Cursor's settings" in done.out
    assert again.out == f"Nothing to do: `guildry` is in {file} already.\n"
    assert set(written["mcpServers"]) == {"x", "guildry"}
    assert gone.out.startswith(f"`guildry` is out of {file}.")
    assert gone_again.json == {
        "client": "cursor",
        "name": "guildry",
        "file": str(file),
        "changes": False,
        "written": False,
        "backup": None,
        "diff": "",
    }


async def test_a_project_a_name_and_a_url_can_be_given(desk: Desk) -> None:
    done = await desk(
        "install", "vscode", "--scope", "project", "--name", "tools", "--http", URL, "--json"
    )
    file = desk.folder / ".vscode/mcp.json"

    assert done.code == 0, done.err
    assert json.loads(file.read_text()) == {"servers": {"tools": {"type": "http", "url": URL}}}
    assert (done.json["written"], done.json["backup"]) == (True, None)
    assert "+++ " in done.json["diff"]


async def test_the_home_of_the_environment_is_written_and_no_other_variable(desk: Desk) -> None:
    done = await desk("install", "codex", "--force", GUILDRY_HOME=str(desk.folder / "state"))
    told = tomllib.loads((desk.home / ".codex/config.toml").read_text())
    entry = told["mcp_servers"]["guildry"]

    assert done.code == 0, done.err
    assert entry["args"][-2:] == ["--home", str(desk.folder / "state")]
    assert set(entry) == {"command", "args"}


async def test_a_client_that_is_not_there_is_only_written_for_when_forced(desk: Desk) -> None:
    refused = await desk("install", "claude-code")
    nowhere = await desk("install", "mcp-json", "no/such/mcp.json")
    there_before = (desk.home / ".claude.json").exists()
    forced = await desk("install", "claude-code", "--force")

    assert refused.code == 2
    assert "Claude Code is not on this machine, or was never started" in refused.err
    assert f"`{desk.home / '.claude'}`" in refused.err
    assert nowhere.code == 2
    assert "there is no folder" in nowhere.err
    assert not there_before
    assert forced.code == 0
    assert "guildry" in json.loads((desk.home / ".claude.json").read_text())["mcpServers"]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("cursr",), "did you mean `cursor`"),
        (("cursor", "--name", "a b"), "`--name` is 'a b'"),
        (("cursor", "--scope", "world"), "`--scope` is 'world'"),
        (("cursor", "--http", "ftp://x"), "`--http` is 'ftp://x'"),
        (("cursor", "--http", URL, "--stdio"), "exclude each other"),
        (("cursor", "mcp.json"), "keeps its own file"),
        (("claude-desktop", "--http", URL, "--force"), "takes commands only"),
        (("mcp-json",), "needs the path of its file"),
        (("mcp-json", "mcp.json", "--scope", "project"), "is told by the path"),
        (("cursor", "--config", "none.toml"), "is not there"),
    ],
)
async def test_what_is_wrong_is_said_and_nothing_is_written(
    desk: Desk, args: tuple[str, ...], told: str
) -> None:
    done = await desk("install", *args)

    assert done.code == 2
    assert told in done.err
    assert not (desk.home / ".cursor/mcp.json").exists()
    assert os.listdir(desk.folder) == []

"""The folder of plugs, OpenAPI documents and packages, as a server with settings has them."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from guildry.server.config import PlugSetting, load_settings
from guildry.server.doctor import examine
from guildry.server.surface import build_server
from guildry.tools.registry import Change

TOOL = 'def NAME(text: str) -> str:\n    """Say it."""\n    return text\n'
TEAM = """
name = "criers"
description = "Cry a text out."
pattern = "solo"
tools = ["first"]
"""


async def test_what_is_dropped_in_while_serving_is_announced_listed_and_callable(
    opened: Any, tmp_path: Path
) -> None:
    drop = tmp_path / "plugs"
    drop.mkdir()
    (drop / "first.py").write_text(TOOL.replace("NAME", "first"))
    (drop / "criers.toml").write_text(TEAM)
    (drop / "notes").mkdir()
    text = "---\nname: notes\ndescription: How to take notes.\n---\nTake them.\n"
    (drop / "notes" / "SKILL.md").write_text(text)
    seen: list[str] = []
    came = anyio.Event()

    def hear(change: Change) -> None:
        seen.extend(change.added)
        if "second" in seen:
            came.set()

    with anyio.fail_after(60):
        async with opened(plugs_folder=drop) as app:
            app.catalog.subscribe(hear)
            (drop / "second.py").write_text(TOOL.replace("NAME", "second"))
            await came.wait()
            async with Client(build_server(app)) as client:
                names = {tool.name for tool in (await client.list_tools()).tools}
                said = await client.call_tool("second", {"text": "x"})
            kinds = {status.name: status.kind for status in app.plugs.listing()}
            members = app.plugs.listing()[0].as_json()["members"]

    assert {"first", "second", "team_criers"} <= names
    assert said.content[0].model_dump()["text"] == "x"
    assert kinds == {
        "plugs": "folder",
        "criers": "team",
        "first": "python",
        "notes": "skills",
        "second": "python",
    }
    assert members == ["criers", "first", "notes", "second"]


async def test_a_folder_called_plugs_beside_the_configuration_is_the_folder_of_plugs(
    tmp_path: Path,
) -> None:
    (tmp_path / "guildry.toml").write_text(f'home = "{tmp_path / "home"}"\n')
    before = load_settings({}, cwd=tmp_path)
    (tmp_path / "plugs").mkdir()
    after = load_settings({}, cwd=tmp_path)
    named = load_settings({"plugs_folder": "other"}, cwd=tmp_path)

    assert before.plugs_folder is None
    assert after.plugs_folder == tmp_path / "plugs"
    assert named.plugs_folder == tmp_path / "other"


async def test_a_document_in_the_configuration_is_served_and_its_deletions_are_asked_about(
    opened: Any, tmp_path: Path
) -> None:
    paths = {"/x": {"delete": {"operationId": "drop"}}}
    server = [{"url": "http://127.0.0.1:9"}]
    said = {"openapi": "3.1.0", "servers": server, "paths": paths}
    (tmp_path / "api.json").write_text(json.dumps(said))
    setting = PlugSetting(source=str(tmp_path / "api.json"), env={"key": "s3cret-key"})
    with anyio.fail_after(60):
        async with opened(plugs={"api": setting}, ask_wait_s=0.1) as app:
            async with Client(build_server(app)) as client:
                result = await client.call_tool("drop", {})

    assert result.is_error
    assert "s3cret-key" not in repr(result)


@pytest.mark.parametrize("name", ["mcp.json", "config.toml"])
async def test_a_client_s_file_in_the_configuration_gives_its_servers(
    opened: Any, tmp_path: Path, name: str
) -> None:
    text = {
        "mcp.json": '{"mcpServers": {"gone": {"command": "no-such-program-x"}}}',
        "config.toml": '[mcp_servers.gone]\ncommand = "no-such-program-x"\n',
    }[name]
    (tmp_path / name).write_text(text)
    with anyio.fail_after(60):
        async with opened(plugs={"codex": PlugSetting(source=str(tmp_path / name))}) as app:
            states = {status.name: status.state for status in app.plugs.listing()}

    assert states == {"codex": "ready", "gone": "failed"}


async def test_the_doctor_looks_into_the_folder_of_plugs(tmp_path: Path) -> None:
    (tmp_path / "guildry.toml").write_text(f'home = "{tmp_path / "home"}"\n')
    (tmp_path / "plugs").mkdir()
    (tmp_path / "plugs" / "odd.bin").write_text("?")
    with anyio.fail_after(120):
        findings = await examine(load_settings({}, cwd=tmp_path))
    told = [each.detail for each in findings if each.check == "plug plugs"]

    assert any("`odd.bin` is left out" in each for each in told)

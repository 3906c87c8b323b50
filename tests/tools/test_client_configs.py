"""Sources that stand for several plugs: files of MCP clients, and watched folders."""

import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from guildry.errors import PlugError
from guildry.tools.base import Call, Text
from guildry.tools.plugs.assembler import Assembler
from guildry.tools.plugs.board import PlugBoard
from guildry.tools.plugs.client_configs import read_config
from guildry.tools.plugs.options import PlugOptions
from guildry.tools.plugs.plug import LIMITS, PlugLimits, PlugStatus, Wanted
from guildry.tools.plugs.sources import open_source
from guildry.tools.registry import Catalog

SERVER = """
import os
import sys

from mcp.server.mcpserver import MCPServer

server = MCPServer("small")


@server.tool()
def NAME() -> str:
    return "|".join([os.environ.get("KEY", ""), os.path.basename(os.getcwd()), *sys.argv[1:]])


server.run()
"""
VARIABLES = {"TOKEN": "s3cret-token", "EMPTY": ""}


def expanded(path: Path, said: Any, **env: str) -> tuple[dict[str, Wanted], dict[str, str]]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(said if isinstance(said, str) else json.dumps(said))
    found = read_config(
        path,
        source=str(path),
        options=PlugOptions(env=env, tags=("mine",)),
        lookup=VARIABLES.get,
        own_port=8765,
    )
    assert all(each.options.tags == ("mine",) for each in found.members.values())
    return dict(found.members), {each.tool: each.reason for each in found.left_out}


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("mcp.json", {"mcpServers": {"a": {"command": "npx", "args": ["-y", "a b"]}}}),
        ("mcp.json", {"inputs": [], "servers": {"a": {"command": "npx", "args": ["-y", "a b"]}}}),
        (
            "settings.json",
            '// Zed\n{"theme": "x//y", /* all */ "context_servers": {"a": {"command":'
            ' {"path": "npx", "args": ["-y", "a b",],},},},}',
        ),
        ("settings.json", {"mcp": {"servers": {"a": {"command": "npx", "args": ["-y", "a b"]}}}}),
        ("opencode.json", {"mcp": {"a": {"type": "local", "command": ["npx", "-y", "a b"]}}}),
        ("config.toml", '[mcp_servers.a]\ncommand = "npx"\nargs = ["-y", "a b"]\n'),
    ],
)
def test_the_files_of_every_client_give_the_same_plug(tmp_path: Path, name: str, said: Any) -> None:
    members, left_out = expanded(tmp_path / name, said)

    assert {key: each.source for key, each in members.items()} == {"a": "npx -y 'a b'"}
    assert left_out == {}


def test_variables_and_inputs_are_filled_in_and_do_not_stand_in_the_command(
    tmp_path: Path,
) -> None:
    servers = {
        "env": {
            "command": "a",
            "env": {"A": "${env:TOKEN}", "B": "$TOKEN", "C": "x${TOKEN}y", "D": 1},
        },
        "args": {"command": "a", "args": ["--key=${env:TOKEN}", "it's $HOME", "${NONE:-usual}"]},
        "cwd": {"command": "a", "cwd": "${workspaceFolder}/x y"},
        "headers": {"url": "https://h/mcp", "headers": {"Authorization": "Bearer ${input:pat}"}},
        "input": {"url": "https://h/mcp", "headers": {"X": "${input:other}"}},
        "unset": {"command": "a", "env": {"A": "${env:NOT_SET}"}},
        "strange": {"command": "a", "args": ["${command:pick}"]},
        "nothing": {"type": "stdio"},
        "nested": {"command": "a", "env": {"A": {"b": 1}}},
    }
    file = tmp_path / ".vscode" / "mcp.json"
    members, left_out = expanded(file, {"servers": servers}, pat="pat-123")

    assert members["env"].options.env == {
        "A": "s3cret-token",
        "B": "s3cret-token",
        "C": "xs3cret-tokeny",
        "D": "1",
    }
    assert members["args"].options.env == {"TOKEN": "s3cret-token", "NONE": "usual"}
    assert "s3cret" not in members["args"].source
    assert members["cwd"].source == f"sh -c 'cd '\"'\"'{tmp_path}/x y'\"'\"' && exec a'"
    assert members["headers"].options.headers == {"Authorization": "Bearer pat-123"}
    assert {name: reason.split(":")[0] for name, reason in left_out.items()} == {
        "input": "it asks its client for the input `other`",
        "unset": "it takes `NOT_SET` from the environment, where it is not set",
        "strange": "`${command",
        "nothing": "it has neither a `command` nor a `url`",
        "nested": "the value of `A` is no text",
    }


def test_servers_that_are_off_and_guildry_itself_are_left_out_quietly(tmp_path: Path) -> None:
    servers = {
        "off": {"command": "a", "disabled": True},
        "not on": {"command": "a", "enabled": False},
        "Guildry": {"command": "a"},
        "us": {"command": "/usr/bin/guildry", "args": ["serve"]},
        "uvx": {"command": "uvx", "args": ["guildry"]},
        "module": {"command": "python", "args": ["-m", "guildry.server"]},
        "url": {"url": "http://127.0.0.1:8765/mcp"},
        "other": {"url": "http://127.0.0.1:8766/mcp"},
    }
    members, left_out = expanded(tmp_path / "mcp.json", {"mcpServers": servers})

    assert (list(members), left_out) == (["other"], {})


def test_codex_names_variables_for_headers_and_tokens(tmp_path: Path) -> None:
    said = """
[mcp_servers.web]
url = "https://h/mcp"
bearer_token_env_var = "TOKEN"
http_headers = { X = "1" }
env_http_headers = { Y = "TOKEN" }
tool_timeout_sec = 7
[mcp_servers.local]
command = "a"
env_vars = ["TOKEN"]
"""
    members, _ = expanded(tmp_path / "config.toml", said)

    assert members["web"].options.headers == {
        "X": "1",
        "Y": "s3cret-token",
        "Authorization": "Bearer s3cret-token",
    }
    assert members["web"].options.call_timeout_s == 7
    assert members["local"].options.env == {"TOKEN": "s3cret-token"}


@pytest.mark.parametrize(
    ("said", "word"),
    [("{", "cannot be read"), ("[]", "no MCP servers"), ('{"x": 1}', "no MCP servers")],
)
def test_a_file_that_names_no_servers_is_refused(tmp_path: Path, said: str, word: str) -> None:
    with pytest.raises(PlugError, match=word):
        expanded(tmp_path / "mcp.json", said)


@asynccontextmanager
async def board(
    folder: Path, limits: PlugLimits = LIMITS
) -> AsyncGenerator[tuple[PlugBoard, Catalog]]:
    catalog = Catalog()
    assembler = Assembler(open_source, lookup=VARIABLES.get)
    with anyio.fail_after(90):
        async with PlugBoard(catalog, folder=folder, opening=assembler, limits=limits) as plugs:
            assembler.board = plugs
            yield plugs, catalog


async def say(catalog: Catalog, name: str) -> str:
    tool = catalog.current.get(name)
    outcome = await tool.invoke({}, Call(tool, None))
    assert isinstance(outcome.blocks[0], Text)
    return outcome.blocks[0].text


async def until(catalog: Catalog, *names: str) -> None:
    """Wait until exactly these tools are served."""
    there = anyio.Event()

    def look(_: object = None) -> None:
        if set(catalog.current.tools) == set(names):
            there.set()

    stop = catalog.subscribe(look)
    look()
    await there.wait()
    stop()


def states(plugs: PlugBoard) -> dict[str, str]:
    return {status.name: status.state for status in plugs.listing()}


def named(plugs: PlugBoard, name: str) -> PlugStatus:
    return next(status for status in plugs.listing() if status.name == name)


async def test_each_server_of_a_client_is_a_plug_that_comes_and_goes_with_the_file(
    tmp_path: Path,
) -> None:
    for name in ("one", "two", "three"):
        (tmp_path / f"{name}.py").write_text(SERVER.replace("NAME", name))

    def entry(name: str) -> dict[str, Any]:
        args = [str(tmp_path / f"{name}.py"), "${env:TOKEN}"]
        return {
            "command": sys.executable,
            "args": args,
            "env": {"KEY": "k"},
            "cwd": str(tmp_path),
        }

    file = tmp_path / "cursor" / "mcp.json"
    file.parent.mkdir()
    servers = {"one": entry("one"), "two": entry("two"), "bad": {"command": "no-such-program-x"}}
    file.write_text(json.dumps({"mcpServers": servers}))
    limits = PlugLimits(start_s=30, close_s=0.5)
    async with board(tmp_path, limits) as (plugs, catalog):
        report = await plugs.plug(str(file))
        said = await say(catalog, "one")
        listed = repr(plugs.listing())
        first = states(plugs)
        del servers["one"], servers["bad"]
        servers["three"] = entry("three")
        file.write_text(json.dumps({"mcpServers": servers}))
        await until(catalog, "two", "three")
        while "bad" in states(plugs):
            await anyio.lowlevel.checkpoint()
        second = states(plugs)
        file.write_text("{")
        with pytest.raises(PlugError):
            await plugs.reload("cursor")
        kept = set(catalog.current.tools)
        await plugs.unplug("cursor")
        last = states(plugs)

    assert report.as_json()["members"] == ["one", "two", "bad"]
    assert said == f"k|{tmp_path.name}|s3cret-token"
    assert "s3cret-token" not in listed.replace("'TOKEN'", "")
    assert first == {"cursor": "ready", "one": "ready", "two": "ready", "bad": "failed"}
    assert second == {"cursor": "ready", "two": "ready", "three": "ready"}
    assert (kept, last) == ({"two", "three"}, {})


async def test_a_member_whose_name_is_taken_gets_that_of_its_file_before_it(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.py").write_text("def first() -> str:\n    return ''\n")
    (tmp_path / "b.py").write_text("def second() -> str:\n    return ''\n")
    (tmp_path / "drop").mkdir()
    (tmp_path / "drop" / "a.py").write_text("def third() -> str:\n    return ''\n")
    async with board(tmp_path) as (plugs, _):
        await plugs.plug("a.py")
        await plugs.plug("b.py", "drop_a")
        report = await plugs.plug("folder:drop")
        before = states(plugs)
        await plugs.unplug("drop_a")
        again = await plugs.reload("drop")
        await plugs.unplug("drop")
        after = states(plugs)

    assert (report.members, report.quarantined[0].tool) == ((), "a.py")
    assert before == {"a": "ready", "drop_a": "ready", "drop": "ready"}
    assert (again.members, again.quarantined) == (("drop_a",), ())
    assert after == {"a": "ready"}


async def test_what_is_dropped_into_a_folder_is_plugged_and_what_is_taken_out_is_gone(
    tmp_path: Path,
) -> None:
    drop = tmp_path / "drop"
    drop.mkdir()
    (drop / "README.md").write_text("Drop here.")
    (drop / "odd.bin").write_text("?")
    (drop / "no.url").write_text("nothing")
    async with board(tmp_path) as (plugs, catalog):
        await plugs.plug("folder:drop")
        left_out = [each.tool for each in named(plugs, "drop").quarantined]
        (drop / "a.py").write_text("def one() -> str:\n    return '1'\n")
        await until(catalog, "one")
        (drop / "a.py").write_text("def two() -> str:\n    return '2'\n")
        await until(catalog, "two")
        (drop / "many").mkdir()
        (drop / "many" / "b.py").write_text("def three() -> str:\n    return '3'\n")
        await until(catalog, "two", "three")
        paths = {"/x": {"get": {"operationId": "four"}}}
        server = [{"url": "http://127.0.0.1:9"}]
        (drop / "api.json").write_text(
            json.dumps({"openapi": "3.1.0", "servers": server, "paths": paths})
        )
        await until(catalog, "two", "three", "four")
        kinds = {status.name: status.kind for status in plugs.listing()}
        (drop / "broken.py").write_text("def (")
        while states(plugs).get("broken") != "failed":
            await anyio.lowlevel.checkpoint()
        (drop / "a.py").unlink()
        (drop / "api.json").unlink()
        await until(catalog, "three")

    assert left_out == ["no.url", "odd.bin"]
    assert kinds == {"drop": "folder", "a": "python", "many": "python", "api": "openapi"}


async def test_a_source_that_is_plugged_already_is_not_plugged_twice(tmp_path: Path) -> None:
    drop = tmp_path / "drop"
    drop.mkdir()
    (drop / "a.py").write_text("def one() -> str:\n    return '1'\n")
    async with board(tmp_path) as (plugs, catalog):
        await plugs.plug("drop/a.py", "mine")
        report = await plugs.plug("folder:drop")

        assert list(catalog.current.tools) == ["one"]
    assert [each.reason for each in report.quarantined] == ["it is the plug `mine` already"]


async def test_a_url_file_is_the_server_at_its_url_and_another_when_it_changes(
    tmp_path: Path,
) -> None:
    drop = tmp_path / "drop"
    drop.mkdir()
    (drop / "web.url").write_text("[InternetShortcut]\nURL=http://127.0.0.1:9/mcp\n")
    limits = PlugLimits(start_s=2, close_s=0.5)
    async with board(tmp_path, limits) as (plugs, _):
        await plugs.plug("folder:drop")
        first = named(plugs, "web")
        (drop / "web.url").write_text("http://127.0.0.1:9/other\n")
        report = await plugs.reload("drop")
        second = named(plugs, "web")

    assert (first.source, first.state) == ("http://127.0.0.1:9/mcp", "failed")
    assert report.members == ("web",)
    assert (second.source, second.state) == ("http://127.0.0.1:9/other", "failed")


async def test_a_source_of_several_plugs_says_so_where_there_is_nowhere_to_put_them(
    tmp_path: Path,
) -> None:
    async with PlugBoard(Catalog(), folder=tmp_path) as plugs:
        with pytest.raises(PlugError, match="several plugs"):
            await plugs.plug("folder:.")

"""Server processes of one home: what one does is known, and announced, by all."""

import os
import socket
import sys
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import lowlevel
from mcp import Client, StdioServerParameters
from mcp.client.subscriptions import ToolsListChanged
from mcp_types import ToolListChangedNotification

from guildry.server.by_hand import ByHand
from guildry.server.control import socket_folder
from guildry.server.peers import Peers
from guildry.server.surface import build_server
from guildry.tools.base import Outcome, Text

TOOLS = '''
def shout(text: str) -> str:
    """Say it in capitals."""
    return text.upper()
'''
OTHERS = TOOLS.replace("shout", "whisper").replace("upper", "lower")


def words(home: Path) -> list[Path]:
    return sorted(socket_folder(home).glob("*.word"))


async def until(true: Any) -> None:
    """Wait until something has become true."""
    with anyio.fail_after(10):
        while not true():
            await lowlevel.checkpoint()


async def test_a_word_reaches_every_other_process_and_not_the_one_that_said_it(
    tmp_path: Path,
) -> None:
    heard: list[tuple[str, str]] = []
    all_heard = anyio.Event()
    peers = {name: Peers(tmp_path) for name in "abc"}
    for name, each in peers.items():

        def hear(about: str, name: str = name) -> None:
            heard.append((name, about))
            if len(heard) == 2:
                all_heard.set()

        each.listen("plugs", hear)
    async with anyio.create_task_group() as tasks:
        for each in peers.values():
            tasks.start_soon(each.run)
        await until(lambda: len(words(tmp_path)) == 3)
        peers["a"].tell("other")
        peers["a"].tell("plugs", "x")
        with anyio.fail_after(10):
            await all_heard.wait()
        tasks.cancel_scope.cancel()

    assert sorted(heard) == [("b", "x"), ("c", "x")]
    assert words(tmp_path) == []


async def test_who_listens_no_more_hears_nothing_and_nonsense_harms_nobody(tmp_path: Path) -> None:
    heard: list[str] = []
    last = anyio.Event()
    speaker, listener = Peers(tmp_path), Peers(tmp_path)
    stop = listener.listen("plugs", heard.append)
    listener.listen("last", lambda _: last.set())
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(listener.run)
        await until(lambda: len(words(tmp_path)) == 1)
        stop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            for nonsense in (b"", b"\xff", b"{}", b"[]", b"[1, 2]", b'["plugs"]', b"[" * 4_000):
                sender.sendto(nonsense, str(words(tmp_path)[0]))
        speaker.tell("plugs", "x")
        speaker.tell("last")
        with anyio.fail_after(10):
            await last.wait()
        tasks.cancel_scope.cancel()

    assert heard == []


async def test_sockets_of_processes_that_were_killed_are_removed(tmp_path: Path) -> None:
    folder = socket_folder(tmp_path)
    folder.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as dead:
        dead.bind(str(folder / "1.word"))

    Peers(tmp_path).tell("plugs")

    assert words(tmp_path) == []


async def test_a_peer_that_takes_nothing_holds_up_nobody(tmp_path: Path) -> None:
    folder = socket_folder(tmp_path)
    folder.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(folder / "1.word"))
        for _ in range(2_000):
            Peers(tmp_path).tell("plugs", "x" * 100)

        assert words(tmp_path) == [folder / "1.word"]


async def test_a_home_that_cannot_be_used_leaves_a_process_alone(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("not a folder")
    peers = Peers(tmp_path / "home")

    with anyio.fail_after(10):
        await peers.run()
    peers.tell("plugs")


async def test_what_one_process_plugs_and_unplugs_the_others_do_too(
    opened: Any, tmp_path: Path
) -> None:
    source, other = tmp_path / "later.py", tmp_path / "other.py"
    source.write_text(TOOLS)
    other.write_text(OTHERS)
    async with opened() as first, opened() as second:
        await until(lambda: len(words(first.settings.home)) == 2)
        await first.plugs.plug(str(source), "later")
        await first.by_hand.add("later", str(source))
        await until(lambda: "shout" in second.catalog.current.tools)
        await first.by_hand.add("later", str(other))  # the same name for another source
        await until(lambda: "whisper" in second.catalog.current.tools)
        replaced = set(second.catalog.current.tools)
        await second.plugs.unplug("later")
        await second.by_hand.remove("later")
        await until(lambda: not first.plugs.listing())

    assert "shout" not in replaced


async def test_a_source_that_cannot_be_plugged_elsewhere_is_told_there(
    opened: Any, tmp_path: Path
) -> None:
    async with opened() as first, opened() as second:
        await until(lambda: len(words(first.settings.home)) == 2)
        await first.by_hand.add("gone", str(tmp_path / "gone.py"))
        await until(lambda: second.plugs.listing())
        await until(lambda: second.plugs.listing()[0].state == "failed")
        told = second.plugs.listing()[0].error

    assert told is not None
    assert "gone.py" in told


async def test_configured_plugs_are_left_as_they_are(opened: Any, tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text(TOOLS)
    async with opened(plugs={"mine": {"source": str(source)}}) as app:
        by_hand = ByHand(app.sources, app.plugs, app.peers, app.settings.plugs)
        await app.sources.add("mine", "elsewhere.py")

        assert await by_hand.wanted() == []


async def test_resources_that_another_process_makes_are_announced(
    opened: Any, make_tool: Any
) -> None:
    async def invoke(arguments: dict[str, Any], call: Any) -> Outcome:
        return Outcome((Text("x" * 10_000),))

    async with opened(make_tool("long", invoke)) as first, opened() as second:
        await until(lambda: len(words(first.settings.home)) == 2)
        async with Client(build_server(second)) as listening, Client(build_server(first)) as acting:
            async with listening.listen(resources_list_changed=True) as subscription:
                await acting.call_tool("long", {})
                with anyio.fail_after(10):
                    await anext(aiter(subscription))
                listed = await listening.list_resources(cache_mode="bypass")

    assert [each.name for each in listed.resources] == ["long"]


def server(folder: Path) -> StdioServerParameters:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GUILDRY_")}
    return StdioServerParameters(
        command=sys.executable,
        args=["-m", "guildry.server", "serve", "--stdio", "--home", str(folder / "home")],
        cwd=str(folder),
        env=kept,
    )


async def test_a_plug_of_one_server_process_is_announced_and_called_in_the_others(
    tmp_path: Path,
) -> None:
    """One plugs through MCP; of the others, one speaks the modern era and one the older."""
    source = tmp_path / "later.py"
    source.write_text(TOOLS)
    legacy_told = anyio.Event()

    async def handle(message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            legacy_told.set()

    with anyio.fail_after(120):
        async with AsyncExitStack() as stack:
            enter = stack.enter_async_context
            plugging = await enter(Client(server(tmp_path)))
            modern = await enter(Client(server(tmp_path), cache=None))
            legacy = await enter(
                Client(server(tmp_path), mode="legacy", message_handler=handle, cache=None)
            )
            for each in (modern, legacy):
                await each.list_tools()
            subscription = await enter(modern.listen(tools_list_changed=True))
            done = await plugging.call_tool("plug", {"source": str(source), "name": "later"})
            assert not done.is_error, done
            assert isinstance(await anext(aiter(subscription)), ToolsListChanged)
            await legacy_told.wait()
            answers = [await each.call_tool("shout", {"text": "x"}) for each in (modern, legacy)]
            await plugging.call_tool("unplug", {"name": "later"})
            assert isinstance(await anext(aiter(subscription)), ToolsListChanged)
            names = {tool.name for tool in (await modern.list_tools()).tools}
        left = words(tmp_path / "home")

    assert [each.content[0].model_dump()["text"] for each in answers] == ["X", "X"]
    assert "shout" not in names
    assert left == []


@pytest.mark.parametrize("command", ["plug", "unplug"])
async def test_a_command_reaches_every_live_server(tmp_path: Path, command: str) -> None:
    source = tmp_path / "later.py"
    source.write_text(TOOLS)

    async def guildry(*args: str) -> str:
        parameters = server(tmp_path)
        done = await anyio.run_process(
            [sys.executable, "-m", "guildry.server", *args, "--home", str(tmp_path / "home")],
            cwd=tmp_path,
            env=parameters.env,
        )
        return done.stdout.decode()

    with anyio.fail_after(120):
        async with AsyncExitStack() as stack:
            clients = [
                await stack.enter_async_context(Client(server(tmp_path), cache=None))
                for _ in range(2)
            ]
            for client in clients:
                await client.list_tools()
            told = await guildry("plug", str(source))
            for client in clients:
                names: set[str] = set()
                while "shout" not in names:
                    names = {tool.name for tool in (await client.list_tools()).tools}
            if command == "unplug":
                await guildry("unplug", "later")
                for client in clients:
                    names = {"shout"}
                    while "shout" in names:
                        names = {tool.name for tool in (await client.list_tools()).tools}

    assert "Plugged into 2 live server(s)." in told

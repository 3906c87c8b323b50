"""Changes are told to whoever listens: both eras, in memory, over pipes and over HTTP."""

import gc
import json
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import anyio
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.subscriptions import ToolsListChanged
from mcp_types import ResourceListChangedNotification, ToolListChangedNotification

from guildry.server.http.endpoint import serve_http
from guildry.server.lines import serve_lines
from guildry.server.surface import Surface
from guildry.tools.base import Outcome, Text, Tool

ME = {"name": "test", "version": "1"}
TOOLS = '''
def shout(text: str) -> str:
    """Say it in capitals."""
    return text.upper()
'''


class Hears(Protocol):
    async def __call__(self) -> None: ...


@asynccontextmanager
async def listening(target: Any, era: str) -> AsyncGenerator[tuple[Client, Hears]]:
    """Yield a client, and the way to wait until it was told that tools changed."""
    told = anyio.Event()

    async def handle(message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            told.set()

    async def hear_legacy() -> None:
        await told.wait()

    mode: Any = era
    async with Client(target, mode=mode, cache=None, message_handler=handle) as client:
        if era == "legacy":
            assert client.server_capabilities.tools is not None
            assert client.server_capabilities.tools.list_changed
            yield client, hear_legacy
            return
        async with client.listen(tools_list_changed=True) as subscription:

            async def hear_modern() -> None:
                async for event in subscription:
                    if isinstance(event, ToolsListChanged):
                        return

            yield client, hear_modern


ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])


async def plug_and_hear(client: Client, hears: Hears, source: Path) -> set[str]:
    """Plug `source` through `client` itself, and return the tools once it was told of them."""
    before = {tool.name for tool in (await client.list_tools()).tools}
    result = await client.call_tool("plug", {"source": str(source), "name": "later"})
    assert not result.is_error, result
    with anyio.fail_after(10):
        await hears()
    return {tool.name for tool in (await client.list_tools()).tools} - before


@ERAS
@pytest.mark.requirement("tools.list-changed-handshake")
async def test_a_plug_added_while_connected_is_announced_in_memory(
    opened: Any, tmp_path: Path, era: str
) -> None:
    source = tmp_path / "later.py"
    source.write_text(TOOLS)
    async with opened() as app, listening(Surface(app).server, era) as (client, hears):
        assert await plug_and_hear(client, hears, source) == {"shout"}


@ERAS
@pytest.mark.requirement("tools.list-changed")
async def test_a_plug_added_while_connected_is_announced_over_stdio(
    tmp_path: Path, era: str
) -> None:
    source = tmp_path / "later.py"
    source.write_text(TOOLS)
    home = str(tmp_path / "home")
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "guildry.server", "serve", "--stdio", "--home", home],
        cwd=str(tmp_path),
    )
    with anyio.fail_after(60):
        async with listening(server, era) as (client, hears):
            assert await plug_and_hear(client, hears, source) == {"shout"}


@ERAS
@pytest.mark.requirement("tools.list-changed")
async def test_a_plug_added_while_connected_is_announced_over_http(
    opened: Any, tmp_path: Path, era: str
) -> None:
    source = tmp_path / "later.py"
    source.write_text(TOOLS)
    with anyio.fail_after(60):
        async with opened() as app, anyio.create_task_group() as tasks:
            url = await tasks.start(partial(serve_http, Surface(app), port=0))
            async with listening(url, era) as (client, hears):
                assert await plug_and_hear(client, hears, source) == {"shout"}
            tasks.cancel_scope.cancel()


@ERAS
async def test_an_unplugged_source_is_announced(opened: Any, tmp_path: Path, era: str) -> None:
    source = tmp_path / "later.py"
    source.write_text(TOOLS)
    async with opened() as app:
        await app.plugs.plug(str(source), "later")
        async with listening(Surface(app).server, era) as (client, hears):
            await client.call_tool("unplug", {"name": "later"})
            with anyio.fail_after(10):
                await hears()
            names = {tool.name for tool in (await client.list_tools()).tools}

    assert "shout" not in names


async def test_changes_that_come_together_are_told_once(
    opened: Any, make_tool: Any, echo: Tool
) -> None:
    told: list[str] = []
    last = anyio.Event()

    async def handle(message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            told.append("tools")
        if isinstance(message, ResourceListChangedNotification):
            last.set()

    async with opened() as app:
        client = Client(Surface(app).server, mode="legacy", message_handler=handle)
        async with client:
            for n in range(20):
                app.catalog.replace("many", [make_tool(f"t{n}", echo.invoke)])
            app.announcer.resources_changed()
            with anyio.fail_after(10):
                await last.wait()

    assert told == ["tools"]


@pytest.mark.requirement("resources.list-changed")
async def test_a_stored_result_is_announced_as_a_new_resource(opened: Any, make_tool: Any) -> None:
    heard = anyio.Event()

    async def invoke(arguments: dict[str, Any], call: Any) -> Outcome:
        return Outcome((Text("x" * 10_000),))

    async def handle(message: Any) -> None:
        if isinstance(message, ResourceListChangedNotification):
            heard.set()

    async with opened(make_tool("long", invoke)) as app:
        async with Client(Surface(app).server, mode="legacy", message_handler=handle) as client:
            await client.call_tool("long", {})
            with anyio.fail_after(10):
                await heard.wait()


@pytest.mark.requirement("listen.left")
async def test_clients_that_left_are_not_remembered(opened: Any) -> None:
    async with opened() as app:
        for _ in range(5):
            async with Client(Surface(app).server, mode="legacy") as client:
                await client.list_tools()
        gc.collect()

        assert sum(len(view.sessions) for view in list(app.announcer._views)) == 0


class Deaf:
    """A wire to a client that shakes hands, and then reads no more."""

    def __init__(self, said: bytes) -> None:
        self._said = said
        self.full = anyio.Event()

    async def receive(self) -> bytes:
        said, self._said = self._said, b""
        if not said:
            await anyio.sleep_forever()
        return said

    def write(self, data: bytes | bytearray) -> int:
        if b"protocolVersion" in data:
            return len(data)
        self.full.set()
        return 0

    async def writable(self) -> None:
        await anyio.sleep_forever()


async def test_a_client_that_reads_nothing_does_not_keep_the_others_waiting(opened: Any) -> None:
    hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": ME}
    said = [
        {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
    ]
    deaf = Deaf(b"".join(json.dumps(each).encode() + b"\n" for each in said))
    async with opened() as app:
        surface = Surface(app)
        with anyio.fail_after(10):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(serve_lines, surface, deaf)
                async with listening(surface.server, "legacy") as (_, hears):
                    while not len(surface.view.sessions) == 2:
                        await anyio.lowlevel.checkpoint()
                    app.announcer.tools_changed()
                    await hears()
                    await deaf.full.wait()
                async with listening(surface.server, "legacy") as (_, hears):
                    app.announcer.tools_changed()
                    await hears()
                tasks.cancel_scope.cancel()

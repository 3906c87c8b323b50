"""A connection over lines of JSON: what comes in broken, late, or not at all."""

import json
from typing import Any

import anyio
import pytest

from guildry.server.lines import MAX_LINE_BYTES, serve_lines
from guildry.server.surface import Surface
from guildry.tools.base import Tool

ENVELOPE: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
DISCOVER = {
    "jsonrpc": "2.0",
    "id": "open",
    "method": "server/discover",
    "params": {"_meta": ENVELOPE},
}
INITIALIZE = {
    "jsonrpc": "2.0",
    "id": "open",
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}
ERAS = pytest.mark.parametrize("modern", [True, False], ids=["modern", "legacy"])


class Pipe:
    """Both ends of a wire, in memory."""

    def __init__(self) -> None:
        self._to_server, self._arriving = anyio.create_memory_object_stream[bytes](1_000)
        self._to_client, self._heard = anyio.create_memory_object_stream[bytes](1_000)

    async def receive(self) -> bytes:
        try:
            return await self._arriving.receive()
        except anyio.EndOfStream:
            return b""

    def write(self, data: bytes | bytearray) -> int:
        self._to_client.send_nowait(bytes(data))
        return len(data)

    async def writable(self) -> None:
        await anyio.lowlevel.checkpoint()

    def say(self, *messages: dict[str, Any]) -> None:
        for message in messages:
            self.say_bytes(json.dumps(message).encode() + b"\n")

    def say_bytes(self, data: bytes) -> None:
        self._to_server.send_nowait(data)

    def hang_up(self) -> None:
        self._to_server.close()

    async def hear(self) -> Any:
        """Return the next answer; announcements may come between."""
        with anyio.fail_after(5):
            while "id" not in (heard := json.loads(await self._heard.receive())):
                pass
            return heard

    def close(self) -> None:
        for stream in (self._to_server, self._arriving, self._to_client, self._heard):
            stream.close()


def call(id: Any, tool: str, *, modern: bool, **arguments: Any) -> dict[str, Any]:
    params: dict[str, Any] = {"name": tool, "arguments": arguments}
    if modern:
        params["_meta"] = ENVELOPE
    return {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}


async def open_era(pipe: Pipe, *, modern: bool) -> None:
    pipe.say(DISCOVER if modern else INITIALIZE)
    assert (await pipe.hear())["id"] == "open"
    if not modern:
        pipe.say(INITIALIZED)


@ERAS
@pytest.mark.requirement("stateless.side-by-side")
async def test_calls_are_answered_one_by_one_and_side_by_side(
    opened: Any, echo: Tool, modern: bool
) -> None:
    pipe = Pipe()
    async with opened(echo) as app, anyio.create_task_group() as tasks:
        tasks.start_soon(serve_lines, Surface(app), pipe)
        await open_era(pipe, modern=modern)
        pipe.say(*[call(n, "echo", modern=modern, text=str(n)) for n in range(50)])
        heard = [await pipe.hear() for _ in range(50)]
        assert {answer["id"]: answer["result"]["content"][0]["text"] for answer in heard} == {
            n: str(n) for n in range(50)
        }
        pipe.hang_up()
    pipe.close()


@pytest.mark.requirement("stdio.lines")
async def test_garbage_is_answered_and_what_follows_is_served(opened: Any, echo: Tool) -> None:
    pipe = Pipe()
    async with opened(echo) as app, anyio.create_task_group() as tasks:
        tasks.start_soon(serve_lines, Surface(app), pipe)
        pipe.say_bytes(b"hello?\n\n  \r\n")
        not_json = await pipe.hear()
        pipe.say({"jsonrpc": "2.0", "neither": "request", "nor": "response"})
        no_message = await pipe.hear()
        for n in range(3):
            pipe.say_bytes(b"x" * (MAX_LINE_BYTES // 2) + (b"\n" if n == 2 else b""))
        endless = await pipe.hear()
        await open_era(pipe, modern=True)
        pipe.hang_up()
        assert (not_json["error"]["code"], not_json["id"]) == (-32700, None)
        assert no_message["error"]["code"] == -32600
        assert endless["error"]["code"] == -32700
    pipe.close()


@pytest.mark.requirement("stdio.lines")
async def test_a_message_may_come_in_pieces_and_the_last_without_a_newline(
    opened: Any, echo: Tool
) -> None:
    pipe = Pipe()
    async with opened(echo) as app, anyio.create_task_group() as tasks:
        tasks.start_soon(serve_lines, Surface(app), pipe)
        for byte in json.dumps(DISCOVER).encode() + b"\n":
            pipe.say_bytes(bytes([byte]))
        assert (await pipe.hear())["id"] == "open"
        pipe.say_bytes(json.dumps(call(1, "echo", modern=True, text="end")).encode())
        pipe.hang_up()
        heard = await pipe.hear()
        assert heard["result"]["content"][0]["text"] == "end"
    pipe.close()


@ERAS
async def test_a_call_in_flight_may_end_after_its_client_has_closed_its_side(
    opened: Any, make_tool: Any, modern: bool
) -> None:
    began, may_end = anyio.Event(), anyio.Event()

    async def invoke(arguments: dict[str, Any], _: Any) -> Any:
        from guildry.tools.base import Outcome, Text

        began.set()
        await may_end.wait()
        return Outcome((Text("in time"),))

    pipe = Pipe()
    async with opened(make_tool("slow", invoke)) as app, anyio.create_task_group() as tasks:
        tasks.start_soon(serve_lines, Surface(app), pipe)
        await open_era(pipe, modern=modern)
        pipe.say(call(1, "slow", modern=modern))
        with anyio.fail_after(5):
            await began.wait()
        pipe.hang_up()
        may_end.set()
        heard = await pipe.hear()
        assert heard["result"]["content"][0]["text"] == "in time"
    pipe.close()


@ERAS
async def test_a_call_that_does_not_end_is_cancelled_when_its_client_is_gone(
    opened: Any, hang: Any, modern: bool
) -> None:
    tool, began, cancelled = hang
    pipe = Pipe()
    async with opened(tool) as app:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: serve_lines(Surface(app), pipe, grace_s=0))
                await open_era(pipe, modern=modern)
                pipe.say(call(1, "hang", modern=modern))
                await began.wait()
                pipe.hang_up()
            assert cancelled.is_set()
    pipe.close()


@ERAS
@pytest.mark.requirement("notifications.no-answer", "cancel.stdio")
async def test_a_cancelled_call_stops_and_is_not_answered(
    opened: Any, hang: Any, echo: Tool, modern: bool
) -> None:
    tool, began, cancelled = hang
    cancel = {"method": "notifications/cancelled", "params": {"requestId": 1}}
    pipe = Pipe()
    async with opened(tool, echo) as app, anyio.create_task_group() as tasks:
        tasks.start_soon(serve_lines, Surface(app), pipe)
        await open_era(pipe, modern=modern)
        pipe.say(call(1, "hang", modern=modern))
        with anyio.fail_after(5):
            await began.wait()
            pipe.say({"jsonrpc": "2.0", **cancel})
            await cancelled.wait()
        pipe.say({"jsonrpc": "2.0", **cancel}, call(2, "echo", modern=modern, text="next"))
        heard = await pipe.hear()
        pipe.hang_up()
        assert heard["id"] == 2
    pipe.close()


async def test_stopping_the_server_ends_a_connection_that_says_nothing(
    opened: Any, echo: Tool
) -> None:
    pipe, stop = Pipe(), anyio.Event()
    async with opened(echo) as app:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: serve_lines(Surface(app), pipe, stop=stop))
                await open_era(pipe, modern=True)
                stop.set()
    pipe.close()


async def test_a_client_that_leaves_before_it_said_anything_is_let_go(
    opened: Any, echo: Tool
) -> None:
    pipe = Pipe()
    async with opened(echo) as app:
        pipe.hang_up()
        with anyio.fail_after(5):
            await serve_lines(Surface(app), pipe)
    pipe.close()

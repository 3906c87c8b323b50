"""Descriptors that an event loop watches, with a client that reads slowly or not at all."""

import json
import os
import socket
from collections.abc import Generator
from typing import Any

import anyio
import pytest

from guildry.server.lines import serve_lines
from guildry.server.pipe import Pipe
from guildry.server.surface import Surface
from guildry.tools.base import Outcome, Text

ENVELOPE: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
SIZE = 400_000


def call(id: int) -> bytes:
    params = {"name": "long", "arguments": {}, "_meta": ENVELOPE}
    message = {"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}
    return json.dumps(message).encode() + b"\n"


@pytest.fixture
def ends() -> Generator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    for end in (ours, theirs):
        end.setblocking(False)
    with ours, theirs:
        yield ours, theirs


@pytest.fixture
def long(make_tool: Any) -> Any:
    async def invoke(arguments: dict[str, Any], _: Any) -> Outcome:
        return Outcome((Text("x" * SIZE),))

    return make_tool("long", invoke)


@pytest.mark.parametrize("shared", [False, True])
async def test_answers_wait_for_a_client_that_reads_late_and_arrive_whole(
    opened: Any, long: Any, ends: tuple[socket.socket, socket.socket], shared: bool
) -> None:
    ours, theirs = ends
    heard: list[bytes] = []
    async with opened(long, inline_tokens=1_000_000) as app:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                wire = Pipe(theirs.fileno(), theirs.fileno(), shared=shared)
                tasks.start_soon(serve_lines, Surface(app), wire)
                for id in range(8):
                    await anyio.wait_writable(ours)
                    ours.send(call(id))
                rest = b""
                while len(heard) < 8:
                    await anyio.wait_readable(ours)
                    *whole, rest = (rest + ours.recv(100_000)).split(b"\n")
                    heard += [line for line in whole if b'"id"' in line]
                ours.shutdown(socket.SHUT_WR)

    answers = [json.loads(line) for line in heard]
    assert sorted(answer["id"] for answer in answers) == list(range(8))
    assert {len(answer["result"]["content"][0]["text"]) for answer in answers} == {SIZE}


async def test_a_client_that_goes_away_in_the_middle_of_an_answer_ends_its_connection(
    opened: Any, long: Any, ends: tuple[socket.socket, socket.socket]
) -> None:
    ours, theirs = ends
    async with opened(long, inline_tokens=1_000_000) as app:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                wire = Pipe(theirs.fileno(), theirs.fileno())
                tasks.start_soon(serve_lines, Surface(app), wire)
                for id in range(8):
                    ours.send(call(id))
                await anyio.wait_readable(ours)
                ours.recv(1_000)
                ours.close()


async def test_writing_to_a_pipe_without_a_reader_is_told_as_such() -> None:
    reading, writing = os.pipe()
    os.close(reading)

    with pytest.raises(anyio.BrokenResourceError):
        Pipe(writing, writing).write(b"anyone?")
    os.close(writing)
    assert await Pipe(writing, writing).receive() == b""

"""Clients that come, do something, and are gone without a word."""

import asyncio
import json
import socket
import struct
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from benchmarks.wire import INITIALIZED, LEGACY, MODERN, opening, request

WAIT_S: Final = 30.0

Vanish = Callable[["Door"], Awaitable[None]]


class Door:
    """Where a server can be reached: a port, and the control socket of its process."""

    def __init__(self, port: int, control: Path) -> None:
        self.port = port
        self.control = control

    async def connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """Return a new connection to the port."""
        return await asyncio.open_connection("127.0.0.1", self.port, limit=2**22)

    def head(self, body: bytes, *, method: str = "", name: str = "", session: str = "") -> bytes:
        """Return the head of a POST with that body."""
        lines = [
            "POST /mcp HTTP/1.1",
            f"Host: 127.0.0.1:{self.port}",
            "Accept: application/json, text/event-stream",
            "Content-Type: application/json",
            f"Content-Length: {len(body)}",
        ]
        if method:
            lines += [f"MCP-Protocol-Version: {MODERN}", f"Mcp-Method: {method}"]
        if name:
            lines.append(f"Mcp-Name: {name}")
        if session:
            lines += [f"Mcp-Session-Id: {session}", f"MCP-Protocol-Version: {LEGACY}"]
        return "\r\n".join([*lines, "", ""]).encode()


def reset(writer: asyncio.StreamWriter) -> None:
    """Close a connection as a killed machine would: no goodbye, a reset at most."""
    held: Any = writer.get_extra_info("socket")
    with suppress(OSError):
        held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


async def half_a_request(door: Door) -> None:
    """Send the half of a request."""
    _, writer = await door.connect()
    body = request("modern", 1, "tools/call", {"name": "echo", "arguments": {"text": "x" * 500}})
    writer.write(door.head(body, method="tools/call", name="echo") + body[: len(body) // 2])
    await writer.drain()
    reset(writer)


async def answer_unread(door: Door) -> None:
    """Ask for a call and read no answer."""
    _, writer = await door.connect()
    body = request("modern", 1, "tools/call", {"name": "echo", "arguments": {"text": "hello"}})
    writer.write(door.head(body, method="tools/call", name="echo") + body)
    await writer.drain()
    reset(writer)


async def call_in_flight(door: Door) -> None:
    """Ask for a call that takes longer than this client lives."""
    _, writer = await door.connect()
    body = request("modern", 1, "tools/call", {"name": "wait", "arguments": {"seconds": 20}})
    writer.write(door.head(body, method="tools/call", name="wait") + body)
    await writer.drain()
    await asyncio.sleep(0.02)
    reset(writer)


async def session_left_open(door: Door) -> None:
    """Open a session of the handshake era, call something, and never end it."""
    reader, writer = await door.connect()
    session = await _handshake(door, reader, writer)
    body = request("legacy", 2, "tools/call", {"name": "echo", "arguments": {"text": "hello"}})
    writer.write(door.head(body, session=session) + body)
    await _head(reader)
    reset(writer)


async def stream_left_open(door: Door) -> None:
    """Open a session and its stream of announcements, and drop both."""
    reader, writer = await door.connect()
    session = await _handshake(door, reader, writer)
    stream, listening = await door.connect()
    listening.write(
        f"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1:{door.port}\r\nAccept: text/event-stream\r\n"
        f"Mcp-Session-Id: {session}\r\nMCP-Protocol-Version: {LEGACY}\r\n\r\n".encode()
    )
    await _head(stream)
    reset(writer)
    reset(listening)


async def subscription_dropped(door: Door) -> None:
    """Listen for changes in the modern way, and drop the stream."""
    reader, writer = await door.connect()
    wanted = {"notifications": {"toolsListChanged": True}}
    body = request("modern", 1, "subscriptions/listen", wanted)
    writer.write(door.head(body, method="subscriptions/listen") + body)
    await _head(reader)
    reset(writer)


async def control_dropped(door: Door) -> None:
    """Say hello on the control socket, call something that lasts, and be gone."""
    reader, writer = await asyncio.open_unix_connection(str(door.control))
    method, params = opening("legacy")
    writer.write(request("legacy", 1, method, params) + b"\n" + INITIALIZED + b"\n")
    await asyncio.wait_for(reader.readline(), WAIT_S)
    call = {"name": "wait", "arguments": {"seconds": 20}}
    writer.write(request("legacy", 2, "tools/call", call) + b"\n")
    await writer.drain()
    writer.transport.abort()


WAYS: Final[tuple[Vanish, ...]] = (
    half_a_request,
    answer_unread,
    call_in_flight,
    session_left_open,
    stream_left_open,
    subscription_dropped,
    control_dropped,
)


async def _handshake(door: Door, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> str:
    method, params = opening("legacy")
    body = request("legacy", 1, method, params)
    writer.write(door.head(body) + body)
    head = await _head(reader)
    await _body(reader, head)
    (line,) = [each for each in head.split(b"\r\n") if each.startswith(b"mcp-session-id:")]
    session = line.partition(b":")[2].strip().decode()
    writer.write(door.head(INITIALIZED, session=session) + INITIALIZED)
    await _body(reader, await _head(reader))
    return session


async def _head(reader: asyncio.StreamReader) -> bytes:
    head = (await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), WAIT_S)).lower()
    if head[9:10] != b"2":
        body = await _body(reader, head)
        raise RuntimeError(f"the server answered {head[:40]!r}: {body[:300]!r}")
    return head


async def _body(reader: asyncio.StreamReader, head: bytes) -> bytes:
    if b"transfer-encoding: chunked" not in head:
        (line,) = [each for each in head.split(b"\r\n") if each.startswith(b"content-length:")]
        return await reader.readexactly(int(line.partition(b":")[2]))
    chunks: list[bytes] = []
    while size := int((await reader.readline()).split(b";")[0], 16):
        chunks.append((await reader.readexactly(size + 2))[:-2])
    await reader.readline()
    return b"".join(chunks)


async def counted(door: Door) -> dict[str, int]:
    """Return what is alive inside the server, by the tool `inside`."""
    reader, writer = await door.connect()
    body = request("modern", 1, "tools/call", {"name": "inside", "arguments": {}})
    writer.write(door.head(body, method="tools/call", name="inside") + body)
    head = await _head(reader)
    answer = json.loads(await _body(reader, head))
    writer.close()
    found: dict[str, int] = json.loads(answer["result"]["content"][0]["text"])
    return found

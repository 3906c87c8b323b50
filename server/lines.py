"""One MCP connection over lines of JSON: stdio and the control socket. Knows bytes, not tools.

Plain tool calls go through the lean lane; every other message is what the SDK's server reads here.
"""

from collections import deque
from contextlib import suppress
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
import structlog
from anyio import lowlevel
from mcp_types import (
    INVALID_REQUEST,
    PARSE_ERROR,
    PROTOCOL_VERSION_META_KEY,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    jsonrpc_message_adapter,
)
from mcp_types.version import LATEST_MODERN_VERSION
from pydantic import ValidationError
from pydantic_core import from_json

from guildry.server.lane import LANE_VERSIONS, Answer, Lane, Plain, failure

if TYPE_CHECKING:
    from typing import Self

    from anyio.abc import TaskGroup
    from mcp.shared.message import SessionMessage

    from guildry.server.surface import Surface

__all__ = ["Wire", "serve_lines"]

log = structlog.get_logger()

MAX_LINE_BYTES: Final = 64 * 1024 * 1024
_UNREADABLE: Final = b"!"
_MAX_WAITING_BYTES: Final = 1024 * 1024
_CHUNK_BYTES: Final = 256 * 1024
_FLUSH_S: Final = 1.0
GRACE_S: Final = 1.0
"""How long calls in flight may go on once a client has closed its side."""


class Wire(Protocol):
    """A pipe or a socket to one client."""

    async def receive(self) -> bytes:
        """Return what has come, or nothing at the end."""
        ...

    def write(self, data: bytes | bytearray) -> int:
        """Write as much of `data` as goes without waiting, and return how much that was.

        Raises:
            BrokenResourceError: the client is gone.
        """
        ...

    async def writable(self) -> None:
        """Wait until more can be written."""
        ...


async def serve_lines(
    surface: "Surface", wire: Wire, *, stop: anyio.Event | None = None, grace_s: float = GRACE_S
) -> None:
    """Serve one client until it closes its side, or `stop` is set.

    Calls in flight then have `grace_s` seconds to end; the rest is cancelled.
    """
    async with anyio.create_task_group() as tasks:
        outlet = _Outlet(wire)
        connection = _Connection(surface, wire, outlet, tasks, grace_s)
        tasks.start_soon(outlet.run)
        if stop is not None:
            tasks.start_soon(connection.end_when, stop)
        options = surface.server.create_initialization_options()
        await surface.server.run(connection, _Outbox(connection), options)
        with anyio.move_on_after(_FLUSH_S):
            await outlet.flushed()
        tasks.cancel_scope.cancel()


class _Outlet:
    """Write lines whole, in order, whatever becomes of those who wrote them.

    What does not go at once is kept and written by `run`, so that a call which is cancelled never
    leaves half a line behind.
    """

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._rest = bytearray()
        self._filled = anyio.Event()
        self._moved = anyio.Event()
        self._broken = False

    async def send(self, line: bytes) -> None:
        """Write a line. Waits only while a lot is waiting already.

        Raises:
            BrokenResourceError: the client is gone.
        """
        if self._broken:
            raise anyio.BrokenResourceError
        sent = 0 if self._rest else self._write(line)
        if sent == len(line):
            return
        self._rest += line[sent:]
        self._filled.set()
        while len(self._rest) > _MAX_WAITING_BYTES:
            await self._moved.wait()

    async def run(self) -> None:
        """Write what is kept, until cancelled or the client is gone."""
        while not self._broken:
            await self._filled.wait()
            self._filled = anyio.Event()
            while self._rest and not self._broken:
                await self._wire.writable()
                with suppress(anyio.BrokenResourceError):
                    del self._rest[: self._write(self._rest[:_CHUNK_BYTES])]
                self._moved.set()
                self._moved = anyio.Event()

    async def flushed(self) -> None:
        """Wait until nothing is kept."""
        while self._rest:
            await self._moved.wait()

    def _write(self, data: bytes | bytearray) -> int:
        try:
            return self._wire.write(data)
        except anyio.BrokenResourceError:
            self._broken = True
            self._rest.clear()
            self._moved.set()
            raise


class _Lent:
    """A stream over a wire that belongs to somebody else: closing it closes nothing."""

    async def aclose(self) -> None:
        """Leave the wire to its owner."""
        await lowlevel.checkpoint()

    async def __aenter__(self) -> "Self":
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.aclose()


class _Connection(_Lent):
    """What the SDK reads: each message that the lane leaves to it."""

    def __init__(
        self,
        surface: "Surface",
        wire: Wire,
        outlet: _Outlet,
        tasks: "TaskGroup",
        grace_s: float,
    ) -> None:
        self._surface = surface
        self._wire = wire
        self._outlet = outlet
        self._tasks = tasks
        self._grace_s = grace_s
        self._buffer = _Buffer()
        self._reading: anyio.CancelScope | None = None
        self._ended = False
        self._lane: Lane | None = None
        self._opened = False
        self._handshake: int | str | None = None
        self._capabilities: Any = None
        self._calls: dict[str, anyio.CancelScope] = {}
        self._asked: set[str] = set()
        self._idle = anyio.Event()

    async def end_when(self, stop: anyio.Event) -> None:
        """Behave as if the client had closed its side once `stop` is set."""
        await stop.wait()
        self._ended = True
        if self._reading is not None:
            self._reading.cancel()

    def __aiter__(self) -> "Self":
        return self

    async def __anext__(self) -> "SessionMessage | Exception":
        while True:
            while (line := self._buffer.next_line()) is not None:
                message = await self._read(line)
                if message is not None:
                    return message
            chunk = b""
            if not self._ended:
                with anyio.CancelScope() as self._reading:
                    chunk = await self._wire.receive()
            if chunk:
                self._buffer.feed(chunk)
            elif not self._buffer.end():
                await self._finish()
                raise StopAsyncIteration

    async def receive(self) -> "SessionMessage | Exception":
        """Return the next message."""
        try:
            return await self.__anext__()
        except StopAsyncIteration:
            raise anyio.EndOfStream from None

    async def _read(self, line: bytes) -> "SessionMessage | None":
        """Return the message of a line for the SDK, or None when it is dealt with here."""
        from mcp.shared.message import SessionMessage

        try:
            decoded = from_json(line)
        except ValueError:
            await self.write(failure(None, PARSE_ERROR, "Parse error: one JSON object a line").body)
            return None
        if self._lane is not None and (call := self._lane.take(decoded)) is not None:
            self._tasks.start_soon(self._answer, self._lane, call)
            return None
        try:
            message = jsonrpc_message_adapter.validate_python(decoded, by_name=False)
        except ValidationError:
            refused = failure(None, INVALID_REQUEST, "Not a JSON-RPC 2.0 message")
            await self.write(refused.body)
            return None
        if self._cancelled_here(message):
            return None
        self._note(message)
        return SessionMessage(message)

    async def _answer(self, lane: Lane, call: Plain) -> None:
        key, scope = str(call.id), anyio.CancelScope()
        self._calls[key] = scope
        answer: Answer | None = None
        with scope:
            answer = await lane.answer(call)
        if self._calls.get(key) is scope:
            del self._calls[key]
        if answer is not None:
            await self.write(answer.body)
        self._settle()

    def _cancelled_here(self, message: JSONRPCMessage) -> bool:
        if not isinstance(message, JSONRPCNotification):
            return False
        if message.method != "notifications/cancelled":
            return False
        key = str((message.params or {}).get("requestId"))
        self._asked.discard(key)
        scope = self._calls.get(key)
        if scope is None:
            return False
        scope.cancel()
        return True

    def _note(self, message: JSONRPCMessage) -> None:
        """Follow the era and the requests that the SDK has to answer."""
        if not isinstance(message, JSONRPCRequest):
            return
        if message.method != "subscriptions/listen":
            self._asked.add(str(message.id))
        if message.method == "initialize":
            self._handshake = message.id
            self._capabilities = (message.params or {}).get("capabilities")
        elif not self._opened and _is_modern(message):
            self._lane = Lane(self._surface, LATEST_MODERN_VERSION)
        self._opened = True

    def answered(self, message: JSONRPCMessage) -> None:
        """Follow what the SDK answers; a finished handshake opens the lane."""
        if not isinstance(message, JSONRPCResponse | JSONRPCError):
            return
        self._asked.discard(str(message.id))
        if self._handshake is not None and message.id == self._handshake:
            self._handshake = None
            if isinstance(message, JSONRPCResponse):
                version = message.result.get("protocolVersion")
                if version in LANE_VERSIONS:
                    self._lane = Lane(self._surface, version, self._capabilities)
        self._settle()

    def _settle(self) -> None:
        if not self._calls and not self._asked:
            self._idle.set()

    async def _finish(self) -> None:
        self._idle = anyio.Event()
        self._settle()
        with anyio.move_on_after(self._grace_s):
            await self._idle.wait()

    async def write(self, data: bytes) -> None:
        """Write one line."""
        try:
            await self._outlet.send(data + b"\n")
        except (anyio.BrokenResourceError, anyio.ClosedResourceError):
            log.debug("answer_dropped", reason="the client is gone")


class _Outbox(_Lent):
    """What the SDK writes to."""

    def __init__(self, connection: _Connection) -> None:
        self._connection = connection

    async def send(self, item: "SessionMessage", /) -> None:
        """Write one message."""
        message = item.message
        await self._connection.write(
            message.model_dump_json(by_alias=True, exclude_unset=True).encode()
        )
        self._connection.answered(message)


class _Buffer:
    """Bytes cut into lines. An endless line is dropped, and counts as one that cannot be read."""

    def __init__(self) -> None:
        self._lines: deque[bytes] = deque()
        self._rest = bytearray()
        self._skipping = False

    def feed(self, chunk: bytes) -> None:
        """Take what has come."""
        *whole, rest = chunk.split(b"\n")
        if whole:
            first = bytes(self._rest) + whole[0]
            self._rest.clear()
            self._lines.extend([_UNREADABLE if self._skipping else first, *whole[1:]])
            self._skipping = False
        self._rest += rest
        if len(self._rest) > MAX_LINE_BYTES:
            self._rest.clear()
            self._skipping = True

    def end(self) -> bool:
        """Make what came after the last newline a line; tell whether there was anything."""
        left = bool(self._rest.strip())
        self.feed(b"\n")
        return left

    def next_line(self) -> bytes | None:
        """Return the next line that is not blank, or None when there is no whole one."""
        while self._lines:
            line = self._lines.popleft().strip()
            if line:
                return line
        return None


def _is_modern(message: JSONRPCRequest) -> bool:
    meta: Any = (message.params or {}).get("_meta")
    return isinstance(meta, dict) and PROTOCOL_VERSION_META_KEY in meta

"""Uvicorn's connections within bounds: how large headers may be, and how slow a client.

Bounds are looked at from outside and now and then, so that they cost a request nothing.
"""

import sys
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, Final

import anyio
import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

from guildry.server.extras import is_installed

if TYPE_CHECKING:
    import asyncio  # noqa: TID251 - the type of what uvicorn takes

    from uvicorn.server import ServerState

__all__ = ["Slowness", "protocol"]

log = structlog.get_logger()

_LOOK_EVERY_S: Final = 1.0
_PROGRESS_BYTES: Final = 64 * 1024


def protocol(max_header_bytes: int, *, fast: bool) -> "type[asyncio.Protocol]":
    """Return what speaks HTTP on a connection: the parser of the extra `fast`, or the plain one."""
    fast = fast and is_installed("httptools")
    return _fast(max_header_bytes) if fast else _PlainProtocol


class _PlainProtocol(H11Protocol):
    """Say what is wrong with a request that cannot be read."""

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn keeps a reset connection until its timer ends

    def send_400_response(self, msg: str) -> None:
        hint = getattr(sys.exc_info()[1], "error_status_hint", 400)
        _end(self.transport, hint if hint in (400, 431, 501) else 400)


def _fast(max_header_bytes: int) -> "type[asyncio.Protocol]":
    from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

    class FastProtocol(HttpToolsProtocol):
        """Bound the headers, which the parser does not."""

        _in_headers = False
        _header_bytes = 0

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            self._unset_keepalive_if_required()  # as above

        def on_message_begin(self) -> None:
            self._in_headers = True
            self._header_bytes = 0
            super().on_message_begin()

        def on_headers_complete(self) -> None:
            self._in_headers = False
            super().on_headers_complete()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._in_headers:
                self._header_bytes += len(data)
                if self._header_bytes > max_header_bytes and not self.transport.is_closing():
                    _end(self.transport, 431)

        def send_400_response(self, msg: str) -> None:
            _end(self.transport, 400)

    return FastProtocol


def _end(transport: "asyncio.Transport", status: int) -> None:
    """Answer what is no request, or none yet, and close the connection."""
    words = HTTPStatus(status).phrase
    body = f'{{"error":"{words.lower()}"}}'
    head = (
        f"HTTP/1.1 {status} {words}\r\ncontent-type: application/json\r\n"
        f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
    )
    transport.write((head + body).encode())
    transport.close()


class Slowness:
    """Close connections whose clients keep them waiting: for headers, for a body, or by not
    reading.

    Args:
        state: the connections of the server.
        limit_s: how long a client may take for each.
        look_every_s: how often is looked.
    """

    def __init__(
        self, state: "ServerState", limit_s: float, *, look_every_s: float = _LOOK_EVERY_S
    ) -> None:
        self._state = state
        self._limit_s = limit_s
        self._look_every_s = min(look_every_s, limit_s)
        self._since: dict[Any, tuple[object, float]] = {}

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            await anyio.sleep(self._look_every_s)
            self.look(anyio.current_time())

    def look(self, now: float) -> None:
        """Close whatever has waited too long for the same thing."""
        since: dict[Any, tuple[object, float]] = {}
        for connection in list(self._state.connections):
            waits = _waits_for(connection)
            if waits is None:
                continue
            before = self._since.get(connection)
            begun = before[1] if before is not None and before[0] == waits else now
            if now - begun > self._limit_s:
                log.info("slow_client_closed", waited_for=waits[0])
                _close(connection, str(waits[0]))
            else:
                since[connection] = (waits, begun)
        self._since = since


def _waits_for(connection: Any) -> tuple[str | int, ...] | None:
    """Return what the server waits for on a connection, and in which request; None for nothing."""
    cycle = connection.cycle
    if connection.transport is None or connection.transport.is_closing():
        return None
    if connection.flow is not None and connection.flow.write_paused:
        unread = connection.transport.get_write_buffer_size() // _PROGRESS_BYTES
        return "reading", id(cycle), unread
    if cycle is None or cycle.response_complete:
        idle = connection.timeout_keep_alive_task is not None  # uvicorn closes it by itself
        return None if idle else ("headers", id(cycle))
    return ("body", id(cycle)) if cycle.more_body else None


def _close(connection: Any, waited_for: str) -> None:
    begun = connection.cycle is not None and connection.cycle.response_started
    if waited_for == "reading" or (waited_for == "body" and begun):
        connection.transport.abort()
    else:
        _end(connection.transport, 408)

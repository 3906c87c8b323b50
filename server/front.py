"""The front of the HTTP endpoint: what comes in is told apart and handed on. An ASGI application.

A plain tool call on an open session, or in the modern era, is answered here by the lean lane. The
rest is replayed to the SDK as it came.
"""

from collections import OrderedDict, deque
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakKeyDictionary

import anyio
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp_types import INTERNAL_ERROR
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    LATEST_MODERN_VERSION,
)
from pydantic_core import from_json, to_json

from guildry.server.lane import LANE_VERSIONS, Lane, Plain, failure

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
    from starlette.types import Message, Receive, Scope, Send

    from guildry.server.surface import Surface
    from guildry.tools.base import Tool

__all__ = ["Front", "Watch"]

PATH: Final = "/mcp"
HEALTH: Final = "/health"
MAX_BODY_BYTES: Final = 4 * 1024 * 1024

_REQUEST_CANCELLED: Final = -32800
_LASTING_S: Final = 0.05
_SESSION: Final = b"mcp-session-id"
_VERSION: Final = b"mcp-protocol-version"
_METHOD: Final = b"mcp-method"
_NAME: Final = b"mcp-name"
_TWICE: Final = b":twice"
_PARAM: Final = b":param"
_MODERN: Final = LATEST_MODERN_VERSION.encode()
_HANDSHAKES: Final = frozenset({None, *(each.encode() for each in HANDSHAKE_PROTOCOL_VERSIONS)})
_JSON_TYPES: Final = frozenset({b"application/json", b"application/json; charset=utf-8"})
_ACCEPTED: Final = frozenset(
    {
        b"*/*",
        b"application/json, text/event-stream",
        b"application/json,text/event-stream",
        b"text/event-stream, application/json",
        b"text/event-stream,application/json",
    }
)
_MAX_SESSIONS: Final = 10_000


@dataclass(slots=True)
class _Session:
    """What the lane must know of a session of the handshake era."""

    lane: Lane
    seen_by_sdk: float
    calls: dict[str, anyio.CancelScope] = field(default_factory=dict[str, anyio.CancelScope])


class Front:
    """Serve HTTP requests of one surface.

    Args:
        surface: what is served.
        manager: the SDK's way of serving it.
        hosts: values of the header `Host` that name this machine.
        sdk_sees_s: a session's request goes to the SDK at least this often, in seconds, so that
            the SDK does not take the session for idle and end it.
    """

    def __init__(
        self,
        surface: "Surface",
        manager: "StreamableHTTPSessionManager",
        hosts: Iterable[str],
        *,
        sdk_sees_s: float = 600.0,
    ) -> None:
        self.watch: Final = Watch()
        self._surface = surface
        self._sdk_sees_s = sdk_sees_s
        self._sdk = manager.asgi_app
        self._hosts = frozenset(host.encode() for host in hosts)
        self._modern = Lane(surface, LATEST_MODERN_VERSION)
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()
        self._reading: WeakKeyDictionary[Tool, bool] = WeakKeyDictionary()
        self._draining = False
        self._idle = anyio.Event()
        self.in_flight = 0

    async def drain(self) -> None:
        """Take no more calls, and wait until those in flight have ended."""
        self._draining = True
        while self.in_flight:
            self._idle = anyio.Event()
            await self._idle.wait()

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        path, method = scope["path"], scope["method"]
        if path == PATH and method == "POST":
            await self._counted(scope, receive, send)
        elif path == PATH:
            await self._sdk(scope, receive, send)
            if method == "DELETE":
                self._forget(scope)
        elif path == HEALTH and method in ("GET", "HEAD"):
            await self._health(scope, send)
        else:
            await _respond(send, 404, b'{"error":"not found: the endpoint is /mcp"}')

    async def _health(self, scope: "Scope", send: "Send") -> None:
        if _headers(scope).get(b"host") not in self._hosts:
            await _respond(send, 421, b'{"error":"invalid Host header"}')
            return
        app = self._surface.app
        body = {
            "status": "draining" if self._draining else "ok",
            "ready": app.ready.is_set(),
            "tools": len(app.catalog.current),
        }
        await _respond(send, 503 if self._draining else 200, to_json(body))

    async def _counted(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        if self._draining:
            await _respond(send, 503, failure(None, INTERNAL_ERROR, "The server is stopping").body)
            return
        headers = _headers(scope)
        listens = headers.get(_METHOD) == b"subscriptions/listen"
        self.in_flight += not listens
        try:
            await self._post(headers, scope, receive, send)
        finally:
            self.in_flight -= not listens
            if not self.in_flight:
                self._idle.set()

    async def _post(
        self, headers: dict[bytes, bytes], scope: "Scope", receive: "Receive", send: "Send"
    ) -> None:
        if not self._is_usual(headers):
            await self._sdk(scope, receive, send)
            return
        body, replay = await _body(receive)
        session = self._sessions.get(headers.get(_SESSION, b""))
        message = _decoded(body)
        if session is not None and headers.get(_VERSION) in _HANDSHAKES:
            if await self._in_session(session, headers[_SESSION], message, send):
                return
            send = self._watching_session(session, headers[_SESSION], send)
        elif headers.get(_VERSION) == _MODERN and (call := self._modern_call(headers, message)):
            await self._answer_modern(call, receive, send)
            return
        elif _method(message) == "initialize" and _SESSION not in headers:
            send = self._watching_handshake(message, send)
        await self._sdk(scope, replay, send)

    def _is_usual(self, headers: dict[bytes, bytes]) -> bool:
        """Tell whether the SDK's checks of the headers would pass without a word."""
        length = headers.get(b"content-length", b"")
        return (
            headers.get(b"host") in self._hosts
            and b"origin" not in headers
            and _TWICE not in headers
            and headers.get(b"content-type") in _JSON_TYPES
            and headers.get(b"accept") in _ACCEPTED
            and length.isdigit()
            and int(length) <= MAX_BODY_BYTES
        )

    def _modern_call(self, headers: dict[bytes, bytes], message: Any) -> Plain | None:
        if headers.get(_METHOD) != b"tools/call" or _PARAM in headers:
            return None
        call = self._modern.take(message)
        if call is None or headers.get(_NAME) != call.name.encode():
            return None
        return None if self._reads_headers(call.name) else call

    def _reads_headers(self, name: str) -> bool:
        """Tell whether a tool has arguments that must be repeated in headers: the SDK checks."""
        tool = self._surface.app.catalog.current.tools[name]
        reads = self._reading.get(tool)
        if reads is None:
            reads = self._reading[tool] = b'"x-mcp-header"' in to_json(tool.input_schema)
        return reads

    async def _answer_modern(self, call: Plain, receive: "Receive", send: "Send") -> None:
        """Answer a call that its client gives up by closing the connection."""
        with self.watch.cancelling(receive) as scope:
            answer = await self._modern.answer(call)
        if not scope.cancelled_caught:
            status = 200 if answer.code is None else ERROR_CODE_HTTP_STATUS.get(answer.code, 200)
            await _respond(send, status, answer.body)

    async def _in_session(self, session: _Session, id: bytes, message: Any, send: "Send") -> bool:
        """Deal with a message of an open session; tell whether that was done here."""
        if _method(message) == "notifications/cancelled":
            scope = session.calls.get(str(_param(message, "requestId")))
            if scope is not None:
                scope.cancel()
                await _respond(send, 202, b"")
                return True
        if anyio.current_time() - session.seen_by_sdk > self._sdk_sees_s:
            return False
        call = session.lane.take(message)
        if call is None:
            return False
        await self._answer_in_session(session, call, id, send)
        return True

    async def _answer_in_session(
        self, session: _Session, call: Plain, id: bytes, send: "Send"
    ) -> None:
        """Answer a call that its client gives up by `notifications/cancelled`."""
        key, scope = str(call.id), anyio.CancelScope()
        session.calls[key] = scope
        answer = failure(call.id, _REQUEST_CANCELLED, "Request cancelled")
        with scope:
            answer = await session.lane.answer(call)
        if session.calls.get(key) is scope:
            del session.calls[key]
        await _respond(send, 200, answer.body, (_SESSION, id))

    def _watching_session(self, session: _Session, id: bytes, send: "Send") -> "Send":
        """Return a `send` that notes whether the SDK still has the session."""

        async def watched(event: "Message") -> None:
            if event["type"] == "http.response.start":
                if event["status"] == 404:
                    self._sessions.pop(id, None)
                elif event["status"] < 400:
                    session.seen_by_sdk = anyio.current_time()
            await send(event)

        return watched

    def _watching_handshake(self, message: Any, send: "Send") -> "Send":
        """Return a `send` that notes the session which the SDK opens."""
        asked = _param(message, "protocolVersion")
        version = asked if asked in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION
        opened: list[bytes] = []

        async def watched(event: "Message") -> None:
            if event["type"] == "http.response.start" and event["status"] == 200:
                opened.extend(v for k, v in event["headers"] if k.lower() == _SESSION)
            elif opened and b'"protocolVersion"' in event.get("body", b""):
                self._open(opened.pop(), version)  # an error would not name a version
            await send(event)

        return watched

    def _open(self, id: bytes, version: str) -> None:
        if version not in LANE_VERSIONS:
            return
        self._sessions[id] = _Session(Lane(self._surface, version), anyio.current_time())
        if len(self._sessions) > _MAX_SESSIONS:
            self._sessions.popitem(last=False)

    def _forget(self, scope: "Scope") -> None:
        """Drop a session that its client ended, and what it has in flight."""
        session = self._sessions.pop(_headers(scope).get(_SESSION, b""), None)
        if session is not None:
            for call in session.calls.values():
                call.cancel()


class Watch:
    """Cancel calls whose clients have closed the connection.

    Only calls that last are looked at: for the others it would cost more than they do.
    """

    def __init__(self) -> None:
        self._calls: dict[anyio.CancelScope, Receive] = {}
        self._begun = anyio.Event()

    @contextmanager
    def cancelling(self, receive: "Receive") -> Generator[anyio.CancelScope]:
        """Run what is inside until it ends or its client is gone."""
        with anyio.CancelScope() as scope:
            self._calls[scope] = receive
            self._begun.set()
            try:
                yield scope
            finally:
                self._calls.pop(scope, None)

    async def run(self) -> None:
        """Look after calls until cancelled."""
        known: set[anyio.CancelScope] = set()
        async with anyio.create_task_group() as tasks:
            while True:
                await self._begun.wait()
                self._begun = anyio.Event()
                known = set(self._calls)
                while self._calls:
                    await anyio.sleep(_LASTING_S)
                    for scope in [each for each in self._calls if each in known]:
                        tasks.start_soon(_cancel_when_gone, scope, self._calls.pop(scope))
                    known = set(self._calls)


async def _cancel_when_gone(scope: anyio.CancelScope, receive: "Receive") -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


def _headers(scope: "Scope") -> dict[bytes, bytes]:
    """Return the headers by name, with a mark where one came twice or an argument's is there."""
    headers: dict[bytes, bytes] = {}
    for name, value in scope["headers"]:
        if name in headers:
            headers[_TWICE] = name
        elif name.startswith(b"mcp-param-"):
            headers[_PARAM] = name
        headers[name] = value
    return headers


async def _body(receive: "Receive") -> tuple[bytes, "Receive"]:
    """Return the body of a request, and a `receive` that gives it once more."""
    parts: list[bytes] = []
    events: deque[Message] = deque()
    more = True
    while more:
        event = await receive()
        events.append(event)
        parts.append(event.get("body", b""))
        more = event.get("more_body", False)

    async def replay() -> "Message":
        return events.popleft() if events else await receive()

    return b"".join(parts), replay


def _decoded(body: bytes) -> Any:
    try:
        return from_json(body)
    except ValueError:
        return None


def _method(message: Any) -> Any:
    return cast("dict[str, Any]", message).get("method") if isinstance(message, dict) else None


def _param(message: Any, name: str) -> Any:
    params = message.get("params")
    return cast("dict[str, Any]", params).get(name) if isinstance(params, dict) else None


async def _respond(send: "Send", status: int, body: bytes, *headers: tuple[bytes, bytes]) -> None:
    about = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": about})
    await send({"type": "http.response.body", "body": body})

"""One caller of the HTTP endpoint: its surface, its sessions, and its two ways to an answer.

A plain tool call on an open session, or in the modern era, is answered here by the lean lane. The
rest is replayed to the SDK as it came. Who the caller is, others have found out.
"""

import time
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary

import anyio
import structlog
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.shared.inbound import ERROR_CODE_HTTP_STATUS
from mcp_types import INVALID_REQUEST, jsonrpc_message_adapter
from mcp_types.version import (
    HANDSHAKE_PROTOCOL_VERSIONS,
    LATEST_HANDSHAKE_VERSION,
    LATEST_MODERN_VERSION,
)
from pydantic import ValidationError
from pydantic_core import to_json

from guildry.server.http.asgi import (
    PARAM,
    TWICE,
    Watch,
    decoded,
    method_of,
    param_of,
    read_headers,
    respond,
)
from guildry.server.http.sessions import Session, Sessions
from guildry.server.lane import LANE_VERSIONS, Lane, Plain, failure

if TYPE_CHECKING:
    from anyio.abc import TaskStatus
    from starlette.types import Message, Receive, Scope, Send

    from guildry.server.http.identity import Identity
    from guildry.server.http.settings import HttpSetting
    from guildry.server.surface import Surface
    from guildry.tools.base import Tool

__all__ = ["Tenant"]

log = structlog.get_logger()

_REQUEST_CANCELLED: Final = -32800
_OPENING: Final = 64
"""How many sessions may be opened at the same moment when there are as many as there may be."""

_SDK_SEES_AT_MOST_S: Final = 600.0
_SESSION: Final = b"mcp-session-id"
_VERSION: Final = b"mcp-protocol-version"
_METHOD: Final = b"mcp-method"
_NAME: Final = b"mcp-name"
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


class Tenant:
    """Serve the requests of one caller.

    Args:
        surface: what the caller is shown.
        setting: limits.
        watch: what looks after calls whose clients are gone.
        sdk_sees_s: a session's request goes to the SDK at least this often, in seconds, so that
            the SDK does not take the session for idle and end it.
    """

    def __init__(
        self,
        surface: "Surface",
        setting: "HttpSetting",
        watch: Watch,
        *,
        sdk_sees_s: float | None = None,
    ) -> None:
        self._surface = surface
        self._watch = watch
        idle_s = setting.session_idle_s
        self._sdk_sees_s = (
            min(_SDK_SEES_AT_MOST_S, idle_s / 3) if sdk_sees_s is None else sdk_sees_s
        )
        self._manager = StreamableHTTPSessionManager(
            surface.server,
            session_idle_timeout=idle_s,
            max_request_body_size=setting.max_body_bytes,
            max_sessions=setting.max_sessions + _OPENING,
        )
        self._max_header_bytes = setting.max_header_bytes
        self._modern = Lane(surface, LATEST_MODERN_VERSION)
        self._sessions = Sessions(setting.max_sessions)
        self._reading: WeakKeyDictionary[Tool, bool] = WeakKeyDictionary()
        self._open: set[anyio.CancelScope] = set()
        self._ending = anyio.Event()
        self.requests = 0

    @property
    def is_ended(self) -> bool:
        """Whether nothing is served any more."""
        return self._ending.is_set()

    async def run(self, *, task_status: "TaskStatus[None]") -> None:
        """Keep the SDK's sessions until the end; their open streams end with them."""
        async with self._manager.run():
            task_status.started()
            await self._ending.wait()

    def end(self) -> None:
        """Serve nothing any more: sessions, streams and calls end now."""
        self._ending.set()
        for scope in self._open:
            scope.cancel()
        self._sessions.clear()

    async def serve(
        self, identity: "Identity | None", scope: "Scope", receive: "Receive", send: "Send"
    ) -> None:
        """Serve a GET or a DELETE: a stream lasts as long as the token that opened it."""
        id = read_headers(scope, self._max_header_bytes).get(_SESSION)
        await self._by_sdk(scope, receive, send, _deadline(identity), self._sessions.find(id))
        if scope["method"] == "DELETE":
            self._sessions.forget(id)

    async def post(
        self,
        identity: "Identity | None",
        headers: dict[bytes, bytes],
        body: bytes,
        scope: "Scope",
        receive: "Receive",
        send: "Send",
    ) -> None:
        """Serve a POST, whose body `receive` gives once more."""
        message = decoded(body)
        session = self._sessions.find(headers.get(_SESSION))
        if _is_usual(headers):
            if session is not None and headers.get(_VERSION) in _HANDSHAKES:
                if await self._in_session(session, headers[_SESSION], message, send):
                    return
            elif headers.get(_VERSION) == _MODERN and (call := self._modern_call(headers, message)):
                await self._answer_modern(call, receive, send)
                return
        if not _is_json_rpc(message, body):
            # The SDK would answer with the words of the library that it checks messages with.
            answer = failure(None, INVALID_REQUEST, "Not a JSON-RPC 2.0 message")
            await respond(send, 400, answer.body)
            return
        refused: list[bytes] = []
        if session is not None:
            send = self._watching_session(session, headers[_SESSION], send)
        elif method_of(message) == "initialize":
            send = self._watching_handshake(message, send, refused)
        lasts = headers.get(_METHOD) == b"subscriptions/listen"
        deadline = _deadline(identity) if lasts else float("inf")
        await self._by_sdk(scope, receive, send, deadline, session)
        for id in refused:
            await self._end_session(id, scope)
        while (surplus := self._sessions.surplus()) is not None:
            await self._end_session(surplus, scope)
            log.info("session_made_room", caller=self._surface.caller.grant.holder)

    def _modern_call(self, headers: dict[bytes, bytes], message: Any) -> Plain | None:
        if headers.get(_METHOD) != b"tools/call" or PARAM in headers:
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
        with self._watch.cancelling(receive) as scope:
            self._open.add(scope)
            try:
                answer = await self._modern.answer(call)
            finally:
                self._open.discard(scope)
        if not scope.cancelled_caught:
            status = 200 if answer.code is None else ERROR_CODE_HTTP_STATUS.get(answer.code, 200)
            await respond(send, status, answer.body)
        elif self.is_ended:
            await _respond_ended(send)

    async def _in_session(self, session: Session, id: bytes, message: Any, send: "Send") -> bool:
        """Deal with a message of an open session; tell whether that was done here."""
        if method_of(message) == "notifications/cancelled":
            scope = session.calls.get(str(param_of(message, "requestId")))
            if scope is not None:
                scope.cancel()
                await respond(send, 202, b"")
                return True
        lane = session.lane
        call = None if lane is None else lane.take(message)
        if lane is None or call is None:
            return False
        if anyio.current_time() - session.seen_by_sdk > self._sdk_sees_s:
            return False
        await self._answer_in_session(session, lane, call, id, send)
        return True

    async def _answer_in_session(
        self, session: Session, lane: Lane, call: Plain, id: bytes, send: "Send"
    ) -> None:
        """Answer a call that its client gives up by `notifications/cancelled`."""
        key, scope = str(call.id), anyio.CancelScope()
        session.calls[key] = scope
        answer = failure(call.id, _REQUEST_CANCELLED, "Request cancelled")
        with scope:
            answer = await lane.answer(call)
        if session.calls.get(key) is scope:
            del session.calls[key]
        await respond(send, 200, answer.body, (_SESSION, id))

    def _watching_session(self, session: Session, id: bytes, send: "Send") -> "Send":
        """Return a `send` that notes whether the SDK still has the session."""

        async def watched(event: "Message") -> None:
            if event["type"] == "http.response.start":
                if event["status"] == 404:
                    self._sessions.forget(id)
                elif event["status"] < 400:
                    session.seen_by_sdk = anyio.current_time()
            await send(event)

        return watched

    def _watching_handshake(self, message: Any, send: "Send", opened: list[bytes]) -> "Send":
        """Return a `send` that notes the session which the SDK opens.

        It stays in `opened` when the SDK opened it and then refused the handshake.
        """
        asked = param_of(message, "protocolVersion")
        version = asked if asked in HANDSHAKE_PROTOCOL_VERSIONS else LATEST_HANDSHAKE_VERSION
        capabilities = param_of(message, "capabilities")

        async def watched(event: "Message") -> None:
            if event["type"] == "http.response.start":
                opened.extend(v for k, v in event["headers"] if k.lower() == _SESSION)
            elif opened and b'"protocolVersion"' in event.get("body", b""):
                # an error would not name a version
                self._begin(opened.pop(), version, capabilities)
            await send(event)

        return watched

    def _begin(self, id: bytes, version: str, capabilities: Any) -> None:
        has_lane = version in LANE_VERSIONS
        self._sessions.begin(id, Lane(self._surface, version, capabilities) if has_lane else None)

    async def _end_session(self, id: bytes, scope: "Scope") -> None:
        """End a session in the way in which its client would."""
        self._sessions.forget(id)

        async def nothing() -> "Message":
            return {"type": "http.request", "body": b"", "more_body": False}

        async def unheard(event: "Message") -> None:
            pass

        headers = [(name, value) for name, value in scope["headers"] if name == b"host"]
        ending = {**scope, "method": "DELETE", "headers": [*headers, (_SESSION, id)]}
        await self._manager.asgi_app(ending, nothing, unheard)

    async def _by_sdk(
        self,
        scope: "Scope",
        receive: "Receive",
        send: "Send",
        deadline: float,
        session: Session | None,
    ) -> None:
        """Hand a request to the SDK, until it is answered, the caller is out, or the deadline."""
        state = {"begun": False, "whole": False}

        async def watched(event: "Message") -> None:
            state["begun"] = True
            state["whole"] = event["type"] == "http.response.body" and not event.get("more_body")
            await send(event)

        use = nullcontext() if session is None else session.in_use()
        with use, anyio.CancelScope(deadline=deadline) as limit:
            self._open.add(limit)
            try:
                await self._manager.asgi_app(scope, receive, watched)
            finally:
                self._open.discard(limit)
        if not state["begun"]:
            await _respond_ended(send)
        elif not state["whole"]:
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _is_usual(headers: dict[bytes, bytes]) -> bool:
    """Tell whether the SDK's checks of the headers would pass without a word."""
    return (
        TWICE not in headers
        and headers.get(b"content-type") in _JSON_TYPES
        and headers.get(b"accept") in _ACCEPTED
    )


def _is_json_rpc(message: Any, body: bytes) -> bool:
    """Tell whether a body is a JSON-RPC message; that it is no JSON at all, the SDK says."""
    if message is None:
        return body.strip() != b"null"
    try:
        jsonrpc_message_adapter.validate_python(message, by_name=False)
    except ValidationError:
        return False
    return True


def _deadline(identity: "Identity | None") -> float:
    """Return when the token ends, on the clock of the event loop."""
    if identity is None or identity.expires_at is None:
        return float("inf")
    return anyio.current_time() + identity.expires_at - time.time()


async def _respond_ended(send: "Send") -> None:
    await respond(send, 401, failure(None, INVALID_REQUEST, "The token has ended").body)

"""The front of the HTTP endpoint: who may come in, and where to. An ASGI application.

Every request is checked here before anything else sees it: where it thinks it is, which page sent
it, whose it is, and whether there is room for it.
"""

import math
from typing import TYPE_CHECKING, Any, Final

import anyio
import structlog
from mcp_types import INTERNAL_ERROR, INVALID_REQUEST

from guildry.server.http.asgi import (
    LARGE,
    TWICE,
    ClientGone,
    TooLarge,
    decoded,
    read_body,
    read_headers,
    respond,
)
from guildry.server.http.identity import SCOPES, Identity, Refused, challenge
from guildry.server.lane import failure
from guildry.server.parts import LOCAL

if TYPE_CHECKING:
    from starlette.types import Receive, Scope, Send

    from guildry.server.http.auth import Auth
    from guildry.server.http.names import Names
    from guildry.server.http.routes import Routes
    from guildry.server.http.settings import HttpSetting
    from guildry.server.http.tenant import Tenant
    from guildry.server.http.tenants import Tenants, Usage

__all__ = ["PATH", "Front"]

log = structlog.get_logger()

PATH: Final = "/mcp"
"""Where the endpoint is."""

_METHODS: Final = frozenset({"POST", "GET", "DELETE"})
_AUTHORIZATION: Final = b"authorization"
_LOCAL: Final = Identity(LOCAL, ())
_SOON_S: Final = 1.0


class Front:
    """Serve HTTP requests.

    Args:
        tenants: what serves each caller.
        auth: who finds out whose a request is; None where all are `local`.
        names: the hosts and origins that requests may name.
        routes: what is served besides the endpoint.
        setting: limits.
    """

    def __init__(
        self,
        tenants: "Tenants",
        auth: "Auth | None",
        names: "Names",
        routes: "Routes",
        setting: "HttpSetting",
    ) -> None:
        self._tenants = tenants
        self._auth = auth
        self._names = names
        self._routes = routes
        self._setting = setting
        self._draining = False
        self._idle = anyio.Event()
        self.in_flight = 0

    async def drain(self) -> None:
        """Take no more calls, and wait until those in flight have ended."""
        self._draining = True
        self._routes.draining = True
        while self.in_flight:
            self._idle = anyio.Event()
            await self._idle.wait()

    async def __call__(self, scope: "Scope", receive: "Receive", send: "Send") -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        headers = read_headers(scope, self._setting.max_header_bytes)
        origin = headers.get(b"origin")
        try:
            self._names.check(headers, is_public=self._routes.is_public(scope["path"]))
            if LARGE in headers:
                raise Refused(431, "", f"Headers are too large: send {self._limit('header')}")
            if origin is not None and self._names.is_foreign(origin):
                send = self._names.telling(origin, send)
                if scope["method"] == "OPTIONS":
                    await self._names.answer_preflight(headers, send)
                    return
            if scope["path"] == PATH:
                await self._endpoint(headers, scope, receive, send)
            else:
                await self._routes.serve(headers, scope, send)
        except Refused as refused:
            await self._refuse(refused, headers, scope, send)
        except ClientGone:
            log.debug("client_gone", path=scope["path"])

    def _limit(self, what: str) -> str:
        return f"at most {getattr(self._setting, f'max_{what}_bytes')} bytes"

    async def _refuse(
        self, refused: Refused, headers: dict[bytes, bytes], scope: "Scope", send: "Send"
    ) -> None:
        """Answer in JSON-RPC's words where JSON-RPC was spoken, and in OAuth's headers."""
        about: list[tuple[bytes, bytes]] = []
        if refused.status in (401, 403) and self._auth is not None and scope["path"] == PATH:
            url = self._routes.metadata_url(headers, scope)
            about.append((b"www-authenticate", challenge(refused, url, SCOPES[:2])))
        if refused.status == 405:
            about.append((b"allow", ", ".join(sorted(_METHODS)).encode()))
        if refused.retry_after_s:
            about.append((b"retry-after", str(math.ceil(refused.retry_after_s)).encode()))
        code = INTERNAL_ERROR if refused.status == 503 else INVALID_REQUEST
        await respond(send, refused.status, failure(None, code, refused.about).body, *about)

    async def _endpoint(
        self, headers: dict[bytes, bytes], scope: "Scope", receive: "Receive", send: "Send"
    ) -> None:
        method = scope["method"]
        if method not in _METHODS:
            raise Refused(405, "", "The endpoint takes POST, GET and DELETE")
        identity = await self._identity(headers, scope)
        found = await self._tenants.find(identity)
        if found is None:
            raise Refused(503, "", "Too many callers at a time: try again", _SOON_S)
        tenant, usage = found
        wait_s = usage.bucket.take() if usage.bucket is not None else 0.0
        if wait_s:
            raise Refused(429, "", "Too many requests: wait", wait_s)
        tenant.requests += 1
        try:
            if method == "POST":
                await self._post(identity, tenant, usage, headers, scope, receive, send)
            elif method == "GET":
                await self._stream(identity, tenant, usage, scope, receive, send)
            else:
                await tenant.serve(identity, scope, receive, send)
        finally:
            tenant.requests -= 1

    async def _identity(self, headers: dict[bytes, bytes], scope: "Scope") -> Identity:
        """Return whose a request is; quickly, where its token was checked before."""
        if self._auth is None:
            return _LOCAL
        token = headers.get(_AUTHORIZATION)
        if token is not None and TWICE not in headers and not scope["query_string"]:
            known = self._auth.known(token)
            if known is not None:
                return known
        shown = [value for name, value in scope["headers"] if name == _AUTHORIZATION]
        client = scope.get("client")
        return await self._auth.identify(
            shown, query=scope["query_string"], address=client[0] if client else ""
        )

    async def _stream(
        self,
        identity: Identity,
        tenant: "Tenant",
        usage: "Usage",
        scope: "Scope",
        receive: "Receive",
        send: "Send",
    ) -> None:
        """Serve what stays open without being a call."""
        if self._draining:
            raise Refused(503, "", "The server is stopping", _SOON_S)
        if usage.streams >= self._setting.max_sessions:
            raise Refused(429, "", "Too many open streams: close one", _SOON_S)
        usage.streams += 1
        try:
            await tenant.serve(identity, scope, receive, send)
        finally:
            usage.streams -= 1

    async def _post(
        self,
        identity: Identity,
        tenant: "Tenant",
        usage: "Usage",
        headers: dict[bytes, bytes],
        scope: "Scope",
        receive: "Receive",
        send: "Send",
    ) -> None:
        listens = headers.get(b"mcp-method") == b"subscriptions/listen"
        if listens and usage.streams >= self._setting.max_sessions:
            raise Refused(429, "", "Too many open streams: close one", _SOON_S)
        full = self._full(usage)
        self.in_flight += not listens
        usage.calls += not listens
        usage.streams += listens
        try:
            body, replay = await self._body(headers, receive)
            if full is not None and _is_request(body):
                raise full
            await tenant.post(identity, headers, body, scope, replay, send)
        finally:
            usage.streams -= listens
            usage.calls -= not listens
            self.in_flight -= not listens
            if not self.in_flight:
                self._idle.set()

    def _full(self, usage: "Usage") -> Refused | None:
        """Return why a call cannot be taken now. Answers to our own questions always can."""
        limit = self._setting.max_concurrent
        if self._draining:
            return Refused(503, "", "The server is stopping", _SOON_S)
        if self.in_flight >= 2 * limit:
            raise Refused(503, "", "Too many calls at a time: try again", _SOON_S)
        if self.in_flight >= limit:
            return Refused(503, "", "Too many calls at a time: try again", _SOON_S)
        if usage.calls >= self._setting.max_concurrent_per_caller:
            return Refused(429, "", "You have too many calls in flight: let some end", _SOON_S)
        return None

    async def _body(
        self, headers: dict[bytes, bytes], receive: "Receive"
    ) -> "tuple[bytes, Receive]":
        length = headers.get(b"content-length", b"0")
        limit = self._setting.max_body_bytes
        try:
            if length.isdigit() and int(length) > limit:
                raise TooLarge
            return await read_body(receive, limit)
        except TooLarge:
            raise Refused(413, "", f"The body is too large: send {self._limit('body')}") from None


def _is_request(body: bytes) -> bool:
    """Tell whether a body wants an answer: what is no notification and no response does."""
    message: Any = decoded(body)
    return not isinstance(message, dict) or ("method" in message and "id" in message)

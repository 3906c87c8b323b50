"""What the HTTP endpoint serves besides MCP: health, readiness, and how to find and enter it."""

import hashlib
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from pydantic_core import to_json

from guildry.server.http.asgi import respond, respond_json
from guildry.server.http.identity import SCOPES

if TYPE_CHECKING:
    from starlette.types import Scope, Send

    from guildry.server.http.auth import Auth
    from guildry.server.http.settings import HttpSetting
    from guildry.server.surface import Surface

__all__ = ["Routes"]

_ENDPOINT: Final = "/mcp"
_CARD: Final = f"{_ENDPOINT}/server-card"
_CATALOG: Final = "/.well-known/ai-catalog.json"
_METADATA: Final = "/.well-known/oauth-protected-resource"
_CACHED: Final = (b"cache-control", b"public, max-age=3600")
_UNCACHED: Final = (b"cache-control", b"no-store")
_CARD_TYPE: Final = "application/mcp-server-card+json"


class Routes:
    """Serve what is not MCP.

    Args:
        surface: what everybody may know of.
        auth: what checks tokens, where they are needed.
        setting: under which URL the endpoint is known.
    """

    def __init__(self, surface: "Surface", auth: "Auth | None", setting: "HttpSetting") -> None:
        self._surface = surface
        self._auth = auth
        self._setting = setting
        path = urlsplit(setting.public_url).path if setting.public_url else ""
        self._metadata = {_METADATA, f"{_METADATA}{_ENDPOINT}", f"{_METADATA}{path}"}
        self._public = {_CARD, _CATALOG, *(self._metadata if auth is not None else ())}
        self._paths = {"/health", "/ready", *self._public}
        self.draining = False

    def is_public(self, path: str) -> bool:
        """Tell whether any page may read what is at `path`."""
        return path in self._public

    def url(self, headers: dict[bytes, bytes], scope: "Scope") -> str:
        """Return the URL of the endpoint as the client knows it."""
        if self._setting.public_url:
            return self._setting.public_url
        host = headers.get(b"host", b"").decode("latin-1")
        return f"{scope['scheme']}://{host}{_ENDPOINT}"

    def metadata_url(self, headers: dict[bytes, bytes], scope: "Scope") -> str:
        """Return where the metadata of the protected resource are (RFC 9728, section 3.1)."""
        parts = urlsplit(self.url(headers, scope))
        return f"{parts.scheme}://{parts.netloc}{_METADATA}{parts.path}"

    async def serve(self, headers: dict[bytes, bytes], scope: "Scope", send: "Send") -> None:
        """Serve one request."""
        path, method = scope["path"], scope["method"]
        if path not in self._paths:
            about = b'{"error":"not found: the endpoint is /mcp"}'
            await respond(send, 404, about)
        elif method not in ("GET", "HEAD"):
            about = b'{"error":"method not allowed"}'
            await respond(send, 405, about, (b"allow", b"GET, HEAD"))
        elif path == "/health":
            await self._health(send)
        elif path == "/ready":
            await self._ready(send)
        elif path == _CARD:
            await self._card(headers, scope, send)
        elif path == _CATALOG:
            await self._catalog(headers, scope, send)
        else:
            await self._resource(headers, scope, send)

    async def _health(self, send: "Send") -> None:
        app = self._surface.app
        body = {
            "status": "draining" if self.draining else "ok",
            "ready": app.ready.is_set(),
            "tools": len(app.catalog.current),
        }
        await respond_json(send, 200, body, _UNCACHED)

    async def _ready(self, send: "Send") -> None:
        reasons: list[str] = []
        if not self._surface.app.ready.is_set():
            reasons.append("plugs are being opened")
        if self.draining:
            reasons.append("the server is stopping")
        reasons += self._auth.troubles() if self._auth is not None else ()
        body = {"ready": not reasons, "reasons": reasons}
        await respond_json(send, 503 if reasons else 200, body, _UNCACHED)

    async def _card(self, headers: dict[bytes, bytes], scope: "Scope", send: "Send") -> None:
        from guildry.server.card import server_card

        card = to_json(server_card(self._surface, self.url(headers, scope)))
        await _document(send, headers, card, _CARD_TYPE)

    async def _catalog(self, headers: dict[bytes, bytes], scope: "Scope", send: "Send") -> None:
        """Name the server card, so that it is found by the domain alone."""
        url = self.url(headers, scope)
        entry = {
            "identifier": f"urn:air:{urlsplit(url).hostname}:guildry",
            "displayName": "Guildry",
            "type": _CARD_TYPE,
            "url": f"{url}/server-card",
        }
        catalog = to_json({"specVersion": "1.0", "entries": [entry]})
        await _document(send, headers, catalog, "application/ai-catalog+json")

    async def _resource(self, headers: dict[bytes, bytes], scope: "Scope", send: "Send") -> None:
        jwt = self._setting.jwt
        offered = list(jwt.scopes) if jwt.scopes and self._setting.tokens is None else list(SCOPES)
        about: dict[str, Any] = {
            "resource": self.url(headers, scope),
            "scopes_supported": offered,
            "bearer_methods_supported": ["header"],
            "resource_name": "Guildry",
        }
        if jwt.issuer is not None:
            about["authorization_servers"] = [jwt.issuer]
        await _document(send, headers, to_json(about), "application/json")


async def _document(send: "Send", headers: dict[bytes, bytes], body: bytes, kind: str) -> None:
    """Send a document that rarely changes, or say that it has not."""
    tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'.encode()
    is_known = headers.get(b"if-none-match") == tag
    status, body = (304, b"") if is_known else (200, body)
    await respond(send, status, body, _CACHED, (b"etag", tag), kind=kind.encode())

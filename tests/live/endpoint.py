"""An HTTP endpoint in the process of a test, and JSON-RPC sent to it by hand."""

import hashlib
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2

from guildry.server.app import App
from guildry.server.http.endpoint import serve_http
from guildry.server.surface import USER_SCOPES, Surface

__all__ = [
    "LEGACY",
    "MODERN",
    "Post",
    "bearer",
    "legacy_call",
    "modern_call",
    "serving",
    "write_tokens",
]

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
USUAL = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
ENVELOPE: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}


@asynccontextmanager
async def serving(app: App, **options: Any) -> AsyncGenerator[str]:
    """Serve an app on a free port; yield the URL."""
    surface = Surface(app, scopes=USER_SCOPES)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            yield await tasks.start(partial(serve_http, surface, port=0, **options))
            tasks.cancel_scope.cancel()


def bearer(token: str) -> dict[str, str]:
    """Return the header that shows a token."""
    return {"Authorization": f"Bearer {token}"}


def write_tokens(path: Path, **tokens: str) -> Path:
    """Write a file of tokens, each given as `name="scope scope"`; see `token_of`."""
    tables = [
        f"[tokens.{name}]\nsha256 = '{hashlib.sha256(token_of(name).encode()).hexdigest()}'\n"
        f"scopes = {json.dumps(scopes.split())}\n"
        for name, scopes in tokens.items()
    ]
    fresh = path.with_suffix(".new")
    fresh.touch(mode=0o600)
    fresh.write_text("\n".join(tables))
    fresh.replace(path)
    return path


def token_of(name: str) -> str:
    """Return the token that `write_tokens` writes for a name."""
    return f"{name}-" * 8 + "x"


class Post:
    """Send JSON-RPC over HTTP as a client of one era does."""

    def __init__(self, url: str, http: httpx2.AsyncClient, **headers: str) -> None:
        self.url = url
        self.session: dict[str, str] = {}
        self._http = http
        self._headers = headers

    async def open(self) -> httpx2.Response:
        info = {"name": "test", "version": "1"}
        hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": info}
        response = await self.send({"id": 0, "method": "initialize", "params": hello})
        if response.status_code == 200:
            self.session = {
                "Mcp-Session-Id": response.headers["mcp-session-id"],
                "MCP-Protocol-Version": LEGACY,
            }
            assert (await self.send({"method": "notifications/initialized"})).status_code == 202
        return response

    async def send(
        self, message: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> httpx2.Response:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        every = {**USUAL, **self._headers, **self.session, **(headers or {})}
        return await self._http.post(self.url, content=body, headers=every)

    async def delete(self) -> httpx2.Response:
        return await self._http.delete(self.url, headers={**self._headers, **self.session})

    async def call(self, tool: str, **arguments: Any) -> Any:
        """Call a tool in the modern era; return the result, or the error."""
        response = await self.send(*modern_call(tool, arguments))
        answer = response.json()
        return answer.get("result") or answer["error"]


def modern_call(
    tool: str, arguments: Any, id: Any = 1, **headers: str
) -> tuple[dict[str, Any], dict[str, str]]:
    params = {"name": tool, "arguments": arguments, "_meta": ENVELOPE}
    named = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": tool}
    return {"id": id, "method": "tools/call", "params": params}, {**named, **headers}


def legacy_call(tool: str, arguments: Any, id: Any = 1) -> dict[str, Any]:
    return {"id": id, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}

"""`server/discover`: what this server is and what it can do."""

from typing import TYPE_CHECKING, Any, Final

from mcp_types import SERVER_INFO_META_KEY, RequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from guildry.server.methods.answers import complete

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel.server import Server

    from guildry.server.surface import Surface

__all__ = ["register"]

_KEPT_MS: Final = 300_000
"""It changes only when the server is started anew with other settings or as another version."""


def register(server: "Server[Any]", surface: "Surface") -> None:
    """Serve the method. The icon is told here, and not with every answer."""

    async def on_discover(
        context: "ServerRequestContext[Any, Any]", params: RequestParams
    ) -> dict[str, Any]:
        capabilities = server.get_capabilities(protocol_version=context.protocol_version)
        info = server.server_info.model_dump(by_alias=True, mode="json", exclude_none=True)
        found: dict[str, Any] = {
            "supportedVersions": list(MODERN_PROTOCOL_VERSIONS),
            "capabilities": capabilities.model_dump(by_alias=True, mode="json", exclude_none=True),
            "ttlMs": _KEPT_MS,
            "cacheScope": "private",
            "_meta": {SERVER_INFO_META_KEY: info},
        }
        if server.instructions:
            found["instructions"] = server.instructions
        return complete(found)

    server.add_request_handler("server/discover", RequestParams, on_discover)

"""`resources/list`, `resources/templates/list` and `resources/read`."""

from typing import TYPE_CHECKING, Any, Final

from mcp_types import PaginatedRequestParams, ReadResourceRequestParams

from guildry.server.methods.answers import complete, safely
from guildry.server.resources import TEMPLATES

if TYPE_CHECKING:
    from mcp.server.lowlevel.server import Server

    from guildry.server.surface import Surface

__all__ = ["register"]

_DAY_MS: Final = 86_400_000


def register(server: "Server[Any]", surface: "Surface") -> None:
    """Serve the methods about resources."""
    methods = _Resources(surface)
    paged = PaginatedRequestParams
    server.add_request_handler("resources/list", paged, methods.on_list)
    server.add_request_handler("resources/templates/list", paged, methods.on_templates)
    server.add_request_handler("resources/read", ReadResourceRequestParams, methods.on_read)


class _Resources:
    def __init__(self, surface: "Surface") -> None:
        self._resources = surface.resources

    async def on_list(self, context: Any, params: PaginatedRequestParams) -> dict[str, Any]:
        return complete(await safely(self._resources.listing(params.cursor)))

    async def on_templates(self, context: Any, params: PaginatedRequestParams) -> dict[str, Any]:
        page = {"resourceTemplates": list(TEMPLATES), "ttlMs": _DAY_MS, "cacheScope": "public"}
        return complete(page)

    async def on_read(self, context: Any, params: ReadResourceRequestParams) -> dict[str, Any]:
        return complete(await safely(self._resources.read(str(params.uri))))

"""`resources/list`, `resources/templates/list` and `resources/read`."""

from typing import TYPE_CHECKING, Any

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, PaginatedRequestParams, ReadResourceRequestParams
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from guildry.errors import ToolRetry
from guildry.server.methods.answers import answered, complete, refused
from guildry.server.offers.resources import ResourceNotFound

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel.server import Server

    from guildry.server.asking.channels import Contact
    from guildry.server.surface import Surface

__all__ = ["not_found", "register"]

_NOT_FOUND = -32002
"""What the versions up to 2025-11-25 have for a resource that is not there."""


def register(server: "Server[Any]", surface: "Surface") -> None:
    """Serve the methods about resources."""
    methods = _Resources(surface)
    paged = PaginatedRequestParams
    server.add_request_handler("resources/list", paged, methods.on_list)
    server.add_request_handler("resources/templates/list", paged, methods.on_templates)
    server.add_request_handler("resources/read", ReadResourceRequestParams, methods.on_read)


def not_found(error: ResourceNotFound, version: str) -> MCPError:
    """Return what a client that speaks `version` is told where there is no such resource."""
    code = INVALID_PARAMS if version in MODERN_PROTOCOL_VERSIONS else _NOT_FOUND
    return MCPError(code, str(error), {"uri": error.uri})


class _Resources:
    def __init__(self, surface: "Surface") -> None:
        self._surface = surface
        self._resources = surface.resources

    async def on_list(self, context: Any, params: PaginatedRequestParams) -> dict[str, Any]:
        await self._surface.app.settled()
        return complete(await answered(self._resources.listing(params.cursor)))

    async def on_templates(self, context: Any, params: PaginatedRequestParams) -> dict[str, Any]:
        await self._surface.app.settled()
        try:
            return complete(self._resources.templates(params.cursor))
        except ToolRetry as error:
            raise refused(str(error)) from error

    async def on_read(
        self, context: "ServerRequestContext[Any, Any]", params: ReadResourceRequestParams
    ) -> dict[str, Any]:
        surface, uri = self._surface, str(params.uri)

        async def read(contact: "Contact") -> dict[str, Any]:
            try:
                return complete(await self._resources.read(uri, contact.channel, contact.log))
            except ResourceNotFound as error:
                raise not_found(error, context.protocol_version) from error

        work = surface.app.exchanges.serve(
            context, params, principal=surface.caller.grant.holder, work=read
        )
        return await answered(work, {"uri": uri})

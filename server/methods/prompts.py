"""`prompts/list` and `prompts/get`."""

from typing import TYPE_CHECKING, Any

from mcp_types import GetPromptRequestParams, PaginatedRequestParams

from guildry.errors import ToolRetry
from guildry.server.methods.answers import answered, complete, refused
from guildry.server.offers.wire import messages_to_wire

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel.server import Server

    from guildry.server.asking.channels import Contact
    from guildry.server.surface import Surface

__all__ = ["register"]


def register(server: "Server[Any]", surface: "Surface") -> None:
    """Serve the methods about prompts."""
    methods = _Prompts(surface)
    server.add_request_handler("prompts/list", PaginatedRequestParams, methods.on_list)
    server.add_request_handler("prompts/get", GetPromptRequestParams, methods.on_get)


class _Prompts:
    def __init__(self, surface: "Surface") -> None:
        self._surface = surface
        self._prompts = surface.prompts

    async def on_list(self, context: Any, params: PaginatedRequestParams) -> dict[str, Any]:
        await self._surface.app.settled()
        try:
            return complete(self._prompts.listing(params.cursor))
        except ToolRetry as error:
            raise refused(str(error)) from error

    async def on_get(
        self, context: "ServerRequestContext[Any, Any]", params: GetPromptRequestParams
    ) -> dict[str, Any]:
        surface, arguments = self._surface, params.arguments or {}
        if params.name not in self._prompts.known():
            await surface.app.settled()

        async def get(contact: "Contact") -> dict[str, Any]:
            messages = await self._prompts.get(params.name, arguments, contact.channel, contact.log)
            return complete(messages_to_wire(messages, context.protocol_version))

        work = surface.app.exchanges.serve(
            context, params, principal=surface.caller.grant.holder, work=get
        )
        return await answered(work)

"""`completion/complete`."""

from typing import TYPE_CHECKING, Any

from mcp_types import CompleteRequestParams

from guildry.server.methods.answers import complete, safely

if TYPE_CHECKING:
    from mcp.server.lowlevel.server import Server

    from guildry.server.surface import Surface

__all__ = ["register"]


def register(server: "Server[Any]", surface: "Surface") -> None:
    """Serve completion."""

    async def on_complete(context: Any, params: CompleteRequestParams) -> dict[str, Any]:
        argument = params.argument
        values = await safely(surface.resources.complete(argument.name, argument.value))
        return complete({"completion": {"values": values[:100], "total": len(values)}})

    server.add_request_handler("completion/complete", CompleteRequestParams, on_complete)

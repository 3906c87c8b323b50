"""`logging/setLevel`, for sessions of the handshake era.

Later clients say with each request what they want to hear of it.
"""

from typing import TYPE_CHECKING, Any, Final

from mcp_types import SetLevelRequestParams

from guildry.server.announce import connection_of

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel.server import Server

    from guildry.server.surface import Surface

__all__ = ["LEVEL_STATE", "register"]

LEVEL_STATE: Final = "guildry.log_level"
"""Where the state of a connection has the least level that its client wants to hear."""


def register(server: "Server[Any]", surface: "Surface") -> None:
    """Serve the method."""
    server.add_request_handler("logging/setLevel", SetLevelRequestParams, _on_set_level)


async def _on_set_level(
    context: "ServerRequestContext[Any, Any]", params: SetLevelRequestParams
) -> dict[str, Any]:
    connection_of(context).state[LEVEL_STATE] = params.level
    return {}

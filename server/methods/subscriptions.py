"""Who hears of changes: sessions of the handshake era, and subscriptions of the modern one."""

from typing import TYPE_CHECKING, Any

from mcp_types import NotificationParams

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel.server import Server

    from guildry.server.surface import Surface

__all__ = ["register"]


def register(server: "Server[Any]", surface: "Surface") -> None:
    """Remember sessions. What serves `subscriptions/listen` is given to the server when made."""

    async def on_initialized(
        context: "ServerRequestContext[Any, Any]", params: NotificationParams
    ) -> None:
        surface.app.announcer.remember(context)

    server.add_notification_handler("notifications/initialized", NotificationParams, on_initialized)

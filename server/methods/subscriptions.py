"""Who hears of changes: sessions of the handshake era, and subscriptions of the modern one."""

from typing import TYPE_CHECKING, Any, Final

from mcp_types import (
    NotificationParams,
    SubscribeRequestParams,
    SubscriptionsListenRequestParams,
    UnsubscribeRequestParams,
)

from guildry.errors import ToolError
from guildry.server.announce import connection_of
from guildry.server.methods.answers import answered, refused
from guildry.server.methods.resources import not_found
from guildry.server.offers.resources import ResourceNotFound

if TYPE_CHECKING:
    from mcp.server.connection import Connection
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel.server import Server
    from mcp_types import SubscriptionsListenResult

    from guildry.server.surface import Surface

__all__ = ["register"]

_MOST: Final = 1_000


def register(server: "Server[Any]", surface: "Surface") -> None:
    """Remember sessions, and serve subscriptions of both eras."""
    methods = _Subscriptions(surface)
    server.add_notification_handler(
        "notifications/initialized", NotificationParams, methods.on_initialized
    )
    server.add_request_handler("resources/subscribe", SubscribeRequestParams, methods.on_subscribe)
    server.add_request_handler(
        "resources/unsubscribe", UnsubscribeRequestParams, methods.on_unsubscribe
    )
    server.add_request_handler(
        "subscriptions/listen", SubscriptionsListenRequestParams, methods.on_listen
    )


class _Subscriptions:
    def __init__(self, surface: "Surface") -> None:
        self._surface = surface
        self._view = surface.view

    async def on_initialized(
        self, context: "ServerRequestContext[Any, Any]", params: NotificationParams
    ) -> None:
        self._view.remember(context)

    async def on_subscribe(
        self, context: "ServerRequestContext[Any, Any]", params: SubscribeRequestParams
    ) -> dict[str, Any]:
        uri, connection = str(params.uri), connection_of(context)
        followed = self._followed(connection)
        if uri in followed:
            return {}
        if len(followed) >= _MOST:
            raise refused(f"{_MOST} resources are followed already: unsubscribe from some", uri)
        await answered(self._begun(uri, context.protocol_version), {"uri": uri})
        if uri in followed:  # asked twice at once
            self._surface.app.following.release(uri)
        followed.add(uri)
        return {}

    async def on_unsubscribe(
        self, context: "ServerRequestContext[Any, Any]", params: UnsubscribeRequestParams
    ) -> dict[str, Any]:
        uri, followed = str(params.uri), self._followed(connection_of(context))
        if uri in followed:
            followed.remove(uri)
            self._surface.app.following.release(uri)
        return {}

    async def on_listen(
        self,
        context: "ServerRequestContext[Any, Any]",
        params: SubscriptionsListenRequestParams,
    ) -> "SubscriptionsListenResult":
        """Serve one subscription: to lists, and to those resources that its caller may read."""
        wanted = params.notifications
        uris = dict.fromkeys(wanted.resource_subscriptions or ())
        if len(uris) > _MOST:
            raise refused(f"{len(uris)} resources are too many: follow at most {_MOST} at once")
        held: list[str] = []
        try:
            for uri in uris:
                held += [uri] if await self._can_follow(uri) else []
            honored = wanted.model_copy(update={"resource_subscriptions": held or None})
            asked = params.model_copy(update={"notifications": honored})
            return await self._view.listen(context, asked)
        finally:
            for uri in held:
                self._surface.app.following.release(uri)

    async def _can_follow(self, uri: str) -> bool:
        try:
            await self._begin(uri)
        except (ResourceNotFound, ToolError):
            return False
        return True

    async def _begun(self, uri: str, version: str) -> None:
        try:
            await self._begin(uri)
        except ResourceNotFound as error:
            raise not_found(error, version) from error

    async def _begin(self, uri: str) -> None:
        await self._surface.resources.check(uri)
        await self._surface.app.following.hold(uri)

    def _followed(self, connection: "Connection") -> set[str]:
        """Return what a session follows, which ends with it."""
        sessions = self._view.sessions
        if connection not in sessions or "guildry" not in connection.state:
            followed = sessions.setdefault(connection, set())
            connection.state["guildry"] = True
            connection.exit_stack.callback(self._release, followed)
        return sessions[connection]

    def _release(self, followed: set[str]) -> None:
        for uri in followed:
            self._surface.app.following.release(uri)
        followed.clear()

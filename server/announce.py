"""Announcements: what changed is told to every client that listens, in either protocol era.

Clients up to 2025-11-25 hear of it on their session, later ones on `subscriptions/listen`. Changes
that come close together are told once.
"""

import weakref
from typing import TYPE_CHECKING, Any, Final

import anyio
import structlog

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from mcp.server.connection import Connection
    from mcp.server.context import ServerRequestContext
    from mcp.server.subscriptions import ListenHandler

    from guildry.tools.registry import Change

__all__ = ["Announcer"]

log = structlog.get_logger()

_TOGETHER_S: Final = 0.02
_RESOURCES_TOGETHER_S: Final = 1.0
_PATIENCE_S: Final = 5.0


class Announcer:
    """Tell clients that the list of tools or of resources is another one now.

    One announcer serves all transports of a process. `run` must be running.

    Args:
        patience_s: how long a client that reads nothing is waited for, before it is given up.
    """

    def __init__(self, *, patience_s: float = _PATIENCE_S) -> None:
        from mcp.server.subscriptions import InMemorySubscriptionBus, ListenHandler

        self._bus = InMemorySubscriptionBus()
        self._listen = ListenHandler(self._bus)
        self._sessions: weakref.WeakSet[Connection] = weakref.WeakSet()
        self._patience_s = patience_s
        self._tools = anyio.Event()
        self._resources = anyio.Event()

    @property
    def listen(self) -> "ListenHandler":
        """What serves `subscriptions/listen`."""
        return self._listen

    def remember(self, context: "ServerRequestContext[Any, Any]") -> None:
        """Tell this client of changes from now on, on its session, for as long as it lasts."""
        # The SDK gives a handler no other way to the connection that outlives the request.
        connection: Connection = getattr(context.session, "_connection")  # noqa: B009 - private
        self._sessions.add(connection)

    def changed(self, change: "Change") -> None:
        """Tell of every list that a change of the catalog made another one."""
        if change.tools:
            self.tools_changed()
        if change.resources:
            self.resources_changed()

    def tools_changed(self) -> None:
        """Say that tools came, went or changed."""
        self._tools.set()

    def resources_changed(self) -> None:
        """Say that there are other resources now."""
        self._resources.set()

    def close(self) -> None:
        """End every open subscription, in the way that tells its client so."""
        self._listen.close()

    async def run(self) -> None:
        """Announce changes until cancelled."""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._announce_tools)
            tasks.start_soon(self._announce_resources)

    async def _announce_tools(self) -> None:
        from mcp.server.subscriptions import ToolsListChanged

        while True:
            await self._tools.wait()
            await anyio.sleep(_TOGETHER_S)
            self._tools = anyio.Event()
            await self._bus.publish(ToolsListChanged())
            await self._tell("tools", lambda session: session.send_tool_list_changed())

    async def _announce_resources(self) -> None:
        from mcp.server.subscriptions import ResourcesListChanged

        while True:
            await self._resources.wait()
            await anyio.sleep(_RESOURCES_TOGETHER_S)
            self._resources = anyio.Event()
            await self._bus.publish(ResourcesListChanged())
            await self._tell("resources", lambda session: session.send_resource_list_changed())

    async def _tell(self, what: str, send: "Callable[[Connection], Awaitable[None]]") -> None:
        sessions = list(self._sessions)
        async with anyio.create_task_group() as tasks:
            for session in sessions:
                tasks.start_soon(self._send, session, send)
        log.debug("change_announced", what=what, sessions=len(sessions))

    async def _send(
        self, session: "Connection", send: "Callable[[Connection], Awaitable[None]]"
    ) -> None:
        # A client that reads nothing must not keep the others from hearing of the next change.
        with anyio.move_on_after(self._patience_s) as scope:
            await send(session)
        if scope.cancelled_caught:
            self._sessions.discard(session)
            log.warning("client_stopped_reading", session=session.session_id)

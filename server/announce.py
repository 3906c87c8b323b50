"""Announcements: what changed is told to every client that listens, in either protocol era.

Clients up to 2025-11-25 hear of it on their session, later ones on `subscriptions/listen`. Changes
that come close together are told once. Nobody hears of what only others may see.
"""

from typing import TYPE_CHECKING, Any, Final
from weakref import WeakKeyDictionary, WeakSet

import anyio
import structlog
from anyio import lowlevel

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Collection, Iterable

    from mcp.server.connection import Connection
    from mcp.server.context import ServerRequestContext
    from mcp.server.subscriptions import ServerEvent

    from guildry.tools.registry import Change

    Send = Callable[[Connection], Awaitable[None]]

__all__ = ["Announcer", "View", "connection_of"]

log = structlog.get_logger()

_TOGETHER_S: Final = 0.02
_RESOURCES_TOGETHER_S: Final = 1.0
_UPDATES_TOGETHER_S: Final = 0.2
_PATIENCE_S: Final = 5.0
_TEAM: Final = "team_"


def connection_of(context: "ServerRequestContext[Any, Any]") -> "Connection":
    """Return the connection of a session of the handshake era, which outlives the request."""
    # The SDK gives a handler no other way to it.
    connection: Connection = getattr(context.session, "_connection")  # noqa: B009 - private
    return connection


class View:
    """The clients of one principal: their sessions, and the bus of their subscriptions.

    Args:
        holder: the principal.
        sees_all: it may see what belongs to others as well.
    """

    def __init__(self, holder: str, *, sees_all: bool) -> None:
        from mcp.server.subscriptions import ListenHandler

        self._holder = holder
        self._sees_all = sees_all
        self._listeners: dict[object, Callable[[ServerEvent], None]] = {}
        self.listen: Final[ListenHandler] = ListenHandler(self)
        self.sessions: Final[WeakKeyDictionary[Connection, set[str]]] = WeakKeyDictionary()
        """Sessions, each with the URIs of the resources that it follows."""

    def remember(self, context: "ServerRequestContext[Any, Any]") -> None:
        """Tell this client of changes from now on, on its session, for as long as it lasts."""
        self.sessions.setdefault(connection_of(context), set())

    def concerns(self, holders: "Collection[str | None]") -> bool:
        """Tell whether this principal may see what belongs to one of `holders`; None is all."""
        return self._sees_all or None in holders or self._holder in holders

    async def publish(self, event: "ServerEvent") -> None:
        """Hand an event to every subscription, which passes on what its client asked for."""
        for listener in tuple(self._listeners.values()):
            listener(event)
        await lowlevel.checkpoint()

    def subscribe(self, listener: "Callable[[ServerEvent], None]") -> "Callable[[], None]":
        """Hand events to `listener` too. Returns the way to stop it."""
        token = object()
        self._listeners[token] = listener

        def stop() -> None:
            self._listeners.pop(token, None)

        return stop


class Announcer:
    """Tell clients what is another one now: a list of tools, prompts or resources, or a resource.

    One announcer serves all surfaces and all transports of a process. `run` must be running.

    Args:
        patience_s: how long a client that reads nothing is waited for, before it is given up.
    """

    def __init__(self, *, patience_s: float = _PATIENCE_S) -> None:
        self._views: WeakSet[View] = WeakSet()
        self._patience_s = patience_s
        self._tools = _Gathering(_TOGETHER_S)
        self._prompts = _Gathering(_TOGETHER_S)
        self._resources = _Gathering(_RESOURCES_TOGETHER_S)
        self._updates = _Gathering(_UPDATES_TOGETHER_S)

    def view(self, holder: str, *, sees_all: bool) -> View:
        """Return what the surface of one principal remembers its clients in."""
        view = View(holder, sees_all=sees_all)
        self._views.add(view)
        return view

    def changed(self, change: "Change") -> None:
        """Tell of every list that a change of the catalog made another one."""
        if change.tools:
            self.tools_changed()
        names = (*change.added, *change.removed, *change.changed)
        if change.prompts or any(name.startswith(_TEAM) for name in names):
            self.prompts_changed()
        if change.resources:
            self.resources_changed()

    def tools_changed(self) -> None:
        """Say that tools came, went or changed."""
        self._tools.add(None)

    def prompts_changed(self) -> None:
        """Say that prompts came, went or changed."""
        self._prompts.add(None)

    def resources_changed(self, holder: str | None = None) -> None:
        """Say that there are other resources now: of that principal, or for everybody."""
        self._resources.add(holder)

    def resource_updated(self, uri: str) -> None:
        """Say that the resource at `uri` is another one now, to whoever follows it."""
        self._updates.add(uri)

    def close(self) -> None:
        """End every open subscription, in the way that tells its client so."""
        for view in list(self._views):
            view.listen.close()

    async def run(self) -> None:
        """Announce changes until cancelled."""
        from mcp.server.subscriptions import (
            PromptsListChanged,
            ResourcesListChanged,
            ToolsListChanged,
        )

        async with anyio.create_task_group() as tasks:
            announce = tasks.start_soon
            announce(self._announce, self._tools, ToolsListChanged(), _tools_changed)
            announce(self._announce, self._prompts, PromptsListChanged(), _prompts_changed)
            announce(self._announce, self._resources, ResourcesListChanged(), _resources_changed)
            tasks.start_soon(self._announce_updates)

    async def _announce(self, gathering: "_Gathering", event: "ServerEvent", send: "Send") -> None:
        while True:
            holders = await gathering.take()
            told = [view for view in list(self._views) if view.concerns(holders)]
            for view in told:
                await view.publish(event)
            async with anyio.create_task_group() as tasks:
                for view in told:
                    for session in list(view.sessions):
                        tasks.start_soon(self._send, view, session, send)

    async def _announce_updates(self) -> None:
        from mcp.server.subscriptions import ResourceUpdated

        while True:
            uris = [uri for uri in await self._updates.take() if uri is not None]
            for view in list(self._views):
                for uri in uris:
                    await view.publish(ResourceUpdated(uri))
            async with anyio.create_task_group() as tasks:
                for view in list(self._views):
                    for session, followed in list(view.sessions.items()):
                        if some := [uri for uri in uris if uri in followed]:
                            tasks.start_soon(self._send, view, session, _updated(some))

    async def _send(self, view: View, session: "Connection", send: "Send") -> None:
        # A client that reads nothing must not keep the others from hearing of the next change.
        with anyio.move_on_after(self._patience_s) as scope:
            await send(session)
        if scope.cancelled_caught:
            view.sessions.pop(session, None)
            log.warning("client_stopped_reading", session=session.session_id)


class _Gathering:
    """What is to be told, gathered for a moment, so that a burst is told once."""

    def __init__(self, together_s: float) -> None:
        self._together_s = together_s
        self._what: dict[str | None, None] = {}
        self._some = anyio.Event()

    def add(self, what: str | None) -> None:
        self._what[what] = None
        self._some.set()

    async def take(self) -> tuple[str | None, ...]:
        await self._some.wait()
        await anyio.sleep(self._together_s)
        what = tuple(self._what)
        self._what.clear()
        self._some = anyio.Event()
        return what


async def _tools_changed(session: "Connection") -> None:
    await session.send_tool_list_changed()


async def _prompts_changed(session: "Connection") -> None:
    await session.send_prompt_list_changed()


async def _resources_changed(session: "Connection") -> None:
    await session.send_resource_list_changed()


def _updated(uris: "Iterable[str]") -> "Send":
    async def send(session: "Connection") -> None:
        for uri in uris:
            await session.send_resource_updated(uri)

    return send

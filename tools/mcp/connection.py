"""One connection to an MCP server after another, kept by one task that owns its process."""

import importlib
import math
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final, Literal

import anyio
import anyio.abc
import structlog
from anyio import to_thread

from guildry import __version__
from guildry.errors import ToolFailed
from guildry.tools.mcp.hearing import Hearing
from guildry.tools.mcp.link import Link, post_mortem, reason_of
from guildry.tools.mcp.manifest import Endpoint
from guildry.tools.mcp.servers import Servers
from guildry.tools.mcp.streams import LineReader, LineWriter, SiftedReader, StampedWriter
from guildry.tools.plugs.plug import PlugLimits, PlugState
from guildry.tools.process import launch

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from mcp.client import Client
    from mcp.client._transport import TransportStreams

__all__ = ["Connection"]

log = structlog.get_logger()

_STEADY_S: Final = 60.0
_CONNECT_S: Final = 30.0
_SILENCE_S: Final = 300.0


class Connection:
    """A server, started and watched over.

    One that ends is started again, at once and then with growing waits; after some tries in a row
    it waits for the next call. One that nobody needs rests until the next call.

    Args:
        name: of the plug, for the log.
        endpoint: where the server is.
        limits: how long each step may take.
        hearing: takes what the server says unasked.
        servers: gives turns to start.
        idle_s: seconds without a call after which it rests, or None: never.
    """

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        limits: PlugLimits,
        hearing: Hearing,
        *,
        servers: Servers,
        idle_s: float | None = None,
    ) -> None:
        self.name = name
        self.fault: str | None = None
        self.cure = ""
        self.begun: Callable[[Link], None] = lambda link: None
        self._at = endpoint
        self._limits = limits
        self._hearing = hearing
        self._servers = servers
        self._idle_s = idle_s
        self._mode: Literal["auto", "legacy"] = "auto"
        self._tasks: anyio.abc.TaskGroup | None = None
        self._link: Link | None = None
        self._scope = anyio.CancelScope()
        self._is_kept = False
        self._is_queued = False
        self._started_at = 0.0
        self._is_opening = False
        self._parked = False
        self._wanted = anyio.Event()
        self._turn = anyio.Event()
        self._closing = anyio.Event()
        self._kept = anyio.Event()

    @property
    def standing(self) -> PlugState:
        """How the server is at this moment."""
        if self._link is not None and (self._link.is_live or self._link.is_resting):
            return "idle" if self._link.is_resting else "ready"
        if self._is_kept:
            return "restarting" if self.fault else "starting"
        return "failed" if self.fault else "idle"

    async def open(self, tasks: anyio.abc.TaskGroup) -> Link | None:
        """Start it in a task of `tasks`. Returns None, and says why in `fault`, if it cannot be."""
        self.rest(tasks)
        self._is_opening = True
        self._begin()
        turn = self._turn
        await turn.wait()
        return self._link

    def rest(self, tasks: anyio.abc.TaskGroup) -> None:
        """Be ready to start it in a task of `tasks` when it is first needed."""
        self._tasks, self._closing, self.fault = tasks, anyio.Event(), None

    async def close(self) -> None:
        """End it, and the server with all its processes."""
        self._closing.set()
        self._wanted.set()
        if self._link is not None:
            self._link.finish("it was unplugged")
        if self._is_queued:
            self._scope.cancel()
        if not self._is_kept:
            return
        with anyio.move_on_after(self._limits.close_s) as patience:
            await self._kept.wait()
        if patience.cancelled_caught:
            self._scope.cancel()
            await self._kept.wait()

    async def link(self) -> Link:
        """Return the connection, starting it where it rests, and waiting until it is there.

        Raises:
            ToolFailed: there is none, and none came in time.
        """
        is_last = False
        while True:
            since = anyio.current_time()
            with anyio.move_on_after(self._limits.start_s):
                if (link := await self._found()) is not None:
                    return link
                break
            if not self._is_queued:
                if is_last or self._started_at < since:
                    break
                is_last = True  # its turn came in between, so that it had less than the whole time
        why = "it was unplugged" if self._closing.is_set() else self.fault or "it is starting"
        raise ToolFailed(f"`{self.name}` cannot be called now: {why}. {self.cure}".rstrip())

    async def _found(self) -> Link | None:
        """Return the connection once it is there, or None as soon as it cannot be started."""
        if self._link is not None and self._link.is_live:
            return self._link
        if not self._is_kept and not self._closing.is_set():
            self._begin()
        while not self._closing.is_set():
            was_parked = self._parked
            self._wanted.set()
            await self._turn.wait()
            if self._link is not None and self._link.is_live:
                return self._link
            if was_parked or (self.fault and not self._is_kept):
                break
            if not self._is_kept:
                self._begin()
        return None

    def _begin(self) -> None:
        assert self._tasks is not None
        self.fault, self._parked, self._is_kept = None, False, True
        self._kept = anyio.Event()
        self._tasks.start_soon(self._keep)

    async def _keep(self) -> None:
        """Keep the server running until it is closed or rests, or its first start has failed."""
        try:
            with anyio.CancelScope() as self._scope:
                await to_thread.run_sync(_import_client)
                await self._live_on()
        finally:
            self._is_kept, self._link = False, None
            self._is_opening = self._is_queued = False
            self._kept.set()
            self._say_turn()

    async def _live_on(self) -> None:
        failures, opened = 0, False
        while not self._closing.is_set():
            link = Link()
            began = anyio.current_time()
            await self._live(link)
            opened = opened or link.started
            if link.is_resting:
                return
            if not opened and self._may_be_legacy(link):
                self._mode = "legacy"
            elif not opened:
                self._mode = "auto"
                return
            elif not self._closing.is_set():
                lasted = link.started and anyio.current_time() - began > _STEADY_S
                failures = 1 if lasted else failures + 1
                await self._wait(failures)

    def _may_be_legacy(self, link: Link) -> bool:
        """Tell whether a server ended because its first message was one of the modern era.

        Some servers of the handshake era take nothing but `initialize` first.
        """
        unheard = link.seen.ended and not link.seen.messages and not link.seen.garbage
        return self._mode == "auto" and link.process is not None and unheard

    async def _wait(self, failures: int) -> None:
        """Wait before the next start: not at all, then longer and longer, then for a call."""
        self._parked = failures > self._limits.restarts
        if self._parked:
            self._wanted = anyio.Event()
            self._say_turn()
            await self._wanted.wait()
            return
        self._say_turn()
        doubled = self._limits.backoff_s * 2 ** (failures - 2) if failures > 1 else 0
        with anyio.move_on_after(min(doubled, self._limits.backoff_max_s)):
            await self._closing.wait()

    def _say_turn(self) -> None:
        turn, self._turn = self._turn, anyio.Event()
        turn.set()

    async def _live(self, link: Link) -> None:
        """Live one connection from start to end. Raises nothing: what ended it is `fault`."""
        self._is_queued = True
        async with self._servers.turn() as done:
            self._is_queued, self._started_at = False, anyio.current_time()
            try:
                with anyio.CancelScope() as scope:
                    scope.deadline = anyio.current_time() + self._limits.start_s
                    async with self._client(link) as client:
                        scope.deadline = math.inf
                        done()
                        await self._serve(link, client)
                if scope.cancelled_caught:
                    link.finish(f"it did not answer within {self._limits.start_s:g} s")
            except Exception as error:
                link.finish(None if link.seen.ended else reason_of(error, self._at))
            finally:
                self._end(link)

    def _end(self, link: Link) -> None:
        if self._link is link:
            self._link = None
        if link.is_resting:
            log.info("mcp_server_rested", plug=self.name, idle_s=self._idle_s)
        else:
            self.fault, self.cure = post_mortem(link, self._at)
            if not self._closing.is_set():
                log.warning("mcp_connection_ended", plug=self.name, reason=self.fault)
        link.end.set()
        link.over.set()

    async def _serve(self, link: Link, client: "Client") -> None:
        link.start(client)
        version = client.protocol_version
        is_first, self._is_opening, self.fault = self._is_opening, False, None
        self._link, self._parked = link, False
        log.info("mcp_connected", plug=self.name, protocol=version)
        self._say_turn()
        if not is_first:
            self.begun(link)
        async with anyio.create_task_group() as listening:
            listening.start_soon(self._hearing.run, client)
            if self._idle_s is not None:
                listening.start_soon(self._rest_when_idle, link, self._idle_s)
            await link.end.wait()
            listening.cancel_scope.cancel()

    async def _rest_when_idle(self, link: Link, idle_s: float) -> None:
        while True:
            left_s = link.used_at + idle_s - anyio.current_time()
            if link.calls or self._hearing.is_following:
                left_s = idle_s
            elif left_s <= 0:
                link.rest()
                return
            await anyio.sleep(left_s)

    def _client(self, link: Link) -> "Client":
        import mcp_types as wire
        from mcp.client import Client

        return Client(
            self._stdio(link) if self._at.url is None else self._http(link, self._at.url),
            mode=self._mode,
            message_handler=self._hearing.message,
            elicitation_callback=self._hearing.elicited,
            sampling_callback=self._hearing.sampled,
            list_roots_callback=self._hearing.rooted,
            logging_callback=self._hearing.logged,
            log_level="info",
            client_info=wire.Implementation(name="guildry", version=__version__),
            cache=None,
        )

    @asynccontextmanager
    async def _stdio(self, link: Link) -> "AsyncGenerator[TransportStreams]":
        limit_s = self._limits.close_s
        async with launch(
            self._at.command,
            name=self.name,
            env=self._at.env,
            cwd=self._at.folder,
            close_s=limit_s,
            sandbox=self._at.sandbox,
            policy=self._limits.sandbox,
        ) as process:
            link.process = process
            reader = LineReader(self.name, process, link.seen, link.finish)
            yield reader, LineWriter(process, link.seen)

    @asynccontextmanager
    async def _http(self, link: Link, url: str) -> "AsyncGenerator[TransportStreams]":
        """Speak over HTTP. The library follows no redirect to another origin with our headers."""
        from httpx2 import Timeout
        from mcp.client.streamable_http import streamable_http_client
        from mcp.shared._httpx_utils import create_mcp_http_client

        patience_s = max(_SILENCE_S, self._limits.call_s + _CONNECT_S)
        async with (
            create_mcp_http_client(
                headers=dict(self._at.headers), timeout=Timeout(_CONNECT_S, read=patience_s)
            ) as http,
            streamable_http_client(url, http_client=http) as (reader, writer),
        ):
            yield (
                SiftedReader(self.name, reader, link.seen, link.finish),
                StampedWriter(writer, link.seen),
            )


def _import_client() -> None:
    """Import what takes half a second, so that a thread can."""
    importlib.import_module("mcp.client")

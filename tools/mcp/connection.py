"""One connection to an MCP server after another, kept by one task that owns its process."""

import importlib
import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal, cast

import anyio
import anyio.abc
import structlog
from anyio import to_thread

from guildry import __version__
from guildry.errors import ToolFailed
from guildry.tools.mcp.hearing import Hearing
from guildry.tools.mcp.streams import LineReader, LineWriter, Seen, SiftedReader, StampedWriter
from guildry.tools.plugs.options import NO_ENVIRONMENT
from guildry.tools.plugs.plug import PlugLimits
from guildry.tools.process import ServerProcess, launch

if TYPE_CHECKING:
    from mcp.client import Client
    from mcp.client._transport import TransportStreams

__all__ = ["Connection", "Endpoint", "Link", "leaf"]

log = structlog.get_logger()

_STEADY_S: Final = 60.0


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where a server is: at a URL, or behind a command with its environment and folder."""

    url: str | None = None
    command: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=lambda: NO_ENVIRONMENT)
    folder: Path = Path()


class Link:
    """One life of a connection, from its start to its end."""

    def __init__(self) -> None:
        self.seen = Seen()
        self._client: Client | None = None
        self.process: ServerProcess | None = None
        self.calls = 0
        self.started = False
        self.reason: str | None = None
        self.end = anyio.Event()
        self.over = anyio.Event()

    def finish(self, reason: str | None = None) -> None:
        """End the connection; the first reason given is kept."""
        self.reason = self.reason or reason
        self.end.set()

    @property
    def client(self) -> "Client":
        """The client of a connection that has started."""
        assert self._client is not None
        return self._client

    def start(self, client: "Client") -> None:
        """Take the client of a connection that is ready."""
        self._client, self.started = client, True
        self.seen.version = client.protocol_version


class Connection:
    """A server, started and watched over.

    One that ends is started again, at once and then with growing waits; after some tries in a row
    it waits for the next call.

    Args:
        name: of the plug, for the log.
        endpoint: where the server is.
        limits: how long each step may take.
        hearing: takes what the server says unasked; is told of a change when it is there again.
    """

    def __init__(self, name: str, endpoint: Endpoint, limits: PlugLimits, hearing: Hearing) -> None:
        self.name = name
        self.fault: str | None = None
        self.cure = ""
        self._at = endpoint
        self._limits = limits
        self._hearing = hearing
        self._mode: Literal["auto", "legacy"] = "auto"
        self._link: Link | None = None
        self._scope = anyio.CancelScope()
        self._parked = False
        self._wanted = anyio.Event()
        self._turn = anyio.Event()
        self._closing = anyio.Event()
        self._kept = anyio.Event()
        self._kept.set()

    async def open(self, tasks: anyio.abc.TaskGroup) -> Link | None:
        """Start it in a task of `tasks`. Returns None, and says why in `fault`, if it cannot be."""
        await to_thread.run_sync(_import_client)
        self._closing, self._kept = anyio.Event(), anyio.Event()
        self.fault = None
        turn = self._turn
        tasks.start_soon(self._keep)
        await turn.wait()
        return self._link

    async def close(self) -> None:
        """End it, and the server with all its processes."""
        self._closing.set()
        self._wanted.set()
        if self._link is not None:
            self._link.finish("it was unplugged")
        with anyio.move_on_after(self._limits.close_s) as patience:
            await self._kept.wait()
        if patience.cancelled_caught:
            self._scope.cancel()
            await self._kept.wait()

    async def link(self) -> Link:
        """Return the connection, waiting for one that is being started.

        Raises:
            ToolFailed: there is none, and none came in time.
        """
        if self._link is not None and not self._link.end.is_set():
            return self._link
        with anyio.move_on_after(self._limits.start_s):
            while not self._closing.is_set():
                was_parked = self._parked
                self._wanted.set()
                await self._turn.wait()
                if self._link is not None and not self._link.end.is_set():
                    return self._link
                if was_parked:
                    break
        why = "it was unplugged" if self._closing.is_set() else self.fault or "it is starting"
        raise ToolFailed(f"`{self.name}` cannot be called now: {why}. {self.cure}")

    async def _keep(self) -> None:
        """Keep the server running until it is closed, or its first start has failed."""
        try:
            with anyio.CancelScope() as self._scope:
                await self._live_on()
        finally:
            self._closing.set()
            self._link = None
            self._kept.set()
            self._say_turn()

    async def _live_on(self) -> None:
        failures, opened = 0, False
        while not self._closing.is_set():
            link = Link()
            began = anyio.current_time()
            await self._live(link)
            opened = opened or link.started
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
        try:
            with anyio.CancelScope() as scope:
                scope.deadline = anyio.current_time() + self._limits.start_s
                async with self._client(link) as client:
                    scope.deadline = math.inf
                    await self._serve(link, client)
            if scope.cancelled_caught:
                link.finish(f"it did not answer within {self._limits.start_s:g} s")
        except Exception as error:
            link.finish(None if link.seen.ended else _reason(error, self._at.command))
        finally:
            if self._link is link:
                self._link = None
            self.fault, self.cure = _post_mortem(link, self._at.url)
            if not self._closing.is_set():
                log.warning("mcp_connection_ended", plug=self.name, reason=self.fault)
            link.end.set()
            link.over.set()

    async def _serve(self, link: Link, client: "Client") -> None:
        link.start(client)
        version = client.protocol_version
        is_restart, self.fault = self.fault is not None, None
        self._link, self._parked = link, False
        log.info("mcp_connected", plug=self.name, protocol=version)
        self._say_turn()
        if is_restart:
            self._hearing.changed()
        async with anyio.create_task_group() as listening:
            listening.start_soon(self._hearing.run, client)
            await link.end.wait()
            listening.cancel_scope.cancel()

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
            self._at.command, name=self.name, env=self._at.env, cwd=self._at.folder, close_s=limit_s
        ) as process:
            link.process = process
            reader = LineReader(self.name, process, link.seen, link.finish)
            yield reader, LineWriter(process)

    @asynccontextmanager
    async def _http(self, link: Link, url: str) -> "AsyncGenerator[TransportStreams]":
        from mcp.client.streamable_http import streamable_http_client

        async with streamable_http_client(url) as (reader, writer):
            yield SiftedReader(reader, link.seen, link.finish), StampedWriter(writer)


def _import_client() -> None:
    """Import what takes half a second, so that a thread can."""
    importlib.import_module("mcp.client")


def leaf(error: BaseException) -> BaseException:
    """Return the first error in a group of groups of them."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def _reason(error: Exception, command: Sequence[str]) -> str:
    """Say why a connection could not be made or kept."""
    first = leaf(error)
    if isinstance(first, FileNotFoundError) and command:
        return f"`{command[0]}` is no command that can be found"
    if isinstance(first, OSError) and command:
        return f"it cannot be started ({first.strerror or first})"
    return f"the connection failed ({type(first).__name__}: {first})"


def _post_mortem(link: Link, url: str | None) -> tuple[str, str]:
    """Say how a connection ended, and what to do about it."""
    process, seen = link.process, link.seen
    reason = link.reason
    if reason is None and process is not None and process.returncode is not None:
        code = process.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        reason = f"the server {how}"
    reason = reason or "the connection was lost"
    if process is not None and process.last_words:
        reason += f"; its last words: {process.last_words[-1]!r}"
    if url is not None:
        return reason, "Check that the server runs and that the path is right (often `/mcp`)"
    if seen.garbage and not seen.messages:
        reason += f"; it writes what is no MCP to stdout: {seen.sample!r}"
        return reason, "A stdio server may write only messages to stdout: send its logs to stderr"
    if process is None:
        return reason, "Install it, or name the program that runs it: `node server.js`"
    return reason, "Run the command in a terminal to see why, then plug it again"

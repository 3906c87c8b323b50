"""MCP servers as plugs: everything that they offer. Knows no transport and no handshake."""

from collections.abc import Callable
from dataclasses import replace

import anyio
import anyio.abc
import structlog

from guildry.errors import PlugError, ToolError
from guildry.tools.mcp.connection import Connection
from guildry.tools.mcp.hearing import Hearing
from guildry.tools.mcp.link import Link, leaf
from guildry.tools.mcp.listing import list_offers
from guildry.tools.mcp.manifest import Endpoint, Manifest
from guildry.tools.mcp.offers import as_prompt, as_resource, as_template
from guildry.tools.mcp.requests import Requests
from guildry.tools.mcp.servers import Servers
from guildry.tools.mcp.wire import as_tool
from guildry.tools.offers import Offers
from guildry.tools.plugs.options import NOTHING_SAID, PlugOptions
from guildry.tools.plugs.plug import Loaded, PlugLimits, PlugState, Watched
from guildry.tools.sandbox.confinement import told_confinement

__all__ = ["McpPlug"]

log = structlog.get_logger()


class McpPlug:
    """An MCP server: a command on stdio or a URL, of either protocol era.

    Where it is known what the server offers, it may be started only once it is needed; then it is
    listed anew, and what has changed is told. When it stops, calls in flight fail, saying so; later
    ones wait until it is there again.

    Args:
        source: what it was plugged from.
        name: on the board.
        endpoint: where the server is.
        tasks: where it is watched over.
        limits: how long each step may take.
        options: what is said of it besides.
        servers: what it shares with the other servers of the board; it stands alone if None.
    """

    def __init__(
        self,
        source: str,
        name: str,
        endpoint: Endpoint,
        *,
        tasks: anyio.abc.TaskGroup,
        limits: PlugLimits,
        options: PlugOptions = NOTHING_SAID,
        servers: Servers | None = None,
    ) -> None:
        self.kind = "mcp"
        self.source = source
        self.name = name
        self.watched: tuple[Watched, ...] = ()
        self.touched: Callable[[str], None] = lambda uri: None
        self._servers = servers or Servers()
        if options.call_timeout_s is not None:
            limits = replace(limits, call_s=options.call_timeout_s)
        self._tasks = tasks
        self._limits = limits
        self._options = options
        self._endpoint = endpoint
        self._key = endpoint.key
        self._is_lazy = self._servers.is_lazy if options.lazy is None else options.lazy
        self._manifest: Manifest | None = None
        self._listed_over: Link | None = None
        self._listing = anyio.Lock()
        self._hearing = Hearing(name, limits)
        idle_s = self._servers.idle_s if options.idle_s is None else options.idle_s
        self._connection = Connection(
            name,
            endpoint,
            limits,
            self._hearing,
            servers=self._servers,
            idle_s=idle_s if self._is_lazy else None,
        )
        self._connection.begun = self._begun
        self._requests = Requests(
            name,
            self._connection,
            self._hearing,
            limits,
            tasks,
            at_once=options.calls_at_once,
        )

    @property
    def fault(self) -> str | None:
        """Why the server is not there at this moment, or None while it is."""
        return self._connection.fault

    @property
    def standing(self) -> PlugState:
        """How the server is at this moment."""
        return self._connection.standing

    @property
    def confinement(self) -> tuple[bool, str] | None:
        """Whether the server's process is confined, and why; None where it has none here."""
        if self._endpoint.url is not None:
            return None
        return told_confinement(self._endpoint.sandbox, self._limits.sandbox)

    async def open(self, changed: Callable[[], None]) -> Loaded:
        """Return what is known to be offered; where that is nothing, connect and list it.

        Raises:
            PlugError: the server cannot be started or reached, or speaks no MCP.
        """
        self._hearing.changed, self._hearing.touched = changed, self.touched
        if self._is_lazy:
            self._manifest = await self._servers.known(self._key)
        if self._manifest is not None:
            self._connection.rest(self._tasks)
            return self._loaded(self._manifest)
        link = await self._connection.open(self._tasks)
        if link is None:
            raise self._error(self.fault or "it ended at once")
        return await self._read(link)

    async def reload(self) -> Loaded:
        """List anew what is offered.

        Raises:
            PlugError: the server is not there, or gives no list.
        """
        try:
            link = await self._connection.link()
        except ToolError as error:
            raise self._error(self.fault or "it cannot be reached") from error
        return await self._read(link)

    async def close(self) -> None:
        """End the connection, and the server with all its processes."""
        await self._connection.close()
        self._manifest = None

    def _begun(self, link: Link) -> None:
        self._tasks.start_soon(self._look, link)

    def _error(self, reason: str) -> PlugError:
        return PlugError(self.source, reason, self._connection.cure)

    async def _read(self, link: Link) -> Loaded:
        """List what a server offers, and keep it for later starts."""
        async with self._listing:
            manifest = await self._listed(link)
            is_new, self._manifest = manifest != self._manifest, manifest
        if is_new:
            await self._servers.keep(self._key, self.name, manifest)
        return self._loaded(manifest)

    async def _look(self, link: Link) -> None:
        """See whether a server that was started again still offers the same, and tell if not."""
        try:
            async with self._listing:
                if self._listed_over is link:
                    return
                manifest = await self._listed(link)
            if manifest == self._manifest:
                await self._servers.keep(self._key, self.name, manifest)
                return
        except PlugError as error:
            log.warning("mcp_not_listed", plug=self.name, error=error.reason)
            if not link.is_live:  # it is looked at again once it is there
                return
        self._hearing.changed()

    async def _listed(self, link: Link) -> Manifest:
        try:
            with link.used(), anyio.fail_after(self._limits.start_s):
                manifest = await list_offers(link, self._limits.start_s)
        except Exception as error:
            said = "in time" if isinstance(error, TimeoutError) else f"({leaf(error)})"
            raise self._error(f"it gave no list of tools {said}") from error
        self._listed_over = link
        return manifest

    def _loaded(self, manifest: Manifest) -> Loaded:
        requests, timeout_s = self._requests, self._options.call_timeout_s
        requests.tells, requests.completes = manifest.tells, manifest.completes
        tools = (
            as_tool(each, self.name, requests.invoker(each["name"]), timeout_s)
            for each in manifest.tools
        )
        offers = Offers(
            tuple(as_prompt(each, self.name, requests) for each in manifest.prompts),
            tuple(as_resource(each, self.name, requests) for each in manifest.resources),
            tuple(as_template(each, self.name, requests) for each in manifest.templates),
        )
        server = str(manifest.server.get("name", ""))
        return Loaded(tuple(tools), manifest.left_out, offers, server)

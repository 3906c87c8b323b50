"""MCP servers as plugs: everything that they offer. Knows no transport and no handshake."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import anyio.abc

from guildry.errors import PlugError, ToolError
from guildry.tools.mcp.connection import Connection, Endpoint, Link, leaf
from guildry.tools.mcp.hearing import Hearing
from guildry.tools.mcp.offers import as_prompt, as_resource, as_template
from guildry.tools.mcp.requests import Requests
from guildry.tools.mcp.wire import as_tool
from guildry.tools.offers import Offers
from guildry.tools.plugs.plug import Loaded, PlugLimits, Quarantined, Watched

if TYPE_CHECKING:
    import mcp_types as wire

__all__ = ["McpPlug"]

T = TypeVar("T")

_MAX_PAGES: Final = 100


class McpPlug:
    """An MCP server: a command on stdio or a URL, of either protocol era.

    When it stops, calls in flight fail, saying so; later ones wait until it is there again.
    """

    def __init__(
        self,
        source: str,
        name: str,
        endpoint: Endpoint,
        *,
        tasks: anyio.abc.TaskGroup,
        limits: PlugLimits,
    ) -> None:
        self.kind = "mcp"
        self.source = source
        self.name = name
        self.watched: tuple[Watched, ...] = ()
        self.touched: Callable[[str], None] = lambda uri: None
        self._tasks = tasks
        self._limits = limits
        self._hearing = Hearing(name, limits)
        self._connection = Connection(name, endpoint, limits, self._hearing)
        self._requests = Requests(name, self._connection, self._hearing, limits, tasks)

    @property
    def fault(self) -> str | None:
        """Why the server is not there at this moment, or None while it is."""
        return self._connection.fault

    async def open(self, changed: Callable[[], None]) -> Loaded:
        """Connect, and list what is offered.

        Raises:
            PlugError: the server cannot be started or reached, or speaks no MCP.
        """
        self._hearing.changed, self._hearing.touched = changed, self.touched
        link = await self._connection.open(self._tasks)
        if link is None:
            raise self._error(self.fault or "it ended at once")
        return await self._loaded(link)

    async def reload(self) -> Loaded:
        """List anew what is offered.

        Raises:
            PlugError: the server is not there, or gives no list.
        """
        try:
            link = await self._connection.link()
        except ToolError as error:
            raise self._error(self.fault or "it cannot be reached") from error
        return await self._loaded(link)

    async def close(self) -> None:
        """End the connection, and the server with all its processes."""
        await self._connection.close()

    def _error(self, reason: str) -> PlugError:
        return PlugError(self.source, reason, self._connection.cure)

    async def _loaded(self, link: Link) -> Loaded:
        link.seen.listed, link.seen.left_out = [], []
        lists = _Lists(link)
        try:
            with anyio.fail_after(self._limits.start_s):
                definitions = await lists.tools()
                offers = await self._offers(lists)
        except Exception as error:
            said = "in time" if isinstance(error, TimeoutError) else f"({leaf(error)})"
            raise self._error(f"it gave no list of tools {said}") from error
        kept = {each.name for each in definitions}
        left_out = dict.fromkeys(link.seen.left_out)
        for name in link.seen.listed:
            if name not in kept:
                left_out[Quarantined(name, "its `x-mcp-header` annotations are not valid")] = None
        invoker = self._requests.invoker
        tools = (as_tool(each, self.name, invoker(each.name)) for each in definitions)
        return Loaded(tuple(tools), (*left_out, *lists.missing), offers)

    async def _offers(self, lists: "_Lists") -> Offers:
        offered, requests = lists.offered, self._requests
        requests.tells = offered.resources is not None and offered.resources.subscribe is True
        requests.completes = offered.completions is not None
        prompts = await lists.prompts()
        resources = await lists.resources()
        templates = await lists.templates()
        return Offers(
            tuple(as_prompt(each, self.name, requests) for each in prompts),
            tuple(as_resource(each, self.name, requests) for each in resources),
            tuple(as_template(each, self.name, requests) for each in templates),
        )


class _Lists:
    """What a server lists. A server without tools is fine if it says that it has other things."""

    def __init__(self, link: Link) -> None:
        self.offered = link.client.server_capabilities
        self.missing: list[Quarantined] = []
        self._client = link.client

    async def tools(self) -> "list[wire.Tool]":
        offered = self.offered
        has_others = offered.prompts is not None or offered.resources is not None
        if offered.tools is None and has_others:
            return []
        return await _pages(self._client.list_tools, lambda page: page.tools)

    async def prompts(self) -> "list[wire.Prompt]":
        if self.offered.prompts is None:
            return []
        return await self._optional("prompts", self._client.list_prompts, lambda page: page.prompts)

    async def resources(self) -> "list[wire.Resource]":
        if self.offered.resources is None:
            return []
        listing = self._client.list_resources
        return await self._optional("resources", listing, lambda page: page.resources)

    async def templates(self) -> "list[wire.ResourceTemplate]":
        if self.offered.resources is None:
            return []
        listing = self._client.list_resource_templates
        return await self._optional("templates", listing, lambda page: page.resource_templates)

    async def _optional(
        self, what: str, listing: Callable[..., Awaitable[Any]], of: Callable[[Any], list[T]]
    ) -> list[T]:
        """Return a list that a server said it has; one that it does not give costs only itself."""
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED, METHOD_NOT_FOUND
        from pydantic import ValidationError

        try:
            return await _pages(listing, of)
        except (MCPError, ValidationError) as error:
            if isinstance(error, MCPError) and error.code == CONNECTION_CLOSED:
                raise
            if not isinstance(error, MCPError) or error.code != METHOD_NOT_FOUND:
                reason = f"the server gave no list of {what} ({error}): mend it there"
                self.missing.append(Quarantined(what, reason))
            return []


async def _pages(listing: Callable[..., Awaitable[Any]], of: Callable[[Any], list[T]]) -> list[T]:
    found: list[T] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await listing(cursor=cursor)
        found += of(page)
        cursor = page.next_cursor
        if cursor is None:
            break
    return found

"""Listing: everything that a connected MCP server offers, page by page. Knows the client."""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import anyio

from guildry.tools.mcp.link import Link, unfit
from guildry.tools.mcp.manifest import Definition, Manifest
from guildry.tools.plugs.plug import Quarantined

if TYPE_CHECKING:
    from pydantic import BaseModel

__all__ = ["list_offers"]

T = TypeVar("T")

_MAX_PAGES: Final = 100
_OF_EACH_LIST: Final = 4


async def list_offers(link: Link, limit_s: float) -> Manifest:
    """Return everything that the server at the other end of `link` offers.

    A list that it said it has and does not give costs only itself, except that of its tools.

    Args:
        link: a connection that has started.
        limit_s: how long all of it may take; each list but that of tools gets a quarter.

    Raises:
        Exception: whatever the client raises where the connection or the list of tools fails.
    """
    link.seen.listed, link.seen.left_out = [], []
    lists = _Lists(link, limit_s / _OF_EACH_LIST)
    tools = await lists.tools()
    prompts = await lists.prompts()
    resources = await lists.resources()
    templates = await lists.templates()
    kept = {each["name"] for each in tools}
    left_out = dict.fromkeys(link.seen.left_out)
    for name in link.seen.listed:
        if name not in kept:
            left_out[Quarantined(name, "its `x-mcp-header` annotations are not valid")] = None
    client = link.client
    return Manifest(
        protocol=client.protocol_version,
        server={} if client.server_info is None else _plain(client.server_info),
        capabilities=_plain(client.server_capabilities),
        instructions=client.instructions or "",
        tools=tools,
        prompts=prompts,
        resources=resources,
        templates=templates,
        left_out=(*left_out, *lists.missing),
    )


class _Lists:
    """What a server lists. A server without tools is fine if it says that it has other things."""

    def __init__(self, link: Link, limit_s: float) -> None:
        self._limit_s = limit_s
        self.missing: list[Quarantined] = []
        self._offered = link.client.server_capabilities
        self._client = link.client

    async def tools(self) -> tuple[Definition, ...]:
        offered = self._offered
        has_others = offered.prompts is not None or offered.resources is not None
        if offered.tools is None and has_others:
            return ()
        return await _pages(self._client.list_tools, lambda page: page.tools)

    async def prompts(self) -> tuple[Definition, ...]:
        if self._offered.prompts is None:
            return ()
        return await self._optional("prompts", self._client.list_prompts, lambda page: page.prompts)

    async def resources(self) -> tuple[Definition, ...]:
        if self._offered.resources is None:
            return ()
        listing = self._client.list_resources
        return await self._optional("resources", listing, lambda page: page.resources)

    async def templates(self) -> tuple[Definition, ...]:
        if self._offered.resources is None:
            return ()
        listing = self._client.list_resource_templates
        return await self._optional("templates", listing, lambda page: page.resource_templates)

    async def _optional(
        self,
        what: str,
        listing: Callable[..., Awaitable[Any]],
        of: "Callable[[Any], list[BaseModel]]",
    ) -> tuple[Definition, ...]:
        """Return a list that a server said it has; one that it does not give costs only itself."""
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED, METHOD_NOT_FOUND
        from pydantic import ValidationError

        said = f"no answer within {self._limit_s:g} s"
        try:
            with anyio.move_on_after(self._limit_s):
                return await _pages(listing, of)
        except (MCPError, ValidationError) as error:
            code = error.code if isinstance(error, MCPError) else None
            if code == CONNECTION_CLOSED:
                raise
            if code == METHOD_NOT_FOUND:
                return ()
            said = str(error) if isinstance(error, MCPError) else unfit(error)
        reason = f"the server gave no list of {what} ({said}): mend it there"
        self.missing.append(Quarantined(what, reason))
        return ()


async def _pages(
    listing: Callable[..., Awaitable[Any]], of: "Callable[[Any], list[BaseModel]]"
) -> tuple[Definition, ...]:
    found: list[Definition] = []
    cursor: str | None = None
    for _ in range(_MAX_PAGES):
        page = await listing(cursor=cursor)
        found += [_plain(each) for each in of(page)]
        cursor = page.next_cursor
        if cursor is None:
            break
    return tuple(found)


def _plain(model: "BaseModel") -> Definition:
    """Return a definition as it came."""
    return cast("Definition", model.model_dump(by_alias=True, mode="json", exclude_unset=True))

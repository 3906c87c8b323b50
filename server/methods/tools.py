"""`tools/list` and `tools/call`. Knows the protocol and the surface; runs no tool itself."""

from typing import TYPE_CHECKING, Any, Final

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolRequestParams, PaginatedRequestParams

from guildry.server.methods.answers import complete, hidden
from guildry.server.progress import reporting
from guildry.server.wire import tool_to_wire
from guildry.tools.registry import UnknownTool

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel.server import Server

    from guildry.server.surface import Surface
    from guildry.tools.base import Progress, Tool

__all__ = ["register"]

_PAGE: Final = 250


def register(server: "Server[Any]", surface: "Surface") -> None:
    """Serve the methods about tools."""
    tools = _Tools(surface)
    server.add_request_handler("tools/list", PaginatedRequestParams, tools.on_list)
    server.add_request_handler("tools/call", CallToolRequestParams, tools.on_call)


class _Tools:
    def __init__(self, surface: "Surface") -> None:
        self._surface = surface
        self._pages: tuple[int, dict[str | None, dict[str, Any]]] = (-1, {})

    async def on_list(self, context: Any, params: PaginatedRequestParams) -> dict[str, Any]:
        app = self._surface.app
        await app.settled()
        version = app.catalog.current.version
        if self._pages[0] != version:
            self._pages = (version, _pages(self._surface.shown()))
        page = self._pages[1].get(params.cursor)
        if page is None:
            raise MCPError(
                INVALID_PARAMS,
                f"`cursor` is {params.cursor!r}: pass on what the last page gave, or nothing",
            )
        return complete(page)

    async def on_call(
        self, context: "ServerRequestContext[Any, Any]", params: CallToolRequestParams
    ) -> dict[str, Any]:
        arguments, version = params.arguments or {}, context.protocol_version

        async def call(progress: "Progress") -> dict[str, Any]:
            return await self._surface.call(params.name, arguments, version, progress)

        try:
            return complete(await reporting(context.session.report_progress, call))
        except UnknownTool as error:
            raise MCPError(INVALID_PARAMS, str(error)) from error
        except Exception as error:
            raise hidden(error, "tool_call_crashed", tool=params.name) from error


def _pages(tools: "list[Tool]") -> dict[str | None, dict[str, Any]]:
    """Return the pages of a listing by their cursors: the name of the last tool before each."""
    pages: dict[str | None, dict[str, Any]] = {}
    cursor: str | None = None
    for start in range(0, max(1, len(tools)), _PAGE):
        part = tools[start : start + _PAGE]
        page: dict[str, Any] = {
            "tools": [tool_to_wire(tool) for tool in part],
            "ttlMs": 0,
            "cacheScope": "private",
        }
        pages[cursor] = page
        if start + _PAGE < len(tools):
            cursor = page["nextCursor"] = part[-1].name
    return pages

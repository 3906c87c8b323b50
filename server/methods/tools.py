"""`tools/list` and `tools/call`. Knows the protocol and the surface; runs no tool itself."""

from typing import TYPE_CHECKING, Any, Final

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, CallToolRequestParams, PaginatedRequestParams

from guildry.errors import ToolProtocolError
from guildry.server.methods.answers import complete, hidden
from guildry.server.methods.tasks import TaskCalls
from guildry.server.progress import reporting
from guildry.server.wire import tool_to_wire
from guildry.tools.registry import UnknownTool

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel.server import Server

    from guildry.server.asking.channels import Contact
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
        self._tasks = TaskCalls(surface)
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
        surface = self._surface
        arguments, version = params.arguments or {}, context.protocol_version
        is_task = await self._tasks.wants(params.name, arguments, context)

        async def work(contact: "Contact") -> dict[str, Any]:
            if is_task:
                return await self._tasks.begin(params.name, arguments, context, contact.channel)

            async def call(progress: "Progress") -> dict[str, Any]:
                return await surface.call(
                    params.name,
                    arguments,
                    version,
                    progress,
                    channel=contact.channel,
                    log=contact.log,
                )

            return complete(await reporting(contact.progress, call))

        principal = surface.caller.grant.holder
        try:
            return await surface.app.exchanges.serve(
                context, params, principal=principal, work=work
            )
        except UnknownTool as error:
            raise MCPError(INVALID_PARAMS, str(error)) from error
        except ToolProtocolError as error:
            raise MCPError(error.code, error.message, error.data) from error
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

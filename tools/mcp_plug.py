"""MCP servers as plugs: their tools, and calls of them. Knows no transport and no handshake."""

from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Final

import anyio
import anyio.abc

from guildry.errors import PlugError, ToolError, ToolFailed, ToolRetry
from guildry.tools.base import Call, Invoke, Json, Outcome
from guildry.tools.mcp_connection import Connection, Endpoint, Link, leaf
from guildry.tools.mcp_wire import as_outcome, as_tool
from guildry.tools.plug import Loaded, PlugLimits, Quarantined, Watched

if TYPE_CHECKING:
    import mcp_types as wire

__all__ = ["McpPlug"]

_MAX_PAGES: Final = 100
_POST_MORTEM_S: Final = 1.0


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
        self._tasks = tasks
        self._limits = limits
        self._connection = Connection(name, endpoint, limits)

    @property
    def fault(self) -> str | None:
        """Why the server is not there at this moment, or None while it is."""
        return self._connection.fault

    async def open(self, changed: Callable[[], None]) -> Loaded:
        """Connect, and list the tools.

        Raises:
            PlugError: the server cannot be started or reached, or speaks no MCP.
        """
        link = await self._connection.open(self._tasks, changed)
        if link is None:
            raise self._error(self.fault or "it ended at once")
        return await self._loaded(link)

    async def reload(self) -> Loaded:
        """List the tools anew.

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
        try:
            with anyio.fail_after(self._limits.start_s):
                definitions = await self._definitions(link)
        except Exception as error:
            said = "in time" if isinstance(error, TimeoutError) else f"({leaf(error)})"
            raise self._error(f"it gave no list of tools {said}") from error
        kept = {each.name for each in definitions}
        left_out = dict.fromkeys(link.seen.left_out)
        for name in link.seen.listed:
            if name not in kept:
                left_out[Quarantined(name, "its `x-mcp-header` annotations are not valid")] = None
        tools = (as_tool(each, self.name, self._invoker(each.name)) for each in definitions)
        return Loaded(tuple(tools), tuple(left_out))

    async def _definitions(self, link: Link) -> "list[wire.Tool]":
        definitions: list[wire.Tool] = []
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await link.client.list_tools(cursor=cursor)
            definitions += page.tools
            cursor = page.next_cursor
            if cursor is None:
                break
        return definitions

    def _invoker(self, name: str) -> Invoke:
        async def invoke(arguments: dict[str, Json], call: Call) -> Outcome:
            link = await self._connection.link()
            try:
                return await self._call(link, name, arguments, call)
            except _SessionGone:
                link.finish("its session was ended there")
                await link.over.wait()
                return await self._call(await self._connection.link(), name, arguments, call)

        return invoke

    async def _call(self, link: Link, name: str, arguments: dict[str, Json], call: Call) -> Outcome:
        limit_s = self._limits.call_s if call.tool.timeout_s is None else call.tool.timeout_s
        heard, answered = link.seen.messages, False
        link.calls += 1
        try:
            with anyio.move_on_after(limit_s) as scope:

                async def progressed(
                    progress: float, total: float | None, message: str | None
                ) -> None:
                    scope.deadline = anyio.current_time() + limit_s
                    if call.progress is not None and not answered:
                        await call.progress(progress, total, message)

                result = await link.client.call_tool(name, arguments, progress_callback=progressed)
                answered = True
                return as_outcome(result, call.tool.name)
        except ToolError:
            raise
        except Exception as error:
            answered = True
            raise await self._failed(link, call.tool.name, error) from error
        finally:
            link.calls -= 1
            if not answered and not link.calls and link.seen.messages == heard:
                self._suspect(link)
        raise ToolFailed(
            f"`{call.tool.name}` of `{self.name}` gave no answer within {limit_s:g} s and was"
            " cancelled: ask for less in one call"
        )

    async def _failed(self, link: Link, tool: str, error: Exception) -> Exception:
        """Return what the caller is told of a call that ended in `error`."""
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS

        if not isinstance(error, MCPError):
            said = f"with what is no valid result ({leaf(error)})"
            return ToolFailed(f"`{tool}` of `{self.name}` answered {said}")
        if error.message == "Session terminated":
            return _SessionGone()
        if link.end.is_set() or error.code == CONNECTION_CLOSED:
            with anyio.move_on_after(_POST_MORTEM_S):
                await link.over.wait()
            why = self.fault or "the connection was lost"
            return ToolFailed(
                f"`{self.name}` stopped while `{tool}` ran, and whether it took effect is unknown:"
                f" {why}. It is being started again: check what the call did before you repeat it"
            )
        if error.code == INVALID_PARAMS:
            return ToolRetry(f"`{tool}` of `{self.name}` refused the call: {error.message}")
        return ToolFailed(f"`{tool}` of `{self.name}` failed: {error.message}")

    def _suspect(self, link: Link) -> None:
        """Ask a process that was silent for the whole of a lost call whether it still answers."""
        if link.process is not None and not link.end.is_set():
            self._tasks.start_soon(self._probe, link)

    async def _probe(self, link: Link) -> None:
        heard = link.seen.messages
        with anyio.move_on_after(self._limits.start_s):
            with suppress(Exception):
                await link.client.list_tools()
            return
        if link.seen.messages == heard and not link.end.is_set():
            link.finish(f"it hung: no answer for {self._limits.start_s:g} s")


class _SessionGone(Exception):
    """Tell that a server has forgotten its session; the call did not reach it."""

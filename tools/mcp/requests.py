"""Requests to an MCP server for callers: within limits, with their questions answered, and with
every way in which they fail told in words. Knows no definitions and no handshake.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar

import anyio
import anyio.abc
import structlog

from guildry.errors import GuildryError, ToolFailed, ToolProtocolError, ToolRetry
from guildry.tools.base import Call, Embedded, Invoke, Json, Outcome
from guildry.tools.mcp.connection import Connection
from guildry.tools.mcp.errands import Errand
from guildry.tools.mcp.hearing import Hearing
from guildry.tools.mcp.link import Link, leaf, unfit
from guildry.tools.mcp.offers import as_contents, as_messages
from guildry.tools.mcp.wire import as_outcome
from guildry.tools.offers import Complete, Messages
from guildry.tools.plugs.plug import PlugLimits

if TYPE_CHECKING:
    import mcp_types as wire
    from mcp.client import ClientSession

__all__ = ["Requests"]

log = structlog.get_logger()

T = TypeVar("T")

_POST_MORTEM_S: Final = 1.0
_COMPLETE_S: Final = 5.0
_COMPLETIONS: Final = 100
_MAX_PAGES: Final = 100
_NOT_FOUND: Final = -32002
_BETWEEN_US: Final = frozenset({-32700, -32600, -32601, -32603, -32001, -32020, -32022})
"""Codes of errors on the way from here to the server, on which no client of ours can act."""


class Requests:
    """Call tools, fill in prompts and read resources of one server.

    Args:
        plug: whose server it is.
        connection: the way to it.
        hearing: takes what it says meanwhile.
        limits: how long each step may take.
        tasks: where a server that fell silent is probed.
        at_once: requests in flight at a time, or None: any number.
    """

    def __init__(
        self,
        plug: str,
        connection: Connection,
        hearing: Hearing,
        limits: PlugLimits,
        tasks: anyio.abc.TaskGroup,
        *,
        at_once: int | None = None,
    ) -> None:
        self.tells = False
        self.completes = False
        self._plug = plug
        self._connection = connection
        self._hearing = hearing
        self._limits = limits
        self._tasks = tasks
        self._turns = None if at_once is None else anyio.CapacityLimiter(at_once)

    def invoker(self, name: str) -> Invoke:
        """Return what calls a tool."""

        async def invoke(arguments: dict[str, Json], call: Call) -> Outcome:
            limit_s = self._limits.call_s if call.tool.timeout_s is None else call.tool.timeout_s
            errand = Errand(
                call.tool.name,
                self._plug,
                limit_s=limit_s,
                ask_s=self._limits.ask_s,
                ask=call.ask,
                channel=None if call.caller is None else call.caller.channel,
                progress=call.progress,
                log=call.log,
            )

            async def send(link: Link) -> Outcome:
                result = await errand.settled(
                    _caller(link, name, arguments, errand), _tool_result()
                )
                return as_outcome(result, call.tool.name)

            return await self._made(errand, send)

        return invoke

    async def prompt(self, name: str, arguments: Mapping[str, str], caller: Any) -> Messages:
        """Fill in a prompt.

        Raises:
            ToolRetry: its arguments are wrong.
            ToolFailed: it cannot be had.
        """
        from mcp_types import GetPromptResult

        errand = self._errand(name, caller)

        async def send(link: Link) -> Messages:
            async def once(responses: Any, state: str | None) -> Any:
                return await link.client.session.get_prompt(
                    name,
                    dict(arguments),
                    input_responses=responses,
                    request_state=state,
                    meta=errand.meta(),
                    allow_input_required=True,
                )

            return as_messages(await errand.settled(once, GetPromptResult), name)

        return await self._made(errand, send)

    async def read(self, uri: str, caller: Any) -> tuple[Embedded, ...]:
        """Read a resource.

        Raises:
            ToolRetry: there is none at that URI.
            ToolFailed: it cannot be had.
        """
        from mcp_types import ReadResourceResult

        errand = self._errand(uri, caller)

        async def send(link: Link) -> tuple[Embedded, ...]:
            async def once(responses: Any, state: str | None) -> Any:
                return await link.client.session.read_resource(
                    uri,
                    input_responses=responses,
                    request_state=state,
                    meta=errand.meta(),
                    allow_input_required=True,
                )

            result = await errand.settled(once, ReadResourceResult)
            return as_contents(result.contents, uri)

        return await self._made(errand, send)

    async def follow(self, uri: str) -> None:
        """Have the server tell when a resource changes, from now on.

        Raises:
            ToolFailed: it does not, or is not there.
        """
        await self._connection.link()
        await self._hearing.follow(uri)

    def completing(self, kind: str, name: str) -> Complete | None:
        """Return what completes arguments of a prompt or a template, if the server can.

        A server that gives no completions completes nothing: typing goes on.
        """
        if not self.completes:
            return None

        async def complete(argument: str, typed: str, others: Mapping[str, str]) -> Sequence[str]:
            from mcp_types import PromptReference, ResourceTemplateReference

            ref = (
                PromptReference(name=name)
                if kind == "ref/prompt"
                else ResourceTemplateReference(uri=name)
            )
            told = {"name": argument, "value": typed}
            try:
                with anyio.fail_after(_COMPLETE_S):
                    link = await self._connection.link()
                    with link.used():
                        found = await link.client.complete(ref, told, dict(others) or None)
            except Exception as error:
                log.info("mcp_complete_failed", plug=self._plug, error=str(leaf(error)))
                return ()
            return found.completion.values[:_COMPLETIONS]

        return complete

    def _errand(self, name: str, caller: Any) -> Errand:
        return Errand(
            name,
            self._plug,
            limit_s=self._limits.call_s,
            ask_s=self._limits.ask_s,
            channel=None if caller is None else caller.channel,
            progress=None if caller is None else caller.progress,
            log=None if caller is None else caller.log,
        )

    async def _made(self, errand: Errand, send: Callable[[Link], Awaitable[T]]) -> T:
        """Make a request when its turn has come. Waiting for the turn takes from its time."""
        turns = self._turns
        if turns is None:
            return await self._made_now(errand, send)
        asked_at = anyio.current_time()
        with anyio.move_on_after(errand.limit_s) as waiting:
            await turns.acquire_on_behalf_of(errand)
        if waiting.cancelled_caught:
            raise ToolFailed(
                f"`{errand.name}` of `{self._plug}` waited {errand.limit_s:g} s for its turn, and"
                f" was not sent: {turns.total_tokens} calls are in flight, which is all that its"
                " server may have at once. Call it again later"
            )
        try:
            errand.waited_s = anyio.current_time() - asked_at
            return await self._made_now(errand, send)
        finally:
            turns.release_on_behalf_of(errand)

    async def _made_now(self, errand: Errand, send: Callable[[Link], Awaitable[T]]) -> T:
        link = await self._connection.link()
        try:
            return await self._sent(link, errand, send)
        except _SessionGone:
            link.finish("its session was ended there")
            await link.over.wait()
            return await self._sent(await self._connection.link(), errand, send)

    async def _sent(self, link: Link, errand: Errand, send: Callable[[Link], Awaitable[T]]) -> T:
        heard, is_answered = link.seen.messages, False
        errand.is_over = False
        self._hearing.errands.add(errand)
        back = errand.set_out()
        try:
            with link.used(), errand.limited():
                result = await send(link)
                is_answered = True
                return result
        except GuildryError:
            is_answered = True
            raise
        except Exception as error:
            is_answered = True
            raise await self._failed(link, errand.name, error) from error
        finally:
            back()
            errand.is_over = True
            self._hearing.errands.discard(errand)
            if not is_answered and link.seen.messages == heard:
                self._suspect(link)
        raise ToolFailed(
            f"`{errand.name}` of `{self._plug}` gave no answer within {errand.limit_s:g} s and was"
            " cancelled: ask for less in one call"
        )

    async def _failed(self, link: Link, name: str, error: Exception) -> Exception:
        """Return what the caller is told of a request that ended in `error`."""
        from mcp.shared.exceptions import MCPError
        from mcp_types import CONNECTION_CLOSED, INVALID_PARAMS

        if not isinstance(error, MCPError):
            said = f"with what is no valid result ({unfit(error)})"
            return ToolFailed(f"`{name}` of `{self._plug}` answered {said}")
        if error.message == "Session terminated":
            return _SessionGone()
        if link.end.is_set() or error.code == CONNECTION_CLOSED:
            with anyio.move_on_after(_POST_MORTEM_S):
                await link.over.wait()
            why = self._connection.fault or "the connection was lost"
            return ToolFailed(
                f"`{self._plug}` stopped while `{name}` ran, and whether it took effect is unknown:"
                f" {why}. It is being started again: check what the call did before you repeat it"
            )
        if error.code in (INVALID_PARAMS, _NOT_FOUND):
            return ToolRetry(f"`{name}` of `{self._plug}` refused the call: {error.message}")
        said = f"`{name}` of `{self._plug}` failed: {error.message}"
        if error.code in _BETWEEN_US:
            return ToolFailed(said)
        return ToolProtocolError(said, error.code, error.message, error.data)

    def _suspect(self, link: Link) -> None:
        """Ask a process that was silent for the whole of a lost call whether it still answers."""
        if link.process is not None and link.is_live and not link.is_probed:
            link.is_probed = True
            self._tasks.start_soon(self._probe, link)

    async def _probe(self, link: Link) -> None:
        """End a server that stays silent for as long as any call of it may yet take.

        Many servers do one thing at a time: a call that is within its time may be why.
        """
        heard = link.seen.messages
        patience_s = max(self._limits.start_s, *(each.left_s for each in self._hearing.errands), 0)
        try:
            with anyio.move_on_after(patience_s):
                with suppress(Exception):
                    await link.client.list_tools()
                return
            if link.seen.messages == heard and not link.end.is_set():
                link.finish(f"it hung: no answer for {patience_s:g} s")
        finally:
            link.is_probed = False


def _caller(
    link: Link, name: str, arguments: dict[str, Json], errand: Errand
) -> Callable[[Any, str | None], Awaitable[Any]]:
    """Return what sends one round of a tool call.

    A server whose schema has changed since it was listed refuses the headers made by the old one:
    then it is listed anew, and the call is sent once more.
    """
    session: ClientSession = link.client.session

    async def once(responses: Any, state: str | None) -> Any:
        return await session.call_tool(
            name,
            arguments,
            progress_callback=errand.progressed,
            input_responses=responses,
            request_state=state,
            meta=errand.meta(),
            allow_input_required=True,
        )

    async def twice(responses: Any, state: str | None) -> Any:
        from mcp.shared.exceptions import MCPError
        from mcp_types import HEADER_MISMATCH

        try:
            return await once(responses, state)
        except MCPError as error:
            if error.code != HEADER_MISMATCH:
                raise
        cursor: str | None = None
        for _ in range(_MAX_PAGES):
            page = await link.client.list_tools(cursor=cursor)
            cursor = page.next_cursor
            if cursor is None or any(each.name == name for each in page.tools):
                break
        return await once(responses, state)

    return twice


def _tool_result() -> "type[wire.CallToolResult]":
    from mcp_types import CallToolResult

    return CallToolResult


class _SessionGone(Exception):
    """Tell that a server has forgotten its session; the request did not reach it."""

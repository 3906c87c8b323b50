"""The way in: a live server of this home over its control socket, or the same app in this process.

A command that lists, finds, calls or plugs is an MCP client of either, and does not know which.
"""

import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from guildry.errors import ToolFailed
from guildry.memory.references import INLINE_SHAPE
from guildry.server.commands.exits import NotFound, Unreachable, leaves

if TYPE_CHECKING:
    from mcp.client._transport import TransportStreams
    from mcp.client.client import Client
    from mcp.shared.dispatcher import ProgressFnT
    from mcp_types import CallToolResult

    from guildry.server.config import Settings

__all__ = ["Door", "answer_of", "every_live", "open_door", "open_live", "open_live_door", "text_of"]


@dataclass(frozen=True, slots=True)
class Door:
    """A connection to Guildry.

    Args:
        client: the MCP client.
        is_live: a server that goes on running is at the other end.
    """

    client: "Client"
    is_live: bool

    async def call(
        self, tool: str, arguments: Mapping[str, Any], hear: "ProgressFnT | None" = None
    ) -> "CallToolResult":
        """Call a tool, and return what it answered, errors of the tool included.

        Args:
            tool: its name.
            arguments: what it is given.
            hear: is told how far the call has come.

        Raises:
            NotFound: there is no tool of that name.
        """
        from mcp.shared.exceptions import MCPError
        from mcp_types import INVALID_PARAMS

        try:
            return await self.client.call_tool(tool, dict(arguments), progress_callback=hear)
        except MCPError as error:
            if error.code == INVALID_PARAMS:
                raise NotFound(error.message) from error
            raise ToolFailed(f"`{tool}` failed: {error.message}") from error

    async def ask(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        """Call a tool of Guildry's own, and return its structured answer.

        Raises:
            ToolFailed: it answered with an error.
        """
        result = await self.call(tool, arguments)
        if result.is_error:
            raise ToolFailed(text_of(result))
        return await self.whole(answer_of(result))

    async def whole(self, answer: Any) -> Any:
        """Return the value that an answer stands for, where it was stored for its length."""
        if not isinstance(answer, dict):
            return answer
        stored = cast("dict[str, Any]", answer)
        if not stored.keys() >= set(INLINE_SHAPE):
            return stored
        contents = (await self.client.read_resource(str(stored["uri"]))).contents
        return _parsed("".join(getattr(each, "text", "") for each in contents))


@asynccontextmanager
async def open_door(settings: "Settings") -> AsyncGenerator[Door]:
    """Connect to a live server of this home, or to an app in this process where none is live.

    Raises:
        Unreachable: a live server was found, but the connection failed.
    """
    async with AsyncExitStack() as stack:
        door = await stack.enter_async_context(open_live_door(settings))
        if door is not None:
            yield door
            return
        from mcp.client.client import Client

        from guildry.server.app import open_app
        from guildry.server.surface import build_server

        app = await stack.enter_async_context(open_app(settings))
        yield Door(await stack.enter_async_context(Client(build_server(app))), is_live=False)


@asynccontextmanager
async def open_live_door(settings: "Settings") -> "AsyncGenerator[Door | None]":
    """Connect to a live server of this home; None where none is live.

    Raises:
        Unreachable: a live server was found, but the connection failed.
    """
    from guildry.server.control import connect

    transport = connect(settings.home)
    if transport is None:
        yield None
        return
    async with AsyncExitStack() as stack:
        yield await _enter(stack, transport, settings)


@asynccontextmanager
async def open_live(settings: "Settings", pid: int) -> AsyncGenerator[Door]:
    """Connect to the live server that is process `pid`.

    Raises:
        Unreachable: it cannot be reached.
    """
    from guildry.server.control import connections

    transport = connections(settings.home).get(pid)
    if transport is None:
        raise Unreachable(f"process {pid} serves no control socket of `{settings.home}`: end it")
    async with AsyncExitStack() as stack:
        yield await _enter(stack, transport, settings)


async def every_live(settings: "Settings", stack: AsyncExitStack) -> list[Door]:
    """Connect to every live server of this home, until the stack is closed."""
    from guildry.server.control import connections

    transports = connections(settings.home).values()
    return [await _enter(stack, transport, settings) for transport in transports]


async def _enter(
    stack: AsyncExitStack,
    transport: "AbstractAsyncContextManager[TransportStreams]",
    settings: "Settings",
) -> Door:
    from mcp.client.client import Client

    try:
        return Door(await stack.enter_async_context(Client(transport)), is_live=True)
    except Exception as error:
        cause = next(leaves(error))
        raise Unreachable(
            f"the live server of `{settings.home}` does not answer ({cause}): restart it"
        ) from error


def text_of(result: "CallToolResult") -> str:
    """Return the texts of an answer, and one line for each part that is none."""
    lines: list[str] = []
    for block in result.content:
        if block.type == "text":
            lines.append(block.text)
        elif block.type == "resource_link":
            lines.append(f"[{block.name}: {block.uri}]")
        else:
            lines.append(f"[{block.type}]")
    return "\n".join(lines)


def answer_of(result: "CallToolResult") -> Any:
    """Return the structured value of an answer, or its text: as JSON where it is such."""
    if result.structured_content is not None:
        return result.structured_content
    return _parsed(text_of(result))


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text

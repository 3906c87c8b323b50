"""The tool that calls any other."""

from typing import TYPE_CHECKING, Final, cast

from guildry.server.builtin.schemas import parameters
from guildry.server.parts import BUILTIN, App
from guildry.tools.base import Block, Call, Json, Outcome, Text, Tool

if TYPE_CHECKING:
    from guildry.tools.caller import Caller

__all__ = ["CALL_TOOL", "Calling"]

CALL_TOOL: Final = "call_tool"
"""The name of the tool that calls any other."""


class Calling:
    """Make the tool that calls any other."""

    def __init__(self, app: App) -> None:
        self._app = app

    def tools(self) -> tuple[Tool, ...]:
        """Return the tools, in the order in which they are listed."""
        return (
            Tool(
                name=CALL_TOOL,
                plug=BUILTIN,
                description="Call any tool by name, also one that is not listed.",
                input_schema=parameters(
                    ["name"],
                    name={"type": "string"},
                    arguments={"type": "object", "description": "As the tool's schema wants."},
                ),
                invoke=self._call_tool,
                timeout_s=float("inf"),
            ),
        )

    async def _call_tool(self, arguments: dict[str, Json], call: Call) -> Outcome:
        name = cast("str", arguments["name"])
        if name not in self._app.catalog.current.tools:
            await self._app.settled()
        caller = cast("Caller", call.caller)
        result = await self._app.dispatch.call(caller, name, arguments.get("arguments", {}))
        blocks: tuple[Block, ...] = result.blocks or (Text(result.text),)
        return Outcome(blocks, result.structured, result.has_structured, result.is_error)

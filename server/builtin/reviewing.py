"""The tools by which a person decides which held definitions are served."""

from typing import TYPE_CHECKING, Final, Literal, cast

from guildry.errors import PlugError, ToolRetry
from guildry.server.builtin.schemas import parameters, structured
from guildry.server.parts import BUILTIN, App
from guildry.tools.base import READS, SOME_OBJECT, Call, Effects, Json, Outcome, Tool

if TYPE_CHECKING:
    from guildry.tools.caller import Caller

__all__ = ["Reviewing"]

_DECIDES: Final = Effects(writes=True, egress=False, destructive=False, idempotent=True)
_CHOICE: Final[dict[str, Json]] = {
    "plug": {"type": "string"},
    "tools": {
        "type": "array",
        "items": {"type": "string"},
        "minItems": 1,
        "description": "As `review_tools` names them; all of the plug's if not given.",
    },
    "digests": {
        "type": "object",
        "additionalProperties": {"type": "string"},
        "description": "By tool: the digest that was shown; one that has changed since stays held.",
    },
}


class Reviewing:
    """Make the tools for those who may administer the server."""

    def __init__(self, app: App) -> None:
        self._app = app

    def tools(self) -> tuple[Tool, ...]:
        """Return the tools, in the order in which they are listed."""
        return (
            Tool(
                name="review_tools",
                plug=BUILTIN,
                description=(
                    "List the definitions that are held until a person approves them: why, and"
                    " what differs from what was approved before."
                ),
                input_schema=parameters([]),
                output_schema=SOME_OBJECT,
                invoke=self._review_tools,
                effects=READS,
                scope="admin",
            ),
            Tool(
                name="approve_tools",
                plug=BUILTIN,
                description="Serve held definitions of a plug from now on. For a person to decide.",
                input_schema=parameters(["plug"], **_CHOICE),
                output_schema=SOME_OBJECT,
                invoke=self._approve_tools,
                effects=_DECIDES,
                scope="admin",
            ),
            Tool(
                name="reject_tools",
                plug=BUILTIN,
                description="Decide that held definitions of a plug are never served as they are.",
                input_schema=parameters(["plug"], **_CHOICE),
                output_schema=SOME_OBJECT,
                invoke=self._reject_tools,
                effects=_DECIDES,
                scope="admin",
            ),
        )

    async def _review_tools(self, arguments: dict[str, Json], call: Call) -> Outcome:
        return structured({"held": await self._app.reviewer.told()})

    async def _approve_tools(self, arguments: dict[str, Json], call: Call) -> Outcome:
        return await self._decide("approve", arguments, call)

    async def _reject_tools(self, arguments: dict[str, Json], call: Call) -> Outcome:
        return await self._decide("reject", arguments, call)

    async def _decide(
        self, verdict: Literal["approve", "reject"], arguments: dict[str, Json], call: Call
    ) -> Outcome:
        plug = cast("str", arguments["plug"])
        by = cast("Caller", call.caller).grant.holder
        names = await self._app.reviewer.decide(
            verdict, plug, arguments.get("tools"), by, arguments.get("digests")
        )
        if not names:
            held = sorted({each.plug for each in await self._app.reviewer.held()})
            of = ", ".join(f"`{each}`" for each in held) or "no plug"
            raise ToolRetry(
                f"nothing of that is held of {plug!r} (held is something of {of}):"
                " see `review_tools`"
            )
        try:
            await self._app.plugs.review(plug)
        except PlugError as error:
            raise ToolRetry(f"{verdict}d, but not served yet: {error}") from error
        return structured({"plug": plug, "verdict": verdict, "tools": names})

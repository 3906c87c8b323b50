"""The tool that calls any other, or one of several that would do."""

from typing import TYPE_CHECKING, Any, Final, cast

from guildry.server.builtin.schemas import compact, parameters
from guildry.server.parts import BUILTIN, App
from guildry.tools.base import REFERENCE_FORMAT, Block, Call, Json, Outcome, Result, Text, Tool

if TYPE_CHECKING:
    from collections.abc import Sequence

    from guildry.tools.caller import Caller
    from guildry.tools.choosing import Candidate, Route

__all__ = ["CALL_TOOL", "Calling"]

CALL_TOOL: Final = "call_tool"
"""The name of the tool that calls any other."""

_MOST: Final = 8
_SAME: Final = "same"
_ARGUMENTS: Final[dict[str, Json]] = {
    "type": "object",
    "format": REFERENCE_FORMAT,  # read for the tool that is called, as its own schema wants
    "description": "As the tool's schema wants.",
}
_ALTERNATIVES: Final[dict[str, Json]] = {
    "format": REFERENCE_FORMAT,
    "description": (
        "Other calls that would do, should this one fail or be known to; `same` finds tools of the"
        " same name and parameters."
    ),
    "anyOf": [
        {"const": _SAME},
        {
            "type": "array",
            "maxItems": _MOST,
            "items": parameters(["name"], name={"type": "string"}, arguments={"type": "object"}),
        },
    ],
}
_BUDGET: Final[dict[str, Json]] = {
    **parameters(
        [],
        calls={"type": "integer", "minimum": 1, "maximum": _MOST + 1},
        seconds={"type": "number", "exclusiveMinimum": 0},
    ),
    "description": "Most calls (3 if not given) and seconds to spend on it.",
}


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
                    arguments=_ARGUMENTS,
                    alternatives=_ALTERNATIVES,
                    budget=_BUDGET,
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
        given: dict[str, Json] = arguments.get("arguments", {})
        if arguments.get("alternatives") or "budget" in arguments:
            return _routed(await self._choose(caller, name, given, arguments))
        return _as_outcome(await self._app.dispatch.call(caller, name, given))

    async def _choose(
        self, caller: "Caller", name: str, given: dict[str, Json], arguments: dict[str, Json]
    ) -> "Route":
        from guildry.tools.choosing import Bounds, Router

        app = self._app
        budget: dict[str, Any] = arguments.get("budget", {})
        router = Router(app.dispatch, app.catalog, app.usage)
        candidates = self._candidates(caller, name, given, arguments.get("alternatives", []))
        return await router.call(caller, candidates, Bounds(**budget))

    def _candidates(
        self, caller: "Caller", name: str, given: dict[str, Json], alternatives: Json
    ) -> "Sequence[Candidate]":
        from guildry.tools.choosing import Candidate, same_tools

        if alternatives == _SAME:
            names = same_tools(self._app.catalog, caller, name)[:_MOST]
            others = [Candidate(each, given) for each in names]
        else:
            others = [
                Candidate(each["name"], each.get("arguments", given)) for each in alternatives
            ]
        return [Candidate(name, given), *others]


def _as_outcome(result: Result) -> Outcome:
    blocks: tuple[Block, ...] = result.blocks or (Text(result.text),)
    return Outcome(blocks, result.structured, result.has_structured, result.is_error)


def _routed(route: "Route") -> Outcome:
    """Return an answer with the way to it: in one form, with a structured `route` beside it."""
    result = route.result
    told: dict[str, Json] = {"tool": route.tool, "route": route.as_json()}
    if route.why:
        told["why"] = route.why
    blocks: tuple[Block, ...] = result.blocks or (Text(result.text),)
    if result.has_structured and result.text == compact(result.structured):
        told = {"answer": result.structured, **told}
        blocks = tuple(each for each in blocks if not isinstance(each, Text))
    return Outcome(blocks, told, True, result.is_error)

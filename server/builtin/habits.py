"""The tools that say how tools have done, and which sequences of calls could be one."""

from typing import TYPE_CHECKING, Final, cast

import anyio
from anyio import to_thread

from guildry.server.builtin.schemas import parameters, structured
from guildry.server.parts import BUILTIN, App
from guildry.tools.base import READS, SOME_OBJECT, Call, Effects, Json, Outcome, Tool

if TYPE_CHECKING:
    from guildry.tools.macros.recipe import Recipe
    from guildry.tools.macros.shelf import MacroShelf

__all__ = ["Habits", "macro_shelf"]

_KEEPS: Final = Effects(writes=True, egress=False, destructive=False, idempotent=True)
_MOST: Final = 20
_MINING_S: Final = 20.0
_LOADING_S: Final = 5.0


def macro_shelf(app: App) -> "MacroShelf":
    """Return where the macros of this home are kept."""
    from guildry.tools.macros.shelf import MacroShelf

    return MacroShelf(app.settings.home / "macros")


class Habits:
    """Make the tools about how tools are used, for those who may administer the server."""

    def __init__(self, app: App) -> None:
        self._app = app

    def tools(self) -> tuple[Tool, ...]:
        """Return the tools, in the order in which they are listed."""
        return (
            Tool(
                name="list_usage",
                plug=BUILTIN,
                description="Say how often, how well and how fast tools and plugs have answered.",
                input_schema=parameters(
                    [], plug={"type": "string", "description": "Only tools of this one."}
                ),
                output_schema=SOME_OBJECT,
                invoke=self._list_usage,
                effects=READS,
                scope="admin",
            ),
            Tool(
                name="suggest_macros",
                plug=BUILTIN,
                description=(
                    "Find sequences of calls that come again and again; `plug` with the `source` of"
                    " one makes it a tool."
                ),
                input_schema=parameters(
                    [],
                    at_least={
                        "type": "integer",
                        "minimum": 2,
                        "default": 3,
                        "description": "How often a sequence must have come.",
                    },
                    limit={"type": "integer", "minimum": 1, "maximum": _MOST, "default": 10},
                ),
                output_schema=SOME_OBJECT,
                invoke=self._suggest_macros,
                effects=_KEEPS,
                timeout_s=3 * _MINING_S,
                scope="admin",
            ),
        )

    async def _list_usage(self, arguments: dict[str, Json], call: Call) -> Outcome:
        only = cast("str | None", arguments.get("plug"))
        usage, tools = self._app.usage, self._app.catalog.current
        with anyio.move_on_after(_LOADING_S):
            await usage.loaded.wait()
        known = [
            (tool, figures)
            for tool in tools
            if only in (None, tool.plug)
            and (tool.plug != BUILTIN or tool.scope == "teams")
            and ((figures := usage.of(tool)).calls or figures.misused)
        ]
        known.sort(key=lambda each: -each[1].calls)
        plugs = dict.fromkeys(tool.plug for tool, _ in known)
        return structured(
            {
                "tools": [
                    {"name": tool.name, "plug": tool.plug, **figures.as_json()}
                    for tool, figures in known
                ],
                "plugs": [{"name": plug, **usage.of_plug(plug).as_json()} for plug in plugs],
            }
        )

    async def _suggest_macros(self, arguments: dict[str, Json], call: Call) -> Outcome:
        from guildry.memory.traces import read_traces
        from guildry.tools.macros.mining import mine

        traces = await read_traces(self._app.store)
        tools = dict(self._app.catalog.current.tools)
        shelf = macro_shelf(self._app)
        plugged = {each.source for each in self._app.plugs.listing() if each.kind == "macro"}

        def work() -> "list[Recipe]":
            taken = shelf.taken()
            found = mine(
                traces,
                tools,
                known=[each for each in taken if f"macro:{each.name}" in plugged],
                names=[each.name for each in taken],
                at_least=arguments.get("at_least", 3),
                most=arguments.get("limit", 10),
                seconds=_MINING_S,
            )
            shelf.suggest(found)
            return found

        found = await to_thread.run_sync(work, abandon_on_cancel=True)
        calls = sum(map(len, traces))
        return structured({"macros": [_told(each) for each in found], "calls_read": calls})


def _told(recipe: "Recipe") -> dict[str, Json]:
    return {
        "name": recipe.name,
        "source": f"macro:{recipe.name}",
        "support": recipe.support,
        "saved_calls": recipe.saved_calls,
        "saved_tokens": recipe.saved_tokens,
        "parameters": recipe.parameters,
        "steps": [each.model_dump() for each in recipe.steps],
    }

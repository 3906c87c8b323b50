"""The tools that find others, and describe them."""

from typing import TYPE_CHECKING, Any, Final, cast

from guildry.server.builtin.calling import CALL_TOOL
from guildry.server.builtin.schemas import compact, parameters, structured
from guildry.server.parts import BUILTIN, App
from guildry.tools.base import READS, SOME_OBJECT, Call, Json, Outcome, Tool
from guildry.tools.finding.tags import EFFECT_WORDS, tags_of
from guildry.tools.registry import UnknownTool
from guildry.tools.results import BYTES_PER_TOKEN

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from guildry.tools.caller import Caller
    from guildry.tools.finding.index import Hit

__all__ = ["Finding", "fitted"]

_META: Final = frozenset({"find_tools", "describe_tools", CALL_TOOL})
_MAX_FOUND: Final = 50
_MAX_QUERIES: Final = 20
_MAX_TAGS: Final = 10
_NOTHING: Final = (
    "Nothing fits. Say what the tool would do and with what, in other words; name one need in each"
    " query; leave out names of people and places."
)
_NOT_TAGGED: Final = "Nothing that fits has these tags: leave some out."
_SHORT: Final = 160
_ROOM: Final = 0.9


class Finding:
    """Make the tools that find others."""

    def __init__(self, app: App) -> None:
        self._app = app

    def tools(self) -> tuple[Tool, ...]:
        """Return the tools, in the order in which they are listed."""
        return (
            Tool(
                name="find_tools",
                plug=BUILTIN,
                description="Find tools by what they do. Call what is found with `call_tool`.",
                input_schema=parameters(
                    ["queries"],
                    queries={
                        "type": "array",
                        "items": {"type": "string"},
                        "minItems": 1,
                        "maxItems": _MAX_QUERIES,
                        "description": "What is needed, in a few words; one need each.",
                    },
                    limit={
                        "type": "integer",
                        "minimum": 1,
                        "maximum": _MAX_FOUND,
                        "default": 10,
                        "description": "How many tools at most.",
                    },
                    tags={
                        "type": "array",
                        "items": {"type": "string"},
                        "maxItems": _MAX_TAGS,
                        "description": "Only tools with all of these: names of plugs, tags of"
                        f" plugs, {', '.join(f'`{word}`' for word in EFFECT_WORDS)}.",
                    },
                ),
                output_schema=SOME_OBJECT,
                invoke=self._find_tools,
                effects=READS,
            ),
            Tool(
                name="describe_tools",
                plug=BUILTIN,
                description="Show the whole description and schema of tools.",
                input_schema=parameters(
                    ["names"],
                    names={"type": "array", "items": {"type": "string"}, "minItems": 1},
                ),
                output_schema=SOME_OBJECT,
                invoke=self._describe_tools,
                effects=READS,
            ),
        )

    async def _find_tools(self, arguments: dict[str, Json], call: Call) -> Outcome:
        await self._app.settled()
        queries = cast("list[str]", arguments["queries"])
        tags = frozenset(each.casefold() for each in cast("list[str]", arguments.get("tags") or []))
        limit = cast("int", arguments.get("limit", 10))
        hits = await self._app.index.search(queries, limit, self._permitted(call, tags))
        if hits:
            return structured({"tools": fitted(hits, self._app.settings.inline_tokens)})
        word = _NOTHING
        if tags and await self._app.index.search(queries, 1, self._permitted(call, frozenset())):
            word = _NOT_TAGGED
        return structured({"tools": [], "note": word})

    def _permitted(self, call: Call, tags: frozenset[str]) -> "Callable[[Tool], bool]":
        """Return what tells whether a tool may be shown to the caller, and has all of `tags`."""
        grant = cast("Caller", call.caller).grant
        said_of = self._app.plugs.said_of

        def permitted(tool: Tool) -> bool:
            if tool.name in _META or tool.scope not in grant.scopes or not grant.allows(tool.name):
                return False
            if not tags:
                return True
            said = said_of(tool.plug)
            return tags <= tags_of(tool, () if said is None else said[2].tags)

        return permitted

    def _callable(self, call: Call) -> list[Tool]:
        grant = cast("Caller", call.caller).grant
        return [
            tool
            for tool in self._app.catalog.current
            if tool.scope in grant.scopes and grant.allows(tool.name)
        ]

    async def _describe_tools(self, arguments: dict[str, Json], call: Call) -> Outcome:
        await self._app.settled()
        known = {tool.name: tool for tool in self._callable(call)}
        asked = cast("list[str]", arguments["names"])
        for name in asked:
            if name not in known:
                raise UnknownTool(name, tuple(known))
        usage, tools = self._app.usage, [known[name] for name in dict.fromkeys(asked)]
        return structured({"tools": [_described(each) | usage.of(each).beside() for each in tools]})


def fitted(hits: "Sequence[Hit]", inline_tokens: int) -> list[dict[str, Json]]:
    """Return what was found, cut from the last hit upwards until it can be given inline."""
    found = [_found(hit) for hit in hits]
    room = int(inline_tokens * BYTES_PER_TOKEN * _ROOM) - sum(len(compact(each)) for each in found)
    for cut in (_shorten, _outline, _leave_schema):
        for each in reversed(found):
            if room >= 0:
                return found
            before = len(compact(each))
            cut(each)
            room += before - len(compact(each))
    return found


def _found(hit: "Hit") -> dict[str, Json]:
    tool = hit.tool
    return {
        "name": tool.name,
        "plug": tool.plug,
        "tool": tool.source_name or tool.name,
        "description": tool.description,
        "input_schema": tool.input_schema,
        "score": hit.score,
    }


def _described(tool: Tool) -> dict[str, Json]:
    described: dict[str, Json] = {
        "name": tool.name,
        "plug": tool.plug,
        "tool": tool.source_name or tool.name,
        "description": tool.description,
        "input_schema": tool.input_schema,
    }
    if tool.output_schema is not None:
        described["output_schema"] = tool.output_schema
    return described


def _shorten(found: dict[str, Json]) -> None:
    text = cast("str", found["description"])
    if len(text) > _SHORT:
        found["description"] = f"{text[: _SHORT - 1]}…"


def _outline(found: dict[str, Json]) -> None:
    """Keep what a call needs of a schema: the names and types of the parameters."""
    schema = cast("dict[str, Any]", found["input_schema"])
    properties = cast("dict[str, Any]", schema.get("properties") or {})
    found["input_schema"] = {
        "type": "object",
        "properties": {name: _kind(each) for name, each in properties.items()},
        **({"required": schema["required"]} if schema.get("required") else {}),
    }


def _kind(schema: Json) -> dict[str, Json]:
    members = cast("dict[str, Json]", schema) if isinstance(schema, dict) else {}
    return {key: members[key] for key in ("type", "enum") if key in members}


def _leave_schema(found: dict[str, Json]) -> None:
    found["input_schema"] = {"description": "Ask `describe_tools`."}

"""The built-in tools: finding and calling tools, reading references, plugging. Passed by dispatch.

Each is a tool of the plug `guildry` like any other; those with the scope `admin` are neither shown
to nor run for callers without it, which agents never have.
"""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from guildry.errors import PlugError, ToolRetry
from guildry.memory.references import Handle, parse_handle
from guildry.server.parts import BUILTIN, App
from guildry.tools.base import (
    READS,
    REFERENCE_FORMAT,
    SOME_OBJECT,
    Block,
    Call,
    Effects,
    Json,
    Outcome,
    Text,
    Tool,
)
from guildry.tools.passing import open_reference
from guildry.tools.registry import UnknownTool
from guildry.tools.results import BYTES_PER_TOKEN

if TYPE_CHECKING:
    from guildry.tools.caller import Caller
    from guildry.tools.search import Hit

__all__ = ["CALL_TOOL", "Builtin", "parameters", "structured"]

CALL_TOOL: Final = "call_tool"
"""The name of the tool that calls any other."""

_META: Final = frozenset({"find_tools", "describe_tools", CALL_TOOL})
_MAX_FOUND: Final = 50
_MAX_QUERIES: Final = 20
_SHORT: Final = 160
_ROOM: Final = 0.9
_ELLIPSIS_BYTES: Final = 240
_REFERENCE: Final[dict[str, Json]] = {
    "type": "string",
    "format": REFERENCE_FORMAT,
    "description": "`ref:name` or `ref://id`.",
}
_PLUGS: Final = Effects(writes=True, egress=True, destructive=False, idempotent=False)


class Builtin:
    """Make the built-in tools of an app."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._inline_bytes = app.settings.inline_tokens * BYTES_PER_TOKEN

    def tools(self) -> tuple[Tool, ...]:
        """Return the tools, in the order in which they are listed."""
        return (*self._meta_tools(), self._read_reference_tool(), *self._plug_tools())

    def _meta_tools(self) -> tuple[Tool, ...]:
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

    def _read_reference_tool(self) -> Tool:
        return Tool(
            name="read_reference",
            plug=BUILTIN,
            description=(
                "Read a stored value, or a part of it: `#/rows/0/name` (JSON Pointer),"
                " `?lines=1-40`, or `?query=rows[?total>10].id` (JMESPath)."
            ),
            input_schema=parameters(
                ["reference"],
                reference=_REFERENCE,
                selector={"type": "string", "description": "Which part; all if not given."},
                limit={
                    "type": "integer",
                    "minimum": 1,
                    "description": "How many characters at most.",
                },
            ),
            invoke=self._read_reference,
            effects=READS,
        )

    def _plug_tools(self) -> tuple[Tool, ...]:
        return (
            Tool(
                name="plug",
                plug=BUILTIN,
                description=(
                    "Add a source of tools: a Python file or folder, the URL of an MCP server, or"
                    " the command line of one (`npx -y …`)."
                ),
                input_schema=parameters(
                    ["source"],
                    source={"type": "string", "minLength": 1},
                    name={"type": "string", "description": "Made from the source if not given."},
                ),
                output_schema=SOME_OBJECT,
                invoke=self._plug,
                effects=_PLUGS,
                timeout_s=120.0,
                scope="admin",
            ),
            Tool(
                name="unplug",
                plug=BUILTIN,
                description="Remove a source of tools; calls in flight may end first.",
                input_schema=parameters(["name"], name={"type": "string"}),
                output_schema=SOME_OBJECT,
                invoke=self._unplug,
                effects=_PLUGS,
                scope="admin",
            ),
            Tool(
                name="list_plugs",
                plug=BUILTIN,
                description="Say which sources of tools there are, and how each is.",
                input_schema=parameters([]),
                output_schema=SOME_OBJECT,
                invoke=self._list_plugs,
                effects=READS,
                scope="admin",
            ),
        )

    async def _find_tools(self, arguments: dict[str, Json], call: Call) -> Outcome:
        await self._app.settled()
        hits = await self._app.index.search(
            cast("list[str]", arguments["queries"]),
            cast("int", arguments.get("limit", 10)),
            [tool.name for tool in self._callable(call) if tool.name not in _META],
        )
        return structured({"tools": self._fitting(hits)})

    def _callable(self, call: Call) -> list[Tool]:
        grant = cast("Caller", call.caller).grant
        return [
            tool
            for tool in self._app.catalog.current
            if tool.scope in grant.scopes and grant.allows(tool.name)
        ]

    def _fitting(self, hits: "Sequence[Hit]") -> list[dict[str, Json]]:
        """Return what was found, cut from the last hit upwards until it can be given inline."""
        found = [_found(hit) for hit in hits]
        room = int(self._inline_bytes * _ROOM) - sum(len(_compact(each)) for each in found)
        for cut in (_shorten, _outline, _leave_schema):
            for each in reversed(found):
                if room >= 0:
                    return found
                before = len(_compact(each))
                cut(each)
                room += before - len(_compact(each))
        return found

    async def _describe_tools(self, arguments: dict[str, Json], call: Call) -> Outcome:
        await self._app.settled()
        known = {tool.name: tool for tool in self._callable(call)}
        asked = cast("list[str]", arguments["names"])
        for name in asked:
            if name not in known:
                raise UnknownTool(name, tuple(known))
        return structured({"tools": [_described(known[name]) for name in dict.fromkeys(asked)]})

    async def _call_tool(self, arguments: dict[str, Json], call: Call) -> Outcome:
        name = cast("str", arguments["name"])
        if name not in self._app.catalog.current.tools:
            await self._app.settled()
        caller = cast("Caller", call.caller)
        result = await self._app.dispatch.call(caller, name, arguments.get("arguments", {}))
        blocks: tuple[Block, ...] = result.blocks or (Text(result.text),)
        return Outcome(blocks, result.structured, result.has_structured, result.is_error)

    async def _read_reference(self, arguments: dict[str, Json], call: Call) -> Outcome:
        handle = _handle(cast("str", arguments["reference"]), arguments.get("selector"))
        reference = await open_reference(self._app.objects, call.caller, handle)
        value = await self._app.objects.select(reference, handle.selector)
        text = value if isinstance(value, str) else _compact(value)
        return Outcome((Text(self._cut(text, cast("int | None", arguments.get("limit")))),))

    def _cut(self, text: str, limit: int | None) -> str:
        """Return as much of `text` as the caller wants, and as can be given inline."""
        room = max(_ELLIPSIS_BYTES, self._inline_bytes)
        wanted = len(text) if limit is None else min(limit, len(text))
        if wanted == len(text) and len(text.encode()) <= room:
            return text
        head = text[:wanted].encode()[: room - _ELLIPSIS_BYTES].decode(errors="ignore")
        return (
            f"{head}\n… {len(text) - len(head):,} of {len(text):,} characters are not shown: read"
            " a part by a selector, or pass the reference to a tool"
        )

    async def _plug(self, arguments: dict[str, Json], call: Call) -> Outcome:
        source = cast("str", arguments["source"])
        try:
            report = await self._app.plugs.plug(source, arguments.get("name"))
        except PlugError as error:
            raise ToolRetry(str(error)) from error
        await self._app.by_hand.add(report.plug, await _lasting(source))
        return structured(report.as_json())

    async def _unplug(self, arguments: dict[str, Json], call: Call) -> Outcome:
        name = cast("str", arguments["name"])
        try:
            await self._app.plugs.unplug(name)
        except PlugError as error:
            raise ToolRetry(str(error)) from error
        await self._app.by_hand.remove(name)
        return structured({"plug": name})

    async def _list_plugs(self, arguments: dict[str, Json], call: Call) -> Outcome:
        return structured({"plugs": [each.as_json() for each in self._app.plugs.listing()]})


async def _lasting(source: str) -> str:
    """Return `source` as it still means the same when the server starts in another folder."""
    path = await anyio.Path(source).expanduser()
    return str(await path.absolute()) if await path.exists() else source


def parameters(required: Sequence[str], **properties: Json) -> dict[str, Json]:
    """Return the schema of an object with these properties and no others."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def structured(value: dict[str, Json]) -> Outcome:
    """Return an answer that is a JSON object."""
    return Outcome(structured=value, has_structured=True)


def _handle(text: str, selector: Json) -> Handle:
    handle = parse_handle(text)
    if handle is None:
        raise ToolRetry(f"`reference` is {text!r}: give `ref:name` or `ref://id`")
    if not selector:
        return handle
    if handle.selector is not None:
        raise ToolRetry("the reference has a selector already: leave `selector` out")
    if selector[0] not in "#?":
        selector = f"#{selector}" if selector[0] == "/" else f"?{selector}"
        if not selector.startswith(("#", "?lines=", "?query=")):
            selector = f"?query={selector[1:]}"
    return Handle(handle.kind, handle.key, selector)


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


def _compact(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)

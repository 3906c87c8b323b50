"""The forms of tools and results on the MCP wire, as plain JSON. Knows no transport and no session.

A stored answer is told in three forms that cost a model at most `STORED_TOKENS` together: a line of
text for clients that show only text, a `resource_link`, and the object of `INLINE_SHAPE`.
"""

import base64
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, cast

from guildry.memory.references import INLINE_SHAPE, Reference
from guildry.tools.base import (
    SOME_OBJECT,
    Block,
    Embedded,
    Icon,
    Json,
    Link,
    Media,
    Result,
    Text,
    Tool,
)

__all__ = [
    "STORED_SHAPE",
    "STORED_TOKENS",
    "StructuredForm",
    "block_to_wire",
    "icons_to_wire",
    "output_schema",
    "result_to_wire",
    "tool_to_wire",
]

StructuredForm = Literal["both", "once", "text"]
"""How a structured value goes to a client: beside its JSON as text, or in one of the two."""

STORED_TOKENS: Final = 300
"""What a stored answer may cost a model, in tokens of four characters, whatever its size."""

STORED_SHAPE: Final[Mapping[str, Json]] = {
    "type": "object",
    "description": "The answer is stored: read it by this reference.",
    "properties": {
        key: {"type": "integer"} if key == "size" else {"type": "string"} for key in INLINE_SHAPE
    },
    "required": list(INLINE_SHAPE),
}

_STORED_CHARACTERS: Final = STORED_TOKENS * 4 - 160  # clients add spaces and empty fields
_MEMBERS_CHARACTERS: Final = 160
_LINKS_SINCE: Final = "2025-06-18"
_REFERENCING: Final = ("$ref", "$dynamicRef")


def tool_to_wire(tool: Tool) -> dict[str, Json]:
    """Return `tool` as `tools/list` shows it."""
    shown: dict[str, Json] = {
        "name": tool.name,
        "title": tool.title,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        "outputSchema": None if tool.output_schema is None else output_schema(tool.output_schema),
        "annotations": _annotations(tool),
        "icons": icons_to_wire(tool.icons),
        "_meta": tool.annotations.get("_meta"),
    }
    return {key: value for key, value in shown.items() if value is not None}


def icons_to_wire(icons: Sequence[Icon]) -> list[dict[str, Json]] | None:
    """Return icons as the wire has them, or None where there are none."""
    told = [
        {
            "src": icon.src,
            "mimeType": icon.media_type,
            "sizes": list(icon.sizes) or None,
            "theme": icon.theme,
        }
        for icon in icons
    ]
    kept = [{key: value for key, value in each.items() if value is not None} for each in told]
    return kept or None


def _annotations(tool: Tool) -> dict[str, Json]:
    effects, title = tool.effects, tool.annotations.get("title")
    return {
        **({} if title is None else {"title": title}),
        "readOnlyHint": effects.reads_only,
        "destructiveHint": effects.writes and effects.destructive,
        "idempotentHint": effects.repeatable,
        "openWorldHint": effects.egress,
    }


def output_schema(schema: Mapping[str, Json]) -> dict[str, Json] | None:
    """Return the schema that a client is told: the tool's own, or the shape of a stored answer.

    A schema whose root is no object is not told: clients before 2026-07-28 refuse it.
    """
    if schema.get("type") != "object":
        return None
    if schema == SOME_OBJECT:
        return dict(SOME_OBJECT)
    return {"type": "object", "anyOf": [_moved(dict(schema), "#/anyOf/0"), dict(STORED_SHAPE)]}


def _moved(schema: Json, root: str) -> Json:
    """Return `schema` with its references to its own root pointing to where it stands now."""
    if isinstance(schema, dict):
        members = cast("dict[str, Json]", schema)
        return {
            key: root + value[1:]
            if key in _REFERENCING and isinstance(value, str) and value[:1] == "#"
            else _moved(value, root)
            for key, value in members.items()
        }
    if isinstance(schema, list):
        return [_moved(each, root) for each in schema]  # pyright: ignore[reportUnknownVariableType]
    return schema


def result_to_wire(
    result: Result, version: str, structured: StructuredForm = "both"
) -> dict[str, Any]:
    """Return `result` as `tools/call` answers it to a client that speaks `version`.

    Args:
        result: of the call.
        version: of the protocol.
        structured: how a structured value goes: with its JSON as text, with a line of text, or as
            text alone.
    """
    if result.references and not result.has_structured:
        return _stored(result, version)
    blocks = result.blocks
    if not blocks:
        blocks = (Text(result.text),) if result.text else ()
    wire: dict[str, Any] = {
        "content": [block_to_wire(each, version) for each in blocks],
        "isError": result.is_error,
    }
    value: Json = result.structured
    if structured != "text" and result.has_structured and isinstance(value, dict):
        wire["structuredContent"] = value
        if structured == "once":
            wire["content"] = _without(wire["content"], cast("dict[str, Json]", value))
    return wire


def _without(content: list[dict[str, Any]], value: dict[str, Json]) -> list[dict[str, Any]]:
    """Return `content` with a line in place of the JSON of `value`."""
    written = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    text = str(content[0].get("text", "")) if content else ""
    if not text.endswith(written):
        return content
    members = ", ".join(f"`{name}`" for name in value)[:_MEMBERS_CHARACTERS] or "nothing"
    line = text.removesuffix(written) + f"The answer is in `structuredContent`: {members}."
    return [{"type": "text", "text": line}, *content[1:]]


def _stored(result: Result, version: str) -> dict[str, Any]:
    reference = result.references[0]
    about = reference.as_json()
    blocks: Sequence[Block] = result.blocks
    if len(result.references) == 1 and result.text.endswith(reference.preview):
        blocks = [_line(reference), *(each for each in blocks if not isinstance(each, Text))]
    content = [block_to_wire(each, version) for each in blocks]
    wire: dict[str, Any] = {"content": content, "isError": result.is_error}
    if len(result.references) == 1:
        about["preview"] = _fitting(reference.preview, {**wire, "structuredContent": about})
    wire["structuredContent"] = about
    return wire


def _line(reference: Reference) -> Text:
    return Text(
        f"Stored as {reference.short} ({reference.size:,} bytes, {reference.media_type}):"
        f" {reference.sketch}. Read parts with read_reference, or pass {reference.short} on."
    )


def _fitting(preview: str, wire: Mapping[str, Any]) -> str:
    """Return as much of `preview` as leaves the whole answer within its limit."""
    excess = _characters(wire) - _STORED_CHARACTERS
    while excess > 0 and preview:
        keep = max(0, len(preview) - max(1, excess // 2))
        excess -= _characters(preview) - _characters(preview[:keep])
        preview = preview[:keep]
    return preview


def _characters(value: Json) -> int:
    return len(json.dumps(value, ensure_ascii=False, separators=(",", ":")))


def block_to_wire(block: Block, version: str) -> dict[str, Any]:
    """Return a block as a client that speaks `version` gets it."""
    match block:
        case Text(text):
            return {"type": "text", "text": text}
        case Media(data, media_type):
            encoded = base64.b64encode(data).decode("ascii")
            kind = media_type.partition("/")[0]
            if kind in ("image", "audio"):
                return {"type": kind, "data": encoded, "mimeType": media_type}
            contents = {"uri": f"data:{media_type}", "mimeType": media_type, "blob": encoded}
            return {"type": "resource", "resource": contents}
        case Link():
            return _link(block, version)
        case Embedded(uri, media_type, text, data):
            body: dict[str, str | None] = {"uri": uri, "mimeType": media_type}
            if data is None:
                body["text"] = text or ""
            else:
                body["blob"] = base64.b64encode(data).decode("ascii")
            told = {key: each for key, each in body.items() if each is not None}
            return {"type": "resource", "resource": told}


def _link(link: Link, version: str) -> dict[str, Any]:
    if version < _LINKS_SINCE:
        return {"type": "text", "text": f"[{link.name}: {link.uri}]"}
    told = {
        "type": "resource_link",
        "uri": link.uri,
        "name": link.name,
        "description": link.description,
        "mimeType": link.media_type,
        "size": link.size,
    }
    return {key: each for key, each in told.items() if each is not None}

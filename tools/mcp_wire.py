"""MCP's definitions and results in our words. Knows the wire's types, no client and no process."""

import base64
import binascii
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

from guildry.errors import ToolFailed
from guildry.tools.base import (
    Block,
    Effects,
    Embedded,
    Invoke,
    Json,
    Link,
    Media,
    Outcome,
    Text,
    Tool,
)
from guildry.tools.plug import Quarantined
from guildry.tools.schema import as_object

if TYPE_CHECKING:
    import mcp_types as wire

__all__ = ["as_outcome", "as_tool", "sift_listing"]


def as_tool(definition: "wire.Tool", plug: str, invoke: Invoke) -> Tool:
    """Return the tool that an MCP server defines; all of its annotations are passed on."""
    hints = definition.annotations
    annotations: dict[str, Json] = (
        hints.model_dump(by_alias=True, exclude_none=True, mode="json") if hints else {}
    )
    if definition.meta:
        annotations["_meta"] = dict(definition.meta)
    return Tool(
        name=definition.name,
        plug=plug,
        source_name=definition.name,
        title=definition.title or (hints.title if hints else None),
        description=definition.description or "",
        input_schema=definition.input_schema,
        output_schema=definition.output_schema,
        effects=_effects(hints),
        invoke=invoke,
        annotations=annotations,
    )


def _effects(hints: "wire.ToolAnnotations | None") -> Effects:
    if hints is None:
        return Effects()
    egress = hints.open_world_hint is not False
    if hints.read_only_hint:
        return Effects(writes=False, egress=egress, destructive=False, idempotent=True)
    return Effects(
        writes=True,
        egress=egress,
        destructive=hints.destructive_hint is not False,
        idempotent=hints.idempotent_hint is True,
    )


def as_outcome(result: "wire.CallToolResult", tool: str) -> Outcome:
    """Return what an MCP tool answered, every block of it.

    Raises:
        ToolFailed: a block holds bytes that are no base64.
    """
    try:
        blocks = tuple(_block(each) for each in result.content)
    except binascii.Error as error:
        raise ToolFailed(f"`{tool}` answered with bytes that are no base64 ({error})") from error
    return Outcome(
        blocks=blocks,
        structured=result.structured_content,
        has_structured=result.structured_content is not None,
        is_error=result.is_error,
    )


def _block(block: "wire.ContentBlock") -> Block:
    if block.type == "text":
        return Text(block.text)
    if block.type == "image" or block.type == "audio":
        return Media(base64.b64decode(block.data, validate=True), block.mime_type)
    if block.type == "resource_link":
        return Link(block.uri, block.name, block.mime_type, block.description, block.size)
    held = block.resource
    text: str | None = getattr(held, "text", None)
    if text is not None:
        return Embedded(held.uri, held.mime_type, text=text)
    data = base64.b64decode(cast("Any", held).blob, validate=True)
    return Embedded(held.uri, held.mime_type, data=data)


def sift_listing(result: Mapping[str, Json], version: str) -> tuple[Json, list[Quarantined]]:
    """Return a `tools/list` result without the tools that are no tools, and why they are left out.

    The client takes a listing whole or not at all; one broken definition would cost all the others.
    """
    from mcp_types.methods import validate_server_result
    from pydantic import ValidationError

    kept: list[Json] = []
    left_out: list[Quarantined] = []
    for n, definition in enumerate(result["tools"]):
        try:
            validate_server_result("tools/list", version, {**result, "tools": [definition]})
        except ValidationError as error:
            fields = as_object(definition) or {}
            name = str(fields.get("name", f"number {n + 1}"))
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(step) for step in first["loc"][2:]) or "it"
            left_out.append(Quarantined(name, f"`{where}` is wrong: {first['msg']}"))
        else:
            kept.append(definition)
    return {**result, "tools": kept}, left_out

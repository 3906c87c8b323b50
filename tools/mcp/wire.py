"""MCP's definitions and results in our words. Knows the wire's types, no client and no process."""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final

from guildry.errors import ToolFailed
from guildry.tools.base import (
    Block,
    Effects,
    Embedded,
    Icon,
    Invoke,
    Json,
    Link,
    Media,
    Outcome,
    Text,
    Tool,
)
from guildry.tools.plugs.plug import Quarantined
from guildry.tools.schema import as_object

if TYPE_CHECKING:
    import mcp_types as wire

__all__ = ["LISTS", "as_block", "as_embedded", "as_icons", "as_outcome", "as_tool", "sift_listing"]

LISTS: Final[Mapping[str, str]] = {
    "tools": "tools/list",
    "prompts": "prompts/list",
    "resources": "resources/list",
    "resourceTemplates": "resources/templates/list",
}
"""The fields that hold what a listing lists, and the method that answers with each."""

_KINDS: Final = {
    "tools": "",
    "prompts": "prompt: ",
    "resources": "resource: ",
    "resourceTemplates": "template: ",
}


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
        icons=as_icons(definition.icons),
        asks=True,
    )


def as_icons(icons: "Sequence[wire.Icon] | None") -> tuple[Icon, ...]:
    """Return the pictures of a tool, a prompt or a resource."""
    return tuple(
        Icon(each.src, each.mime_type, tuple(each.sizes or ()), each.theme) for each in icons or ()
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
        admits=hints.destructive_hint is True,
    )


def as_outcome(result: "wire.CallToolResult", tool: str) -> Outcome:
    """Return what an MCP tool answered, every block of it.

    Raises:
        ToolFailed: a block holds bytes that are no base64.
    """
    try:
        blocks = tuple(as_block(each) for each in result.content)
    except binascii.Error as error:
        raise ToolFailed(f"`{tool}` answered with bytes that are no base64 ({error})") from error
    return Outcome(
        blocks=blocks,
        structured=result.structured_content,
        has_structured=result.structured_content is not None,
        is_error=result.is_error,
    )


def as_block(block: "wire.ContentBlock") -> Block:
    """Return a block of content.

    Raises:
        binascii.Error: it holds bytes that are no base64.
    """
    if block.type == "text":
        return Text(block.text)
    if block.type == "image" or block.type == "audio":
        return Media(base64.b64decode(block.data, validate=True), block.mime_type)
    if block.type == "resource_link":
        return Link(block.uri, block.name, block.mime_type, block.description, block.size)
    return as_embedded(block.resource)


def as_embedded(held: "wire.TextResourceContents | wire.BlobResourceContents") -> Embedded:
    """Return the content of a resource.

    Raises:
        binascii.Error: it holds bytes that are no base64.
    """
    from mcp_types import TextResourceContents

    if isinstance(held, TextResourceContents):
        return Embedded(held.uri, held.mime_type, text=held.text)
    return Embedded(held.uri, held.mime_type, data=base64.b64decode(held.blob, validate=True))


def sift_listing(
    result: Mapping[str, Json], key: str, version: str
) -> tuple[dict[str, Json], list[Quarantined]]:
    """Return a listing without the definitions that are none, and why they are left out.

    The client takes a listing whole or not at all; one broken definition would cost all the others.

    Args:
        result: as it came.
        key: the field of `LISTS` that holds the definitions.
        version: of the protocol.
    """
    from mcp_types.methods import validate_server_result
    from pydantic import ValidationError

    kept: list[Json] = []
    left_out: list[Quarantined] = []
    for n, definition in enumerate(result[key]):
        try:
            validate_server_result(LISTS[key], version, {**result, key: [definition]})
        except ValidationError as error:
            fields = as_object(definition) or {}
            name = str(fields.get("name", f"number {n + 1}"))
            first = error.errors(include_url=False, include_input=False)[0]
            where = ".".join(str(step) for step in first["loc"][2:]) or "it"
            reason = f"{_KINDS[key]}`{where}` is wrong: {first['msg']}"
            left_out.append(Quarantined(name, reason))
        else:
            kept.append(definition)
    return {**result, key: kept}, left_out

"""MCP's definitions and results in our words. Knows the wire, no client and no process.

Definitions are plain JSON here: they come from a server, or from an earlier listing of it.
"""

import base64
import binascii
from collections.abc import Mapping
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
from guildry.tools.mcp.manifest import Definition
from guildry.tools.plugs.plug import Quarantined
from guildry.tools.schema import as_list, as_object

if TYPE_CHECKING:
    import mcp_types as wire

__all__ = [
    "LISTS",
    "annotations_of",
    "as_block",
    "as_embedded",
    "as_icons",
    "as_outcome",
    "as_tool",
    "sift_listing",
]

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


def as_tool(
    definition: Definition, plug: str, invoke: Invoke, timeout_s: float | None = None
) -> Tool:
    """Return the tool that an MCP server defines; all of its annotations are passed on.

    Args:
        definition: as it is on the wire.
        plug: the plug of the server.
        invoke: calls it.
        timeout_s: seconds that one call may take, or None for the server's default.
    """
    hints = as_object(definition.get("annotations"))
    title = definition.get("title") or (hints or {}).get("title")
    return Tool(
        name=definition["name"],
        plug=plug,
        source_name=definition["name"],
        title=title or None,
        description=definition.get("description") or "",
        input_schema=definition["inputSchema"],
        output_schema=definition.get("outputSchema"),
        effects=_effects(hints),
        invoke=invoke,
        timeout_s=timeout_s,
        annotations=annotations_of(definition),
        icons=as_icons(definition),
        asks=True,
    )


def annotations_of(definition: Definition) -> dict[str, Json]:
    """Return the annotations of a definition and its `_meta`, as they came."""
    hints = as_object(definition.get("annotations")) or {}
    told: dict[str, Json] = {key: value for key, value in hints.items() if value is not None}
    if meta := as_object(definition.get("_meta")):
        told["_meta"] = dict(meta)
    return told


def as_icons(definition: Definition) -> tuple[Icon, ...]:
    """Return the pictures of a tool, a prompt or a resource."""
    icons = (as_object(each) or {} for each in as_list(definition.get("icons")))
    return tuple(
        Icon(
            each["src"], each.get("mimeType"), tuple(as_list(each.get("sizes"))), each.get("theme")
        )
        for each in icons
    )


def _effects(hints: Definition | None) -> Effects:
    if hints is None:
        return Effects()
    egress = hints.get("openWorldHint") is not False
    if hints.get("readOnlyHint"):
        return Effects(writes=False, egress=egress, destructive=False, idempotent=True)
    return Effects(
        writes=True,
        egress=egress,
        destructive=hints.get("destructiveHint") is not False,
        idempotent=hints.get("idempotentHint") is True,
        admits=hints.get("destructiveHint") is True,
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

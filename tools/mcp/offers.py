"""Prompts and resources of an MCP server in our words. Knows the wire, no client."""

import binascii
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from guildry.errors import ToolFailed
from guildry.tools.base import Embedded, Json
from guildry.tools.mcp.manifest import Definition
from guildry.tools.mcp.wire import annotations_of, as_block, as_embedded, as_icons
from guildry.tools.offers import (
    Complete,
    Message,
    Messages,
    Prompt,
    PromptArgument,
    Resource,
    Template,
)
from guildry.tools.schema import as_list, as_object
from guildry.tools.uri_templates import BadTemplate, UriTemplate

if TYPE_CHECKING:
    from collections.abc import Sequence

    import mcp_types as wire

__all__ = ["Source", "as_contents", "as_messages", "as_prompt", "as_resource", "as_template"]

_NO_URIS: Final = frozenset[str]()


class Source(Protocol):
    """What serves the offers of a server."""

    async def prompt(self, name: str, arguments: Mapping[str, str], caller: Any) -> Messages:
        """Fill in a prompt."""
        ...

    async def read(self, uri: str, caller: Any) -> tuple[Embedded, ...]:
        """Read a resource."""
        ...

    async def follow(self, uri: str) -> None:
        """Have the server tell when a resource changes."""
        ...

    def completing(self, kind: str, name: str) -> Complete | None:
        """Return what completes arguments of a prompt or a template, if the server can."""
        ...

    @property
    def tells(self) -> bool:
        """Whether the server tells when a resource changes."""
        ...


def as_prompt(definition: Definition, plug: str, source: Source) -> Prompt:
    """Return the prompt that an MCP server defines."""
    name = definition["name"]

    async def get(arguments: Mapping[str, str], caller: Any) -> Messages:
        return await source.prompt(name, arguments, caller)

    return Prompt(
        name=name,
        plug=plug,
        source_name=name,
        get=get,
        title=definition.get("title"),
        description=definition.get("description"),
        arguments=tuple(
            PromptArgument(
                each["name"],
                each.get("description"),
                each.get("required") is True,
                each.get("title"),
            )
            for each in as_list(definition.get("arguments"))
        ),
        complete=source.completing("ref/prompt", name),
        icons=as_icons(definition),
        annotations=_meta_of(definition),
    )


def as_resource(definition: Definition, plug: str, source: Source) -> Resource:
    """Return the resource that an MCP server defines."""
    return Resource(
        uri=definition["uri"],
        name=definition["name"],
        plug=plug,
        read=source.read,
        title=definition.get("title"),
        description=definition.get("description"),
        media_type=definition.get("mimeType"),
        size=definition.get("size"),
        follow=source.follow if source.tells else None,
        icons=as_icons(definition),
        annotations=annotations_of(definition),
    )


def as_template(definition: Definition, plug: str, source: Source) -> Template:
    """Return the template that an MCP server defines. One that is none matches nothing."""
    text = definition["uriTemplate"]
    matches: Callable[[str], bool]
    try:
        matches = UriTemplate.of(text).matches
    except BadTemplate:
        matches = _NO_URIS.__contains__  # left out by admission, with the reason
    return Template(
        uri_template=text,
        name=definition["name"],
        plug=plug,
        matches=matches,
        read=source.read,
        title=definition.get("title"),
        description=definition.get("description"),
        media_type=definition.get("mimeType"),
        complete=source.completing("ref/resource", text),
        follow=source.follow if source.tells else None,
        icons=as_icons(definition),
        annotations=annotations_of(definition),
    )


def _meta_of(definition: Definition) -> dict[str, Json]:
    meta = as_object(definition.get("_meta"))
    return {"_meta": dict(meta)} if meta else {}


def as_messages(result: "wire.GetPromptResult", prompt: str) -> Messages:
    """Return a prompt that was filled in.

    Raises:
        ToolFailed: a message holds bytes that are no base64.
    """
    try:
        messages = tuple(Message(each.role, as_block(each.content)) for each in result.messages)
    except binascii.Error as error:
        raise ToolFailed(f"`{prompt}` holds bytes that are no base64 ({error})") from error
    return Messages(messages, result.description)


def as_contents(
    contents: "Sequence[wire.TextResourceContents | wire.BlobResourceContents]", uri: str
) -> tuple[Embedded, ...]:
    """Return what was read of a resource.

    Raises:
        ToolFailed: it holds bytes that are no base64.
    """
    try:
        return tuple(as_embedded(each) for each in contents)
    except binascii.Error as error:
        raise ToolFailed(f"{uri!r} holds bytes that are no base64 ({error})") from error

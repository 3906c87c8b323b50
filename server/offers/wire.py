"""The forms of prompts and resources on the MCP wire, as plain JSON. Knows no session."""

import base64
from collections.abc import Mapping, Sequence
from typing import Final

from guildry.server.wire import block_to_wire, icons_to_wire
from guildry.tools.base import Embedded, Json
from guildry.tools.offers import Messages, Prompt, Resource, Template
from guildry.tools.redaction import HIDDEN

__all__ = [
    "contents_to_wire",
    "messages_to_wire",
    "prompt_to_wire",
    "resource_to_wire",
    "template_to_wire",
]

_ANNOTATIONS: Final = ("audience", "priority", "lastModified")


def prompt_to_wire(prompt: Prompt) -> dict[str, Json]:
    """Return a prompt as `prompts/list` shows it."""
    arguments = [
        _told(
            name=each.name,
            title=each.title,
            description=each.description,
            required=each.required or None,
        )
        for each in prompt.arguments
    ]
    return _told(
        name=prompt.name,
        title=prompt.title,
        description=prompt.description,
        arguments=arguments or None,
        icons=icons_to_wire(prompt.icons),
        _meta=prompt.annotations.get("_meta"),
    )


def messages_to_wire(messages: Messages, version: str) -> dict[str, Json]:
    """Return what a prompt became as `prompts/get` answers it to a client that speaks `version`."""
    said = [
        {"role": each.role, "content": block_to_wire(HIDDEN.block(each.block), version)}
        for each in messages.messages
    ]
    return _told(description=messages.description, messages=said)


def resource_to_wire(resource: Resource) -> dict[str, Json]:
    """Return a resource as `resources/list` shows it."""
    return _told(uri=resource.uri, **_about(resource), size=resource.size)


def template_to_wire(template: Template) -> dict[str, Json]:
    """Return a template as `resources/templates/list` shows it."""
    return _told(uriTemplate=template.uri_template, **_about(template))


def contents_to_wire(contents: Sequence[Embedded]) -> list[dict[str, Json]]:
    """Return what a resource holds as `resources/read` answers it."""
    return [
        _told(
            uri=each.uri,
            mimeType=each.media_type,
            text=None if each.text is None else HIDDEN.known(each.text),
            blob=None if each.data is None else base64.b64encode(each.data).decode("ascii"),
        )
        for each in contents
    ]


def _about(offered: Resource | Template) -> dict[str, Json]:
    return {
        "name": offered.name,
        "title": offered.title,
        "description": offered.description,
        "mimeType": offered.media_type,
        "icons": icons_to_wire(offered.icons),
        "annotations": _annotations(offered.annotations),
        "_meta": offered.annotations.get("_meta"),
    }


def _annotations(annotations: Mapping[str, Json]) -> dict[str, Json] | None:
    return {key: annotations[key] for key in _ANNOTATIONS if key in annotations} or None


def _told(**fields: Json) -> dict[str, Json]:
    return {key: value for key, value in fields.items() if value is not None}

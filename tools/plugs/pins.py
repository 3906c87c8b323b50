"""Definitions as they are pinned: what of an offer counts, its digest, and how two of them differ.

Knows offers, not where pins are kept and not who approves.
"""

import difflib
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from guildry.memory.store import storable
from guildry.tools.base import Json, Tool
from guildry.tools.offers import Prompt, Resource, Template
from guildry.tools.plugs.invisible import shown
from guildry.tools.plugs.plug import Loaded

__all__ = ["Definition", "definitions", "difference", "is_tool", "moved"]

_MAX_LINES: Final = 2_000
_SHOWN_LINES: Final = 120
_KINDS: Final = ("prompt:", "resource:", "template:")
_canonical = json.JSONEncoder(sort_keys=True, separators=(",", ":"), default=str).encode


class Definition(NamedTuple):
    """An offer with what is pinned of it.

    Args:
        key: its name at the source; of a prompt and the like, with its kind before it.
        offer: what it defines.
        content: all that counts, as JSON.
        digest: of the content.
    """

    key: str
    offer: Tool | Prompt | Resource | Template
    content: Mapping[str, Json]
    digest: str


def is_tool(key: str) -> bool:
    """Tell whether a key is that of a tool; no tool's name holds a colon after these words."""
    return not key.startswith(_KINDS)


def definitions(loaded: Loaded, source: str) -> list[Definition]:
    """Return what a plug offers, each with what is pinned of it and of the server's identity.

    Args:
        loaded: what is offered.
        source: what it was plugged from.
    """
    told = hashlib.sha256(source.encode("utf-8", "surrogatepass")).hexdigest()[:16]
    identity: dict[str, Json] = {"source": told, "server": storable(loaded.server)}
    return [
        _definition(key, offer, {**content, **identity}) for key, offer, content in _offers(loaded)
    ]


def moved(old: Mapping[str, Json], new: Mapping[str, Json]) -> bool:
    """Tell whether nothing differs but the source, which is the choice of whoever plugs it."""
    differ = {key for key in {*old, *new} if old.get(key) != new.get(key)}
    return differ == {"source"}


def difference(old: Mapping[str, Json] | None, new: Mapping[str, Json]) -> str:
    """Return how a definition differs from an earlier one, line by line; all of it for None.

    What is not seen is spelled out. A long difference is cut.
    """
    if old is None:
        lines = [f"+ {line}" for line in _lines(new)]
    else:
        found = difflib.unified_diff(_lines(old), _lines(new), n=1, lineterm="")
        lines = [line for line in found if not line.startswith(("---", "+++", "@@"))]
    rest = len(lines) - _SHOWN_LINES
    return "\n".join([*lines[:_SHOWN_LINES], *([f"… ({rest:,} more lines)"] if rest > 0 else [])])


def _definition(
    key: str, offer: Tool | Prompt | Resource | Template, content: dict[str, Json]
) -> Definition:
    digest = hashlib.sha256(_canonical(content).encode()).hexdigest()
    return Definition(storable(key), offer, content, digest)


def _offers(
    loaded: Loaded,
) -> Iterator[tuple[str, Tool | Prompt | Resource | Template, dict[str, Json]]]:
    for tool in loaded.tools:
        name = tool.source_name or tool.name
        # A tool whose name begins as the key of a prompt does must not pass for one.
        yield (name if is_tool(name) else f"tool:{name}"), tool, _of_tool(tool, name)
    for prompt in loaded.offers.prompts:
        arguments = [
            [each.name, each.title, each.description, each.required] for each in prompt.arguments
        ]
        yield f"prompt:{prompt.name}", prompt, {**_of(prompt), "arguments": arguments}
    for resource in loaded.offers.resources:
        yield f"resource:{resource.uri}", resource, {**_of(resource), "uri": resource.uri}
    for template in loaded.offers.templates:
        uri = template.uri_template
        yield f"template:{uri}", template, {**_of(template), "uri_template": uri}


def _of_tool(tool: Tool, name: str) -> dict[str, Json]:
    return {
        "name": name,
        "title": tool.title,
        "description": storable(tool.description),
        "input_schema": tool.input_schema,
        "output_schema": tool.output_schema,
        "annotations": dict(tool.annotations),
    }


def _of(offer: Prompt | Resource | Template) -> dict[str, Json]:
    return {
        "name": offer.name,
        "title": offer.title,
        "description": storable(offer.description or ""),
        "annotations": dict(offer.annotations),
    }


def _lines(content: Mapping[str, Json]) -> list[str]:
    """Return a definition as lines that can be compared; texts break where they break."""
    text = json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False, default=str)
    return [shown(line) for line in text.replace("\\n", "\n").split("\n")[:_MAX_LINES]]

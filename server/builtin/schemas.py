"""Schemas and answers of built-in tools, in short."""

import json
from collections.abc import Sequence

from guildry.tools.base import Json, Outcome

__all__ = ["compact", "parameters", "structured"]


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


def compact(value: Json) -> str:
    """Return `value` as JSON without spaces."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"), default=str)

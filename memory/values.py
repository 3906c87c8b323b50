"""Stored bytes as values: what is said of them, what they parse to. Knows nothing of the store."""

import json
import marshal
from typing import Final, NamedTuple

from guildry.memory.contents import digest_of
from guildry.memory.selectors import Json, is_list, is_object
from guildry.memory.sketch import describe, describe_json, is_json

__all__ = ["Look", "copied", "look"]

_MAX_PARSED_BYTES: Final = 4_000_000


class Look(NamedTuple):
    """What a reference says of its content, with the value in a list where it is JSON."""

    digest: str
    sketch: str
    preview: str
    parsed: list[Json] | None


def look(content: bytes, media_type: str) -> Look:
    """Return what a reference says of `content`."""
    digest = digest_of(content)
    if is_json(media_type) and len(content) <= _MAX_PARSED_BYTES:
        try:
            parsed = [json.loads(content)]
        except (ValueError, RecursionError):
            parsed = None
        if parsed is not None:
            return Look(digest, *describe_json(parsed[0]), parsed)
    return Look(digest, *describe(content, media_type), None)


def copied(value: Json) -> Json:
    """Return a copy of `value`, so that its receiver may change it. Fast for JSON values."""
    if is_object(value) or is_list(value):
        return marshal.loads(marshal.dumps(value))
    return value

"""Cursors: where a listing goes on. Each names the last entry before it, not a number of entries.

So a listing stays whole while entries come and go between two of its pages.
"""

import base64
import binascii
import json
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import Any, Final, NamedTuple

from guildry.errors import ToolRetry
from guildry.tools.schema import as_list

__all__ = ["Place", "page_of", "place_of"]

_MAX_CHARACTERS: Final = 4_096
_SUM_BYTES: Final = 4


class Place(NamedTuple):
    """A place in a listing: right after the entry `key` of one of its sections."""

    section: str
    key: str

    def __str__(self) -> str:
        """Return the place as a cursor."""
        text = json.dumps(self, separators=(",", ":")).encode()
        return base64.urlsafe_b64encode(_sum(text) + text).decode("ascii").rstrip("=")


def place_of(cursor: str, sections: Sequence[str]) -> Place:
    """Return the place that a cursor of one of `sections` names.

    Raises:
        ToolRetry: it is no cursor, or one of another listing.
    """
    place = _read(cursor)
    if place is None or place.section not in sections:
        shown = cursor if len(cursor) <= 80 else f"{cursor[:80]}…"
        raise ToolRetry(f"`cursor` is {shown!r}: pass on what the last page gave, or nothing")
    return place


def page_of(
    entries: Mapping[str, dict[str, Any]], cursor: str | None, section: str, size: int
) -> tuple[list[dict[str, Any]], str | None]:
    """Return a page of `entries`, in the order of their keys, and the cursor of the next one.

    Raises:
        ToolRetry: `cursor` is no cursor of this section.
    """
    keys = sorted(entries)
    start = 0 if cursor is None else bisect_right(keys, place_of(cursor, [section]).key)
    taken = keys[start : start + size]
    more = start + size < len(keys)
    return [entries[key] for key in taken], str(Place(section, taken[-1])) if more else None


def _read(cursor: str) -> Place | None:
    if len(cursor) > _MAX_CHARACTERS:
        return None
    try:
        whole = base64.b64decode(f"{cursor}{'=' * (-len(cursor) % 4)}", b"-_", validate=True)
        told: Any = json.loads(whole[_SUM_BYTES:])
    except (binascii.Error, ValueError, RecursionError):
        return None
    if whole[:_SUM_BYTES] != _sum(whole[_SUM_BYTES:]):
        return None
    parts = as_list(told)
    if len(parts) != 2 or not all(isinstance(part, str) for part in parts):
        return None
    place = Place(*parts)
    return place if str(place) == cursor else None


def _sum(text: bytes) -> bytes:
    """Return a check sum: whoever changes a cursor by hand is told, not shown a wrong page."""
    return blake2b(text, digest_size=_SUM_BYTES).digest()

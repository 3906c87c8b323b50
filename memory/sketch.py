"""Sketches and previews: what a stored value is, in a few words. Looks at little of it."""

import csv
import json
import re
from collections.abc import Iterable
from itertools import islice
from json.encoder import encode_basestring
from typing import Final

from guildry.memory.selectors import Json, is_list, is_object

__all__ = [
    "PREVIEW_LENGTH",
    "SKETCH_LENGTH",
    "describe",
    "describe_json",
    "describe_text",
    "is_json",
    "is_text",
    "preview",
    "sketch",
]

SKETCH_LENGTH: Final = 120
"""The most characters that a sketch has."""

PREVIEW_LENGTH: Final = 280
"""The most characters that a preview has."""

_SAMPLED: Final = 8
_LOOKS: Final = ((4, 12), (3, 8), (2, 8), (2, 4), (1, 8), (1, 3), (1, 1), (0, 0))
"""How deep and how wide to look: the first pair whose sketch is short enough is taken. The last
one's always is."""

_MAX_PARSED_BYTES: Final = 16_000_000
_PLAIN_KEY: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,31}")
_encode: Final = json.JSONEncoder().encode
_TABLES: Final = {"text/csv": ",", "text/tab-separated-values": "\t"}


def is_json(media_type: str) -> bool:
    """Tell whether content of this media type is JSON."""
    kind = _bare(media_type)
    return kind == "application/json" or kind.endswith("+json")


def is_text(media_type: str) -> bool:
    """Tell whether content of this media type is text that is not JSON."""
    return media_type[:5].lower() == "text/"


def sketch(value: Json) -> str:
    """Return the shape of a JSON value, or the size of a text, in at most `SKETCH_LENGTH`.

    `{rows: [1200 x {id: int, name: str}], total: int}`; `1,234 lines, 56 KB`. Counts are exact;
    what lists hold is told from their first items.
    """
    if isinstance(value, str):
        return _measure(value)
    shapes = (_shape(value, depth, width) for depth, width in _LOOKS)
    return next(shape for shape in shapes if len(shape) <= SKETCH_LENGTH)


def preview(value: Json) -> str:
    """Return the beginning of a text, or of the compact JSON of a value.

    At most `PREVIEW_LENGTH` characters, the last of them `…` when there is more.
    """
    if isinstance(value, str):
        return _cut(value[: PREVIEW_LENGTH + 1])
    pieces: list[str] = []
    _write(value, pieces, PREVIEW_LENGTH)
    return _cut("".join(pieces))


def describe(content: bytes, media_type: str) -> tuple[str, str]:
    """Return the sketch and the preview of stored bytes."""
    if is_json(media_type) and len(content) <= _MAX_PARSED_BYTES:
        try:
            return describe_json(json.loads(content))
        except (ValueError, RecursionError):
            return describe_text(content, "text/plain")
    if is_json(media_type) or is_text(media_type):
        return describe_text(content, media_type)
    kind = _bare(media_type)[:60] or "unknown type"
    return f"{_size(len(content))} of {kind}", ""


def describe_json(value: Json) -> tuple[str, str]:
    """Return the sketch and the preview of a JSON value."""
    return (_string(value) if isinstance(value, str) else sketch(value)), preview(value)


def describe_text(content: bytes, media_type: str) -> tuple[str, str]:
    """Return the sketch and the preview of text, decoding no more than its beginning."""
    lines = content.count(b"\n") + (content[-1:] not in (b"\n", b""))
    head = content[: 4 * PREVIEW_LENGTH + 4].decode("utf-8", "replace")
    told = f"{_lines(lines)}, {_size(len(content))}"
    delimiter = _TABLES.get(_bare(media_type))
    columns = [] if delimiter is None else _columns(content, delimiter)
    if columns:
        count = "1 column" if len(columns) == 1 else f"{len(columns)} columns"
        told = f"{told}; {count}: {', '.join(columns)}"
    return _cut(told, SKETCH_LENGTH), preview(head)


def _shape(value: Json, depth: int, width: int) -> str:
    if is_object(value):
        return _object(value, depth, width)
    if is_list(value):
        return _list(value, depth, width) if value else "[]"
    return _kind(value)


def _object(members: dict[str, Json], depth: int, width: int) -> str:
    if not members:
        return "{}"
    if not depth:
        return f"{{{len(members)} keys}}" if len(members) != 1 else "{1 key}"
    shown = [
        f"{_key(key)}: {_shape(each, depth - 1, width)}" for key, each in _head(members, width)
    ]
    if len(members) > len(shown):
        shown.append(f"… {len(members) - len(shown)} more")
    return f"{{{', '.join(shown)}}}"


def _list(items: list[Json], depth: int, width: int) -> str:
    if not depth:
        return f"[{len(items)} items]" if len(items) != 1 else "[1 item]"
    sample = items[:_SAMPLED]
    objects = [each for each in sample if is_object(each)]
    if len(objects) == len(sample):
        members = _merged(objects, width)
        return f"[{len(items)} x {_object(members, depth - 1, width)}]"
    kinds = dict.fromkeys(_shape(each, depth - 1, width) for each in sample[:3])
    kinds |= dict.fromkeys(_kind(each) for each in sample[3:] if not isinstance(each, dict | list))
    return f"[{len(items)} x {' | '.join(kinds)}]"


def _merged(sample: list[dict[str, Json]], width: int) -> dict[str, Json]:
    """Return the members that the sampled objects have between them, the first of each."""
    members = dict(sample[0]) if len(sample[0]) <= 10 * width + 10 else sample[0]
    for each in sample[1:]:
        for key, value in _head(each, width):
            if members.get(key) is None:
                members[key] = value
    return members


def _head(members: dict[str, Json], width: int) -> Iterable[tuple[str, Json]]:
    return islice(members.items(), width)


def _kind(value: Json) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "bool"
        case int():
            return "int"
        case float():
            return "float"
        case _:
            return "str"


def _key(key: str) -> str:
    if _PLAIN_KEY.fullmatch(key):
        return key
    return _quoted(key if len(key) <= 32 else f"{key[:31]}…")


def _measure(text: str) -> str:
    count = text.count("\n") + (text[-1:] not in ("\n", ""))
    size = len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))
    return f"{_lines(count)}, {_size(size)}"


def _string(text: str) -> str:
    return f"str, {len(text):,} characters"


def _lines(count: int) -> str:
    return "1 line" if count == 1 else f"{count:,} lines"


def _size(size: int) -> str:
    if size < 1_000:
        return "1 byte" if size == 1 else f"{size} bytes"
    if size < 1_000_000:
        return f"{size / 1_000:.0f} KB"
    return f"{size / 1_000_000:.1f} MB" if size < 1_000_000_000 else f"{size / 1e9:.1f} GB"


def _columns(content: bytes, delimiter: str) -> list[str]:
    head = content[:4_096].partition(b"\n")[0].decode("utf-8-sig", "replace").rstrip("\r")
    try:
        return [name[:32] for row in csv.reader([head], delimiter=delimiter) for name in row]
    except csv.Error:
        return []


def _write(value: Json, pieces: list[str], room: int) -> int:
    """Add the compact JSON of a value, and stop once `room` is exceeded; returns what is left."""
    if is_object(value):
        mark = "{"
        for key, each in value.items():
            if room < 0:
                return room
            piece = f"{mark}{_quoted(key)}:"
            pieces.append(piece)
            room = _write(each, pieces, room - len(piece))
            mark = ","
        piece = "}" if mark == "," else "{}"
    elif is_list(value):
        mark = "["
        for each in value:
            if room < 0:
                return room
            pieces.append(mark)
            room = _write(each, pieces, room - 1)
            mark = ","
        piece = "]" if mark == "," else "[]"
    else:
        piece = _quoted(value) if isinstance(value, str) else _encode(value)
    pieces.append(piece)
    return room - len(piece)


def _quoted(text: str) -> str:
    return encode_basestring(text if len(text) <= PREVIEW_LENGTH else text[: PREVIEW_LENGTH + 1])


def _cut(text: str, length: int = PREVIEW_LENGTH) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _bare(media_type: str) -> str:
    return media_type.partition(";")[0].strip().lower()

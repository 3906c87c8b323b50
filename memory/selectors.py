"""Selectors: how a part of a stored value is addressed. Knows values, not where they are kept."""

import re
from typing import Any, Final, TypeGuard

from guildry.errors import ToolRetry

__all__ = ["Json", "is_list", "is_object", "lines_of", "select"]

Json = Any
"""A JSON value. An alias, so that signatures say what is meant where `Any` is unavoidable."""

_LINES: Final = re.compile(r"([0-9]{1,12})(?:(-)([0-9]{1,12})?)?")
_INDEX: Final = re.compile(r"0|[1-9][0-9]{0,17}")
_BAD_ESCAPE: Final = re.compile(r"~(?![01])")
_KEYS_SHOWN: Final = 12
_KEY_LENGTH: Final = 40


def is_object(value: Json) -> TypeGuard[dict[str, Json]]:
    """Tell whether a JSON value is an object."""
    return isinstance(value, dict)


def is_list(value: Json) -> TypeGuard[list[Json]]:
    """Tell whether a JSON value is a list."""
    return isinstance(value, list)


def select(value: Json, selector: str) -> Json:
    """Return the part of `value` that `selector` addresses.

    Args:
        value: a JSON value, or text.
        selector: `#/rows/0` (JSON Pointer, RFC 6901), `?lines=1-20` (1-based, inclusive; of text),
            `?query=rows[?total>10].id` (JMESPath); `#` and the empty string are the whole.

    Raises:
        ToolRetry: the selector is wrong, or addresses nothing; says what is there instead.
    """
    if selector in ("", "#"):
        return value
    if selector.startswith("#/"):
        return _point(value, selector[1:])
    if selector.startswith("?lines="):
        return _lines(value, selector[len("?lines=") :])
    if selector.startswith("?query="):
        return _query(value, selector[len("?query=") :])
    raise ToolRetry(
        f"{selector!r} is no selector: use `#/key/0` (JSON Pointer), `?lines=1-20` or"
        " `?query=` with a JMESPath expression"
    )


def lines_of(text: str) -> list[str]:
    """Return the lines of `text`, as they are counted and selected: parted by newlines alone."""
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return lines


def _point(value: Json, pointer: str) -> Json:
    if isinstance(value, str):
        count = len(lines_of(value))
        raise ToolRetry(
            f"`#{pointer}` is a JSON Pointer, and this is text of {count:,} lines: use"
            " `?lines=1-20` instead"
        )
    if _BAD_ESCAPE.search(pointer):
        raise ToolRetry(
            f"`#{pointer}` is no JSON Pointer: write `~` as `~0` and a `/` in a key as `~1`"
        )
    here = value
    done = "#"
    for escaped in pointer.split("/")[1:]:
        token = escaped.replace("~1", "/").replace("~0", "~")
        here = _step(here, token, done)
        done = f"{done}/{escaped}"
    return here


def _step(here: Json, token: str, done: str) -> Json:
    if is_object(here):
        if token in here:
            return here[token]
        raise ToolRetry(f"there is no {token!r} in `{done}`, which has {_keys(here)}")
    if is_list(here):
        if _INDEX.fullmatch(token) and int(token) < len(here):
            return here[int(token)]
        there = f"has items 0 to {len(here) - 1}" if here else "is an empty list"
        raise ToolRetry(f"there is no item {token!r} in `{done}`, which {there}")
    raise ToolRetry(f"there is nothing in `{done}`, which is {_kind(here)}: end the pointer there")


def _lines(value: Json, wanted: str) -> str:
    if not isinstance(value, str):
        raise ToolRetry(
            f"`?lines=` is for text, and this is {_kind(value)}: use `#/key/0` or `?query=`"
        )
    found = _LINES.fullmatch(wanted)
    if found is None:
        raise ToolRetry(f"{wanted!r} is no range of lines: write `?lines=1-20`")
    lines = lines_of(value)
    first = int(found[1])
    last = int(found[3]) if found[3] else (len(lines) if found[2] else first)
    if not 1 <= first <= len(lines) or last < first:
        raise ToolRetry(
            f"there are no lines {wanted!r}: there are {len(lines):,} lines, counted from 1"
        )
    return "\n".join(lines[first - 1 : last])


def _query(value: Json, expression: str) -> Json:
    from jmespath import search
    from jmespath.exceptions import JMESPathError

    if isinstance(value, str):
        raise ToolRetry("`?query=` is for JSON, and this is text: use `?lines=1-20` instead")
    try:
        return search(expression, value)
    except (JMESPathError, ValueError, TypeError, RecursionError) as error:
        raise ToolRetry(
            f"{expression!r} is no JMESPath expression that works here:"
            f" {str(error).splitlines()[0] if str(error) else type(error).__name__}; this is"
            f" {_kind(value)}"
        ) from error


def _kind(value: Json) -> str:
    """Return what a value is, in words that help to select within it."""
    if is_object(value):
        return f"an object with {_keys(value)}"
    if is_list(value):
        return f"a list of {len(value):,} items"
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "a boolean"
    return "text" if isinstance(value, str) else "a number"


def _keys(members: dict[str, Json]) -> str:
    if not members:
        return "no keys"
    keys = list(members)[:_KEYS_SHOWN]
    shown = ", ".join(
        repr(key if len(key) <= _KEY_LENGTH else f"{key[:_KEY_LENGTH]}…") for key in keys
    )
    more = f" and {len(members) - len(keys):,} more" if len(members) > len(keys) else ""
    return f"the keys {shown}{more}"

"""JSON with comments: one member put in or taken out of the text, and all else left as it is.

Takes what editors take: comments and commas before a closing bracket. Knows text, not files.
"""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["JsoncError", "drop", "put", "read"]

_GAP: Final = re.compile(r"(?:[ \t\r\n\ufeff]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_STRING: Final = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_WORD: Final = re.compile(r"[-+.\w]+")
_BLANK_LINE: Final = re.compile(r"[ \t]*(?:\r?\n|\Z)")
_MAX_DEPTH: Final = 200


class JsoncError(ValueError):
    """Tell what is wrong with a text, and on which line."""

    def __init__(self, text: str, at: int, reason: str) -> None:
        line = text.count("\n", 0, at) + 1
        column = at - text.rfind("\n", 0, at)
        super().__init__(f"line {line}, column {column}: {reason}")
        self.line = line


@dataclass(slots=True)
class _Member:
    key: str
    start: int
    node: "_Node"
    comma: int | None = None


@dataclass(slots=True)
class _Node:
    """A value and where it stands; `members` are those of an object."""

    value: Any
    start: int
    end: int
    members: list[_Member] = field(default_factory=list[_Member])

    def find(self, key: str) -> _Member | None:
        """Return the member of that name: the last one, as every reader takes it."""
        return next((each for each in reversed(self.members) if each.key == key), None)


def read(text: str) -> Any:
    """Return the value that `text` holds; None for one that has nothing but blanks and comments.

    Raises:
        JsoncError: it is no JSON.
    """
    root = _parse(text)
    return None if root is None else root.value


def put(text: str, path: Sequence[str], value: Any) -> str:
    """Return `text` with `value` at `path`; objects on the way are made where they are missing.

    Raises:
        JsoncError: it is no JSON, or something on the way is no object.
    """
    node = _parse(text)
    newline = "\r\n" if "\r\n" in text else "\n"
    if node is None:
        start = text if not text or text.endswith(("\n", "\ufeff")) else text + newline
        return f"{start}{_block(_nested(path, value), '', '  ', newline)}{newline}"
    root = node
    for step, key in enumerate(path):
        if not isinstance(node.value, dict):
            raise JsoncError(text, node.start, _no_object(path[:step]))
        member = node.find(key)
        if member is None:
            return _inserted(text, root, node, key, _nested(path[step + 1 :], value), newline)
        node = member.node
    if node.value == value:
        return text
    line = _indent_at(text, node.start)
    told = _block(value, line, _unit(text, root), newline)
    return text[: node.start] + told + text[node.end :]


def drop(text: str, path: Sequence[str]) -> str:
    """Return `text` without what is at `path`, its comma included.

    Raises:
        JsoncError: it is no JSON, or something on the way is no object.
    """
    while True:
        node = _parse(text)
        for step, key in enumerate(path[:-1]):
            if node is None or (member := node.find(key)) is None:
                return text
            if not isinstance(member.node.value, dict):
                raise JsoncError(text, member.node.start, _no_object(path[: step + 1]))
            node = member.node
        member = None if node is None else node.find(path[-1])
        if node is None or member is None:
            return text
        text = _cut(text, node, member)


def _cut(text: str, node: _Node, member: _Member) -> str:
    at = node.members.index(member)
    end = member.node.end if member.comma is None else member.comma + 1
    before, after = text[: member.start], text[end:]
    if member.comma is None and at > 0 and (comma := node.members[at - 1].comma) is not None:
        before = before[:comma] + before[comma + 1 :]
    bare = before.rstrip(" \t\r\n")
    rest = after.lstrip(" \t\r\n")
    if len(bare) == node.start + 1 and rest.startswith("}"):
        return bare + rest
    if _BLANK_LINE.match(after):  # nothing else on its last line: the line goes with it
        return bare + after
    if "\n" in before[len(bare) :]:
        return before + after.lstrip(" \t")
    return bare + after if at > 0 else before + after.lstrip(" \t")


def _inserted(text: str, root: _Node, node: _Node, key: str, value: Any, newline: str) -> str:
    close = node.end - 1
    last = node.members[-1] if node.members else None
    inner = text[node.start + 1 : close]
    told = json.dumps(key, ensure_ascii=False)
    whole = text[root.start : root.end]
    if last is None and not inner.strip(" \t") and node is not root and "\n" not in whole:
        member = f"{told}: {json.dumps(value, ensure_ascii=False)}"
        return f"{text[: node.start + 1]}{member}{text[close:]}"
    if last is not None and "\n" not in inner:
        comma = "" if last.comma is not None else ","
        member = f" {told}: {json.dumps(value, ensure_ascii=False)}"
        return f"{text[: last.node.end]}{comma}{text[last.node.end : close]}{member}{text[close:]}"
    unit = _unit(text, root)
    outer = _indent_at(text, close if "\n" in inner else node.start)
    indent = outer + unit if last is None else _indent_at(text, last.start) or outer + unit
    member = f"{newline}{indent}{told}: {_block(value, indent, unit, newline)}"
    if not inner.strip(" \t"):
        return f"{text[: node.start + 1]}{member}{newline}{outer}{text[close:]}"
    end = node.start + 1 + len(inner.rstrip(" \t\r\n"))  # after the last comment, if there is one
    tail = "" if "\n" in text[end:close] else f"{newline}{outer}"
    if last is None:
        return f"{text[:end]}{member}{tail}{text[end:]}"
    if last.comma is not None:
        return f"{text[:end]}{member},{tail}{text[end:]}"
    return f"{text[: last.node.end]},{text[last.node.end : end]}{member}{tail}{text[end:]}"


def _block(value: Any, indent: str, unit: str, newline: str) -> str:
    told = json.dumps(value, ensure_ascii=False, indent=unit)
    return told.replace("\n", newline + indent)


def _nested(path: Sequence[str], value: Any) -> Any:
    for key in reversed(path):
        value = {key: value}
    return value


def _indent_at(text: str, at: int) -> str:
    """Return the blanks at the start of the line of `at`."""
    line = text[text.rfind("\n", 0, at) + 1 : at].lstrip("\ufeff")
    return line[: len(line) - len(line.lstrip(" \t"))]


def _unit(text: str, root: _Node) -> str:
    """Return the blanks by which the text indents: those of the first member, or two."""
    return (_indent_at(text, root.members[0].start) if root.members else "") or "  "


def _no_object(path: Sequence[str]) -> str:
    where = f"`{'.'.join(path)}`" if path else "the whole"
    return f"{where} is no object: write `{{}}` there"


def _parse(text: str) -> _Node | None:
    start = _gap(text, 0)
    if start == len(text):
        return None
    node = _node(text, start, 0)
    end = _gap(text, node.end)
    if end < len(text):
        raise JsoncError(text, end, f"{text[end]!r} after the end: remove it")
    return node


def _gap(text: str, at: int) -> int:
    found = _GAP.match(text, at)
    return at if found is None else found.end()


def _node(text: str, at: int, depth: int) -> _Node:
    if depth > _MAX_DEPTH:
        raise JsoncError(text, at, f"nested deeper than {_MAX_DEPTH} levels")
    char = text[at : at + 1]
    if char == "{":
        return _object(text, at, depth)
    if char == "[":
        return _array(text, at, depth)
    found = (_STRING if char == '"' else _WORD).match(text, at)
    if found is None:
        there = f"{char!r} is" if char else "the text ends"
        raise JsoncError(text, at, f"{there} where a value should be")
    return _Node(_scalar(text, at, found[0]), at, found.end())


def _object(text: str, start: int, depth: int) -> _Node:
    node = _Node({}, start, start)
    at = _gap(text, start + 1)
    while text[at : at + 1] != "}":
        found = _STRING.match(text, at)
        if found is None:
            raise JsoncError(text, at, 'a name in double quotes or "}" should be here')
        key = _scalar(text, at, found[0])
        colon = _gap(text, found.end())
        if text[colon : colon + 1] != ":":
            raise JsoncError(text, colon, f'":" should be here, after {found[0]}')
        inner = _node(text, _gap(text, colon + 1), depth + 1)
        member = _Member(key, at, inner)
        node.members.append(member)
        node.value[key] = inner.value
        at, member.comma = _after(text, inner.end, "}")
    node.end = at + 1
    return node


def _array(text: str, start: int, depth: int) -> _Node:
    values: list[Any] = []
    at = _gap(text, start + 1)
    while text[at : at + 1] != "]":
        inner = _node(text, at, depth + 1)
        values.append(inner.value)
        at, _ = _after(text, inner.end, "]")
    return _Node(values, start, at + 1)


def _after(text: str, end: int, close: str) -> tuple[int, int | None]:
    """Return where the next part begins, and where the comma before it is, if there is one."""
    at = _gap(text, end)
    if text[at : at + 1] == ",":
        return _gap(text, at + 1), at
    if text[at : at + 1] != close:
        raise JsoncError(text, at, f'"," or "{close}" should be here')
    return at, None


def _scalar(text: str, at: int, token: str) -> Any:
    try:
        return json.loads(token, parse_constant=_refuse)
    except ValueError:
        shown = token if len(token) <= 40 else f"{token[:37]}..."
        raise JsoncError(text, at, f"{shown} is no JSON value") from None


def _refuse(word: str) -> Any:
    raise ValueError(word)

"""Broken messages made from good ones: as JSON values, as bytes, and as HTTP headers."""

import copy
import json
import random
import string
from collections.abc import Callable
from typing import Any, Final, cast

from guildry.memory.selectors import is_list

__all__ = ["broken_bytes", "broken_headers", "broken_message", "members_of"]

Headers = list[tuple[bytes, bytes]]

_ODD: Final[tuple[Any, ...]] = (
    None,
    True,
    False,
    0,
    -1,
    2**31,
    2**63,
    -(2**64),
    10**400,
    1e308,
    5e-324,
    -0.0,
    float("nan"),
    float("inf"),
    "",
    " ",
    "\x00",
    "\ud800",
    "\u202eevil\u200b",
    "😀" * 50,
    "../../../../etc/passwd",
    "${7*7}{{7*7}}%s%n",
    "ref:",
    "ref://",
    "ref:x#/~2",
    "ref:x?query=[",
    "ref://" + "a" * 300,
    "run://",
    "skill://../x",
    "io.modelcontextprotocol/protocolVersion",
    "tools/call",
    "x" * 5_000,
    [],
    {},
    [[]],
    [None] * 300,
    {"": ""},
    {"__proto__": {}, "constructor": 1},
    {"$ref": "#"},
    {"$ref": "http://127.0.0.1:1/schema"},
)
_METHODS: Final = (
    "initialize",
    "server/discover",
    "ping",
    "tools/list",
    "tools/call",
    "resources/list",
    "resources/read",
    "resources/templates/list",
    "resources/subscribe",
    "resources/unsubscribe",
    "resources/directory/read",
    "prompts/list",
    "prompts/get",
    "completion/complete",
    "logging/setLevel",
    "subscriptions/listen",
    "skills/list",
    "skills/get",
    "tasks/get",
    "tasks/update",
    "tasks/cancel",
    "tasks/result",
    "notifications/initialized",
    "notifications/cancelled",
    "notifications/progress",
    "notifications/roots/list_changed",
    "rpc.discover",
    "",
    "__init__",
)
_DEEP: Final = (40, 200, 900)


def broken_message(random: random.Random, message: Any) -> Any:
    """Return a copy of a JSON value with one to four things wrong."""
    message = json.loads(json.dumps(message))
    for _ in range(random.choice((1, 1, 1, 1, 2, 2, 4))):
        message = random.choice(_CHANGES)(random, message)
    return message


def broken_bytes(random: random.Random, line: bytes) -> bytes:
    """Return bytes with something wrong that JSON itself would not allow, or hardly."""
    data = bytearray(line or b"{}")
    for _ in range(random.choice((1, 1, 2, 5))):
        at = random.randrange(len(data)) if data else 0
        match random.randrange(7):
            case 0 if data:
                data[at] ^= 1 << random.randrange(8)
            case 1:
                del data[at : at + random.randrange(1, 20)]
            case 2:
                data[at:at] = bytes(random.randrange(256) for _ in range(random.randrange(1, 9)))
            case 3:
                data[at:at] = data[: random.randrange(1, 40)]
            case 4:
                del data[at:]
            case 5:
                data[at:at] = random.choice(
                    (b"[" * 500, b'{"a":' * 500, b"\xff\xfe", b"\xef\xbb\xbf")
                )
            case _:
                data += random.choice((b"}", b"]", b'"', b",", b"\x00", b"//x", b"null", b"{}"))
    return bytes(data).replace(b"\n", b" ")


def broken_headers(random: random.Random, headers: Headers) -> Headers:
    """Return HTTP headers with one to three things wrong, all of which a parser may let pass."""
    headers = list(headers)
    for _ in range(random.choice((1, 1, 2, 3))):
        at = random.randrange(len(headers)) if headers else 0
        match random.randrange(6):
            case 0 if headers:
                del headers[at]
            case 1 if headers:
                headers.insert(at, headers[at])
            case 2 if headers:
                headers[at] = (headers[at][0], _header_value(random))
            case 3:
                name = random.choice(
                    (b"mcp-session-id", b"mcp-protocol-version", b"mcp-method", b"mcp-name")
                )
                headers.append((name, _header_value(random)))
            case 4:
                name = random.choice(
                    (b"origin", b"authorization", b"accept", b"last-event-id", b"mcp-param-text")
                )
                headers.append((name, _header_value(random)))
            case _ if headers:
                name, value = headers[at]
                headers[at] = (name, value[: random.randrange(len(value) + 1)])
            case _:
                headers.append((b"x", b"y"))
    return headers


def _header_value(random: random.Random) -> bytes:
    plain = "".join(random.choice(string.printable[:94]) for _ in range(random.randrange(40)))
    return random.choice(
        (
            plain.encode(),
            b"",
            b"2026-07-28",
            b"2025-11-25",
            b"1999-01-01",
            b"tools/call",
            b"=?base64?!!!?=",
            b"=?base64?ZWNobw==?=",
            b"Bearer " + plain.encode(),
            b"http://evil.example",
            b"\xe4\xf6\xfc",
            b"9" * 3_000,
            b"text/event-stream",
            b"application/json;q=0",
        )
    ).strip()


def members_of(value: Any) -> dict[str, Any] | None:
    """Return a JSON object as such, or None for any other value."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else None


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Return every container with every key in it."""
    found: list[tuple[Any, Any]] = []
    waiting: list[Any] = [value]
    while waiting:
        one = waiting.pop()
        members = members_of(one)
        if members is not None:
            found += [(one, key) for key in members]
            waiting += members.values()
        elif is_list(one):
            found += [(one, n) for n in range(len(one))]
            waiting += one
    return found


def _odd(random: random.Random) -> Any:
    return copy.deepcopy(random.choice(_ODD))


def _replaced(random: random.Random, message: Any) -> Any:
    places = _places(message)
    if not places:
        return _odd(random)
    holder, key = random.choice(places)
    holder[key] = _odd(random)
    return message


def _removed(random: random.Random, message: Any) -> Any:
    if places := _places(message):
        holder, key = random.choice(places)
        del holder[key]
    return message


def _renamed(random: random.Random, message: Any) -> Any:
    places = [(members_of(holder), key) for holder, key in _places(message)]
    named = [(holder, str(key)) for holder, key in places if holder is not None]
    if named:
        holder, key = random.choice(named)
        name = random.choice((key.upper(), key + " ", key[:-1], "_" + key, "", key * 2))
        holder[name] = holder.pop(key)
    return message


def _added(random: random.Random, message: Any) -> Any:
    values = [message, *(holder[key] for holder, key in _places(message))]
    holders = [each for value in values if (each := members_of(value)) is not None]
    if holders:
        names = ("x", "_meta", "id", "method", "params", "result", "error", "task", "cursor", "uri")
        random.choice(holders)[random.choice(names)] = _odd(random)
    return message


def _nested(random: random.Random, message: Any) -> Any:
    value: Any = _odd(random)
    for _ in range(random.choice(_DEEP)):
        value = [value] if random.random() < 0.5 else {"a": value}
    if places := _places(message):
        holder, key = random.choice(places)
        holder[key] = value
    return message


def _another_method(random: random.Random, message: Any) -> Any:
    members = members_of(message)
    if members is not None:
        members["method"] = random.choice(_METHODS)
    return message


def _wrapped(random: random.Random, message: Any) -> Any:
    return random.choice(([message], [message, message], {"jsonrpc": "2.0", "params": message}))


def _moved(random: random.Random, message: Any) -> Any:
    places = _places(message)
    if len(places) > 1:
        (one, a), (other, b) = random.sample(places, 2)
        value = json.loads(json.dumps(one[a]))
        other[b] = value
    return message


_CHANGES: Final[tuple[Callable[[random.Random, Any], Any], ...]] = (
    _replaced,
    _replaced,
    _replaced,
    _removed,
    _removed,
    _renamed,
    _added,
    _added,
    _nested,
    _another_method,
    _another_method,
    _wrapped,
    _moved,
)

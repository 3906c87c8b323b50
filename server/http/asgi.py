"""ASGI requests and responses: headers by name, bodies within bounds, whole answers."""

from collections import deque
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
from pydantic_core import from_json, to_json

if TYPE_CHECKING:
    from starlette.types import Message, Receive, Scope, Send

__all__ = [
    "LARGE",
    "PARAM",
    "TWICE",
    "ClientGone",
    "TooLarge",
    "Watch",
    "decoded",
    "method_of",
    "param_of",
    "read_body",
    "read_headers",
    "respond",
    "respond_json",
]

TWICE: Final = b":twice"
"""Stands among headers where one of them came twice."""

PARAM: Final = b":param"
"""Stands among headers where an argument is repeated in one of them."""

LARGE: Final = b":large"
"""Stands among headers that are too large together."""

_LASTING_S: Final = 0.05


class ClientGone(Exception):
    """Tell that there is nobody left to answer."""


class TooLarge(Exception):
    """Tell that a body is larger than it may be."""


def read_headers(scope: "Scope", max_bytes: int) -> dict[bytes, bytes]:
    """Return the headers by name, with marks for what is unusual about them."""
    headers: dict[bytes, bytes] = {}
    size = 0
    for name, value in scope["headers"]:
        size += len(name) + len(value)
        if name in headers:
            headers[TWICE] = name
        elif name.startswith(b"mcp-param-"):
            headers[PARAM] = name
        headers[name] = value
    if size > max_bytes:
        headers[LARGE] = b""
    return headers


async def read_body(receive: "Receive", max_bytes: int) -> tuple[bytes, "Receive"]:
    """Return the body of a request, and a `receive` that gives it once more.

    Raises:
        TooLarge: there is more of it.
        ClientGone: the client left before it had sent all of it.
    """
    parts: list[bytes] = []
    events: deque[Message] = deque()
    size, more = 0, True
    while more:
        event = await receive()
        if event["type"] == "http.disconnect":
            raise ClientGone
        events.append(event)
        part = event.get("body", b"")
        size += len(part)
        if size > max_bytes:
            raise TooLarge
        parts.append(part)
        more = event.get("more_body", False)

    async def replay() -> "Message":
        return events.popleft() if events else await receive()

    return b"".join(parts), replay


def decoded(body: bytes) -> Any:
    """Return the JSON value that a body is, or None."""
    try:
        return from_json(body)
    except ValueError:
        return None


def method_of(message: Any) -> Any:
    """Return the method of a JSON-RPC message, or None."""
    return cast("dict[str, Any]", message).get("method") if isinstance(message, dict) else None


def param_of(message: Any, name: str) -> Any:
    """Return one of the parameters of a JSON-RPC message, or None."""
    params = message.get("params")
    return cast("dict[str, Any]", params).get(name) if isinstance(params, dict) else None


async def respond(
    send: "Send",
    status: int,
    body: bytes,
    *headers: tuple[bytes, bytes],
    kind: bytes = b"application/json",
) -> None:
    """Send a whole response."""
    about = [
        (b"content-type", kind),
        (b"content-length", str(len(body)).encode()),
        *headers,
    ]
    await send({"type": "http.response.start", "status": status, "headers": about})
    await send({"type": "http.response.body", "body": body})


async def respond_json(
    send: "Send", status: int, value: object, *headers: tuple[bytes, bytes]
) -> None:
    """Send a JSON value as a whole response."""
    await respond(send, status, to_json(value), *headers)


class Watch:
    """Cancel calls whose clients have closed the connection.

    Only calls that last are looked at: for the others it would cost more than they do.
    """

    def __init__(self) -> None:
        self._calls: dict[anyio.CancelScope, Receive] = {}
        self._begun = anyio.Event()

    @contextmanager
    def cancelling(self, receive: "Receive") -> Generator[anyio.CancelScope]:
        """Run what is inside until it ends or its client is gone."""
        with anyio.CancelScope() as scope:
            self._calls[scope] = receive
            self._begun.set()
            try:
                yield scope
            finally:
                self._calls.pop(scope, None)

    async def run(self) -> None:
        """Look after calls until cancelled."""
        known: set[anyio.CancelScope] = set()
        async with anyio.create_task_group() as tasks:
            while True:
                await self._begun.wait()
                self._begun = anyio.Event()
                known = set(self._calls)
                while self._calls:
                    await anyio.sleep(_LASTING_S)
                    for scope in [each for each in self._calls if each in known]:
                        tasks.start_soon(_cancel_when_gone, scope, self._calls.pop(scope))
                    known = set(self._calls)


async def _cancel_when_gone(scope: anyio.CancelScope, receive: "Receive") -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()

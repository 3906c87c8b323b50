"""What a test needs of a client, whichever it is."""

from collections.abc import Callable
from typing import Any, Final, Generic, Protocol, TypeVar

import anyio
from serving import WAIT_S, Json

__all__ = ["LISTENED", "Box", "CallError", "Connected", "Ongoing", "refuse"]


T = TypeVar("T")

LISTENED: Final[Json] = {
    "toolsListChanged": True,
    "promptsListChanged": True,
    "resourcesListChanged": True,
}
"""What `listen` asks to be told of."""


class CallError(Exception):
    """What a client made of an error answer."""

    def __init__(self, code: int | None, message: str, data: Any) -> None:
        super().__init__(f"{code}: {message}")
        self.code, self.message, self.data = code, message, data


class Ongoing(Protocol):
    """A call that was begun."""

    async def progress(self) -> Json:
        """Wait for the next word of progress."""
        ...

    def cancel(self) -> None:
        """Give the call up."""
        ...

    async def result(self) -> Json:
        """Wait for the answer."""
        ...


class Connected(Protocol):
    """A client that is connected.

    Args:
        hello: what it was told at the start: `connected` (the version), `server`, `capabilities`,
            `instructions`.
        answer: gives its answers to the server's questions.
    """

    hello: Json
    answer: Callable[[str, Json], Json]

    async def call(self, method: str, params: Json | None = None) -> Json:
        """Call a method of the client, by its name in the clients for Node."""
        ...

    def begin(self, method: str, params: Json) -> Ongoing:
        """Begin such a call."""
        ...

    async def listen(self, *uris: str) -> None:
        """Ask for announcements, as a client of the modern era has to, and follow resources."""
        ...

    async def heard(self, method: str) -> None:
        """Wait for a notification."""
        ...


def refuse(method: str, params: Json) -> Json:
    """Answer a question that no test expects."""
    raise AssertionError(f"the server asked {method}: {params}")


class Box(Generic[T]):
    """Things that came and were not yet taken, in their order."""

    def __init__(self) -> None:
        self._items: list[T] = []
        self._grown = anyio.Event()

    def put(self, item: T) -> None:
        """Add one."""
        self._items.append(item)
        self._grown.set()
        self._grown = anyio.Event()

    async def take(self, fits: Callable[[T], bool] = lambda _: True) -> T:
        """Wait for the first that fits, and take it out."""
        with anyio.fail_after(WAIT_S):
            while (found := next(filter(fits, self._items), None)) is None:
                await self._grown.wait()
        self._items.remove(found)
        return found

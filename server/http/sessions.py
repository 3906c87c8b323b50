"""The sessions of one HTTP caller in the handshake era: which are open, which may go. Ends none.

A client that vanishes says nothing, so its session stays until it has been idle for long, or until
others need the room: then the one unused for longest goes, and a client that comes back after all
is told to open another.
"""

from collections import OrderedDict
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import anyio

if TYPE_CHECKING:
    from guildry.server.lane import Lane

__all__ = ["Session", "Sessions"]


@dataclass(slots=True)
class Session:
    """What must be known of a session.

    Args:
        lane: the lean lane of its version, if it has one.
        seen_by_sdk: when the SDK last answered one of its requests, on the event loop's clock.
        calls: calls in flight on the lane, by request id.
        requests: requests and streams that the SDK has open.
    """

    lane: "Lane | None"
    seen_by_sdk: float
    calls: dict[str, anyio.CancelScope] = field(default_factory=dict[str, anyio.CancelScope])
    requests: int = 0

    @property
    def is_idle(self) -> bool:
        """Whether nothing of it is open."""
        return not self.calls and not self.requests

    @contextmanager
    def in_use(self) -> Generator[None]:
        """Count a request of the session while it is open."""
        self.requests += 1
        try:
            yield
        finally:
            self.requests -= 1


class Sessions:
    """Hold open sessions by their ids, the one unused for longest first.

    Args:
        most: how many are kept while some of them are idle.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._open: OrderedDict[bytes, Session] = OrderedDict()

    def find(self, id: bytes | None) -> Session | None:
        """Return a session, which is in use from now on, or None."""
        session = self._open.get(id) if id else None
        if session is not None and id is not None:
            self._open.move_to_end(id)
        return session

    def begin(self, id: bytes, lane: "Lane | None") -> None:
        """Take a session that has been opened."""
        self._open[id] = Session(lane, anyio.current_time())

    def forget(self, id: bytes | None) -> None:
        """Drop a session that is over, and what it has in flight."""
        session = self._open.pop(id, None) if id else None
        if session is not None:
            for call in session.calls.values():
                call.cancel()

    def clear(self) -> None:
        """Drop every session, and what they have in flight."""
        for id in list(self._open):
            self.forget(id)

    def surplus(self) -> bytes | None:
        """Return the idle session to end next while there are too many, or None."""
        if len(self._open) <= self._most:
            return None
        return next((id for id, session in self._open.items() if session.is_idle), None)

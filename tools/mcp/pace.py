"""Pace: how fast a server may speak unasked. One that floods is heard later, not others."""

from typing import Final

import anyio
import anyio.lowlevel
import structlog

__all__ = ["Pace"]

log = structlog.get_logger()

_AT_ONCE: Final = 2_000
_PER_S: Final = 500.0
_LOOK_EVERY: Final = 32
_BYTES: Final = 16_384


class Pace:
    """Let 2,000 messages through at once, then 500 a second; long ones count as several.

    What comes faster waits where it is, in the server's pipe, until the server waits too.

    Args:
        plug: whose server speaks, for the log.
    """

    def __init__(self, plug: str) -> None:
        self._plug = plug
        self._room = float(_AT_ONCE)
        self._seen_at = anyio.current_time()
        self._since = 0
        self._is_told = False

    async def heard(self, *, unasked: bool, size_bytes: int = 0) -> None:
        """Count a message, and wait if there were too many. Lets others work now and then."""
        self._since += 1
        if unasked:
            self._room -= 1 + size_bytes // _BYTES
        if self._since < _LOOK_EVERY and self._room > 0:
            return
        self._since = 0
        now = anyio.current_time()
        self._room = min(_AT_ONCE, self._room + (now - self._seen_at) * _PER_S)
        self._seen_at = now
        if self._room > 0:
            await anyio.lowlevel.checkpoint()
            return
        if not self._is_told:
            self._is_told = True
            log.warning("server_flooded", plug=self._plug, messages_per_s=_PER_S)
        await anyio.sleep((_LOOK_EVERY - self._room) / _PER_S)

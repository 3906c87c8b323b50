"""Progress of one call on its way to the client: always rising, and never silent for long.

Clients reset their time-out at each word of progress, so a call that says nothing is spoken for.
"""

import math
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar, cast

import anyio

from guildry.tools.redaction import HIDDEN

__all__ = ["HEARTBEAT_S", "Reporter", "reporting"]

HEARTBEAT_S: Final = 10.0
"""Longest silence, in seconds: well under the time-outs that clients use."""

T = TypeVar("T")
Send = Callable[[float, float | None, str | None], Awaitable[None]]


class Reporter:
    """Take progress of a tool and pass it on. Satisfies `guildry.tools.base.Progress`."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._last: float | None = None
        self._total: float | None = None
        self._told = anyio.Event()

    async def __call__(
        self, done: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Report that `done` of `total` is finished. What does not rise is moved up by a hair."""
        if not math.isfinite(done):
            return
        if self._last is not None and done <= self._last:
            done = math.nextafter(self._last, math.inf)
        self._last, self._total = done, total
        self._told.set()
        await self._send(done, total, None if message is None else HIDDEN.known(message))

    async def keep_alive(self, every_s: float) -> None:
        """Speak for a call that has said nothing for `every_s` seconds, until cancelled."""
        started = anyio.current_time()
        while True:
            self._told = anyio.Event()
            with anyio.move_on_after(every_s):
                await self._told.wait()
                continue
            elapsed = anyio.current_time() - started
            await self(self._last or 0.0, self._total, f"running for {elapsed:.0f} s")


async def reporting(
    send: Send, work: Callable[[Reporter], Awaitable[T]], every_s: float = HEARTBEAT_S
) -> T:
    """Do `work` with a place to report to, and a heartbeat behind it."""
    reporter = Reporter(send)
    done: T | None = None
    failure: Exception | None = None
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(reporter.keep_alive, every_s)
        try:
            done = await work(reporter)
        except Exception as error:  # raised below as it is, not in a group
            failure = error
        tasks.cancel_scope.cancel()
    if failure is not None:
        raise failure
    return cast("T", done)

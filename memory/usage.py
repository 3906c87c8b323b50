"""How tools have done, by day: sums that several processes add to. Judges nothing."""

import math
import sqlite3
from dataclasses import astuple, dataclass, fields
from typing import Final

from guildry.memory.store import Store

__all__ = ["Tally", "UsageRow", "UsageStore"]

_LEAST_S: Final = 1e-6


@dataclass(slots=True)
class Tally:
    """Sums over calls that a tool has ended. Sums of two periods are added, so weights are too.

    Args:
        calls: calls that count for or against the tool.
        errors: of these, those that the tool is to blame for.
        misused: calls that the tool refused for what the caller had written; not in `calls`.
        duration_s: of all `calls` together.
        slowest_s: of the slowest.
        logs: natural logarithms of the durations, added up.
        squares: their squares, added up.
        bytes: of all answers together.
    """

    calls: float = 0.0
    errors: float = 0.0
    misused: float = 0.0
    duration_s: float = 0.0
    slowest_s: float = 0.0
    logs: float = 0.0
    squares: float = 0.0
    bytes: float = 0.0

    def count(self, duration_s: float, size: int, *, is_error: bool) -> None:
        """Add one call."""
        log = math.log(duration_s if duration_s > _LEAST_S else _LEAST_S)
        self.calls += 1
        self.duration_s += duration_s
        self.logs += log
        self.squares += log * log
        self.bytes += size
        if is_error:
            self.errors += 1
        if duration_s > self.slowest_s:
            self.slowest_s = duration_s

    def add(self, other: "Tally", weight: float = 1.0) -> None:
        """Add the sums of another period, each weighed; the slowest is the slower of the two."""
        self.calls += weight * other.calls
        self.errors += weight * other.errors
        self.misused += weight * other.misused
        self.duration_s += weight * other.duration_s
        self.logs += weight * other.logs
        self.squares += weight * other.squares
        self.bytes += weight * other.bytes
        self.slowest_s = max(self.slowest_s, other.slowest_s)


_SUMS: Final = tuple(each.name for each in fields(Tally))
_ADD: Final = (
    f"INSERT INTO usage (plug, tool, day, {', '.join(_SUMS)}) VALUES"
    f" (?, ?, ?, {', '.join('?' * len(_SUMS))}) ON CONFLICT (plug, tool, day) DO UPDATE SET "
    + ", ".join(
        f"{name} = max({name}, excluded.{name})"
        if name == "slowest_s"
        else f"{name} = {name} + excluded.{name}"
        for name in _SUMS
    )
)


@dataclass(frozen=True, slots=True)
class UsageRow:
    """How one tool did on one day, which is counted from 1970-01-01 in UTC."""

    plug: str
    tool: str
    day: int
    tally: Tally


class UsageStore:
    """Keep how tools have done."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def add(self, row: UsageRow) -> None:
        """Add to a tool's day, without waiting for it to be written.

        Raises:
            StoreError: too much waits to be written already.
        """
        self._store.post_row(_add, (row.plug, row.tool, row.day, *astuple(row.tally)))

    async def since(self, day: int) -> list[UsageRow]:
        """Return the days from `day` on, of every tool, what was added here included.

        Raises:
            StoreError: the database refuses what was added, or cannot be read.
        """
        await self._store.flush()

        def select(connection: sqlite3.Connection) -> list[UsageRow]:
            rows = connection.execute(
                f"SELECT plug, tool, day, {', '.join(_SUMS)} FROM usage WHERE day >= ?", (day,)
            )
            return [UsageRow(plug, tool, day, Tally(*sums)) for plug, tool, day, *sums in rows]

        return await self._store.read(select)

    async def forget(self, before: int) -> int:
        """Drop the days before `before`. Returns how many rows went.

        Raises:
            StoreError: the database refuses.
        """

        def delete(connection: sqlite3.Connection) -> int:
            return connection.execute("DELETE FROM usage WHERE day < ?", (before,)).rowcount

        return await self._store.write(delete)


def _add(connection: sqlite3.Connection, rows: list[tuple[object, ...]]) -> None:
    connection.executemany(_ADD, rows)

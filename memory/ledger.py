"""The effect ledger: what was about to be done to the world, and what is known to be done."""

import sqlite3
import time
from collections.abc import Callable
from dataclasses import dataclass

from guildry.errors import StoreError
from guildry.memory.store import Store, storable

__all__ = ["EffectLedger", "IntendedEffect", "SettledEffect"]


@dataclass(frozen=True, slots=True)
class IntendedEffect:
    """A call that was about to be made. Whether it was made is not known."""

    key: str
    run: str
    agent: str
    tool: str
    arguments_digest: str
    intended_at: float


@dataclass(frozen=True, slots=True)
class SettledEffect:
    """A call that was made, and what came of it."""

    key: str
    run: str
    agent: str
    tool: str
    arguments_digest: str
    intended_at: float
    status: str
    outcome: str
    settled_at: float


class EffectLedger:
    """Keep which calls must not be repeated: intent first, then the call, then its outcome."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    async def intend(
        self, run: str, key: str, agent: str, tool: str, arguments_digest: str
    ) -> None:
        """Enter a call that is about to be made, and return once the entry is on the disk.

        Keys of one run that sort in the order of their calls cost the least.

        Raises:
            StoreError: the run has an effect of that key, or the database refuses: make no call.
        """
        row = (run, key, agent, tool, arguments_digest, self._clock())

        def insert(connection: sqlite3.Connection) -> bool:
            done = connection.execute(
                "INSERT OR IGNORE INTO effects"
                " (run, key, agent, tool, arguments_digest, intended_at) VALUES (?,?,?,?,?,?)",
                row,
            )
            return done.rowcount == 1

        if not await self._store.write(insert, sync=True):
            raise StoreError(f"the effect `{key}` was intended before: give each call its own key")

    def settle(self, run: str, key: str, outcome: str, status: str = "ok") -> None:
        """Enter what came of a call, without waiting. The first outcome of a call stays.

        Raises:
            StoreError: too much waits to be written already.
        """
        self._store.post(
            "UPDATE effects SET status = ?, outcome = ?, settled_at = ?"
            " WHERE run = ? AND key = ? AND status IS NULL",
            (status, storable(outcome), self._clock(), run, key),
        )

    async def unsettled(self, run: str) -> list[IntendedEffect]:
        """Return the calls of a run of which no outcome is known, in the order of intent."""
        await self._store.flush()

        def select(connection: sqlite3.Connection) -> list[IntendedEffect]:
            rows = connection.execute(
                "SELECT key, run, agent, tool, arguments_digest, intended_at FROM effects"
                " WHERE run = ? AND status IS NULL ORDER BY intended_at, key",
                (run,),
            )
            return [IntendedEffect(*row) for row in rows]

        return await self._store.read(select)

    async def settled(self, run: str, key: str) -> SettledEffect | None:
        """Return what came of a call, or None where that is not known."""
        await self._store.flush()

        def select(connection: sqlite3.Connection) -> SettledEffect | None:
            row = connection.execute(
                "SELECT key, run, agent, tool, arguments_digest, intended_at, status, outcome,"
                " settled_at FROM effects WHERE run = ? AND key = ? AND status IS NOT NULL",
                (run, key),
            ).fetchone()
            return None if row is None else SettledEffect(*row)

        return await self._store.read(select)

    async def made(
        self, run: str, program: str, tool: str, arguments_digest: str, *, since: float
    ) -> list[IntendedEffect | SettledEffect]:
        """Return the calls of a tool with these arguments that a program has begun, in order.

        Args:
            run: that the program belongs to.
            program: whose calls; their keys end with its id.
            tool: its name.
            arguments_digest: of the arguments.
            since: seconds since the epoch.
        """
        await self._store.flush()

        def select(connection: sqlite3.Connection) -> list[IntendedEffect | SettledEffect]:
            rows = connection.execute(
                "SELECT key, run, agent, tool, arguments_digest, intended_at, status, outcome,"
                " settled_at FROM effects WHERE run = ? AND tool = ? AND arguments_digest = ?"
                " AND intended_at >= ? ORDER BY intended_at, key",
                (run, tool, arguments_digest, since),
            )
            return [
                IntendedEffect(*row[:6]) if row[6] is None else SettledEffect(*row)
                for row in rows
                if row[0].endswith(f"-{program}")
            ]

        return await self._store.read(select)

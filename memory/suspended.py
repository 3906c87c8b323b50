"""Programs that wait in the middle of a call, so that they can go on in another process.

Knows rows; what a state means, only its interpreter knows.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from guildry.memory.runs import is_running, this_process
from guildry.memory.store import Store, storable

__all__ = ["Suspended", "SuspendedStore"]

_COLUMNS: Final = "id, run, holder, state, waiting, suspended_at"
_FREE: Final = ""

_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode


@dataclass(frozen=True, slots=True)
class Suspended:
    """A program that waits for the answer of a call.

    Args:
        id: names it.
        run: the run that it belongs to, or the principal outside any run.
        holder: who runs it.
        state: all that the interpreter needs to go on.
        waiting: JSON: the calls that it waits for, and what is known of it besides.
        suspended_at: seconds since the epoch.
    """

    id: str
    run: str
    holder: str
    state: bytes
    waiting: dict[str, Any]
    suspended_at: float


class SuspendedStore:
    """Keep the last state of each program that runs, until it has ended."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    def keep(
        self, id: str, run: str, holder: str, state: bytes, waiting: Mapping[str, Any]
    ) -> None:
        """Enter the state of a program of this process in place of its last, without waiting.

        It is on the disk before whatever is written afterwards and waited for.

        Raises:
            StoreError: too much waits to be written already.
        """
        told = storable(_encode(waiting))
        self._store.post(
            f"INSERT OR REPLACE INTO suspended ({_COLUMNS}, process) VALUES (?, ?, ?, ?, ?, ?, ?)",
            (id, run, holder, state, told, self._clock(), this_process()),
        )

    def note(self, id: str, waiting: Mapping[str, Any]) -> None:
        """Enter what a program waits for now, in the state that is kept.

        Raises:
            StoreError: too much waits to be written already.
        """
        self._store.post(
            "UPDATE suspended SET waiting = ? WHERE id = ?", (storable(_encode(waiting)), id)
        )

    def release(self, id: str) -> None:
        """Let whoever wants go on with a program, of which this process lets go.

        Raises:
            StoreError: too much waits to be written already.
        """
        self._store.post("UPDATE suspended SET process = ? WHERE id = ?", (_FREE, id))

    def drop(self, id: str) -> None:
        """Forget a program.

        Raises:
            StoreError: too much waits to be written already.
        """
        self._store.post("DELETE FROM suspended WHERE id = ?", (id,))

    async def take(
        self, id: str, run: str, holder: str, alive: Callable[[str], bool] = is_running
    ) -> Suspended | None:
        """Return a program and take it over, or None where there is none that nobody runs.

        Raises:
            StoreError: the database refuses.
        """

        def claim(connection: sqlite3.Connection) -> Suspended | None:
            row = connection.execute(
                f"SELECT process, {_COLUMNS} FROM suspended"
                " WHERE id = ? AND run = ? AND holder = ?",
                (id, run, holder),
            ).fetchone()
            if row is None or (row[0] != _FREE and alive(row[0])):
                return None
            connection.execute(
                "UPDATE suspended SET process = ? WHERE id = ?", (this_process(), id)
            )
            return _suspended(row[1:])

        return await self._store.write(claim)

    async def waiting(
        self, run: str, holder: str, alive: Callable[[str], bool] = is_running
    ) -> list[Suspended]:
        """Return the programs of a holder that nobody runs, the last one first.

        Raises:
            StoreError: the database refuses.
        """
        await self._store.flush()

        def select(connection: sqlite3.Connection) -> list[Suspended]:
            rows = connection.execute(
                f"SELECT process, {_COLUMNS} FROM suspended WHERE run = ? AND holder = ?"
                " ORDER BY suspended_at DESC, id",
                (run, holder),
            ).fetchall()
            return [_suspended(row[1:]) for row in rows if row[0] == _FREE or not alive(row[0])]

        return await self._store.read(select)

    async def forget(self, *, before: float, alive: Callable[[str], bool] = is_running) -> int:
        """Drop the programs that have waited since `before` (seconds since the epoch); count them.

        Raises:
            StoreError: the database refuses.
        """

        def delete(connection: sqlite3.Connection) -> int:
            rows = connection.execute(
                "SELECT id, process FROM suspended WHERE suspended_at < ?", (before,)
            ).fetchall()
            old = [(id,) for id, process in rows if process == _FREE or not alive(process)]
            connection.executemany("DELETE FROM suspended WHERE id = ?", old)
            return len(old)

        return await self._store.write(delete)


def _suspended(row: tuple[Any, ...]) -> Suspended:
    id, run, holder, state, waiting, suspended_at = row
    return Suspended(id, run, holder, bytes(state), json.loads(waiting), suspended_at)

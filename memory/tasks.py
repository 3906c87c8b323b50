"""Tasks: tool calls that outlast their request, and what came of them. Knows rows, not the wire.

While a task is open, its row holds what it asks (`requests`) and what other processes have told the
one that runs it (`told`), each as a string of JSON, so that SQLite reads no deeper; once it has
ended, its outcome.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from guildry.errors import StoreError
from guildry.memory.runs import is_running, this_process
from guildry.memory.store import Store, storable

__all__ = ["INTERRUPTED", "OPEN", "TaskRecord", "TaskStatus", "TaskStore", "interruption"]

TaskStatus = Literal["working", "input_required", "completed", "failed", "cancelled"]

OPEN: Final = ("working", "input_required")
"""The statuses of a task that has not ended."""

INTERRUPTED: Final = "interrupted: the server stopped while it ran"
"""What is said of a task whose process is gone."""

_INTERNAL_ERROR: Final = -32603
_COLUMNS: Final = (
    "id, principal, tool, run, status, message, created_at, updated_at, expires_at, outcome,"
    " process"
)
_IS_OPEN: Final = "status IN ('working', 'input_required')"
_ENDED_AS: Final[Mapping[str, TaskStatus]] = {
    "done": "completed",
    "partial": "completed",
    "failed": "completed",
    "cancelled": "cancelled",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskRecord:
    """One task, as it is kept.

    Args:
        id: of the task; whoever knows it and is its principal may ask for it.
        principal: who called.
        tool: what was called.
        run: the run that the call began, if it is one.
        message: what a person may read about its state.
        created_at: seconds since the epoch, like the other two.
        expires_at: when it is forgotten, once it has ended.
        outcome: `{"result": ...}` or `{"error": ...}`, as the wire has them. None for an open
            task, for a cancelled one, and for a run that ended when nobody was left to say how.
        requests: what an open task asks, by key, as the wire has it.
        process: the process that runs it, see `this_process`.
    """

    id: str
    principal: str
    tool: str
    expires_at: float
    run: str | None = None
    status: TaskStatus = "working"
    message: str | None = None
    created_at: float = field(default_factory=time.time)
    updated_at: float = field(default_factory=time.time)
    outcome: Mapping[str, Any] | None = None
    requests: Mapping[str, Any] = field(default_factory=dict[str, Any])
    process: str = field(default_factory=this_process)

    @property
    def is_open(self) -> bool:
        """Tell whether it has not ended."""
        return self.status in OPEN


class TaskStore:
    """Keep tasks. Whatever has ended stays as it is."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self.clock: Final = clock

    async def create(self, record: TaskRecord) -> None:
        """Enter an open task, and return once the entry is committed.

        Raises:
            StoreError: there is a task of that id, or the database refuses.
        """
        row = (
            record.id,
            record.principal,
            record.tool,
            record.run,
            record.status,
            _message(record.message),
            record.created_at,
            record.updated_at,
            record.expires_at,
            _encode({"requests": _encode(record.requests), "told": []}),
            record.process,
        )

        def insert(connection: sqlite3.Connection) -> bool:
            done = connection.execute(
                f"INSERT OR IGNORE INTO tasks ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?)", row
            )
            return done.rowcount == 1

        if not await self._store.write(insert):
            raise StoreError(f"there is a task `{record.id}` already: give each task its own id")

    def note(self, record: TaskRecord) -> None:
        """Enter the state of an open task soon, without waiting for it.

        Raises:
            StoreError: too much waits to be written already.
        """
        self._store.post(
            "UPDATE tasks SET status = ?, message = ?, updated_at = ?, expires_at = ?,"
            f" outcome = json_set(outcome, '$.requests', ?) WHERE id = ? AND {_IS_OPEN}",
            (
                record.status,
                _message(record.message),
                record.updated_at,
                record.expires_at,
                _encode(record.requests),
                record.id,
            ),
        )

    async def settle(self, record: TaskRecord) -> bool:
        """Enter how a task ended, and return once that is committed; False if it had ended before.

        Raises:
            StoreError: the database refuses.
        """
        row = (
            record.status,
            _message(record.message),
            record.updated_at,
            record.expires_at,
            None if record.outcome is None else _encode(record.outcome),
            record.id,
        )

        def update(connection: sqlite3.Connection) -> bool:
            done = connection.execute(
                "UPDATE tasks SET status = ?, message = ?, updated_at = ?, expires_at = ?,"
                f" outcome = ? WHERE id = ? AND ({_IS_OPEN}"
                " OR (status = 'completed' AND outcome IS NULL))",
                row,
            )
            return done.rowcount == 1

        return await self._store.write(update)

    async def get(self, id: str) -> TaskRecord | None:
        """Return a task, or None when there is none of that id, or no longer."""
        now = self.clock()

        def select(connection: sqlite3.Connection) -> TaskRecord | None:
            found = connection.execute(
                f"SELECT {_COLUMNS} FROM tasks WHERE id = ? AND (expires_at > ? OR {_IS_OPEN})",
                (id, now),
            ).fetchone()
            return None if found is None else _record(found)

        return await self._store.read(select)

    async def tell(self, id: str, word: Mapping[str, Any]) -> bool:
        """Leave word for the process that runs an open task; False if it has ended.

        Raises:
            StoreError: the database refuses.
        """
        text = _encode(word)

        def update(connection: sqlite3.Connection) -> bool:
            done = connection.execute(
                "UPDATE tasks SET outcome = json_insert(outcome, '$.told[#]', ?)"
                f" WHERE id = ? AND {_IS_OPEN}",
                (text, id),
            )
            return done.rowcount == 1

        return await self._store.write(update)

    async def take_words(self, process: str | None = None) -> list[tuple[str, dict[str, Any]]]:
        """Return what was told to a process, by default this one, once, in order.

        Raises:
            StoreError: the database refuses.
        """
        where = f"process = ? AND {_IS_OPEN} AND json_array_length(outcome, '$.told') > 0"
        named = (process or this_process(),)

        def look(connection: sqlite3.Connection) -> list[tuple[str, str]]:
            return connection.execute(
                f"SELECT id, json_extract(outcome, '$.told') FROM tasks WHERE {where}"
                " ORDER BY position",
                named,
            ).fetchall()

        def take(connection: sqlite3.Connection) -> list[tuple[str, str]]:
            told = look(connection)
            connection.execute(
                f"UPDATE tasks SET outcome = json_set(outcome, '$.told', json('[]')) WHERE {where}",
                named,
            )
            return told

        if not await self._store.read(look):
            return []
        told = await self._store.write(take)
        return [(id, json.loads(word)) for id, words in told for word in json.loads(words)]

    async def expire(self) -> int:
        """Forget the tasks that have ended and whose time is over; returns how many."""
        now = self.clock()

        def delete(connection: sqlite3.Connection) -> int:
            return connection.execute(
                f"DELETE FROM tasks WHERE expires_at <= ? AND NOT {_IS_OPEN}", (now,)
            ).rowcount

        return await self._store.write(delete)

    async def interrupt_orphans(self, alive: Callable[[str], bool] = is_running) -> tuple[str, ...]:
        """End the open tasks of processes that are gone; returns their ids.

        One whose run's record says how the run ended, ended so too. The others have failed.

        Args:
            alive: tells whether the process that a record names still runs.
        """
        now = self.clock()

        def mark(connection: sqlite3.Connection) -> tuple[str, ...]:
            found = connection.execute(
                "SELECT tasks.id, tasks.process, tasks.run, runs.status FROM tasks"
                " LEFT JOIN runs ON runs.id = tasks.run"
                " WHERE tasks.status IN ('working', 'input_required') ORDER BY tasks.position"
            ).fetchall()
            gone = [each for each in found if not alive(each[1])]
            for id, _, run, ended in gone:
                status = _ENDED_AS.get(ended, "failed")
                failed = status == "failed"
                connection.execute(
                    "UPDATE tasks SET status = ?, message = ?, outcome = ?, updated_at = ?"
                    " WHERE id = ?",
                    (
                        status,
                        INTERRUPTED if failed else None,
                        _encode(interruption(run)) if failed else None,
                        now,
                        id,
                    ),
                )
            return tuple(each[0] for each in gone)

        return await self._store.write(mark)


def interruption(run: str | None) -> dict[str, Any]:
    """Return the outcome of a task that was cut off."""
    error: dict[str, Any] = {"code": _INTERNAL_ERROR, "message": INTERRUPTED}
    if run is not None:
        error["data"] = {"run": run}
    return {"error": error}


def _record(row: tuple[Any, ...]) -> TaskRecord:
    id, principal, tool, run, status, message, created, updated, expires, outcome, process = row
    kept: dict[str, Any] | None = None if outcome is None else json.loads(outcome)
    requests = None if kept is None else kept.get("requests")
    return TaskRecord(
        id=id,
        principal=principal,
        tool=tool,
        run=run,
        status=status,
        message=message,
        created_at=created,
        updated_at=updated,
        expires_at=expires,
        outcome=kept if requests is None else None,
        requests={} if requests is None else json.loads(requests),
        process=process,
    )


def _message(text: str | None) -> str | None:
    return None if text is None else storable(text)


def _encode(value: Mapping[str, Any]) -> str:
    return json.dumps(dict(value), separators=(",", ":"), default=str)

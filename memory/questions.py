"""Questions that calls have asked, each with its one answer. Knows rows; asks nobody."""

import json
import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from guildry.memory.runs import is_running, this_process
from guildry.memory.store import Store

__all__ = ["QuestionRecord", "QuestionStore"]

_COLUMNS: Final = "id, run, principal, question, asked_at, expires_at, process, answer, answered_at"
_CLOSE: Final = "UPDATE questions SET answer = ?, answered_at = ? WHERE id = ? AND answer IS NULL"
_GONE: Final[Mapping[str, Any]] = {"action": "cancel", "content": {}, "by": "nobody"}


@dataclass(frozen=True, slots=True)
class QuestionRecord:
    """One question, as it is kept.

    Args:
        id: of the question, such as `q1a2b3c4d5e`.
        run: whose call asks; the principal itself outside any run.
        principal: whose call it is in the end, and who may answer.
        question: what is asked, as JSON.
        asked_at: seconds since the epoch.
        expires_at: seconds since the epoch; no answer is taken from then on.
        process: the process whose call waits, see `this_process`.
        answer: what was answered, as JSON, or None while it is open.
        answered_at: seconds since the epoch.
    """

    id: str
    run: str
    principal: str
    question: dict[str, Any]
    asked_at: float
    expires_at: float
    process: str
    answer: dict[str, Any] | None = None
    answered_at: float | None = None


class QuestionStore:
    """Keep questions. Of several answers to one of them, between processes too, one wins."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    async def create(
        self,
        id: str,
        run: str,
        principal: str,
        question: Mapping[str, Any],
        expires_at: float,
        *,
        most: int | None = None,
    ) -> QuestionRecord | None:
        """Enter a question, and return its record once the entry is committed.

        Args:
            most: how many questions of this principal may be open, this one included; where
                there are so many already, nothing is entered and None is returned.

        Raises:
            StoreError: the database refuses.
        """
        now = self._clock()
        record = QuestionRecord(id, run, principal, dict(question), now, expires_at, this_process())
        row = (id, run, principal, _encode(question), now, expires_at, record.process)

        def insert(connection: sqlite3.Connection) -> bool:
            if most is not None and _count(connection, principal, now) >= most:
                return False
            connection.execute(
                "INSERT INTO questions (id, run, principal, question, asked_at, expires_at,"
                " process) VALUES (?, ?, ?, ?, ?, ?, ?)",
                row,
            )
            return True

        return record if await self._store.write(insert) else None

    async def answer(self, id: str, answer: Mapping[str, Any]) -> bool:
        """Answer a question; False when it is not open any more, or never was.

        Raises:
            StoreError: the database refuses.
        """
        now = self._clock()
        row = (_encode(answer), now, id, now)

        def update(connection: sqlite3.Connection) -> bool:
            return connection.execute(f"{_CLOSE} AND expires_at > ?", row).rowcount == 1

        return await self._store.write(update)

    async def close(self, id: str, answer: Mapping[str, Any]) -> bool:
        """Close a question whose time is over; False when somebody has answered it before.

        Raises:
            StoreError: the database refuses.
        """
        row = (_encode(answer), self._clock(), id)

        def update(connection: sqlite3.Connection) -> bool:
            return connection.execute(_CLOSE, row).rowcount == 1

        return await self._store.write(update)

    async def claim(self, ids: Sequence[str], principal: str, answer: Mapping[str, Any]) -> bool:
        """Take over the call that asked these questions; False when somebody has answered.

        Of several who claim one call, in whatever processes, one is told True. Questions that
        nobody waits for any longer can be claimed; those of another home are not known here.

        Raises:
            StoreError: the database refuses.
        """
        now, text = self._clock(), _encode(answer)

        def take(connection: sqlite3.Connection) -> bool:
            rows = connection.execute(
                "SELECT id, principal, expires_at > ?2 AND answer IS NULL OR answer = ?3"
                " FROM questions WHERE id IN (SELECT value FROM json_each(?1))",
                (json.dumps(list(ids)), now, _encode(_GONE)),
            ).fetchall()
            if not all(is_free and whose == principal for _, whose, is_free in rows):
                return False
            connection.executemany(
                "UPDATE questions SET answer = ?, answered_at = ? WHERE id = ?",
                [(text, now, id) for id, _, _ in rows],
            )
            return True

        return await self._store.write(take)

    def abandon(self, id: str) -> None:
        """Close a question that nobody waits for any longer, without waiting for the commit.

        Raises:
            StoreError: too much waits to be written already.
        """
        self._store.post(_CLOSE, (_encode(_GONE), self._clock(), id))

    async def open(
        self, principal: str | None = None, run: str | None = None
    ) -> list[QuestionRecord]:
        """Return what is open, the oldest first, of one principal and run where these are given.

        Raises:
            StoreError: the database cannot be read.
        """
        await self._store.flush()
        return await self._select(
            "WHERE answer IS NULL AND expires_at > ?1 AND (?2 IS NULL OR principal = ?2)"
            " AND (?3 IS NULL OR run = ?3) ORDER BY position",
            (self._clock(), principal, run),
        )

    async def get(self, id: str) -> QuestionRecord | None:
        """Return a question, or None when there is no such one.

        Raises:
            StoreError: the database cannot be read.
        """
        found = await self.all_of([id])
        return found[0] if found else None

    async def all_of(self, ids: Sequence[str]) -> list[QuestionRecord]:
        """Return those of these questions that there are.

        Raises:
            StoreError: the database cannot be read.
        """
        return await self._select(
            "WHERE id IN (SELECT value FROM json_each(?)) ORDER BY position",
            (json.dumps(list(ids)),),
        )

    async def close_of_dead(self, alive: Callable[[str], bool] = is_running) -> tuple[str, ...]:
        """Close the open questions of processes that are gone; returns their ids.

        Args:
            alive: tells whether the process that a record names still runs.

        Raises:
            StoreError: the database refuses.
        """
        answer, now = _encode(_GONE), self._clock()

        def mark(connection: sqlite3.Connection) -> tuple[str, ...]:
            waiting = connection.execute(
                "SELECT id, process FROM questions WHERE answer IS NULL ORDER BY position"
            ).fetchall()
            gone = tuple(id for id, process in waiting if not alive(process))
            connection.executemany(_CLOSE, [(answer, now, id) for id in gone])
            return gone

        return await self._store.write(mark)

    async def forget(self, *, before: float) -> int:
        """Drop what was answered, or expired, before a time (seconds since the epoch).

        Returns how many.

        Raises:
            StoreError: the database refuses.
        """

        def delete(connection: sqlite3.Connection) -> int:
            return connection.execute(
                "DELETE FROM questions WHERE coalesce(answered_at, expires_at) < ?", (before,)
            ).rowcount

        return await self._store.write(delete)

    async def _select(self, where: str, parameters: tuple[object, ...]) -> list[QuestionRecord]:
        def select(connection: sqlite3.Connection) -> list[QuestionRecord]:
            rows = connection.execute(f"SELECT {_COLUMNS} FROM questions {where}", parameters)
            return [_record(row) for row in rows]

        return await self._store.read(select)


def _count(connection: sqlite3.Connection, principal: str, now: float) -> int:
    found: tuple[int] = connection.execute(
        "SELECT count(*) FROM questions WHERE principal = ? AND answer IS NULL AND expires_at > ?",
        (principal, now),
    ).fetchone()
    return found[0]


def _record(row: tuple[Any, ...]) -> QuestionRecord:
    id, run, principal, question, asked_at, expires_at, process, answer, answered_at = row
    return QuestionRecord(
        id=id,
        run=run,
        principal=principal,
        question=json.loads(question),
        asked_at=asked_at,
        expires_at=expires_at,
        process=process,
        answer=None if answer is None else json.loads(answer),
        answered_at=answered_at,
    )


def _encode(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), default=str)

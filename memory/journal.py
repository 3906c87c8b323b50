"""Run journals: what happened in each run, in order, read back or followed while it happens."""

import json
import sqlite3
import time
from collections.abc import AsyncGenerator, Callable
from dataclasses import fields
from operator import attrgetter
from typing import Any, Final, get_args

import anyio

from guildry.memory.events import Entry, Event
from guildry.memory.store import Store

__all__ = ["Journal"]

_PAGE: Final = 500
_LOOK_S: Final = 1.0
_ROWS_AT_ONCE: Final = (128, 16)
_COLUMNS: Final = "INSERT INTO entries (run, seq, at, kind, agent, data) VALUES "
_INSERT_ONE: Final = f"{_COLUMNS}(?, ?, ?, ?, ?, ?)"
_INSERT_NEXT: Final = (
    _COLUMNS
    + "(?1, (SELECT coalesce(max(seq), 0) + 1 FROM entries WHERE run = ?1), ?2, ?3, ?4, ?5)"
)
_FORGET: Final = """
    DELETE FROM entries WHERE run = :run AND seq < coalesce(
        (SELECT seq FROM entries WHERE run = :run AND at >= :before ORDER BY seq LIMIT 1),
        (SELECT max(seq) FROM entries WHERE run = :run))
"""
_ENDLESS: Final = """
    WITH RECURSIVE journals (run) AS (
        SELECT min(run) FROM entries
        UNION ALL
        SELECT (SELECT min(run) FROM entries WHERE run > journals.run)
            FROM journals WHERE run IS NOT NULL)
    SELECT run FROM journals WHERE run IS NOT NULL AND run NOT IN (SELECT id FROM runs)
"""
_INSERT_SEVERAL: Final = {
    count: _COLUMNS + ", ".join(["(?, ?, ?, ?, ?, ?)"] * count) for count in _ROWS_AT_ONCE
}

_encode = json.JSONEncoder(separators=(",", ":"), default=str).encode

_Row = tuple[str, float, str, str, str]


class Journal:
    """Keep the events of runs, in the order in which they were appended.

    Args:
        store: where they are kept.
        clock: seconds since the epoch.
        clean: takes what nobody may read out of an event's JSON, which stays JSON.
    """

    def __init__(
        self,
        store: Store,
        clock: Callable[[], float] = time.time,
        *,
        clean: Callable[[str], str] | None = None,
    ) -> None:
        self._store = store
        self._clock = clock
        self._clean = clean
        self._tails: dict[str, _Tail] = {}

    def append(self, run: str, event: Event) -> None:
        """Add an event to a run's journal, without waiting for it to be written.

        The event is turned into text at once, so what it holds may change afterwards.

        Raises:
            StoreError: too much waits to be written already.
        """
        try:
            text = _encode(_said(event))
        except (TypeError, ValueError, RecursionError):  # a run must not fail for its journal
            text = _encode({"unreadable": repr(event)[:4_000]})
        if self._clean is not None:
            text = self._clean(text)
        self._store.post_row(_insert, (run, self._clock(), event.kind, event.agent, text))
        if self._tails:
            tail = self._tails.get(run)
            if tail is not None:
                tail.wake()

    async def read(self, run: str, *, after: int = 0, limit: int | None = None) -> list[Entry]:
        """Return the entries of a run from `after` on (its own number not included), in order.

        Raises:
            StoreError: the database refuses what was appended, or cannot be read.
        """
        await self._store.flush()
        return await self._committed(run, after, -1 if limit is None else limit)

    async def follow(self, run: str, *, after: int = 0) -> AsyncGenerator[Entry, None]:
        """Yield the entries of a run, those to come included, until the run itself stops.

        What a slow follower has not taken stays in the database and nowhere else. Whoever leaves
        early closes the generator (`contextlib.aclosing`).
        """
        tail = self._tails.setdefault(run, _Tail())
        tail.followers += 1
        try:
            while True:
                grown = tail.grown
                await self._store.flush(urgent=False)
                entries = await self._committed(run, after, _PAGE)
                for entry in entries:
                    yield entry
                    after = entry.seq
                    if entry.kind == "stop" and entry.agent == run:
                        return
                if len(entries) < _PAGE:
                    with anyio.move_on_after(_LOOK_S):  # another process may be writing this run
                        await grown.wait()
        finally:
            tail.followers -= 1
            if not tail.followers:
                del self._tails[run]

    async def flush(self) -> None:
        """Return once everything appended so far is committed.

        Raises:
            StoreError: the database refuses.
        """
        await self._store.flush()

    async def forget(self, run: str, *, before: float) -> int:
        """Drop a journal's entries from before a time (seconds since the epoch), less its last one.

        For the calls of a principal outside any run, whose journal has no end. Returns how many.

        Raises:
            StoreError: the database refuses.
        """

        def delete(connection: sqlite3.Connection) -> int:
            return connection.execute(_FORGET, {"run": run, "before": before}).rowcount

        return await self._store.write(delete)

    async def endless(self) -> list[str]:
        """Return the journals of no run: of each principal that called something outside any.

        Raises:
            StoreError: the database refuses.
        """
        return await self._store.read(
            lambda connection: [row[0] for row in connection.execute(_ENDLESS)]
        )

    async def _committed(self, run: str, after: int, limit: int) -> list[Entry]:
        def select(connection: sqlite3.Connection) -> list[Entry]:
            rows = connection.execute(
                "SELECT seq, at, kind, agent, data FROM entries"
                " WHERE run = ? AND seq > ? ORDER BY seq LIMIT ?",
                (run, after, limit),
            )
            return [
                Entry(run, seq, at, kind, agent, json.loads(data))
                for seq, at, kind, agent, data in rows
            ]

        return await self._store.read(select)


class _Tail:
    """Tells the followers of one run that it has grown."""

    def __init__(self) -> None:
        self.followers = 0
        self.grown = anyio.Event()

    def wake(self) -> None:
        self.grown.set()
        self.grown = anyio.Event()


def _insert(connection: sqlite3.Connection, rows: list[_Row]) -> None:
    """Number entries and insert them.

    Numbers are given here, inside the transaction, so that two processes may append to one run.
    Many rows go into one statement, for each statement hands the interpreter's lock to and fro.
    """
    if len(rows) == 1:
        connection.execute(_INSERT_NEXT, rows[0])
        return
    runs = json.dumps(list({row[0] for row in rows}))
    last: dict[str, int] = dict(
        connection.execute(
            "SELECT value, (SELECT coalesce(max(seq), 0) FROM entries WHERE run = value)"
            " FROM json_each(?)",
            (runs,),
        )
    )
    numbered: list[tuple[object, ...]] = []
    for run, at, kind, agent, text in rows:
        last[run] = seq = last[run] + 1
        numbered.append((run, seq, at, kind, agent, text))
    start = 0
    for count, insert in _INSERT_SEVERAL.items():
        while len(numbered) - start >= count:
            several = numbered[start : start + count]
            connection.execute(insert, [value for row in several for value in row])
            start += count
    connection.executemany(_INSERT_ONE, numbered[start:])


_FIELDS: Final = {
    kind: tuple(each.name for each in fields(kind) if each.name != "agent")
    for kind in get_args(Event)
}
_GETTERS: Final = {kind: attrgetter(*names) for kind, names in _FIELDS.items()}


def _said(event: Event) -> dict[str, Any]:
    """Return what an event says, besides its kind and its agent."""
    kind = type(event)
    return dict(zip(_FIELDS[kind], _GETTERS[kind](event), strict=True))

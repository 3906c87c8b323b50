"""The records of runs: what was asked, by whom, how it ended."""

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from guildry.errors import StoreError
from guildry.memory.store import Store, storable

__all__ = ["RunKind", "RunRecord", "RunStatus", "RunStore", "is_running", "this_process"]

RunKind = Literal["team", "delegate"]
RunStatus = Literal["running", "done", "partial", "failed", "cancelled", "interrupted"]

_COLUMNS = "id, kind, team, task, principal, status, started_at, ended_at, report, usage, process"


def this_process() -> str:
    """Return what names this process, as `RunRecord.process` holds it."""
    pid = os.getpid()
    return f"{pid}:{_started(pid)}"


def is_running(process: str) -> bool:
    """Tell whether a process named by `this_process` still runs.

    Where the system tells when a process began, another one with the same number is not taken
    for it.
    """
    number, _, started = process.partition(":")
    if not number.isdigit():
        return False
    try:
        with suppress(PermissionError):  # it is there, and another user's
            os.kill(int(number), 0)
    except (ProcessLookupError, OverflowError):
        return False
    return started == _started(int(number))


def _started(pid: int) -> str:
    """Return when a process began, in the system's own ticks, or nothing where it does not say."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    return stat.rpartition(")")[2].split()[19]


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One run, as it is kept.

    Args:
        id: of the run, such as `r1a2b3c4d5e`.
        kind: a team's run, or an ad-hoc one.
        team: the team's name, or `delegate`.
        task: what was asked.
        principal: who asked.
        started_at: seconds since the epoch.
        ended_at: seconds since the epoch, or None while it runs.
        report: what came back, as JSON.
        usage: what it cost, by name.
        process: the process that runs it, see `this_process`.
    """

    id: str
    kind: RunKind
    team: str
    task: str
    principal: str
    status: RunStatus = "running"
    started_at: float = field(default_factory=time.time)
    ended_at: float | None = None
    report: dict[str, Any] | None = None
    usage: dict[str, Any] = field(default_factory=dict[str, Any])
    process: str = field(default_factory=this_process)


class RunStore:
    """Keep the records of runs."""

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock
        self._listeners: list[Callable[[str], None]] = []

    def listen(self, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call `listener` with the principal of each run that begins or ends here.

        Returns the way to stop it.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def create(self, record: RunRecord) -> None:
        """Enter a run, and return once the entry is committed.

        Raises:
            StoreError: there is a run of that id, or the database refuses.
        """
        row = (
            record.id,
            record.kind,
            record.team,
            storable(record.task),
            record.principal,
            record.status,
            record.started_at,
            record.ended_at,
            None if record.report is None else _encode(record.report),
            _encode(record.usage),
            record.process,
        )

        def insert(connection: sqlite3.Connection) -> bool:
            done = connection.execute(
                f"INSERT OR IGNORE INTO runs ({_COLUMNS}) VALUES (?,?,?,?,?,?,?,?,?,?,?)", row
            )
            return done.rowcount == 1

        if not await self._store.write(insert):
            raise StoreError(f"there is a run `{record.id}` already: give each run its own id")
        self._tell(record.principal)

    async def finish(
        self,
        id: str,
        status: RunStatus,
        report: Mapping[str, Any] | None,
        usage: Mapping[str, Any],
    ) -> None:
        """Enter how a run ended, and return once the entry is committed.

        Raises:
            StoreError: the database refuses.
        """
        row = (
            status,
            self._clock(),
            None if report is None else _encode(dict(report)),
            _encode(dict(usage)),
            id,
        )

        def update(connection: sqlite3.Connection) -> list[tuple[str]]:
            return connection.execute(
                "UPDATE runs SET status = ?, ended_at = ?, report = ?, usage = ? WHERE id = ?"
                " RETURNING principal",
                row,
            ).fetchall()

        for (principal,) in await self._store.write(update):
            self._tell(principal)

    async def get(self, id: str) -> RunRecord | None:
        """Return the record of a run, or None when there is no such run."""
        found = await self._select("WHERE id = ?", (id,))
        return found[0] if found else None

    async def listing(
        self,
        principal: str | None = None,
        limit: int = 20,
        status: RunStatus | None = None,
        *,
        before: str | None = None,
    ) -> list[RunRecord]:
        """Return records, the newest first, of one principal and status where these are given.

        With `before`, the id of a run, only those that began before it.
        """
        return await self._select(
            "WHERE (?1 IS NULL OR principal = ?1) AND (?2 IS NULL OR status = ?2)"
            " AND (?4 IS NULL OR position < (SELECT position FROM runs WHERE id = ?4))"
            " ORDER BY position DESC LIMIT ?3",
            (principal, status, limit, before),
        )

    async def progress(self, ids: Iterable[str]) -> dict[str, tuple[str, int]]:
        """Return the status of runs, and how many entries their journals have.

        Raises:
            StoreError: the database cannot be read, or refused what was appended.
        """
        asked = json.dumps(list(ids))
        await self._store.flush(urgent=False)

        def select(connection: sqlite3.Connection) -> dict[str, tuple[str, int]]:
            rows = connection.execute(
                "SELECT id, status, (SELECT coalesce(max(seq), 0) FROM entries WHERE run = id)"
                " FROM runs WHERE id IN (SELECT value FROM json_each(?))",
                (asked,),
            )
            return {id: (status, entries) for id, status, entries in rows}

        return await self._store.read(select)

    async def interrupt_orphans(self, alive: Callable[[str], bool] = is_running) -> tuple[str, ...]:
        """Mark the running runs of processes that are gone as interrupted; returns their ids.

        Each one's journal gets its last entry, so that whoever follows it comes to an end.

        Args:
            alive: tells whether the process that a record names still runs.
        """
        ended_at = self._clock()
        detail = _encode({"reason": "interrupted", "detail": "the process that ran it is gone"})

        def mark(connection: sqlite3.Connection) -> tuple[str, ...]:
            running = connection.execute(
                "SELECT id, process FROM runs WHERE status = 'running' ORDER BY position"
            ).fetchall()
            gone = tuple(id for id, process in running if not alive(process))
            for id in gone:
                connection.execute(
                    "UPDATE runs SET status = 'interrupted', ended_at = ? WHERE id = ?",
                    (ended_at, id),
                )
                connection.execute(
                    "INSERT INTO entries (run, seq, at, kind, agent, data) SELECT ?1,"
                    " (SELECT coalesce(max(seq), 0) + 1 FROM entries WHERE run = ?1),"
                    " ?2, 'stop', ?1, ?3",
                    (id, ended_at, detail),
                )
            return gone

        return await self._store.write(mark)

    def _tell(self, principal: str) -> None:
        for listener in tuple(self._listeners):
            listener(principal)

    async def _select(self, where: str, parameters: tuple[object, ...]) -> list[RunRecord]:
        def select(connection: sqlite3.Connection) -> list[RunRecord]:
            rows = connection.execute(f"SELECT {_COLUMNS} FROM runs {where}", parameters)
            return [_record(row) for row in rows]

        return await self._store.read(select)


def _record(row: tuple[Any, ...]) -> RunRecord:
    id, kind, team, task, principal, status, started_at, ended_at, report, usage, process = row
    return RunRecord(
        id=id,
        kind=kind,
        team=team,
        task=task,
        principal=principal,
        status=status,
        started_at=started_at,
        ended_at=ended_at,
        report=None if report is None else json.loads(report),
        usage=json.loads(usage),
        process=process,
    )


def _encode(value: Mapping[str, Any]) -> str:
    return json.dumps(value, separators=(",", ":"), default=str)

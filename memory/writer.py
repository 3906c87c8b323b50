"""The one thread that writes to the database. Knows transactions; knows no tables.

Everything that waits is written in one transaction. What is posted may linger for a moment, so
that it shares a commit with what follows; a job that somebody waits for goes at once. When the
whole database refuses (disk full, locked), posted rows are kept and tried again.
"""

import asyncio  # noqa: TID251 - anyio has no future that a foreign thread can settle
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, Final

import structlog

from guildry.errors import StoreError
from guildry.memory.database import open_writer
from guildry.memory.faults import explain, is_fault

__all__ = ["MAX_WAITING", "Job", "Sink", "Writer", "nothing"]

log = structlog.get_logger()

Sink = Callable[[sqlite3.Connection, list[Any]], None]
"""Writes rows, in their order. Runs in the writer's thread, inside a transaction.

Must do nothing but use the connection: it is called again when anything in its transaction fails,
and row by row when it fails itself.
"""

MAX_WAITING: Final = 50_000
"""Posted rows that may wait; one more is refused."""

_MAX_BATCH: Final = 5_000
_GIVE_WAY_ROWS: Final = 2_048
_GIVE_WAY_S: Final = 0.002
_LINGER_S: Final = 0.05
_RETRY_S: Final = 1.0


class Job:
    """A piece of work that somebody waits for."""

    __slots__ = ("error", "future", "result", "sync", "work")

    def __init__(
        self,
        work: Callable[[sqlite3.Connection], Any],
        future: "asyncio.Future[Any]",
        *,
        sync: bool,
    ) -> None:
        self.work = work
        self.future = future
        self.sync = sync
        self.result: Any = None
        self.error: Exception | None = StoreError("the database was closed before this was written")


class Writer:
    """Own the connection that writes, in a thread of its own."""

    def __init__(self, path: Path, *, busy_timeout_s: float, synchronous: str) -> None:
        self.path = path
        self.fault: StoreError | None = None
        self.lost: StoreError | None = None
        self._busy_timeout_s = busy_timeout_s
        self._synchronous = synchronous
        self._loop = asyncio.get_running_loop()
        self._opened = Job(nothing, self._loop.create_future(), sync=False)
        self._closed = Job(nothing, self._loop.create_future(), sync=False)
        self._queue: deque[tuple[Sink, Any] | Job] = deque()
        self._bell: SimpleQueue[None] = SimpleQueue()
        self._rung = False
        self._is_full = False
        self._busy = False
        self._stopping = False
        self._give_way_at = _GIVE_WAY_ROWS
        self._committed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="guildry-writer", daemon=True)

    @property
    def is_idle(self) -> bool:
        """Tell whether everything posted is committed. The order of the two looks matters."""
        return not self._queue and not self._busy

    @property
    def waiting(self) -> int:
        """How much is posted and not yet taken up."""
        return len(self._queue)

    async def start(self) -> None:
        """Open the database in the thread; raises what `open_writer` raises."""
        self._thread.start()
        await self._opened.future

    async def stop(self) -> None:
        """Write what is left, close the database and end the thread."""
        self._stopping = True
        self._bell.put(None)
        await self._closed.future

    def post(self, sink: Sink, row: Any) -> None:
        """Queue a row, without waiting for it. Only from the loop's own thread."""
        queue = self._queue
        if self._stopping or len(queue) >= MAX_WAITING:
            raise self._refusal()
        queue.append((sink, row))
        if not self._rung:
            self._ring_later()
        if len(queue) >= self._give_way_at:
            self._give_way()

    def submit(self, job: Job, *, urgent: bool = True) -> None:
        """Queue a job; its future is settled once the job is committed or has failed.

        Only from the loop's own thread.
        """
        if self._stopping:
            raise self._refusal()
        self._queue.append(job)
        if urgent:
            self._bell.put(None)
        elif not self._rung:
            self._ring_later()

    def _ring_later(self) -> None:
        """Wake the writer in a moment: what comes until then, or urgently, shares the commit."""
        self._rung = True
        self._loop.call_later(_LINGER_S, self._bell.put, None)

    def _give_way(self) -> None:
        """Let the writer run, for at most `_GIVE_WAY_S`.

        A loop that never waits keeps the interpreter's lock, and the writer then does not get to
        run at all: it takes a moment in which this thread does nothing.
        """
        self._give_way_at = len(self._queue) + _GIVE_WAY_ROWS // 4
        if self.fault is None:
            self._committed.clear()
            self._bell.put(None)
            self._committed.wait(_GIVE_WAY_S)

    def _refusal(self) -> StoreError:
        if self._stopping:
            return StoreError(f"the database `{self.path}` is closed: open it again")
        if self.fault is not None:
            return type(self.fault)(str(self.fault))
        return StoreError(
            f"{MAX_WAITING:,} rows wait for the database `{self.path}`: its disk is too slow for"
            " what is written; wait before writing more"
        )

    def _run(self) -> None:
        try:
            connection = open_writer(
                self.path, busy_timeout_s=self._busy_timeout_s, synchronous=self._synchronous
            )
        except Exception as error:  # whatever it is, the opener must hear of it
            self._opened.error = error
            self._tell([self._opened])
            return
        self._opened.error = self._closed.error = None
        self._tell([self._opened])
        try:
            self._serve(connection)
        finally:
            connection.close()
            self._tell([self._closed])

    def _serve(self, connection: sqlite3.Connection) -> None:
        batch: list[tuple[Sink, Any] | Job] = []
        while True:
            if len(batch) < _MAX_BATCH or self.fault is not None:
                self._await_work()
            stopping = self._stopping
            self._busy = True
            batch = self._drain()
            if batch:
                self._commit(connection, batch)
            self._busy = False
            self._give_way_at = max(len(self._queue), _GIVE_WAY_ROWS)
            self._committed.set()
            if stopping and (not self._queue or self.fault is not None):
                self._give_up()
                return

    def _await_work(self) -> None:
        """Wait for the bell."""
        with suppress(Empty):
            self._bell.get(timeout=None if self.fault is None else _RETRY_S)
            while True:
                self._bell.get_nowait()
        self._rung = False  # last: whoever rings from here on is heard, or has queued in time

    def _drain(self) -> list[tuple[Sink, Any] | Job]:
        queue = self._queue
        return [queue.popleft() for _ in range(min(len(queue), _MAX_BATCH))]

    def _commit(self, connection: sqlite3.Connection, batch: list[tuple[Sink, Any] | Job]) -> None:
        jobs = [item for item in batch if isinstance(item, Job)]
        try:
            self._force_to_disk(connection, any(job.sync for job in jobs))
            if not self._transact_at_once(connection, batch):
                self._transact(connection, batch)
        except Exception as error:  # whatever it is, the thread that writes for all must go on
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            self._keep([item for item in batch if not isinstance(item, Job)], error)
            for job in jobs:
                job.error = explain(error, self.path)
        else:
            if self.fault is not None:
                self.fault = None
                log.info("store_recovered", path=str(self.path))
        if jobs:
            self._tell(jobs)

    def _keep(self, rows: list[tuple[Sink, Any]], error: Exception) -> None:
        """Put posted rows back to the front: they are tried again."""
        self._queue.extendleft(reversed(rows))
        if self.fault is None:
            log.error("store_write_failed", path=str(self.path), rows=len(rows), error=str(error))
        self.fault = explain(error, self.path)

    def _give_up(self) -> None:
        self._tell([item for item in self._queue if isinstance(item, Job)])
        left = sum(not isinstance(item, Job) for item in self._queue)
        if left and self.fault is not None:
            log.error("store_rows_lost", path=str(self.path), rows=left, error=str(self.fault))
            self.lost = type(self.fault)(f"{left:,} rows were not written: {self.fault}")

    def _force_to_disk(self, connection: sqlite3.Connection, is_full: bool) -> None:
        """Have the next commits wait for the disk itself, or not."""
        if is_full != self._is_full:
            level = "FULL" if is_full else self._synchronous
            connection.execute(f"PRAGMA synchronous = {level}")
            self._is_full = is_full

    def _transact_at_once(
        self, connection: sqlite3.Connection, batch: list[tuple[Sink, Any] | Job]
    ) -> bool:
        """Write a batch in one go; False, with nothing written, when anything in it fails."""
        connection.execute("BEGIN IMMEDIATE")
        try:
            for sink, given in _steps(batch):
                if isinstance(sink, Job):
                    if not sink.future.cancelled():
                        sink.result, sink.error = sink.work(connection), None
                else:
                    sink(connection, given)
        except Exception as error:  # found again, and told to whom it concerns, step by step
            if is_fault(error):
                raise
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            return False
        connection.execute("COMMIT")
        return True

    def _transact(
        self, connection: sqlite3.Connection, batch: list[tuple[Sink, Any] | Job]
    ) -> None:
        """Write a batch step by step, so that what fails in it fails alone."""
        connection.execute("BEGIN IMMEDIATE")
        for sink, given in _steps(batch):
            if isinstance(sink, Job):
                self._work(connection, sink)
            else:
                self._write_rows(connection, sink, given)
        connection.execute("COMMIT")

    def _write_rows(self, connection: sqlite3.Connection, sink: Sink, rows: list[Any]) -> None:
        if self._attempt(connection, sink, rows) is None:
            return
        for row in rows:  # one of them is bad: the others are still written
            error = self._attempt(connection, sink, [row])
            if error is not None:
                log.error("store_row_lost", path=str(self.path), error=repr(error))
                self.lost = StoreError(f"a row for `{self.path}` was refused: {error}")

    def _attempt(
        self, connection: sqlite3.Connection, sink: Sink, rows: list[Any]
    ) -> Exception | None:
        connection.execute("SAVEPOINT step")
        try:
            sink(connection, rows)
        except Exception as error:  # a bad row must not stop the thread that writes for all
            _undo(connection, error)
            return error
        connection.execute("RELEASE step")
        return None

    def _work(self, connection: sqlite3.Connection, job: Job) -> None:
        if job.future.cancelled():
            return
        connection.execute("SAVEPOINT step")
        try:
            job.result = job.work(connection)
        except Exception as error:  # handed to whoever waits for the job
            _undo(connection, error)
            job.error = explain(error, self.path) if isinstance(error, sqlite3.Error) else error
        else:
            job.error = None
            connection.execute("RELEASE step")

    def _tell(self, jobs: list[Job]) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is left to be told
            self._loop.call_soon_threadsafe(_settle, jobs)


def _steps(batch: list[tuple[Sink, Any] | Job]) -> Iterator[tuple[Sink | Job, list[Any]]]:
    """Yield jobs in their order, and before each the rows posted until then, gathered by sink."""
    rows: dict[Sink, list[Any]] = {}
    for item in batch:
        if isinstance(item, Job):
            yield from rows.items()
            rows = {}
            yield item, []
        else:
            rows.setdefault(item[0], []).append(item[1])
    yield from rows.items()


def _undo(connection: sqlite3.Connection, error: Exception) -> None:
    """Take back one step; raises `error` again where the whole transaction is gone."""
    if is_fault(error) or not connection.in_transaction:
        raise error
    connection.execute("ROLLBACK TO step")
    connection.execute("RELEASE step")


def nothing(connection: sqlite3.Connection) -> None:
    """Do no work: only the end of something is waited for."""


def _settle(jobs: list[Job]) -> None:
    for job in jobs:
        if job.future.done():
            continue
        if job.error is None:
            job.future.set_result(job.result)
        else:
            job.future.set_exception(job.error)

"""One SQLite file: written by one thread, read by a few. Knows no tables."""

import asyncio  # noqa: TID251 - anyio has no future that a foreign thread can settle
import shutil
import sqlite3
import tempfile
from collections import deque
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, TypeVar

import anyio
from anyio import CapacityLimiter, to_thread

from guildry.errors import StoreError, StoreLocked
from guildry.memory.database import open_reader
from guildry.memory.faults import explain
from guildry.memory.writer import MAX_WAITING, Job, Sink, Writer, nothing

__all__ = ["MAX_WAITING", "Sink", "Store", "storable"]

T = TypeVar("T")

_READERS: Final = 4
_STEPS_BETWEEN_LOOKS: Final = 100_000


class Store:
    """Keep rows in one SQLite file without ever blocking the event loop.

    `write` waits until its work is committed. `post` does not wait: its rows share a transaction
    with whatever else is queued, in order. Committed means that it survives the end of the
    process; `sync=True` also waits for the disk itself, so that it survives a loss of power.
    """

    def __init__(self, writer: Writer, *, busy_timeout_s: float, wait_s: float) -> None:
        self._writer = writer
        self._busy_timeout_s = busy_timeout_s
        self._wait_s = wait_s
        self._loop = asyncio.get_running_loop()
        self._limiter = CapacityLimiter(_READERS)
        self._idle: deque[sqlite3.Connection] = deque()
        self._is_open = True

    @classmethod
    @asynccontextmanager
    async def open(
        cls, path: Path | None, *, busy_timeout_s: float = 5.0, wait_s: float = 30.0
    ) -> "AsyncGenerator[Store, None]":
        """Open the database at `path`, or a private one that is removed at the end for None.

        Args:
            path: the file; it and its folder are created where they do not exist.
            busy_timeout_s: how long to wait for another process that is writing.
            wait_s: how long a single read or write may take, its time in the queue included.

        Raises:
            StoreLocked: another process holds the database.
            StoreCorrupt: the file is damaged.
            StoreFull: no room is left; also at the end, when posted rows could not be written.
            StoreError: the file is a newer Guildry's or another program's, or cannot be opened.
        """
        private = None
        if path is None:
            private = Path(await to_thread.run_sync(tempfile.mkdtemp, "", "guildry-"))
            path = private / "guildry.db"
        writer = Writer(
            path,
            busy_timeout_s=busy_timeout_s,
            synchronous="NORMAL" if private is None else "OFF",
        )
        try:
            with anyio.CancelScope(shield=True):  # bounded by the time-out for locks
                await writer.start()
            store = cls(writer, busy_timeout_s=busy_timeout_s, wait_s=wait_s)
            try:
                yield store
            finally:
                with anyio.CancelScope(shield=True):
                    await store._close()
        finally:
            if private is not None:
                with anyio.CancelScope(shield=True):
                    await to_thread.run_sync(shutil.rmtree, private, True)
        if writer.lost is not None:
            raise writer.lost

    @property
    def path(self) -> Path:
        """The database file."""
        return self._writer.path

    @property
    def waiting(self) -> int:
        """How many posted rows are queued."""
        return self._writer.waiting

    def post(self, sql: str, parameters: Sequence[object]) -> None:
        """Queue one statement and return at once. Statements keep their order.

        A statement that SQLite refuses is logged and raised by the next `flush` or at the end.
        While the whole database refuses (no room, locked), what is posted is kept and tried again.

        Raises:
            StoreError: `MAX_WAITING` rows wait already, or the store is closed.
        """
        self._writer.post(_execute, (sql, parameters))

    def post_row(self, sink: Sink, row: Any) -> None:
        """Queue a row for `sink` and return at once: like `post`, and cheaper for many rows.

        The rows of one sink keep their order; between two sinks it holds only across a `write`
        or `flush`. All that a sink does for one row happens in one transaction.
        """
        self._writer.post(sink, row)

    async def write(self, work: Callable[[sqlite3.Connection], T], *, sync: bool = False) -> T:
        """Run `work` in the writer's thread, in a transaction, and return once it is committed.

        What was posted before is committed with it or earlier. What `work` raises is raised here,
        and undoes only what `work` did. Where a waiting task is cancelled, the work may still run.

        Args:
            work: uses the connection, and begins and ends no transaction.
            sync: wait for the disk, so that the change outlives a loss of power.

        Raises:
            StoreError: the database refused (`StoreFull`, `StoreLocked`, `StoreCorrupt`).
        """
        job = Job(work, self._loop.create_future(), sync=sync)
        self._writer.submit(job)
        result: T = await self._settled(job)
        return result

    async def flush(self, *, urgent: bool = True) -> None:
        """Return once everything posted so far is committed.

        Args:
            urgent: ask for the commit; otherwise wait for the next one that comes by itself.

        Raises:
            StoreError: the database refuses, or refused a row since the last flush.
        """
        if not self._writer.is_idle:
            job = Job(nothing, self._loop.create_future(), sync=False)
            self._writer.submit(job, urgent=urgent)
            await self._settled(job)
        lost, self._writer.lost = self._writer.lost, None
        if lost is not None:
            raise lost

    async def read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run `work` in a worker thread, on a connection that can only read.

        It sees what was committed when it began: `flush` first to see what was posted.

        Raises:
            StoreError: the database cannot be read, or took too long.
        """
        reading = _Reading(self, work)
        try:
            with anyio.move_on_after(self._wait_s):
                return await to_thread.run_sync(
                    reading.run, abandon_on_cancel=True, limiter=self._limiter
                )
        except sqlite3.Error as error:
            raise explain(error, self.path) from error
        finally:
            reading.abandon()
        raise StoreError(
            f"reading `{self.path}` took longer than {self._wait_s:g} s and was stopped: ask for"
            " less at once"
        )

    async def _settled(self, job: Job) -> Any:
        limit = self._loop.call_later(self._wait_s, self._expire, job)  # a scope would cost tenfold
        try:
            return await job.future
        finally:
            limit.cancel()

    def _expire(self, job: Job) -> None:
        if not job.future.done():
            job.future.set_exception(
                StoreLocked(
                    f"the database `{self.path}` did not take a write within"
                    f" {self._wait_s:g} s: check its disk, and end other processes that"
                    " use it"
                )
            )

    async def _close(self) -> None:
        self._is_open = False
        await to_thread.run_sync(self._close_readers)
        await self._writer.stop()

    def _close_readers(self) -> None:
        while self._idle:
            self._idle.pop().close()

    def take_reader(self) -> sqlite3.Connection:
        """Lend a read connection to the calling thread."""
        if not self._is_open:
            raise StoreError(f"the database `{self.path}` is closed: open it again")
        try:
            return self._idle.pop()
        except IndexError:
            return open_reader(self.path, busy_timeout_s=self._busy_timeout_s)

    def give_reader(self, connection: sqlite3.Connection) -> None:
        """Take a read connection back."""
        if self._is_open:
            self._idle.append(connection)
        else:
            connection.close()


def storable(text: str) -> str:
    """Return `text` as SQLite can keep it: a lone surrogate, which is no UTF-8, is spelled out."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


class _Reading:
    """One read, which stops soon after nobody waits for it any longer."""

    def __init__(self, store: Store, work: Callable[[sqlite3.Connection], Any]) -> None:
        self._store = store
        self._work = work
        self._is_over = False

    def run(self) -> Any:
        connection = self._store.take_reader()
        try:
            # `interrupt` would miss a query that is just about to start.
            connection.set_progress_handler(lambda: self._is_over, _STEPS_BETWEEN_LOOKS)
            return self._work(connection)
        finally:
            self._store.give_reader(connection)

    def abandon(self) -> None:
        self._is_over = True


def _execute(connection: sqlite3.Connection, rows: list[tuple[str, Sequence[Any]]]) -> None:
    for sql, parameters in rows:
        connection.execute(sql, parameters)

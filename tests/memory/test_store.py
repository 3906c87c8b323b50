"""The store as its users see it: order, durability, limits. What goes wrong is in another file."""

import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import anyio
import pytest
from anyio import from_thread, to_thread
from structlog.testing import capture_logs

from guildry.errors import StoreError, StoreLocked
from guildry.memory.events import Messaged
from guildry.memory.journal import Journal
from guildry.memory.store import MAX_WAITING, Store, storable

INSERT = "INSERT INTO sources (name, source, options) VALUES (?, ?, '{}')"
ENDLESS = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"


def names(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("SELECT name FROM sources ORDER BY position")
    return [row[0] for row in rows]


def add(connection: sqlite3.Connection, name: str) -> None:
    connection.execute(INSERT, (name, ""))


async def test_what_is_posted_and_written_keeps_its_order_and_outlives_the_store(
    tmp_path: Path,
) -> None:
    path = tmp_path / "deep" / "guildry.db"
    with anyio.fail_after(10):
        async with Store.open(path) as store:
            store.post(INSERT, ("first", ""))
            seen = await store.write(names)
            store.post(INSERT, ("second", ""))
            store.post(INSERT, ("third", ""))

        async with Store.open(path) as store:
            kept = await store.read(names)

    assert (seen, kept) == (["first"], ["first", "second", "third"])


async def test_a_flush_returns_when_everything_posted_can_be_read() -> None:
    with anyio.fail_after(10):
        async with Store.open(None) as store:
            for number in range(6_000):
                store.post(INSERT, (f"n{number}", ""))
            await store.flush()

            assert await store.read(names) == [f"n{number}" for number in range(6_000)]
            assert store.waiting == 0


async def test_a_flush_that_is_not_urgent_waits_for_the_commit_that_comes_anyway() -> None:
    with anyio.fail_after(10):
        async with Store.open(None) as store:
            store.post(INSERT, ("posted", ""))
            await store.flush(urgent=False)

            assert await store.read(names) == ["posted"]


async def test_everything_that_waits_is_committed_in_one_transaction(tmp_path: Path) -> None:
    """A transaction writes each page that it changes to the log once, however many rows it has."""
    path = tmp_path / "guildry.db"
    frames = 0
    gate, entered = threading.Event(), anyio.Event()

    def hold(_: sqlite3.Connection) -> None:
        from_thread.run_sync(entered.set, token=token)
        assert gate.wait(10)

    with anyio.fail_after(20):
        async with Store.open(path) as store, anyio.create_task_group() as tasks:
            await store.write(lambda writer: writer.execute("PRAGMA wal_autocheckpoint = 0"))
            token = anyio.lowlevel.current_token()
            tasks.start_soon(store.write, hold)
            await entered.wait()
            for number in range(1_000):
                store.post(INSERT, (f"n{number}", ""))
            gate.set()
            await store.flush()

            frames = await to_thread.run_sync(frames_in_log, path)

    assert frames < 200  # a transaction each would have written two pages and more each


def frames_in_log(path: Path) -> int:
    return (path.with_name(f"{path.name}-wal").stat().st_size - 32) // (4_096 + 24)


async def test_work_that_raises_undoes_only_itself() -> None:
    def fail(connection: sqlite3.Connection) -> None:
        add(connection, "undone")
        raise ValueError("no")

    with anyio.fail_after(10):
        async with Store.open(None) as store:
            store.post(INSERT, ("before", ""))
            with pytest.raises(ValueError, match="no"):
                await store.write(fail)
            await store.write(lambda connection: add(connection, "after"))

            assert await store.read(names) == ["before", "after"]


async def test_a_posted_row_that_is_refused_is_told_once_and_takes_no_other_with_it(
    tmp_path: Path,
) -> None:
    with anyio.fail_after(10), capture_logs() as logs:
        async with Store.open(tmp_path / "guildry.db") as store:
            for name in ("one", "one", "two"):
                store.post(INSERT, (name, ""))
            with pytest.raises(StoreError, match=r"guildry\.db` was refused: UNIQUE"):
                await store.flush()
            await store.flush()

            assert await store.read(names) == ["one", "two"]
    assert [each["event"] for each in logs] == ["store_row_lost"]


async def test_a_row_that_is_refused_and_never_asked_about_is_told_at_the_end() -> None:
    with anyio.fail_after(10), capture_logs():
        with pytest.raises(StoreError, match="UNIQUE"):
            async with Store.open(None) as store:
                store.post(INSERT, ("one", ""))
                store.post(INSERT, ("one", ""))


async def test_rows_of_one_sink_come_to_it_together_and_in_order() -> None:
    given: list[list[int]] = []

    def sink(_: sqlite3.Connection, rows: list[int]) -> None:
        given.append(rows)

    with anyio.fail_after(10):
        async with Store.open(None) as store:
            for number in range(3):
                store.post_row(sink, number)
                store.post(INSERT, (f"n{number}", ""))
            await store.flush()

    assert given == [[0, 1, 2]]


async def test_a_cancelled_write_stops_waiting_and_the_store_goes_on() -> None:
    gate, entered = threading.Event(), anyio.Event()

    def hold(_: sqlite3.Connection) -> None:
        from_thread.run_sync(entered.set, token=token)
        assert gate.wait(10)

    async def cancelled() -> None:
        with scope:
            await store.write(lambda connection: add(connection, "cancelled"))

    with anyio.fail_after(20):
        async with Store.open(None) as store, anyio.create_task_group() as tasks:
            token, scope = anyio.lowlevel.current_token(), anyio.CancelScope()
            tasks.start_soon(store.write, hold)
            await entered.wait()
            tasks.start_soon(cancelled)
            await anyio.wait_all_tasks_blocked()
            scope.cancel()
            await anyio.wait_all_tasks_blocked()
            gate.set()
            await store.write(lambda connection: add(connection, "next"))

            assert await store.read(names) == ["next"]


async def test_a_cancelled_read_stops_its_query() -> None:
    started, stopped = anyio.Event(), threading.Event()

    def endless(connection: sqlite3.Connection) -> None:
        from_thread.run_sync(started.set, token=token)
        try:
            connection.execute(ENDLESS).fetchall()
        except sqlite3.OperationalError:
            stopped.set()
            raise

    with anyio.fail_after(20):
        async with Store.open(None) as store:
            token = anyio.lowlevel.current_token()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(store.read, endless)
                await started.wait()
                tasks.cancel_scope.cancel()

            assert await to_thread.run_sync(stopped.wait, 10)
            assert await store.read(names) == []


async def test_a_read_that_takes_too_long_is_stopped_and_told() -> None:
    with anyio.fail_after(20):
        async with Store.open(None, wait_s=0.1) as store:
            with pytest.raises(StoreError, match=r"took longer than 0\.1 s"):
                await store.read(lambda connection: connection.execute(ENDLESS).fetchall())


async def test_a_write_that_takes_too_long_is_told() -> None:
    gate = threading.Event()
    with anyio.fail_after(20):
        async with Store.open(None, wait_s=0.1) as store:
            with pytest.raises(StoreLocked, match=r"did not take a write within 0\.1 s"):
                await store.write(lambda _: gate.wait(10))
            gate.set()


async def test_too_many_posted_rows_are_refused_and_the_rest_are_written() -> None:
    gate, entered = threading.Event(), anyio.Event()

    def hold(_: sqlite3.Connection) -> None:
        from_thread.run_sync(entered.set, token=token)
        assert gate.wait(30)

    def count(_: sqlite3.Connection, rows: list[int]) -> None:
        written.extend(rows)

    written: list[int] = []
    with anyio.fail_after(60):
        async with Store.open(None) as store, anyio.create_task_group() as tasks:
            token = anyio.lowlevel.current_token()
            tasks.start_soon(store.write, hold)
            await entered.wait()
            for number in range(MAX_WAITING):
                store.post_row(count, number)
            with pytest.raises(StoreError, match="50,000 rows wait"):
                store.post_row(count, MAX_WAITING)
            gate.set()

    assert written == list(range(MAX_WAITING))


async def test_a_loop_that_never_waits_lets_the_writer_run() -> None:
    """Without it, a busy loop would keep the interpreter's lock until the queue is full."""
    most = 0
    with anyio.fail_after(60):
        async with Store.open(None) as store:
            journal = Journal(store)
            for number in range(30_000):
                journal.append("run", Messaged("a", "b", "n", number))
                most = max(most, store.waiting)
                if number % 20 == 0:
                    await anyio.lowlevel.checkpoint()

            assert len(await journal.read("run")) == 30_000
    assert most < 20_000


async def test_readers_cannot_write() -> None:
    with anyio.fail_after(10):
        async with Store.open(None) as store:
            with pytest.raises(StoreError, match="make the file and its folder writable"):
                await store.read(lambda connection: add(connection, "one"))


async def test_many_reads_run_at_once() -> None:
    """Each read waits for the other: they end only if they overlap."""
    meeting = threading.Barrier(2)

    def meet(_: sqlite3.Connection) -> int:
        return meeting.wait(10)

    with anyio.fail_after(20):
        async with Store.open(None) as store, anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(store.read, meet)


async def test_a_closed_store_says_so() -> None:
    with anyio.fail_after(10):
        async with Store.open(None) as store:
            await store.read(names)
        for attempt in (store.write, store.read):
            with pytest.raises(StoreError, match="is closed: open it again"):
                await attempt(names)
        with pytest.raises(StoreError, match="is closed: open it again"):
            store.post(INSERT, ("late", ""))


async def test_a_private_store_leaves_nothing_behind() -> None:
    with anyio.fail_after(10):
        async with Store.open(None) as store:
            await store.flush()
            folder = store.path.parent
            was_there = await anyio.Path(folder).exists()

        assert was_there and not await anyio.Path(folder).exists()


async def test_an_error_inside_is_not_hidden_by_one_at_the_end() -> None:
    with anyio.fail_after(10), capture_logs():
        with pytest.raises(KeyError):
            async with Store.open(None) as store:
                store.post(INSERT, ("one", ""))
                store.post(INSERT, ("one", ""))
                raise KeyError


def test_opening_a_database_that_is_up_to_date_imports_no_sqlite_utils(tmp_path: Path) -> None:
    code = (
        "import anyio, sys; from pathlib import Path; from guildry.memory.store import Store\n"
        "async def main():\n"
        "    async with Store.open(Path(sys.argv[1])) as store: await store.flush()\n"
        "anyio.run(main); print('sqlite_utils' in sys.modules)"
    )
    outputs = [
        subprocess.run(
            [sys.executable, "-c", code, str(tmp_path / "guildry.db")],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()
        for _ in range(2)
    ]

    assert outputs == ["True", "False"]


@pytest.mark.parametrize(
    ("text", "kept"), [("plain", "plain"), ("süß", "süß"), ("a\ud800b", "a\\ud800b")]
)
def test_text_is_made_storable(text: str, kept: str) -> None:
    assert storable(text) == kept

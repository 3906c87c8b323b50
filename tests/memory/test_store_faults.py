"""What goes wrong with a database, with the real thing: full disks, locks, damage, kills."""

import errno
import re
import select
import sqlite3
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager, suppress
from itertools import count
from pathlib import Path

import anyio
import pytest
from anyio import to_thread
from structlog.testing import capture_logs

from guildry.errors import StoreCorrupt, StoreError, StoreFull, StoreLocked
from guildry.memory.database import APPLICATION
from guildry.memory.events import Messaged
from guildry.memory.faults import explain, explain_os
from guildry.memory.journal import Journal
from guildry.memory.objects import ObjectStore
from guildry.memory.store import Store

INSERT = "INSERT INTO sources (name, source, options) VALUES (?, ?, '{}')"

HOLD = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN EXCLUSIVE")
connection.execute("CREATE TABLE IF NOT EXISTS held (x)")
print("held", flush=True)
sys.stdin.read()
"""

WRITE = """
import anyio, sys
from pathlib import Path
from guildry.memory.events import Messaged
from guildry.memory.journal import Journal
from guildry.memory.objects import ObjectStore
from guildry.memory.store import Store

async def main():
    home = Path(sys.argv[1])
    async with Store.open(home / "guildry.db") as store:
        objects = ObjectStore(store, home / "objects", inline_bytes=1_000)
        journal = Journal(store)
        for n in range(1_000_000):
            journal.append("run", Messaged("a", "b", "n", n))
            size = 300_000 if n % 3 == 0 else 500
            made = await objects.put(f"{n} ".encode() * (size // (len(str(n)) + 1)),
                media_type="text/plain", name="n", namespace="run", owner="a")
            if n % 2:
                await store.flush()
                print(n, made.id, made.digest, flush=True)

anyio.run(main)
"""

APPEND = """
import anyio, sys
from pathlib import Path
from guildry.memory.events import Messaged
from guildry.memory.journal import Journal
from guildry.memory.store import Store

async def main():
    async with Store.open(Path(sys.argv[1])) as store:
        journal = Journal(store)
        print("open", flush=True)
        sys.stdin.readline()
        for n in range(500):
            journal.append("second", Messaged("a", "b", "n", n))
            journal.append("both", Messaged("second", "b", "n", n))
            if n % 50 == 0:
                await journal.flush()

anyio.run(main)
"""


@contextmanager
def running(code: str, path: Path) -> Generator["subprocess.Popen[str]", None, None]:
    """Run Python in another process until it is ended here."""
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def told(process: "subprocess.Popen[str]") -> str:
    """Return the next line that a process says, within a minute."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], 60)
    assert ready, "the process said nothing"
    return str(process.stdout.readline())


def names(connection: sqlite3.Connection) -> list[str]:
    rows = connection.execute("SELECT name FROM sources ORDER BY position")
    return [row[0] for row in rows]


async def write_one(path: Path) -> None:
    async with Store.open(path) as store:
        await store.write(lambda connection: add(connection, "kept"))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder on a disk of one megabyte."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip("only root can mount a small disk")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


async def test_a_full_disk_keeps_what_was_posted_until_there_is_room(small_disk: Path) -> None:
    rows = [f"{number:04} {'x' * 1_000}" for number in range(100)]
    ballast = small_disk / "ballast"
    with anyio.fail_after(30), capture_logs() as logs:
        async with Store.open(small_disk / "guildry.db") as store:
            await store.write(lambda connection: add(connection, "before"))
            await to_thread.run_sync(fill, ballast)
            for row in rows:
                store.post(INSERT, (row, ""))
            with pytest.raises(StoreFull, match=r"no room left to write .*guildry\.db.*free some"):
                await store.flush()
            with pytest.raises(StoreFull):
                await store.write(lambda connection: add(connection, "refused"))
            while_full = await store.read(names)
            await anyio.Path(ballast).unlink()
            await store.flush()

            assert while_full == ["before"]
            assert await store.read(names) == ["before", *rows]
    assert [each["event"] for each in logs] == ["store_write_failed", "store_recovered"]


async def test_a_disk_without_any_room_is_told_when_the_store_is_opened(small_disk: Path) -> None:
    fill(small_disk / "ballast")
    with anyio.fail_after(30), pytest.raises(StoreFull, match="no room left"):
        async with Store.open(small_disk / "guildry.db"):
            pass


async def test_rows_for_which_there_was_no_room_are_counted_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "guildry.db"
    with anyio.fail_after(30), capture_logs() as logs:
        with pytest.raises(StoreFull, match=r"^500 rows were not written: .*guildry\.db"):
            async with Store.open(path) as store:
                await store.write(lambda connection: limit_pages(connection, 60))
                for number in range(500):
                    store.post(INSERT, (f"{number} {'x' * 1_000}", ""))
                with pytest.raises(StoreFull):
                    await store.flush()
    assert logs[-1]["event"] == "store_rows_lost"


async def test_rows_beyond_the_bound_are_refused_with_the_reason_why_none_are_written(
    tmp_path: Path,
) -> None:
    with anyio.fail_after(60), capture_logs(), pytest.raises(StoreFull, match="were not written"):
        async with Store.open(tmp_path / "guildry.db") as store:
            await store.write(lambda connection: limit_pages(connection, 60))
            store.post(INSERT, ("x" * 1_000_000, ""))
            with pytest.raises(StoreFull):
                await store.flush()
            with pytest.raises(StoreFull, match="no room left"):
                for number in count():
                    store.post(INSERT, (f"{number}", ""))


async def test_a_lock_held_too_long_is_told_and_what_was_posted_is_written_afterwards(
    tmp_path: Path,
) -> None:
    path = tmp_path / "guildry.db"
    await write_one(path)
    with anyio.fail_after(60), capture_logs():
        async with Store.open(path, busy_timeout_s=0.2) as store:
            with running(HOLD, path) as process:
                assert await to_thread.run_sync(told, process) == "held\n"
                store.post(INSERT, ("posted", ""))
                with pytest.raises(StoreLocked, match=r"guildry\.db` is locked by another process"):
                    await store.write(lambda connection: add(connection, "refused"))
                while_locked = await store.read(names)
            await store.flush()

            assert while_locked == ["kept"]
            assert await store.read(names) == ["kept", "posted"]


async def test_the_loop_runs_on_while_the_writer_waits_for_a_lock(tmp_path: Path) -> None:
    path = tmp_path / "guildry.db"
    await write_one(path)
    seen: list[str] = []
    with anyio.fail_after(60):
        async with Store.open(path, busy_timeout_s=30) as store, anyio.create_task_group() as tasks:
            with running(HOLD, path) as process:
                assert await to_thread.run_sync(told, process) == "held\n"
                tasks.start_soon(store.write, add_late)
                for _ in range(20):
                    await anyio.lowlevel.checkpoint()
                    seen = await store.read(names)
            await store.flush()

            assert (seen, await store.read(names)) == (["kept"], ["kept", "late"])


async def test_a_locked_database_that_is_new_cannot_be_opened(tmp_path: Path) -> None:
    path = tmp_path / "guildry.db"
    with anyio.fail_after(60), running(HOLD, path) as process:
        assert await to_thread.run_sync(told, process) == "held\n"
        with pytest.raises(StoreLocked, match=r"guildry\.db` is locked by another process: end"):
            async with Store.open(path, busy_timeout_s=0.2):
                pass


@pytest.mark.parametrize("damage", ["garbage", "cut"])
async def test_a_damaged_file_is_told_and_not_touched(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "guildry.db"
    await write_one(path)
    whole = path.read_bytes()
    broken = b"not a database " * 1_000 if damage == "garbage" else whole[: len(whole) // 2]
    path.write_bytes(broken)

    with anyio.fail_after(30), pytest.raises(StoreCorrupt) as caught:
        async with Store.open(path) as store:
            await store.read(names)

    assert f"`{path}` is not a readable database" in str(caught.value)
    assert "move it aside" in str(caught.value)
    assert path.read_bytes() == broken


async def test_damage_inside_a_database_is_told_when_it_is_met(tmp_path: Path) -> None:
    path = tmp_path / "guildry.db"
    with anyio.fail_after(30), capture_logs():
        async with Store.open(path) as store:
            for number in range(2_000):
                store.post(INSERT, (f"{number} {'x' * 200}", ""))
        whole = path.read_bytes()
        path.write_bytes(whole[:200_000] + b"\xff" * (len(whole) - 200_000))

        async with Store.open(path) as store:
            with pytest.raises(StoreCorrupt, match="move it aside"):
                await store.read(names)
            with pytest.raises(StoreCorrupt, match="move it aside"):
                await store.write(lambda connection: connection.execute("DELETE FROM sources"))


async def test_a_database_of_a_newer_guildry_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "guildry.db"
    await write_one(path)
    await to_thread.run_sync(run_sql, path, "PRAGMA user_version = 99")

    with anyio.fail_after(30), pytest.raises(StoreError, match=r"newer Guildry \(schema 99, this"):
        async with Store.open(path):
            pass


async def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    await to_thread.run_sync(run_sql, path, "CREATE TABLE theirs (x)")

    with anyio.fail_after(30), pytest.raises(StoreError, match="database of another program"):
        async with Store.open(path):
            pass


async def test_a_place_that_keeps_no_log_is_refused() -> None:
    with anyio.fail_after(30), pytest.raises(StoreError, match="move the folder to a local disk"):
        async with Store.open(Path(":memory:")):
            pass


async def test_a_folder_that_cannot_be_made_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with anyio.fail_after(30):
        with pytest.raises(StoreError, match=r"file` cannot be used \(File exists\)"):
            async with Store.open(tmp_path / "file" / "guildry.db"):
                pass
        with pytest.raises(StoreError, match="cannot be opened: check that its folder exists"):
            async with Store.open(tmp_path):
                pass


async def test_a_migration_that_fails_leaves_the_database_as_it_was(tmp_path: Path) -> None:
    """A table is in the way of the schema, in a database that says it is ours."""
    path = tmp_path / "guildry.db"
    ours = f"PRAGMA application_id = {APPLICATION}"
    await to_thread.run_sync(run_sql, path, ours, "CREATE TABLE sources (x)")

    with anyio.fail_after(30), pytest.raises(StoreError, match="table sources already exists"):
        async with Store.open(path):
            pass
    tables = await to_thread.run_sync(run_sql, path, "SELECT name FROM sqlite_schema")
    version = await to_thread.run_sync(run_sql, path, "PRAGMA user_version")

    assert (tables, version) == ([("sources",)], [(0,)])


async def test_a_process_that_is_killed_loses_nothing_that_was_flushed(tmp_path: Path) -> None:
    with anyio.fail_after(120):
        with running(WRITE, tmp_path) as process:
            lines = [await to_thread.run_sync(told, process) for _ in range(40)]

        flushed = [line.split() for line in lines]
        async with Store.open(tmp_path / "guildry.db") as store:
            objects = ObjectStore(store, tmp_path / "objects")
            entries = await Journal(store).read("run")
            kept = {each.id: each for each in await objects.listing(limit=100_000)}
            contents = {id: await objects.read(each) for id, each in kept.items()}

    assert len(flushed) == 40
    assert {id: kept[id].digest for _, id, _ in flushed} == {id: d for _, id, d in flushed}
    assert all(len(contents[id]) == each.size for id, each in kept.items())
    last = int(flushed[-1][0])
    assert [each.data["body"] for each in entries[: last + 1]] == list(range(last + 1))
    assert [each.seq for each in entries] == list(range(1, len(entries) + 1))


async def test_two_processes_write_to_one_home(tmp_path: Path) -> None:
    path = tmp_path / "guildry.db"
    with anyio.fail_after(120):
        async with Store.open(path) as store:
            journal = Journal(store)
            with running(APPEND, path) as process:
                assert await to_thread.run_sync(told, process) == "open\n"
                assert process.stdin is not None
                process.stdin.write("go\n")
                process.stdin.flush()
                for number in range(500):
                    journal.append("first", Messaged("a", "b", "n", number))
                    journal.append("both", Messaged("first", "b", "n", number))
                    if number % 50 == 0:
                        await journal.flush()
                await to_thread.run_sync(process.wait, 60)
            first, second = await journal.read("first"), await journal.read("second")
            both = await journal.read("both")

    assert [each.data["body"] for each in first] == list(range(500))
    assert [each.data["body"] for each in second] == list(range(500))
    assert [each.seq for each in both] == list(range(1, 1_001))
    for agent in ("first", "second"):
        bodies = [each.data["body"] for each in both if each.agent == agent]
        assert bodies == list(range(500))


@pytest.mark.parametrize(
    ("error", "told_as"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "no room left to write"),
        (OSError(errno.EACCES, "Permission denied"), r"cannot be used \(Permission denied\)"),
    ],
)
def test_an_error_of_the_file_system_names_the_file_and_the_cure(
    error: OSError, told_as: str
) -> None:
    path = Path("/home/guildry.db")

    assert re.search(f"{told_as}.*(free some space|check the folder)", str(explain_os(error, path)))


def test_a_disk_that_cannot_be_looked_at_is_not_taken_for_full(tmp_path: Path) -> None:
    """`PRAGMA` of a folder fails with an I/O error, whose cause SQLite does not tell."""
    error = sqlite3.OperationalError("disk I/O error")
    error.sqlite_errorcode = sqlite3.SQLITE_IOERR

    told_as = explain(error, tmp_path / "gone" / "guildry.db")

    assert type(told_as) is StoreError
    assert "disk I/O error" in str(told_as)


def add(connection: sqlite3.Connection, name: str) -> None:
    connection.execute(INSERT, (name, ""))


def add_late(connection: sqlite3.Connection) -> None:
    add(connection, "late")


def run_sql(path: Path, *statements: str) -> list[tuple[object, ...]]:
    """Run statements as another program would, and return the rows of the last."""
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        return [connection.execute(each).fetchall() for each in statements][-1]


def limit_pages(connection: sqlite3.Connection, pages: int) -> None:
    connection.execute(f"PRAGMA max_page_count = {pages}")


def fill(path: Path) -> None:
    """Fill the disk with a file, to the last page."""
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(b"x" * 4_096):
            pass

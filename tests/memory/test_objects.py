"""The object store as its users see it, on a real database and real files."""

import json
import os
import sqlite3
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import from_thread, to_thread
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from guildry.errors import ReferenceNotFound, StoreCorrupt, StoreError, ToolRetry
from guildry.memory.contents import ContentFolder, digest_of
from guildry.memory.objects import ObjectStore
from guildry.memory.references import Reference, parse_handle
from guildry.memory.store import Store

LARGE = b"line\n" * 50_000
AT: dict[str, Any] = {"namespace": "r1", "owner": "maker"}


class Clock:
    """A clock that is set by hand."""

    now = 1_000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def opened(home: Path, **options: Any) -> AsyncGenerator[tuple[Store, ObjectStore], None]:
    with anyio.fail_after(60):
        async with Store.open(home / "guildry.db") as store:
            yield store, ObjectStore(store, home / "objects", **options)


async def put(objects: ObjectStore, content: bytes, name: str = "x", **more: Any) -> Reference:
    given: dict[str, Any] = {"media_type": "text/plain", "name": name, **AT, **more}
    return await objects.put(content, **given)


async def test_an_object_tells_what_it_is(tmp_path: Path) -> None:
    async with opened(tmp_path, clock=Clock()) as (_, objects):
        made = await objects.put(
            b'{"rows": [1, 2]}',
            media_type="application/json",
            name="list orders!",
            readers=["reader"],
            labels=["untrusted:web"],
            ttl_s=60,
            **AT,
        )

    assert made == Reference(
        id=made.id,
        name="list_orders",
        namespace="r1",
        media_type="application/json",
        size=16,
        digest=digest_of(b'{"rows": [1, 2]}'),
        sketch="{rows: [2 x int]}",
        preview='{"rows":[1,2]}',
        owner="maker",
        created_at=1_000.0,
        readers=frozenset({"reader"}),
        labels=frozenset({"untrusted:web"}),
        expires_at=1_060.0,
    )
    assert len(made.id) == 22
    assert parse_handle(made.uri) is not None


@pytest.mark.parametrize("content", [b"small", b"", LARGE])
async def test_an_object_is_the_same_after_the_store_was_closed(
    tmp_path: Path, content: bytes
) -> None:
    async with opened(tmp_path) as (_, objects):
        made = await put(objects, content, readers=["reader"], labels=["label"], ttl_s=1_000)
        await objects.share([made.id], "child")
        at_once = await objects.by_id(made.id)
    async with opened(tmp_path) as (_, objects):
        by_id, by_name = await objects.by_id(made.id), await objects.by_name("r1", "x")
        assert await objects.read(made) == content
        assert await objects.value(made) == content.decode()

    assert at_once is not None
    assert at_once.readers == {"reader", "child"}
    assert (by_id, by_name) == (at_once, at_once)


async def test_small_contents_are_in_the_database_and_large_ones_are_files(tmp_path: Path) -> None:
    async with opened(tmp_path, inline_bytes=1_000) as (_, objects):
        await put(objects, b"x" * 1_000)
        assert files(tmp_path) == {}
        large = await put(objects, b"x" * 1_001)

    digest = large.digest.removeprefix("sha256:")
    assert files(tmp_path) == {f"sha256/{digest[:2]}/{digest[2:]}": b"x" * 1_001}


def files(home: Path) -> dict[str, bytes]:
    """Return what is in the folder of large contents."""
    folder = home / "objects"
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize("content", [b"the same", LARGE])
async def test_the_same_bytes_are_kept_once(tmp_path: Path, content: bytes) -> None:
    async with opened(tmp_path) as (store, objects):
        first = await put(objects, content)
        second = await put(objects, content, owner="another", media_type="text/csv")
        await store.flush()
        count = await store.read(
            lambda reader: reader.execute("SELECT count(*) FROM contents").fetchone()[0]
        )

    assert first.id != second.id
    assert first.digest == second.digest
    assert (count, len(files(tmp_path))) == (1, content is LARGE)


@settings(max_examples=25)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"", b"a", b"b" * 300, b"\xff" * 300]) | st.binary(max_size=400),
            st.sampled_from(["orders", "orders_2", "ORDERS", "größe", "", "..", "a b", "x" * 99]),
            st.sampled_from(["r1", "r2"]),
        ),
        max_size=20,
    )
)
async def test_what_is_put_is_what_is_read_under_a_name_of_its_own(
    given_objects: list[tuple[bytes, str, str]],
) -> None:
    with anyio.fail_after(60):
        async with Store.open(None) as store:
            folder = store.path.parent / "objects"
            objects = ObjectStore(store, folder, inline_bytes=200, sync=False)
            made = [
                await put(objects, content, name, namespace=namespace)
                for content, name, namespace in given_objects
            ]
            await store.flush()
            for looked in (objects, ObjectStore(store, folder)):
                for reference, (content, _, namespace) in zip(made, given_objects, strict=True):
                    assert await looked.by_name(namespace, reference.name) == reference
                    assert await looked.by_id(reference.id) == reference
                    assert await looked.read(reference) == content
                    assert parse_handle(reference.short) is not None
            kept = await store.read(
                lambda reader: reader.execute("SELECT digest FROM contents").fetchall()
            )

    assert len({(each.namespace, each.name) for each in made}) == len(made)
    assert len({each.id for each in made}) == len(made)
    assert sorted(digest for (digest,) in kept) == sorted({each.digest for each in made})


async def test_taken_names_are_numbered_also_after_the_store_was_closed(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, objects):
        names = [(await put(objects, b"1", "rows")).name for _ in range(3)]
    async with opened(tmp_path) as (_, objects):
        names += [(await put(objects, b"1", name)).name for name in ("rows", "rows_2", "rows")]

    assert names == ["rows", "rows_2", "rows_3", "rows_4", "rows_2_2", "rows_5"]


async def test_names_made_at_the_same_time_differ(tmp_path: Path) -> None:
    names: list[str] = []

    async def make(content: bytes) -> None:
        names.append((await put(objects, content, "n")).name)

    async with opened(tmp_path) as (_, objects):
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(make, f"{number}".encode() * (20_000 if number % 2 else 1))

    assert len(set(names)) == 20


@pytest.mark.parametrize(
    "looked_for", ["unknown", "", "ref:x", "x" * 200, "'; DROP TABLE objects; --", "\x00", "\ud800"]
)
async def test_what_is_unknown_is_none(tmp_path: Path, looked_for: str) -> None:
    async with opened(tmp_path) as (_, objects):
        await put(objects, b"here")

        assert await objects.by_id(looked_for) is None
        assert await objects.by_name("r1", looked_for) is None
        assert await objects.by_name(looked_for, "x") is None


async def test_what_has_expired_looks_like_what_is_unknown(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, clock=clock) as (store, objects):
        made = await put(objects, b"soon gone", ttl_s=10)
        clock.now += 10
        for looked in (objects, ObjectStore(store, tmp_path / "objects", clock=clock)):
            assert await looked.by_id(made.id) is None
            assert await looked.by_name("r1", made.name) is None
            assert await looked.listing() == []
            for read in (looked.read, looked.value):
                with pytest.raises(ReferenceNotFound, match="there is no reference 'ref:x' here"):
                    await read(made)


async def test_expired_objects_go_and_with_them_what_no_other_needs(tmp_path: Path) -> None:
    clock = Clock()
    async with opened(tmp_path, clock=clock, inline_bytes=1_000) as (store, objects):
        kept = [await put(objects, LARGE), await put(objects, b"small")]
        for content in (LARGE, LARGE + b"gone", b"small", b"gone"):
            gone = await put(objects, content, "y", ttl_s=10)
        await objects.alias(gone, "r2")
        before = len(files(tmp_path))
        clock.now += 10

        assert await objects.expire() == 4
        assert await objects.expire() == 0
        assert await objects.listing() == kept
        assert (before, len(files(tmp_path))) == (2, 1)
        rows = await store.read(
            lambda reader: [
                reader.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
                for table in ("contents", "objects", "names", "readers")
            ]
        )
        again = [await put(objects, LARGE + b"gone", "y"), await put(objects, b"gone", "y")]
        fresh = ObjectStore(store, tmp_path / "objects")
        assert [await fresh.read(each) for each in again] == [LARGE + b"gone", b"gone"]
        assert again[0].name == "y"

    assert rows == [2, 2, 2, 0]


async def test_what_a_killed_process_left_half_written_goes_after_an_hour(tmp_path: Path) -> None:
    incoming = tmp_path / "objects" / "incoming"
    incoming.mkdir(parents=True)
    for name, at in (("old", 1.0), ("new", None)):
        (incoming / name).write_bytes(b"half")
        if at is not None:
            os.utime(incoming / name, (at, at))
    async with opened(tmp_path) as (_, objects):
        await objects.expire()

    assert files(tmp_path) == {"incoming/new": b"half"}


async def test_a_shared_object_can_be_read_at_once_also_where_it_is_not_cached(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as (store, objects):
        made = await put(objects, b"x")
        other = ObjectStore(store, tmp_path / "objects")
        await other.share([made.id, "unknown"], "child")
        await other.share([made.id], "child")
        found = await other.by_id(made.id)
        await other.share([made.id], "child")
        listed = await other.listing(holder="child")

    assert found is not None
    assert found.readable_by("child") and found.readable_by("maker")
    assert not found.readable_by("stranger")
    assert listed == [found]


async def test_sharing_while_an_object_is_looked_up_is_not_missed(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, objects):
        made = await put(objects, b"x")
        other = ObjectStore(store, tmp_path / "objects")
        async with anyio.create_task_group() as tasks:
            for number in range(20):
                tasks.start_soon(other.by_id, made.id)
                tasks.start_soon(other.share, [made.id], f"child{number}")
        found = await other.by_id(made.id)

    assert found is not None
    assert found.readers == {f"child{number}" for number in range(20)}


async def test_an_alias_is_the_same_object_under_another_name(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, objects):
        made = await put(objects, b"result", "report")
        taken = await put(objects, b"other", "report", namespace="client")
        alias = await objects.alias(made, "client")
        again = await objects.alias(made, "client")
        at_home = await objects.alias(made, "r1")
        found = await objects.by_name("client", "report_2")
    async with opened(tmp_path) as (_, objects):
        found_later = await objects.by_name("client", "report_2")
        first_name = await objects.by_id(made.id)
        in_client = await objects.listing(namespace="client")

    assert (alias.id, alias.name, alias.namespace) == (made.id, "report_2", "client")
    assert alias == again == found == found_later
    assert made == at_home == first_name
    assert in_client == [alias, taken]  # in the order in which the objects were made


async def test_listings_come_in_order_and_page_by_page(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, objects):
        made = [
            await put(objects, b"x", owner=f"o{number % 2}", namespace=f"r{number % 3}")
            for number in range(12)
        ]
        whole = await objects.listing()
        page = await objects.listing(limit=5)
        rest = await objects.listing(after=page[-1].id)
        some = await objects.listing(namespace="r1", holder="o1")

    assert whole == page + rest == made
    assert some == [each for each in made if (each.namespace, each.owner) == ("r1", "o1")]


async def test_a_value_is_the_callers_own(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, objects):
        made = await put(objects, b'{"rows": [{"id": 1}]}', media_type="application/json")
        whole, part = await objects.value(made), await objects.select(made, "#/rows")
        whole["rows"].append("changed")
        part[0]["id"] = "changed"

        assert await objects.value(made) == {"rows": [{"id": 1}]}
        assert await objects.select(made, "?query=rows[0].id") == 1
        assert await objects.select(made, "#/rows/0/id") == 1


async def test_values_are_read_by_their_media_type(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, objects):
        table = await put(objects, b"a,b\n1,2\n", media_type="text/csv")
        large = json.dumps({"rows": list(range(30_000))}).encode()
        big = await put(objects, large, media_type="application/ld+json")
        image = await put(objects, b"\x89PNG", "image", media_type="image/png")
        broken = await put(objects, b"{", "broken", media_type="application/json")
        fresh = ObjectStore(store, tmp_path / "objects")

        assert await objects.value(table) == "a,b\n1,2\n"
        assert await objects.select(table, "?lines=2") == "1,2"
        assert await fresh.value(big) == await objects.value(big) == json.loads(large)
        assert await fresh.select(big, "#/rows/29999") == 29_999
        with pytest.raises(ToolRetry, match="`ref:image` is image/png, neither JSON nor text"):
            await objects.value(image)
        with pytest.raises(ToolRetry, match="`ref:broken` is labelled application/json and is not"):
            await objects.value(broken)
        with pytest.raises(ToolRetry, match="there is no item '30000'"):
            await objects.select(big, "#/rows/30000")


async def test_an_object_is_readable_before_it_is_committed_also_without_the_cache(
    tmp_path: Path,
) -> None:
    async with opened(tmp_path) as (store, objects):
        made = await put(objects, b"posted")
        assert store.waiting == 1
        assert await ObjectStore(store, tmp_path / "objects").read(made) == b"posted"
        assert store.waiting == 0


async def test_much_that_waits_is_written_before_more_is_taken(tmp_path: Path) -> None:
    async with opened(tmp_path, inline_bytes=2_000_000) as (store, objects):
        for number in range(10):
            await put(objects, bytes([number]) * 1_000_000)

            assert store.waiting <= 9


async def test_two_processes_that_take_one_name_keep_both_objects(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, objects):
        other = ObjectStore(store, tmp_path / "objects")
        await put(objects, b"warm", "warm")
        await put(other, b"warm", "warm too")
        ours, theirs = await put(objects, b"ours", "n"), await put(other, b"theirs", "n")
        await store.flush()

        assert await objects.by_name("r1", "n") == ours
        assert await other.by_name("r1", "n") == theirs
    async with opened(tmp_path) as (_, objects):
        listed = {each.id: each for each in await objects.listing()}
        assert await objects.by_name("r1", "n") == ours
        assert listed[theirs.id].name == f"n_{theirs.id[-6:]}"
        assert await objects.read(listed[theirs.id]) == b"theirs"


async def test_a_large_object_whose_file_goes_before_its_row_is_there_is_written_again(
    tmp_path: Path,
) -> None:
    gate, entered, made = threading.Event(), anyio.Event(), list[Reference]()

    def hold(_: sqlite3.Connection) -> None:
        from_thread.run_sync(entered.set, token=token)
        assert gate.wait(30)
        (path,) = (tmp_path / "objects" / "sha256").rglob("*/*")
        path.unlink()

    async def make() -> None:
        made.append(await put(objects, LARGE))

    async with opened(tmp_path) as (store, objects), anyio.create_task_group() as tasks:
        await put(objects, b"the names of the run are known")
        token = anyio.lowlevel.current_token()
        tasks.start_soon(store.write, hold)
        await entered.wait()
        tasks.start_soon(make)
        while not store.waiting:  # the file is written, the row waits for its turn
            await anyio.lowlevel.checkpoint()
        gate.set()

    assert list(files(tmp_path).values()) == [LARGE]
    async with opened(tmp_path) as (_, objects):
        assert await objects.read(made[0]) == LARGE


async def test_what_another_process_expired_is_gone_here_too(tmp_path: Path) -> None:
    clock = Clock()
    clock.now += 10
    async with opened(tmp_path, clock=Clock()) as (store, objects):
        made = await put(objects, b"{}", media_type="application/json", ttl_s=10)
        assert await ObjectStore(store, tmp_path / "objects", clock=clock).expire() == 1
        fresh = ObjectStore(store, tmp_path / "objects", clock=Clock())

        for read in (fresh.read, fresh.value):
            with pytest.raises(ReferenceNotFound, match="there is no reference 'ref:x' here"):
                await read(made)
        with pytest.raises(ReferenceNotFound):
            await ObjectStore(store, tmp_path / "objects", clock=clock).value(made)


async def test_names_stay_unique_in_more_namespaces_than_are_remembered(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, objects):
        names = [(await put(objects, b"1", namespace="r0")).name]
        for number in range(1, 1_001):
            await put(objects, b"1", namespace=f"r{number}")
        names.append((await put(objects, b"1", namespace="r0")).name)

    assert names == ["x", "x_2"]


async def test_nothing_is_kept_in_a_closed_store(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, objects):
        made = await put(objects, b"x")
        await put(objects, b"x", namespace="r2")
    with pytest.raises(StoreError, match="is closed: open it again"):
        await put(objects, b"y", "y")
    with pytest.raises(StoreError, match="is closed: open it again"):
        await objects.alias(made, "r2")
    assert await objects.by_id(made.id) == made


FULL = """
import anyio, resource, sys
from pathlib import Path
from guildry.errors import StoreFull
from guildry.memory.objects import ObjectStore
from guildry.memory.store import Store

async def main():
    home = Path(sys.argv[1])
    async with Store.open(home / "guildry.db") as store:
        objects = ObjectStore(store, home / "objects")
        at = {"media_type": "text/plain", "namespace": "r1", "owner": "maker"}
        await objects.put(b"before" * 40_000, name="before", **at)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        try:
            await objects.put(b"refused" * 100_000, name="refused", **at)
        except StoreFull as error:
            print(error)
        await objects.put(b"after", name="refused", **at)

anyio.run(main)
"""


async def test_an_object_for_which_there_is_no_room_leaves_nothing_behind(tmp_path: Path) -> None:
    """The system itself refuses to make a file as large as that."""
    done = await to_thread.run_sync(
        lambda: subprocess.run(
            [sys.executable, "-c", FULL, str(tmp_path)],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    )
    async with opened(tmp_path) as (_, objects):
        listed = {each.name: await objects.read(each) for each in await objects.listing()}

    assert f"no room left to write `{tmp_path}/objects/sha256/" in done.stdout
    assert "free some space" in done.stdout
    assert listed == {"before": b"before" * 40_000, "refused": b"after"}
    assert list(files(tmp_path).values()) == [b"before" * 40_000]


async def test_an_object_whose_row_cannot_be_written_is_not_kept(tmp_path: Path) -> None:
    async with opened(tmp_path) as (store, objects):
        with capture_logs():
            await store.write(
                lambda writer: writer.execute("ALTER TABLE objects RENAME TO hidden") and None
            )
            with pytest.raises(StoreError, match="no such table"):
                await put(objects, LARGE, "n")
            await store.write(
                lambda writer: writer.execute("ALTER TABLE hidden RENAME TO objects") and None
            )
        again = await put(objects, LARGE, "n")

        assert again.name == "n"
        assert await objects.listing() == [again]


@pytest.mark.parametrize("damage", [b"other bytes", b"x" * len(LARGE), None])
async def test_a_damaged_file_is_never_read_as_the_object(
    tmp_path: Path, damage: bytes | None
) -> None:
    async with opened(tmp_path) as (store, objects):
        made = await put(objects, LARGE)
        path = tmp_path / "objects" / next(iter(files(tmp_path)))
        if damage is None:
            path.unlink()
        else:
            path.write_bytes(damage)
        fresh = ObjectStore(store, tmp_path / "objects")

        with pytest.raises(StoreCorrupt, match=f"`{path}` is (damaged|gone)"):
            await fresh.read(made)
        if damage != b"x" * len(LARGE):  # a file of the right size is taken for whole
            await put(fresh, LARGE, "again")
            assert await ObjectStore(store, tmp_path / "objects").read(made) == LARGE


def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    folder = ContentFolder(tmp_path / "file", sync=True)
    digest = digest_of(b"x")

    for attempt in (
        lambda: folder.write(digest, b"x"),
        lambda: folder.read(digest, 1),
        lambda: folder.remove(digest),
        folder.sweep,
    ):
        with pytest.raises(StoreError, match=r"cannot be used \((File exists|Not a directory)\)"):
            attempt()
    with pytest.raises(StoreError, match="is no digest"):
        folder.read("../../etc/passwd", 1)

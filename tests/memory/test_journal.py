"""Journals: order, exactness, following live."""

from contextlib import aclosing
from pathlib import Path
from typing import Any, get_args

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from guildry.errors import StoreFull
from guildry.memory.events import (
    Aggregated,
    Answered,
    Asked,
    Completed,
    Delegated,
    Entry,
    Event,
    Messaged,
    Returned,
    Spawned,
    Stopped,
    ToolCalled,
    event_of,
)
from guildry.memory.journal import Journal
from guildry.memory.runs import RunRecord, RunStore
from guildry.memory.store import Store

EVENTS: tuple[Event, ...] = (
    Spawned(
        "r1/1", "worker", "r1", ("count", "read"), ("id1",), {"tokens": 5.0, "calls": None}, "m"
    ),
    Delegated("r1", "r1/1", "count it", ("id1",)),
    Messaged("r1", "r1/1", "plan", {"nodes": [1, {"a": None}]}),
    Completed("r1/1", 1, "hi\ud800", (("c1", "count", "{}"),), 10, 5, 2, 0.5, "tool_calls"),
    Asked("r1/1", "q1", "approval", "count", "May I?", can_be_answered=False),
    Answered("r1/1", "q1", "decline", "deadline"),
    ToolCalled("r1/1", "count", {"x": "ref:a"}, "ok", 0.1, 5, "5", "id2", ("id1",), 7),
    Returned("r1/1", "done", "five", ("id2",), {"calls": 1}),
    Aggregated("r1", ("r1/1",), "five"),
    Stopped("r1", "finished", "all well"),
)


async def test_every_kind_of_event_reads_back_as_it_was_appended(tmp_path: Path) -> None:
    with anyio.fail_after(30):
        async with Store.open(tmp_path / "guildry.db") as store:
            journal = Journal(store, clock=lambda: 5.0)
            for event in EVENTS:
                journal.append("r1", event)
        async with Store.open(tmp_path / "guildry.db") as store:
            entries = await Journal(store).read("r1")

    assert {type(event) for event in EVENTS} == set(get_args(Event))
    assert [event_of(entry) for entry in entries] == list(EVENTS)
    assert [(e.run, e.seq, e.at, e.kind, e.agent) for e in entries] == [
        ("r1", number, 5.0, event.kind, event.agent) for number, event in enumerate(EVENTS, 1)
    ]


@settings(max_examples=20)
@given(st.lists(st.sampled_from(["r1", "r2", "r3"]), max_size=400))
async def test_each_run_has_its_own_numbers_without_gaps(runs: list[str]) -> None:
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            journal = Journal(store)
            for number, run in enumerate(runs):
                journal.append(run, Messaged("a", "b", "n", number))
            read = {run: await journal.read(run) for run in ("r1", "r2", "r3")}

    for run, entries in read.items():
        wanted = [number for number, each in enumerate(runs) if each == run]
        assert [entry.data["body"] for entry in entries] == wanted
        assert [entry.seq for entry in entries] == list(range(1, len(wanted) + 1))


async def test_a_run_is_continued_after_the_store_was_closed(tmp_path: Path) -> None:
    entries: list[Entry] = []
    for _ in range(2):
        with anyio.fail_after(30):
            async with Store.open(tmp_path / "guildry.db") as store:
                journal = Journal(store)
                journal.append("r1", Stopped("a", "x"))
                journal.append("r1", Stopped("a", "y"))
                entries = await journal.read("r1")

    assert [(entry.seq, entry.data["reason"]) for entry in entries] == [
        (1, "x"),
        (2, "y"),
        (3, "x"),
        (4, "y"),
    ]


async def test_a_part_of_a_journal_is_read() -> None:
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            journal = Journal(store)
            for number in range(10):
                journal.append("r1", Messaged("a", "b", "n", number))

            assert [entry.seq for entry in await journal.read("r1", after=3, limit=2)] == [4, 5]
            assert [entry.seq for entry in await journal.read("r1", after=8)] == [9, 10]
            assert await journal.read("r1", limit=0) == []
            assert await journal.read("unknown") == []


async def test_an_event_may_change_after_it_was_appended() -> None:
    body: dict[str, Any] = {"n": 1}
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            journal = Journal(store)
            journal.append("r1", Messaged("a", "b", "n", body))
            body["n"] = 2

            assert [entry.data["body"] for entry in await journal.read("r1")] == [{"n": 1}]


async def test_an_event_that_is_no_json_is_kept_as_it_looks() -> None:
    circle: list[Any] = []
    circle.append(circle)
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            journal = Journal(store)
            journal.append("r1", Messaged("a", "b", "n", {1j: 0}))
            journal.append("r1", Messaged("a", "b", "n", circle))
            journal.append("r1", Messaged("a", "b", "n", Path("p")))
            entries = await journal.read("r1")

    assert ["unreadable" in entry.data for entry in entries] == [True, True, False]
    assert entries[2].data["body"] == "p"
    with pytest.raises(ValueError, match="entry 1 of `r1` holds no whole event"):
        event_of(entries[0])


async def test_a_follower_gets_history_then_what_comes_and_ends_with_the_run() -> None:
    seen: list[int] = []
    caught_up = anyio.Event()

    async def follow() -> None:
        async for entry in journal.follow("r1"):
            seen.append(entry.seq)
            if entry.seq == 2:
                caught_up.set()

    with anyio.fail_after(30):
        async with Store.open(None) as store:
            journal = Journal(store)
            journal.append("r1", Messaged("a", "b", "n", 0))
            journal.append("r1", Stopped("r1/1", "an agent's end is not the run's"))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(follow)
                tasks.start_soon(follow)
                await caught_up.wait()
                journal.append("another", Stopped("another", "done"))
                journal.append("r1", Messaged("a", "b", "n", 1))
                journal.append("r1", Stopped("r1", "done"))

    assert sorted(seen) == [1, 1, 2, 2, 3, 3, 4, 4]


async def test_a_follower_begins_where_it_is_told() -> None:
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            journal = Journal(store)
            for number in range(1_200):
                journal.append("r1", Messaged("a", "b", "n", number))
            journal.append("r1", Stopped("r1", "done"))

            assert [each.seq async for each in journal.follow("r1", after=100)] == list(
                range(101, 1_202)
            )


async def test_a_slow_follower_misses_nothing_and_holds_nobody_up() -> None:
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            journal = Journal(store)
            journal.append("r1", Messaged("a", "b", "n", 0))
            following = journal.follow("r1")
            seen = [(await anext(following)).seq]
            for number in range(1, 3_000):
                journal.append("r1", Messaged("a", "b", "n", number))
            journal.append("r1", Stopped("r1", "done"))
            await journal.flush()
            seen += [entry.seq async for entry in following]

    assert seen == list(range(1, 3_002))


async def test_a_run_that_another_process_writes_is_followed_too(tmp_path: Path) -> None:
    """Two stores on one file know as little of each other as two processes do."""
    path = tmp_path / "guildry.db"
    with anyio.fail_after(30):
        async with Store.open(path) as ours, Store.open(path) as theirs:
            journal = Journal(theirs)
            journal.append("r1", Messaged("a", "b", "n", 0))
            await journal.flush()
            following = Journal(ours).follow("r1")
            first = await anext(following)
            journal.append("r1", Stopped("r1", "done"))
            await journal.flush()
            last = [entry async for entry in following]

    assert (first.seq, [entry.seq for entry in last]) == (1, [2])


async def test_a_follower_that_leaves_is_forgotten() -> None:
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            journal = Journal(store)
            journal.append("r1", Messaged("a", "b", "n", 0))
            async with aclosing(journal.follow("r1")) as following:
                assert (await anext(following)).seq == 1
            journal.append("r1", Stopped("r1", "done"))

            assert [each.seq async for each in journal.follow("r1")] == [1, 2]


async def test_a_journal_that_cannot_be_written_says_so_when_it_is_read(tmp_path: Path) -> None:
    with anyio.fail_after(30), capture_logs(), pytest.raises(StoreFull, match="were not written"):
        async with Store.open(tmp_path / "guildry.db") as store:
            await store.write(lambda writer: writer.execute("PRAGMA max_page_count = 50") and None)
            journal = Journal(store)
            for number in range(200):
                journal.append("r1", Messaged("a", "b", "n", f"{number}" * 1_000))
            with pytest.raises(StoreFull, match="free some space"):
                await journal.read("r1")


def test_an_entry_of_no_known_kind_holds_no_event() -> None:
    with pytest.raises(ValueError, match="holds no whole event"):
        event_of(Entry("r1", 1, 0.0, "other", "a", {}))  # type: ignore[arg-type]  # what a newer one may write


async def test_old_entries_of_an_endless_journal_are_dropped_and_numbers_go_on() -> None:
    times = iter((1.0, 1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 5.0))
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            journal = Journal(store, clock=lambda: next(times))
            for _ in range(4):
                journal.append("local", Stopped("local", "finished"))
                journal.append("r1", Stopped("r1", "finished"))
            dropped = [await journal.forget("local", before=each) for each in (1.0, 3.0, 9.0)]
            journal.append("local", Stopped("local", "finished"))

            assert dropped == [0, 2, 1]
            assert [(e.seq, e.at) for e in await journal.read("local")] == [(4, 4.0), (5, 5.0)]
            assert len(await journal.read("r1")) == 4


async def test_endless_journals_are_those_of_no_run() -> None:
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            journal = Journal(store)
            assert await journal.endless() == []
            for run in ("local", "r1", "https://login.example|ada"):
                for _ in range(3):
                    journal.append(run, Stopped(run, "finished"))
            await journal.flush()
            await RunStore(store).create(RunRecord("r1", "team", "one", "count", "local"))

            assert await journal.endless() == ["https://login.example|ada", "local"]

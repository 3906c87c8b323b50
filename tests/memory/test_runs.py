"""Records of runs, and what becomes of those whose process is gone."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from anyio import to_thread

from guildry.errors import StoreError
from guildry.memory.events import Stopped
from guildry.memory.journal import Journal
from guildry.memory.runs import RunRecord, RunStore, is_running, this_process
from guildry.memory.store import Store


async def test_a_run_is_kept_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    record = RunRecord("r1", "team", "survey", "look \ud800", "local", started_at=1.0)
    with anyio.fail_after(30):
        async with Store.open(tmp_path / "guildry.db") as store:
            runs = RunStore(store, clock=lambda: 9.0)
            await runs.create(record)
            running = await runs.get("r1")
            await runs.finish("r1", "partial", {"summary": "half"}, {"tokens": 5})
        async with Store.open(tmp_path / "guildry.db") as store:
            ended = await RunStore(store).get("r1")
            unknown = await RunStore(store).get("r2")

    kept = replace(record, task="look \\ud800")
    assert running == kept
    assert ended == replace(
        kept, status="partial", ended_at=9.0, report={"summary": "half"}, usage={"tokens": 5}
    )
    assert unknown is None


async def test_a_record_may_be_whole_from_the_start_and_an_id_is_taken_once() -> None:
    record = RunRecord(
        "r1", "delegate", "delegate", "t", "p", "failed", 1.0, 2.0, {"a": [1]}, {"calls": 1}, "1:2"
    )
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            runs = RunStore(store)
            await runs.create(record)
            with pytest.raises(StoreError, match="there is a run `r1` already"):
                await runs.create(record)

            assert await runs.get("r1") == record
            await runs.finish("r1", "done", None, {})
            ended = await runs.get("r1")

    assert ended is not None
    assert (ended.status, ended.report) == ("done", None)


async def test_runs_are_listed_the_newest_first() -> None:
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            runs = RunStore(store)
            for number in range(6):
                principal = "odd" if number % 2 else "even"
                await runs.create(RunRecord(f"r{number}", "team", "t", "task", principal))
            await runs.finish("r1", "done", None, {})

            async def ids(**chosen: object) -> list[str]:
                return [each.id for each in await runs.listing(**chosen)]  # type: ignore[arg-type]  # by name

            assert await ids() == ["r5", "r4", "r3", "r2", "r1", "r0"]
            assert await ids(limit=2) == ["r5", "r4"]
            assert await ids(principal="odd") == ["r5", "r3", "r1"]
            assert await ids(principal="odd", status="running") == ["r5", "r3"]
            assert await ids(status="done") == ["r1"]


async def test_the_runs_of_a_process_that_is_gone_are_interrupted_and_their_journals_end() -> None:
    done = await to_thread.run_sync(
        lambda: subprocess.run(
            [sys.executable, "-c", "from guildry.memory.runs import *; print(this_process())"],
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
    )
    gone = done.stdout.strip()
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            runs, journal = RunStore(store), Journal(store)
            await runs.create(RunRecord("mine", "team", "t", "task", "p"))
            await runs.create(RunRecord("theirs", "team", "t", "task", "p", process=gone))
            await runs.create(RunRecord("ended", "team", "t", "task", "p", "done", process=gone))
            journal.append("theirs", Stopped("theirs/1", "done"))
            interrupted = await runs.interrupt_orphans()
            again = await runs.interrupt_orphans()
            statuses = {each.id: each.status for each in await runs.listing()}
            followed = [entry async for entry in journal.follow("theirs")]

    assert (interrupted, again) == (("theirs",), ())
    assert statuses == {"mine": "running", "theirs": "interrupted", "ended": "done"}
    assert [(e.seq, e.agent, e.data["reason"]) for e in followed] == [
        (1, "theirs/1", "done"),
        (2, "theirs", "interrupted"),
    ]


async def test_the_caller_may_say_which_processes_are_alive() -> None:
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            runs = RunStore(store)
            await runs.create(RunRecord("r1", "team", "t", "task", "p", process="1:2"))

            assert await runs.interrupt_orphans(lambda process: process == "1:2") == ()
            assert await runs.interrupt_orphans(lambda process: False) == ("r1",)


def test_another_process_with_the_same_number_is_not_taken_for_it() -> None:
    number, _, started = this_process().partition(":")

    assert is_running(f"{number}:{started}")
    assert not is_running(f"{number}:{started}0")
    assert not is_running("4194304999:1")
    assert not is_running("0:1")
    assert not is_running("nonsense")


async def test_who_listens_hears_whose_runs_begin_and_end() -> None:
    heard: list[str] = []
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            runs = RunStore(store)
            stop = runs.listen(heard.append)
            await runs.create(RunRecord("r1", "team", "t", "task", "ada"))
            await runs.finish("r1", "done", None, {})
            await runs.finish("unknown", "done", None, {})
            stop()
            await runs.create(RunRecord("r2", "team", "t", "task", "bob"))

    assert heard == ["ada", "ada"]


async def test_a_listing_goes_on_before_the_run_that_was_seen_last() -> None:
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            runs = RunStore(store)
            for n in range(5):
                await runs.create(RunRecord(f"r{n}", "team", "t", "task", "p"))
            first = await runs.listing(limit=2)
            await runs.create(RunRecord("r5", "team", "t", "task", "p"))
            second = await runs.listing(limit=2, before=first[-1].id)
            unknown = await runs.listing(before="unknown")

    assert [each.id for each in first] == ["r4", "r3"]
    assert [each.id for each in second] == ["r2", "r1"]
    assert unknown == []


async def test_the_progress_of_runs_is_their_status_and_the_length_of_their_journals() -> None:
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            runs, journal = RunStore(store), Journal(store)
            await runs.create(RunRecord("r1", "team", "t", "task", "p"))
            await runs.create(RunRecord("r2", "team", "t", "task", "p", "done"))
            journal.append("r1", Stopped("r1/1", "done"))
            journal.append("r1", Stopped("r1", "done"))

            assert await runs.progress(["r1", "r2", "r3"]) == {
                "r1": ("running", 2),
                "r2": ("done", 0),
            }

"""Tasks as they are kept: what ends stays, what expires goes, what was cut off says so."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from guildry.errors import StoreError
from guildry.memory.runs import RunRecord, RunStatus, RunStore, this_process
from guildry.memory.store import Store
from guildry.memory.tasks import INTERRUPTED, TaskRecord, TaskStore, interruption

RESULT = {"result": {"content": [{"type": "text", "text": "done \ud800"}], "isError": False}}


def record(id: str = "t1", **about: Any) -> TaskRecord:
    given: dict[str, Any] = {"expires_at": 100.0, "created_at": 1.0, "updated_at": 1.0}
    return TaskRecord(id=id, principal="ann", tool="dig", **{**given, **about})


async def test_a_task_is_kept_from_its_beginning_to_its_end(tmp_path: Path) -> None:
    begun = record(run="r1")
    asking = replace(
        begun,
        status="input_required",
        message="half \ud800",
        updated_at=2.0,
        requests={"name": {"method": "elicitation/create", "params": {"n": math.inf}}},
    )
    ended = replace(begun, status="completed", updated_at=3.0, expires_at=200.0, outcome=RESULT)
    with anyio.fail_after(30):
        async with Store.open(tmp_path / "guildry.db") as store:
            tasks = TaskStore(store, clock=lambda: 50.0)
            await tasks.create(begun)
            first = await tasks.get("t1")
            tasks.note(asking)
            await store.flush()
            second = await tasks.get("t1")
            settled = await tasks.settle(ended)
        async with Store.open(tmp_path / "guildry.db") as store:
            third = await TaskStore(store, clock=lambda: 50.0).get("t1")
            unknown = await TaskStore(store).get("t2")

    assert (first, second) == (begun, replace(asking, message="half \\ud800"))
    assert (settled, third, unknown) == (True, ended, None)


async def test_an_id_is_taken_once() -> None:
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            tasks = TaskStore(store)
            await tasks.create(record())
            with pytest.raises(StoreError, match="there is a task `t1` already"):
                await tasks.create(record())


async def test_what_has_ended_stays_as_it_is() -> None:
    ended = record(status="completed", outcome=RESULT)
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            tasks = TaskStore(store, clock=lambda: 50.0)
            await tasks.create(record())
            await tasks.settle(ended)
            again = await tasks.settle(record(status="failed", outcome=interruption(None)))
            tasks.note(record(status="input_required"))
            await store.flush()
            told = await tasks.tell("t1", {"cancel": True})
            kept = await tasks.get("t1")

    assert (again, told, kept) == (False, False, ended)


async def test_what_others_tell_a_task_is_taken_once_and_in_order() -> None:
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            tasks = TaskStore(store)
            await tasks.create(record())
            await tasks.create(record("t2", process="1:1"))
            nothing = await tasks.take_words()
            await tasks.tell("t1", {"message": "left"})
            await tasks.tell("t2", {"message": "elsewhere"})
            await tasks.tell("t1", {"responses": {"a": {"deep": [[1]]}}})
            tasks.note(record(status="input_required", requests={"a": {}}))
            words = await tasks.take_words()
            again = await tasks.take_words()
            elsewhere = await tasks.take_words("1:1")

    assert nothing == again == []
    assert words == [("t1", {"message": "left"}), ("t1", {"responses": {"a": {"deep": [[1]]}}})]
    assert elsewhere == [("t2", {"message": "elsewhere"})]


async def test_only_what_has_ended_expires() -> None:
    now = [50.0]
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            tasks = TaskStore(store, clock=lambda: now[0])
            await tasks.create(record("open"))
            await tasks.create(record("ended"))
            await tasks.settle(record("ended", status="cancelled"))
            early = await tasks.expire()
            now[0] = 100.0
            unseen = await tasks.get("ended")
            late = await tasks.expire()
            left = await tasks.get("open")

    assert (early, unseen, late) == (0, None, 1)
    assert left == record("open")


@pytest.mark.parametrize(
    ("run_status", "status", "message", "outcome"),
    [
        (None, "failed", INTERRUPTED, interruption(None)),
        ("running", "failed", INTERRUPTED, interruption("r1")),
        ("interrupted", "failed", INTERRUPTED, interruption("r1")),
        ("done", "completed", None, None),
        ("partial", "completed", None, None),
        ("failed", "completed", None, None),
        ("cancelled", "cancelled", None, None),
    ],
)
async def test_a_task_whose_process_is_gone_ends_as_its_run_did(
    run_status: RunStatus | None, status: str, message: str | None, outcome: Any
) -> None:
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            tasks, runs = TaskStore(store, clock=lambda: 50.0), RunStore(store)
            run = None if run_status is None else "r1"
            await tasks.create(record(run=run, process="1:1"))
            await tasks.create(record("mine"))
            if run_status is not None:
                await runs.create(RunRecord("r1", "team", "x", "t", "ann", run_status))
            gone = await tasks.interrupt_orphans(lambda process: process == this_process())
            ended = await tasks.get("t1")
            mine = await tasks.get("mine")

    assert gone == ("t1",)
    assert ended is not None
    assert (ended.status, ended.message, ended.outcome) == (status, message, outcome)
    assert ended.updated_at == 50.0
    assert mine == record("mine")


async def test_the_outcome_of_a_task_that_nobody_settled_can_be_entered_once() -> None:
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            tasks, runs = TaskStore(store, clock=lambda: 50.0), RunStore(store)
            await runs.create(RunRecord("r1", "team", "x", "t", "ann", "done"))
            await tasks.create(record(run="r1", process="1:1"))
            await tasks.interrupt_orphans(lambda process: False)
            found = await tasks.get("t1")
            assert found is not None
            first = await tasks.settle(replace(found, outcome=RESULT))
            second = await tasks.settle(replace(found, outcome=interruption(None)))
            kept = await tasks.get("t1")

    assert (first, second) == (True, False)
    assert kept == replace(found, outcome=RESULT)

import math
import statistics
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildry.errors import ToolFailed, ToolProtocolError, ToolRetry
from guildry.memory.journal import Journal
from guildry.memory.ledger import EffectLedger
from guildry.memory.objects import ObjectStore
from guildry.memory.store import Store
from guildry.memory.usage import UsageStore
from guildry.tools.base import READS, Call, Outcome, Result, Text, Tool
from guildry.tools.caller import Caller
from guildry.tools.dispatch import Dispatch, Intent
from guildry.tools.grants import Grant
from guildry.tools.registry import Catalog
from guildry.tools.usage import Usage

ME = Caller(Grant.root("local"), "local")
OK = Result("fine", size=40)
BAD = Result("broken", is_error=True, size=6, failure="failed")


async def silent(_: dict[str, Any], __: Call) -> Outcome:
    return Outcome()


def tool(name: str = "look", plug: str = "up") -> Tool:
    return Tool(
        name=name,
        plug=plug,
        description="",
        input_schema={"type": "object", "properties": {"how": {"type": "string"}}},
        invoke=silent,
        source_name=name,
        effects=READS,
    )


class Days:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.day = 20_000.0

    def __call__(self) -> float:
        return self.day * 86_400


@asynccontextmanager
async def judged(folder: Path, **options: Any) -> AsyncGenerator[tuple[Dispatch, Usage]]:
    """Dispatch to one tool, `look`, that does as its argument says."""

    async def look(arguments: dict[str, Any], _: Call) -> Outcome:
        match arguments.get("how", ""):
            case "crash":
                raise ValueError("inside")
            case "fail":
                raise ToolFailed("down")
            case "refuse":
                raise ToolRetry("say it in another way")
            case "protocol":
                raise ToolProtocolError("upstream", -32603, "upstream")
            case "invalid":
                raise ToolProtocolError("upstream", -32602, "invalid params")
            case "told":
                return Outcome((Text("no such page"),), is_error=True)
            case "told invalid":
                return Outcome((Text("Input validation error: 3 is no string"),), is_error=True)
            case "hang":
                await anyio.sleep_forever()
            case _:
                pass
        return Outcome((Text("1234"),))

    async with Store.open(folder / "guildry.db") as store:
        catalog, usage = Catalog(), Usage()
        catalog.replace("up", [tool()])
        catalog.replace("up", [_with(catalog.current.get("look"), look)])
        dispatch = Dispatch(
            catalog,
            ObjectStore(store, folder / "objects"),
            Journal(store),
            EffectLedger(store),
            usage=usage,
            **options,
        )
        with anyio.fail_after(20):
            yield dispatch, usage


def _with(each: Tool, invoke: Any) -> Tool:
    from dataclasses import replace

    return replace(each, invoke=invoke)


@pytest.mark.parametrize(
    ("how", "calls", "errors", "misused"),
    [
        ("work", 1, 0, 0),
        ("crash", 1, 1, 0),
        ("fail", 1, 1, 0),
        ("protocol", 1, 1, 0),
        ("told", 1, 1, 0),
        ("hang", 1, 1, 0),
        ("refuse", 0, 0, 1),
        ("invalid", 0, 0, 1),
        ("told invalid", 0, 0, 1),
    ],
)
async def test_what_a_tool_does_wrong_counts_against_it_and_what_its_caller_does_wrong_does_not(
    tmp_path: Path, how: str, calls: int, errors: int, misused: int
) -> None:
    async with judged(tmp_path, call_timeout_s=0.05) as (dispatch, usage):
        await dispatch.call(ME, "look", {"how": how})

        known = usage.of(tool())

    assert (known.calls, known.errors, known.misused) == (calls, errors, misused)
    if errors:
        assert usage.score(tool()) < 0.5
    elif calls:
        assert usage.score(tool()) > 0.5
        assert known.size == 4
    else:
        assert usage.score(tool()) == 0.5


async def test_calls_that_never_reach_the_tool_or_that_are_given_up_do_not_count(
    tmp_path: Path,
) -> None:
    async def refuse(_: Intent) -> None:
        raise ToolFailed("a person said no")

    async with judged(tmp_path) as (dispatch, usage):
        wrong = await dispatch.call(ME, "look", {"how": 3})
        unknown = await dispatch.call(ME, "look", {"how": "ref:nowhere"})
        with anyio.move_on_after(0.01):
            await dispatch.call(ME, "look", {"how": "hang"})
        brief = Caller(Grant.root("l").narrow("c", tools=["look"], deadline=0.0), "local")
        late = await dispatch.call(brief, "look", {"how": "hang"})
        assert usage.of(tool()).as_json() == {"calls": 0}
    async with judged(tmp_path, guards=[refuse]) as (dispatch, usage):
        denied = await dispatch.call(ME, "look", {})
        assert usage.of(tool()).as_json() == {"calls": 0}

    results = [wrong, unknown, late, denied]
    assert [each.failure for each in results] == ["refused", "refused", "late", "denied"]


def test_a_caller_out_of_time_counts_against_a_tool_that_had_twice_its_usual_time() -> None:
    usage = Usage()
    late = Result("", is_error=True, failure="late")
    for _ in range(5):
        usage.note(tool(), OK, 0.1)

    usage.note(tool(), late, 0.15)
    patient = usage.of(tool()).errors
    usage.note(tool(), late, 0.25)

    assert (patient, usage.of(tool()).errors) == (0, 1)


def test_tools_that_only_pass_calls_on_are_not_judged() -> None:
    usage = Usage(without=frozenset({"look"}))

    usage.note(tool(), OK, 0.1)
    usage.note(tool(), BAD, 0.1)

    assert usage.of(tool()).calls == 0


def test_nothing_known_is_neutral_and_a_plug_speaks_a_little_for_its_other_tools() -> None:
    usage = Usage()
    for _ in range(20):
        usage.note(tool("a", "good"), OK, 0.1)
        usage.note(tool("a", "bad"), BAD, 0.1)

    scores = [usage.score(tool("b", plug)) for plug in ("bad", "new", "good")]

    assert scores == sorted(scores)
    assert scores[1] == 0.5
    assert usage.score(tool("a", "bad")) < scores[0]
    assert usage.score(tool("a", "good")) > scores[2]
    assert usage.of_plug("good").calls == 20
    assert usage.of_plug("good").success > 0.9


@given(st.lists(st.tuples(st.booleans(), st.floats(0.001, 100)), max_size=40))
def test_a_score_is_a_chance_that_every_success_raises_and_every_failure_lowers(
    calls: list[tuple[bool, float]],
) -> None:
    usage = Usage()
    before = usage.score(tool())

    for is_good, duration_s in calls:
        usage.note(tool(), OK if is_good else BAD, duration_s)
        now = usage.score(tool())
        assert 0 < now < 1
        assert (now > before) == is_good
        assert math.isclose(now, usage.of(tool()).success)
        before = now

    known = usage.of(tool())
    if known.mean_s is not None and known.p95_s is not None and known.slowest_s is not None:
        times = [duration_s for _, duration_s in calls]
        assert math.isclose(known.mean_s, statistics.fmean(times))
        assert known.slowest_s == max(times)
        assert min(times) <= known.p95_s * 1.001 <= max(times) * 1.002


def test_the_95th_percentile_of_log_normal_times_is_estimated_well() -> None:
    import random

    dice = random.Random(7)
    times = [dice.lognormvariate(-1, 0.8) for _ in range(4_000)]
    usage = Usage()
    for duration_s in times:
        usage.note(tool(), OK, duration_s)

    p95_s = usage.of(tool()).p95_s

    assert p95_s is not None
    assert math.isclose(p95_s, statistics.quantiles(times, n=20)[-1], rel_tol=0.1)


async def test_what_was_noted_is_there_after_a_restart_and_fades_with_the_days(
    tmp_path: Path,
) -> None:
    clock = Days()
    async with Store.open(tmp_path / "guildry.db") as store:
        usage = Usage(UsageStore(store), clock=clock)
        for _ in range(10):
            usage.note(tool(), BAD, 2.0)
        usage.save()
    scores: list[float] = []
    async with Store.open(tmp_path / "guildry.db") as store:
        for days in (0, 1, 14, 60, 91):
            clock.day = 20_000.0 + days
            usage = Usage(UsageStore(store), clock=clock)
            await usage.load()
            scores.append(usage.score(tool()))
            assert usage.of(tool()).calls == (0 if days > 90 else 10)

    assert scores == sorted(scores)
    assert scores[0] < 0.15
    assert scores[-1] == 0.5


async def test_processes_of_one_home_add_to_the_same_figures_and_hear_of_each_other(
    tmp_path: Path,
) -> None:
    async with (
        Store.open(tmp_path / "guildry.db") as mine,
        Store.open(tmp_path / "guildry.db") as theirs,
    ):
        here, there = Usage(UsageStore(mine)), Usage(UsageStore(theirs))
        for _ in range(3):
            here.note(tool(), OK, 1.0)
            there.note(tool(), BAD, 3.0)
        here.save()
        there.save()
        await mine.flush()
        await theirs.flush()
        here.note(tool(), OK, 1.0)  # not kept yet, and not lost by reading
        await here.load()
        await there.load()
        known = [each.of(tool()) for each in (here, there)]

    assert [(each.calls, each.errors, each.slowest_s) for each in known] == [(7, 3, 3.0)] * 2
    assert known[0].mean_s == pytest.approx(13 / 7)


async def test_noted_calls_are_kept_in_the_background_and_told_to_others(tmp_path: Path) -> None:
    told = anyio.Event()
    async with Store.open(tmp_path / "guildry.db") as store:
        usage = Usage(UsageStore(store))
        usage.nudge = told.set
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(usage.run)
                usage.note(tool(), OK, 0.5)
                await told.wait()
                usage.note(tool(), OK, 0.5)
                tasks.cancel_scope.cancel()
        rows = await UsageStore(store).since(0)
        dropped = await UsageStore(store).forget(10**6)

    assert [(row.plug, row.tool, row.tally.calls) for row in rows] == [("up", "look", 2)]
    assert dropped == 1


async def test_what_cannot_be_kept_still_counts_and_waits_for_the_next_time(tmp_path: Path) -> None:
    async with Store.open(tmp_path / "guildry.db") as store:
        usage = Usage(UsageStore(store))
    usage.note(tool(), OK, 1.0)
    usage.save()  # the store is closed: said in the log, and nothing is raised

    assert usage.of(tool()).calls == 1


async def test_a_database_that_cannot_be_read_stops_nothing(tmp_path: Path) -> None:
    async with Store.open(tmp_path / "guildry.db") as store:
        usage = Usage(UsageStore(store))
        await store.write(lambda connection: connection.execute("DROP TABLE usage"))
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(usage.run)
                await usage.loaded.wait()
                usage.heard()
                tasks.cancel_scope.cancel()

    assert usage.score(tool()) == 0.5

"""Runs from begin to end: grants that narrow, budgets, references, cancelling, records."""

import json
import sqlite3
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from guildry.errors import ConfigError, GrantError, RunError, RunNotFound, StoreError
from guildry.memory.events import Entry
from guildry.memory.journal import Journal
from guildry.memory.ledger import EffectLedger
from guildry.memory.objects import ObjectStore
from guildry.memory.references import Reference
from guildry.memory.runs import RunStore
from guildry.memory.store import Store
from guildry.teams.agent import AgentSpec
from guildry.teams.messages import Report, Task
from guildry.teams.model import Request
from guildry.teams.orchestrator import Orchestrator
from guildry.teams.run import Run
from guildry.teams.scripted import Program, ScriptedModel, call
from guildry.teams.team import Solo, team_tool
from guildry.teams.terms import RunDefaults
from guildry.tools.base import READS, Call, Invoke, Outcome, Text, Tool
from guildry.tools.caller import Caller
from guildry.tools.dispatch import Dispatch
from guildry.tools.grants import Grant, Limits
from guildry.tools.registry import Catalog

LOCAL = Caller(grant=Grant.root("local", depth=4), run="local")
TABLE = [{"id": n, "total": n * 10} for n in range(1_000)]


@dataclass
class Workshop:
    """An orchestrator over a real store."""

    store: Store
    objects: ObjectStore
    journal: Journal
    runs: RunStore
    catalog: Catalog
    orchestrator: Orchestrator
    model: ScriptedModel
    tools: list[Tool] = field(default_factory=list[Tool])

    def plug(self, name: str, invoke: Invoke, **properties: Any) -> None:
        schema = {"type": "object", "properties": properties, "required": list(properties)}
        self.tools.append(
            Tool(
                name=name,
                plug="tests",
                description=f"Do {name}.",
                input_schema=schema,
                invoke=invoke,
                effects=READS,
            )
        )
        self.catalog.replace("tests", self.tools)

    async def keep(self, value: object, holder: str = "local") -> Reference:
        return await self.objects.put(
            json.dumps(value).encode(),
            media_type="application/json",
            name="table",
            namespace="local",
            owner=holder,
        )

    async def status(self, run: str) -> str:
        record = await self.runs.get(run)
        assert record is not None
        return record.status


@asynccontextmanager
async def workshop(
    folder: Path, program: Program = (), defaults: RunDefaults | None = None, **more: Any
) -> AsyncGenerator[Workshop]:
    async with Store.open(folder / "guildry.db") as store:
        objects, journal = ObjectStore(store, folder / "objects"), Journal(store)
        catalog, runs = Catalog(), RunStore(store)
        model = ScriptedModel(program)
        orchestrator = Orchestrator(
            dispatch=Dispatch(catalog, objects, journal, EffectLedger(store)),
            catalog=catalog,
            objects=objects,
            journal=journal,
            runs=runs,
            models={"scripted": model},
            defaults=defaults or RunDefaults(),
            **more,
        )
        catalog.replace("guildry", orchestrator.tools())
        with anyio.fail_after(20):
            yield Workshop(store, objects, journal, runs, catalog, orchestrator, model)


@dataclass(frozen=True)
class Script:
    """A team whose work is a function."""

    do: Callable[[Run, Task], Awaitable[Report]]
    name: str = "script"
    description: str = "Does what the test says."
    tools: tuple[str, ...] = ("*",)
    default_limits: Limits = Limits()

    async def work(self, run: Run, task: Task) -> Report:
        return await self.do(run, task)


def agent(run: Run, name: str = "worker", *tools: str) -> AgentSpec:
    return AgentSpec(name=name, instructions="Work.", model=run.model(), tools=tools)


def asked(request: Request) -> str:
    """Return the task that an agent was given, without its references."""
    opening = next(message for message in request.messages if message.role == "user")
    return opening.content.partition("\n\nReferences:")[0]


def told(request: Request) -> str:
    return request.messages[-1].content


def of_kind(entries: list[Entry], kind: str) -> list[Entry]:
    return [entry for entry in entries if entry.kind == kind]


async def blocked(arguments: dict[str, Any], asking: Call) -> Outcome:
    await anyio.sleep_forever()
    return Outcome()


async def test_a_run_is_recorded_before_its_work_and_closed_after_it(tmp_path: Path) -> None:
    async with workshop(tmp_path, ["42 files"]) as shop:

        async def do(run: Run, task: Task) -> Report:
            seen.append(await shop.status(run.id))
            return await run.spawn(agent(run), task)

        seen: list[str] = []
        finished = await shop.orchestrator.execute(Script(do), Task("Count the files"), LOCAL)

        record = await shop.runs.get(finished.run)
        assert seen == ["running"]
        assert (finished.status, finished.report.summary) == ("done", "42 files")
        assert record is not None
        assert (record.status, record.team, record.task) == ("done", "script", "Count the files")
        assert record.principal == "local"
        assert record.report is not None
        assert record.report["report"] == "42 files"
        assert record.usage["agents"] == 1
        assert record.usage["prompt_tokens"] > 0
        assert shop.orchestrator.live == {}


async def test_the_journal_tells_who_began_whom_and_ends_with_the_runs_stop(tmp_path: Path) -> None:
    async with workshop(tmp_path, ["done"]) as shop:
        team = Solo(name="solo", description="Works.", tools=())
        finished = await shop.orchestrator.execute(team, Task("Go"), LOCAL)

        entries = await shop.journal.read(finished.run)
        run, child = finished.run, f"{finished.run}/1"
        assert [(entry.kind, entry.agent) for entry in entries] == [
            ("spawn", run),
            ("delegate", "local"),
            ("spawn", child),
            ("delegate", run),
            ("model", child),
            ("return", child),
            ("return", run),
            ("stop", run),
        ]
        assert entries[2].data["parent"] == run
        assert [entry async for entry in shop.journal.follow(run)] == entries


async def test_an_agent_is_shown_and_served_only_the_tools_that_it_was_given(
    tmp_path: Path,
) -> None:
    def program(request: Request) -> Any:
        return told(request) if len(request.messages) > 2 else call("secret")

    async def secret(arguments: dict[str, Any], asking: Call) -> Outcome:
        served.append("secret")
        return Outcome((Text("the code"),))

    async def do(run: Run, task: Task) -> Report:
        return await run.spawn(agent(run, "worker", "public"), task)

    served: list[str] = []
    async with workshop(tmp_path, program) as shop:
        shop.plug("secret", secret)
        shop.plug("public", secret)
        finished = await shop.orchestrator.execute(Script(do), Task("Go"), LOCAL)

        assert [tool.name for tool in shop.model.requests[0].tools] == ["public"]
        assert served == []
        assert "'secret'" in finished.report.summary


async def test_a_tool_that_the_parent_does_not_hold_cannot_be_given(tmp_path: Path) -> None:
    async def do(run: Run, task: Task) -> Report:
        assert run.tools() == ("public",)
        return await run.spawn(agent(run, "worker", "public", "secret"), task)

    async with workshop(tmp_path) as shop:
        shop.plug("public", blocked)
        shop.plug("secret", blocked)
        team = Script(do, tools=("pub*",))
        finished = await shop.orchestrator.execute(team, Task("Go"), LOCAL)

        assert (finished.status, shop.model.requests) == ("failed", [])
        assert "`secret` cannot be granted" in finished.report.reason


async def test_a_passed_reference_is_readable_for_the_child_and_for_no_sibling(
    tmp_path: Path,
) -> None:
    def program(request: Request) -> Any:
        return (
            told(request) if request.messages[-1].role == "tool" else call("total", of="ref:table")
        )

    async def total(arguments: dict[str, Any], asking: Call) -> Outcome:
        return Outcome((Text(str(sum(row["total"] for row in arguments["of"]))),))

    async def do(run: Run, task: Task) -> Report:
        given = await run.spawn(agent(run, "given", "total"), task)
        bare = await run.spawn(agent(run, "bare", "total"), Task("Sum the table"))
        return Report("done", f"{given.summary} / {bare.summary}")

    async with workshop(tmp_path, program) as shop:
        shop.plug("total", total, of={"type": "array"})
        task = Task("Sum it", (await shop.keep(TABLE),))
        finished = await shop.orchestrator.execute(Script(do), task, LOCAL)

        assert finished.report.summary == (
            "4995000 / there is no reference 'ref:table' here: use one that you were given"
        )


async def test_spawn_takes_other_tools_and_more_references_than_its_agent_and_task_name(
    tmp_path: Path,
) -> None:
    async def do(run: Run, task: Task) -> Report:
        (table,) = task.references
        return await run.spawn(
            agent(run, "a", "block"), Task("Go"), tools=["other"], references=[table]
        )

    async with workshop(tmp_path, ["ok"]) as shop:
        shop.plug("block", blocked)
        shop.plug("other", blocked)
        table = await shop.keep(TABLE)
        finished = await shop.orchestrator.execute(Script(do), Task("Go", (table,)), LOCAL)

        (_, spawned) = of_kind(await shop.journal.read(finished.run), "spawn")
        assert (spawned.data["tools"], spawned.data["references"]) == (["other"], [table.id])


async def test_a_team_may_bring_its_own_model_and_ask_which_tools_fit(tmp_path: Path) -> None:
    async def do(run: Run, task: Task) -> Report:
        assert await run.fitting("anything", ("a", "b", "c"), 2) == ("a", "b")
        return await Solo(name="solo", description="Works.", model=own).work(run, task)

    own = ScriptedModel(["my own words"], name="own")
    async with workshop(tmp_path, defaults=RunDefaults(limits=Limits())) as shop:
        finished = await shop.orchestrator.execute(Script(do), Task("Go"), LOCAL)

        assert finished.report.summary == "my own words"


async def test_a_foreign_reference_cannot_be_passed_on(tmp_path: Path) -> None:
    async with workshop(tmp_path) as shop:
        foreign = await shop.keep(TABLE, holder="somebody else")

        with pytest.raises(GrantError, match="may not read"):
            await shop.orchestrator.execute(
                Solo(name="solo", description="Works."), Task("Go", (foreign,)), LOCAL
            )

        assert await shop.runs.listing() == []


async def test_what_a_child_made_is_readable_for_its_parent_and_then_for_the_caller(
    tmp_path: Path,
) -> None:
    def program(request: Request) -> Any:
        if asked(request) == "Count":
            return (
                told(request)
                if request.messages[-1].role == "tool"
                else call("count", of="ref:make")
            )
        return "In ref:make." if request.messages[-1].role == "tool" else call("make")

    async def make(arguments: dict[str, Any], asking: Call) -> Outcome:
        return Outcome((Text(json.dumps(TABLE)),))

    async def count(arguments: dict[str, Any], asking: Call) -> Outcome:
        return Outcome((Text(str(len(arguments["of"]))),))

    async def do(run: Run, task: Task) -> Report:
        made = await run.spawn(agent(run, "maker", "make"), task)
        counted = await run.spawn(agent(run, "counter", "count"), Task("Count", made.references))
        return Report("done", counted.summary, made.references)

    async with workshop(tmp_path, program) as shop:
        shop.plug("make", make)
        shop.plug("count", count, of={"type": "array"})
        finished = await shop.orchestrator.execute(Script(do), Task("Make"), LOCAL)

        named = await shop.objects.by_name("local", "make")
        assert finished.report.summary == "1000"
        assert named is not None
        assert named.readable_by("local")
        assert [each.id for each in finished.report.references] == [named.id]
        assert await shop.objects.value(named) == TABLE


async def test_children_work_side_by_side(tmp_path: Path) -> None:
    async def meet(arguments: dict[str, Any], asking: Call) -> Outcome:
        here.append(asking.caller.grant.holder)
        if len(here) == 3:
            together.set()
        await together.wait()
        return Outcome((Text("met"),))

    async def do(run: Run, task: Task) -> Report:
        reports: list[Report] = []

        async def one() -> None:
            reports.append(await run.spawn(agent(run, "worker", "meet"), task))

        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(one)
        return Report("done", " ".join(report.summary for report in reports))

    here: list[str] = []
    together = anyio.Event()
    async with workshop(
        tmp_path, lambda r: "met" if r.messages[-1].role == "tool" else call("meet")
    ) as shop:
        shop.plug("meet", meet)
        finished = await shop.orchestrator.execute(Script(do), Task("Meet"), LOCAL)

        assert finished.report.summary == "met met met"


async def three_blocked(run: Run, task: Task) -> Report:
    async with anyio.create_task_group() as tasks:
        for _ in range(3):
            tasks.start_soon(run.spawn, agent(run, "worker", "block"), task)
    return Report("done", "never")


@dataclass
class Blocking:
    """A tool that never answers; counts who is in it and who was let go."""

    expected: int
    inside: int = 0
    stopped: int = 0
    full: anyio.Event = field(default_factory=anyio.Event)

    async def __call__(self, arguments: dict[str, Any], asking: Call) -> Outcome:
        self.inside += 1
        if self.inside == self.expected:
            self.full.set()
        try:
            await anyio.sleep_forever()
        finally:
            self.stopped += 1
        return Outcome()


async def test_cancelling_the_waiting_caller_stops_every_child_and_is_recorded(
    tmp_path: Path,
) -> None:
    async with workshop(tmp_path, lambda _: call("block")) as shop:
        block = Blocking(expected=3)
        shop.plug("block", block)
        run = ""
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shop.orchestrator.execute, Script(three_blocked), Task("Wait"), LOCAL)
            await block.full.wait()
            (run,) = shop.orchestrator.live
            tasks.cancel_scope.cancel()

        entries = await shop.journal.read(run)
        assert block.stopped == 3
        assert await shop.status(run) == "cancelled"
        assert shop.orchestrator.live == {}
        assert [entry.data["status"] for entry in of_kind(entries, "return")] == ["cancelled"] * 4
        assert (entries[-1].kind, entries[-1].agent) == ("stop", run)


async def test_a_cancelled_caller_still_gets_what_was_made(tmp_path: Path) -> None:
    def program(request: Request) -> Any:
        if asked(request) == "Make":
            return "In ref:make." if request.messages[-1].role == "tool" else call("make")
        return call("block")

    async def make(arguments: dict[str, Any], asking: Call) -> Outcome:
        return Outcome((Text(json.dumps(TABLE)),))

    async def do(run: Run, task: Task) -> Report:
        await run.spawn(agent(run, "maker", "make"), Task("Make"))
        return await three_blocked(run, task)

    async with workshop(tmp_path, program) as shop:
        block = Blocking(expected=3)
        shop.plug("make", make)
        shop.plug("block", block)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(shop.orchestrator.execute, Script(do), Task("Wait"), LOCAL)
            await block.full.wait()
            tasks.cancel_scope.cancel()

        (record,) = await shop.runs.listing()
        made = await shop.objects.by_name("local", "make")
        assert record.status == "cancelled"
        assert record.report is not None
        assert record.report["report"].startswith("[maker: done] In ref:make.")
        assert made is not None
        assert await shop.objects.value(made) == TABLE


async def test_a_run_that_is_cancelled_from_elsewhere_hands_back_what_it_has(
    tmp_path: Path,
) -> None:
    def program(request: Request) -> Any:
        return "3 files" if asked(request) == "First" else call("block")

    async def do(run: Run, task: Task) -> Report:
        await run.spawn(agent(run, "first"), Task("First"))
        return await three_blocked(run, task)

    async def execute() -> None:
        results.append(await shop.orchestrator.execute(Script(do), Task("Then"), LOCAL))

    results: list[Any] = []
    async with workshop(tmp_path, program) as shop:
        block = Blocking(expected=3)
        shop.plug("block", block)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(execute)
            await block.full.wait()
            (run,) = shop.orchestrator.live
            await shop.orchestrator.cancel(run, "cancelled by the user")
            assert await shop.status(run) == "cancelled"

    (finished,) = results
    assert block.stopped == 3
    assert finished.status == "cancelled"
    assert finished.report.summary == "[first: done] 3 files"
    assert finished.report.reason == "cancelled by the user"


async def test_a_crash_in_a_child_is_a_failed_report_and_kills_no_sibling(tmp_path: Path) -> None:
    def program(request: Request) -> Any:
        if asked(request) == "Crash":
            raise ValueError("a bug in the model client")
        return "fine"

    async def do(run: Run, task: Task) -> Report:
        reports: dict[str, Report] = {}

        async def one(text: str) -> None:
            reports[text] = await run.spawn(agent(run), Task(text))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(one, "Crash")
            tasks.start_soon(one, "Work")
        crashed, worked = reports["Crash"], reports["Work"]
        return Report("done", f"{crashed.status}, {worked.status}", reason=crashed.reason)

    async with workshop(tmp_path, program) as shop:
        finished = await shop.orchestrator.execute(Script(do), Task("Go"), LOCAL)

        assert finished.report.summary == "failed, done"
        assert finished.report.reason == (
            "`worker` failed inside (ValueError): a bug in the model client"
        )


async def test_a_crash_in_a_team_is_a_failed_run_that_shows_what_was_done(tmp_path: Path) -> None:
    async def do(run: Run, task: Task) -> Report:
        await run.spawn(agent(run, "first"), task)
        raise KeyError("plan")

    async with workshop(tmp_path, ["3 files"]) as shop:
        finished = await shop.orchestrator.execute(Script(do), Task("Go"), LOCAL)

        assert (finished.status, finished.report.summary) == ("partial", "[first: done] 3 files")
        assert finished.report.reason == "`script` failed inside (KeyError): 'plan'"
        assert await shop.status(finished.run) == "partial"


@pytest.mark.parametrize("agents", [0, 2])
async def test_no_more_agents_begin_than_the_budget_has(tmp_path: Path, agents: int) -> None:
    async def do(run: Run, task: Task) -> Report:
        reports = [await run.spawn(agent(run), task) for _ in range(3)]
        return Report("done", " ".join(each.status for each in reports), reason=reports[2].reason)

    async with workshop(tmp_path, lambda _: "ok") as shop:
        limits = Limits(agents=agents)
        finished = await shop.orchestrator.execute(Script(do), Task("Go"), LOCAL, limits=limits)

        assert finished.report.summary == " ".join(["done"] * agents + ["failed"] * (3 - agents))
        assert f"the budget of {agents} agents is spent" in finished.report.reason
        assert finished.spent.agents == agents


async def test_a_caller_cannot_ask_for_more_than_it_holds(tmp_path: Path) -> None:
    caller = Caller(grant=Grant.root("local", limits=Limits(tokens=1_000)), run="local")
    team = Solo(name="solo", description="Works.", default_limits=Limits(tokens=50_000))

    async with workshop(tmp_path, ["ok"]) as shop:
        with pytest.raises(GrantError, match="`tokens` is 2000: at most 1000"):
            await shop.orchestrator.execute(team, Task("Go"), caller, limits=Limits(tokens=2_000))
        finished = await shop.orchestrator.execute(team, Task("Go"), caller)

        (spawned, _) = of_kind(await shop.journal.read(finished.run), "spawn")
        assert spawned.data["limits"]["tokens"] == 1_000


async def test_agents_spawn_children_with_less_until_their_depth_is_used_up(
    tmp_path: Path,
) -> None:
    def program(request: Request) -> Any:
        last = request.messages[-1]
        if last.role == "tool":
            return json.loads(last.content)["report"] if last.content[:1] == "{" else last.content
        level = int(asked(request).split()[-1])
        if not any(tool.name == "spawn" for tool in request.tools):
            return f"at the bottom, {level}"
        return call("spawn", task=f"Level {level + 1}", tools=["spawn", "public"])

    caller = Caller(grant=Grant.root("local", depth=4), run="local")
    team = Solo(name="solo", description="Works.", tools=("public", "secret"), may_spawn=True)
    async with workshop(tmp_path, program) as shop:
        shop.plug("public", blocked)
        shop.plug("secret", blocked)
        finished = await shop.orchestrator.execute(team, Task("Level 1"), caller)

        spawned = of_kind(await shop.journal.read(finished.run), "spawn")
        run = finished.run
        assert [(each.agent, each.data["parent"]) for each in spawned] == [
            (run, None),
            (f"{run}/1", run),
            (f"{run}/2", f"{run}/1"),
            (f"{run}/3", f"{run}/2"),
        ]
        assert [each.data["tools"] for each in spawned[1:]] == [
            ["public", "secret", "spawn"],
            ["spawn", "public"],
            ["spawn", "public"],
        ]
        assert finished.spent.agents == 3
        assert "generation(s) of agents" in finished.report.summary


async def test_spawn_is_for_agents_at_work_and_for_tools_that_they_hold(tmp_path: Path) -> None:
    def program(request: Request) -> Any:
        if request.messages[-1].role == "tool":
            return told(request)
        return call("spawn", task="Go", tools=["secrte"])

    team = Solo(name="solo", description="Works.", tools=("secret",), may_spawn=True)
    async with workshop(tmp_path, program) as shop:
        shop.plug("secret", blocked)
        finished = await shop.orchestrator.execute(team, Task("Go"), LOCAL)
        dispatch = Dispatch(shop.catalog, shop.objects, shop.journal, EffectLedger(shop.store))
        refused = await dispatch.call(LOCAL, "spawn", {"task": "Go", "tools": ["secret"]})

        assert finished.report.summary == (
            "`tools` names 'secrte', which you do not hold: did you mean `secret`?"
        )
        assert (refused.is_error, refused.text) == (
            True,
            "`spawn` is for agents at work: call `delegate`",
        )


async def test_steering_reaches_the_root_agents_before_their_next_turn(tmp_path: Path) -> None:
    def program(request: Request) -> Any:
        if any("Only Python" in message.content for message in request.messages):
            return "only Python then"
        return call("wait")

    async def wait(arguments: dict[str, Any], asking: Call) -> Outcome:
        (run,) = shop.orchestrator.live
        shop.orchestrator.steer(run, "Only Python files")
        return Outcome((Text("waited"),))

    async with workshop(tmp_path, program) as shop:
        shop.plug("wait", wait)
        team = Solo(name="solo", description="Works.")
        finished = await shop.orchestrator.execute(team, Task("Count"), LOCAL)

        notes = of_kind(await shop.journal.read(finished.run), "message")
        assert finished.report.summary == "only Python then"
        assert [(note.data["type"], note.data["body"]) for note in notes[:1]] == [
            ("steer", "Only Python files")
        ]


async def test_steering_between_agents_waits_for_the_next_one(tmp_path: Path) -> None:
    async def do(run: Run, task: Task) -> Report:
        run.steer("Only Python files")
        first = await run.spawn(agent(run), task)
        second = await run.spawn(agent(run), task)
        return Report("done", f"{first.summary} {second.summary}")

    def program(request: Request) -> Any:
        return str(any("Only Python" in message.content for message in request.messages))

    async with workshop(tmp_path, program) as shop:
        finished = await shop.orchestrator.execute(Script(do), Task("Go"), LOCAL)

        assert finished.report.summary == "True False"


async def test_a_message_that_an_agent_did_not_read_waits_for_the_next_one(tmp_path: Path) -> None:
    async def do(run: Run, task: Task) -> Report:
        await run.spawn(agent(run), task)
        return await run.spawn(agent(run), task)

    def program(request: Request) -> Any:
        (run,) = shop.orchestrator.live
        if f"{run}/1" in shop.orchestrator.live[run].live:
            shop.orchestrator.steer(run, "Only Python files")  # after the agent's last turn began
            return "first"
        return str(any("Only Python" in message.content for message in request.messages))

    async with workshop(tmp_path, program) as shop:
        finished = await shop.orchestrator.execute(Script(do), Task("Go"), LOCAL)

        assert finished.report.summary == "True"


async def test_a_run_whose_time_is_over_ends_with_what_it_has(tmp_path: Path) -> None:
    async def do(run: Run, task: Task) -> Report:
        await run.spawn(agent(run, "first"), task)
        await anyio.sleep_forever()
        return Report("done", "never")

    async with workshop(
        tmp_path, ["3 files"], RunDefaults(limits=Limits(wall_s=0.3), hand_back_s=0.0)
    ) as shop:
        finished = await shop.orchestrator.execute(Script(do), Task("Go"), LOCAL)

        assert (finished.status, finished.report.reason) == ("partial", "the time was over")
        assert finished.report.summary == "[first: done] 3 files"


async def test_a_run_in_the_background_goes_on_after_its_caller(tmp_path: Path) -> None:
    team = Solo(name="solo", description="Works.")
    async with (
        anyio.create_task_group() as tasks,
        workshop(
            tmp_path,
            lambda r: "done" if r.messages[-1].role == "tool" else call("wait"),
            tasks=tasks,
        ) as shop,
    ):

        async def wait(arguments: dict[str, Any], asking: Call) -> Outcome:
            await go.wait()
            return Outcome((Text("waited"),))

        go = anyio.Event()
        shop.plug("wait", wait)
        run = await shop.orchestrator.start(team, Task("Go"), LOCAL)
        before, live = await shop.status(run), shop.orchestrator.find(run)
        go.set()
        await live.ended.wait()

        assert (before, await shop.status(run)) == ("running", "done")


async def test_a_run_in_the_background_is_interrupted_when_the_server_stops(
    tmp_path: Path,
) -> None:
    async with workshop(tmp_path / "early", lambda _: call("block")) as without:
        with pytest.raises(RunError, match="call without `background`"):
            await without.orchestrator.start(Script(three_blocked), Task("Go"), LOCAL)

    block = Blocking(expected=3)
    run = ""
    async with anyio.create_task_group() as tasks:
        async with workshop(tmp_path, lambda _: call("block"), tasks=tasks) as shop:
            shop.plug("block", block)
            run = await shop.orchestrator.start(Script(three_blocked), Task("Go"), LOCAL)
            live = shop.orchestrator.find(run)
            await block.full.wait()
            tasks.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                await live.ended.wait()
                assert await shop.status(run) == "interrupted"

    assert block.stopped == 3


async def test_an_agent_cannot_leave_a_run_behind(tmp_path: Path) -> None:
    def program(request: Request) -> Any:
        if request.messages[-1].role == "tool":
            return told(request)
        return call("team_inner", task="Inner", background=True)

    async with (
        anyio.create_task_group() as tasks,
        workshop(tmp_path, program, tasks=tasks) as shop,
    ):
        inner = Solo(name="inner", description="Works.")
        shop.catalog.replace("inner", [team_tool(inner, shop.orchestrator)])
        outer = Solo(name="outer", description="Asks.", tools=("team_inner",))
        finished = await shop.orchestrator.execute(outer, Task("Outer"), LOCAL)

        assert "an agent cannot leave a run behind" in finished.report.summary
        assert len(await shop.runs.listing()) == 1


async def test_a_listener_that_fails_does_not_stop_the_run(tmp_path: Path) -> None:
    async def hear(done: float, total: float | None = None, message: str | None = None) -> None:
        heard.append(done)
        raise BrokenPipeError("the client is gone")

    async def do(run: Run, task: Task) -> Report:
        await run.spawn(agent(run, "one"), task)
        return await run.spawn(agent(run, "two"), task)

    heard: list[float] = []
    async with workshop(tmp_path, lambda _: "ok") as shop:
        caller = Caller(grant=LOCAL.grant, run="local", progress=hear)
        finished = await shop.orchestrator.execute(Script(do), Task("Go"), caller)

    assert (finished.status, heard) == ("done", [1])


async def test_a_listener_that_is_far_behind_holds_no_agent_up(tmp_path: Path) -> None:
    async def hear(done: float, total: float | None = None, message: str | None = None) -> None:
        await caught_up.wait()
        heard.append(message or "")

    async def do(run: Run, task: Task) -> Report:
        for _ in range(200):
            await run.spawn(agent(run, "one"), task)
        caught_up.set()
        return Report("done", "ok")

    heard: list[str] = []
    caught_up = anyio.Event()
    async with workshop(tmp_path, lambda _: "ok") as shop:
        caller = Caller(grant=LOCAL.grant, run="local", progress=hear)
        finished = await shop.orchestrator.execute(Script(do), Task("Go"), caller)

    assert finished.status == "done"
    assert 200 < len(heard) < 400  # the words in between are left out
    assert heard[0] == "one began (1 at work, 0 of 1 ended)"


async def test_a_report_that_cannot_be_stored_is_cut_and_the_run_still_ends(
    tmp_path: Path,
) -> None:
    """The folder for large objects is a file, so that nothing large can be written."""

    async def do(run: Run, task: Task) -> Report:
        return Report("done", "x" * 300_000)

    (tmp_path / "objects").write_text("in the way")
    async with workshop(tmp_path) as shop:
        finished = await shop.orchestrator.execute(Script(do), Task("Go"), LOCAL)

        assert (finished.status, finished.report.summary) == ("done", "x" * 2_000)
        assert finished.report.reason.startswith("the report could not be kept (Store")
        assert await shop.status(finished.run) == "done"


async def test_a_team_that_gives_back_something_else_fails_its_run(tmp_path: Path) -> None:
    async def do(run: Run, task: Task) -> Any:
        return "42 files"

    async def lost(run: Run, task: Task) -> Any:
        return Report("done", "ok", references=("ref:table",))  # type: ignore[arg-type]  # the fault

    async with workshop(tmp_path) as shop:
        text = await shop.orchestrator.execute(Script(do), Task("Go"), LOCAL)
        names = await shop.orchestrator.execute(Script(lost), Task("Go"), LOCAL)

        assert (text.status, text.report.reason) == (
            "failed",
            "`script` gave back '42 files': a team returns a `Report`",
        )
        assert (names.report.summary, names.report.references) == ("ok", ())
        assert "could not be kept (AttributeError)" in names.report.reason
        assert [each.status for each in await shop.runs.listing()] == ["done", "failed"]


async def test_a_run_that_cannot_be_recorded_any_more_still_gives_its_report(
    tmp_path: Path,
) -> None:
    def drop(connection: sqlite3.Connection) -> None:
        connection.execute("DROP TABLE runs")

    async def do(run: Run, task: Task) -> Report:
        await shop.store.write(drop)
        return Report("done", "42 files")

    async with workshop(tmp_path) as shop:
        finished = await shop.orchestrator.execute(Script(do), Task("Go"), LOCAL)

        assert (finished.status, finished.report.summary) == ("done", "42 files")
        assert shop.orchestrator.live == {}


async def test_a_store_that_hangs_does_not_keep_a_cancelled_run_from_ending(
    tmp_path: Path,
) -> None:
    def hang(connection: sqlite3.Connection) -> None:
        released.wait(20)

    async def do(run: Run, task: Task) -> Report:
        tasks.start_soon(shop.store.write, hang)
        begun.set()
        await anyio.sleep_forever()
        return Report("done", "never")

    begun, released = anyio.Event(), threading.Event()
    async with (
        workshop(tmp_path, defaults=RunDefaults(record_s=0.05)) as shop,
        anyio.create_task_group() as tasks,
    ):
        async with anyio.create_task_group() as callers:
            callers.start_soon(shop.orchestrator.execute, Script(do), Task("Go"), LOCAL)
            await begun.wait()
            callers.cancel_scope.cancel()
        assert shop.orchestrator.live == {}
        assert not released.is_set()
        released.set()


async def test_a_team_inside_a_team_spends_from_the_outer_budget(tmp_path: Path) -> None:
    def program(request: Request) -> Any:
        if asked(request) == "Inner":
            return "In ref:make." if request.messages[-1].role == "tool" else call("make")
        if request.messages[-1].role == "tool":
            answer = json.loads(told(request))
            return f"{answer['status']}: {answer['references'][0]['reference']}"
        return call("team_inner", task="Inner")

    async def make(arguments: dict[str, Any], asking: Call) -> Outcome:
        return Outcome((Text(json.dumps(TABLE)),))

    async with workshop(tmp_path, program) as shop:
        shop.plug("make", make)
        inner = Solo(name="inner", description="Makes.", tools=("make",))
        shop.catalog.replace("inner", [team_tool(inner, shop.orchestrator)])
        outer = Solo(name="outer", description="Asks.", tools=("team_inner", "make"))
        finished = await shop.orchestrator.execute(outer, Task("Outer"), LOCAL)

        records = await shop.runs.listing()
        made = await shop.objects.by_name("local", "make")
        assert finished.report.summary == "done: ref:make"
        assert (finished.spent.agents, finished.spent.calls) == (2, 2)
        assert [(each.team, each.status) for each in records] == [
            ("inner", "done"),
            ("outer", "done"),
        ]
        assert made is not None
        assert made.readable_by("local")


async def test_the_caller_hears_of_the_agents_of_a_team_inside_a_team(tmp_path: Path) -> None:
    async def hear(done: float, total: float | None = None, message: str | None = None) -> None:
        heard.append(message or "")

    def program(request: Request) -> Any:
        if asked(request) == "Inner" or request.messages[-1].role == "tool":
            return "ok"
        return call("team_inner", task="Inner")

    heard: list[str] = []
    async with workshop(tmp_path, program) as shop:
        inner = Solo(name="inner", description="Works.")
        shop.catalog.replace("inner", [team_tool(inner, shop.orchestrator)])
        outer = Solo(name="outer", description="Asks.", tools=("team_inner",))
        caller = Caller(grant=LOCAL.grant, run="local", progress=hear)
        await shop.orchestrator.execute(outer, Task("Outer"), caller)

    assert [word.split(" (")[0] for word in heard] == [
        "outer began",
        "inner began",
        "inner done",
        "outer done",
    ]


async def test_no_agent_is_given_what_is_for_administrators(tmp_path: Path) -> None:
    async def do(run: Run, task: Task) -> Report:
        return Report("done", ", ".join(run.tools(("*", "admin"))))

    grant = Grant.root("local", scopes=("tools", "teams", "admin"))
    async with workshop(tmp_path) as shop:
        shop.plug("public", blocked)
        admin = replace(shop.tools[0], name="admin", scope="admin")
        shop.catalog.replace("admin", [admin])
        finished = await shop.orchestrator.execute(
            Script(do, tools=("*", "admin")), Task("Go"), Caller(grant=grant, run="local")
        )

        assert finished.report.summary == "public"


async def test_calls_of_an_agent_end_with_the_time_of_its_run(tmp_path: Path) -> None:
    async def look(arguments: dict[str, Any], asking: Call) -> Outcome:
        deadline = asking.caller.grant.deadline
        return Outcome((Text(str(deadline is not None and deadline <= latest)),))

    latest = anyio.current_time() + 50.0
    async with workshop(
        tmp_path, lambda r: told(r) if r.messages[-1].role == "tool" else call("look")
    ) as shop:
        shop.plug("look", look)

        async def do(run: Run, task: Task) -> Report:
            return await run.spawn(agent(run, "a", "look"), task, limits=Limits(wall_s=20.0))

        finished = await shop.orchestrator.execute(Script(do), Task("Go"), LOCAL)

        assert finished.report.summary == "True"


async def test_the_caller_hears_of_each_agent_that_begins_and_ends(tmp_path: Path) -> None:
    async def hear(done: float, total: float | None = None, message: str | None = None) -> None:
        heard.append((done, message or ""))

    async def do(run: Run, task: Task) -> Report:
        await run.spawn(agent(run, "one"), task)
        return await run.spawn(agent(run, "two"), task)

    heard: list[tuple[float, str]] = []
    async with workshop(tmp_path, lambda _: "ok") as shop:
        caller = Caller(grant=LOCAL.grant, run="local", progress=hear)
        await shop.orchestrator.execute(Script(do), Task("Go"), caller)

    assert heard == [
        (1, "one began (1 at work, 0 of 1 ended)"),
        (2, "one done (0 at work, 1 of 1 ended)"),
        (3, "two began (1 at work, 1 of 2 ended)"),
        (4, "two done (0 at work, 2 of 2 ended)"),
    ]


async def test_a_long_report_travels_as_its_beginning_and_a_reference(tmp_path: Path) -> None:
    async def do(run: Run, task: Task) -> Report:
        return Report("done", "word " * 2_000)

    async with workshop(tmp_path) as shop:
        finished = await shop.orchestrator.execute(Script(do), Task("Go"), LOCAL)

        (whole,) = finished.report.references
        assert len(finished.report.summary) <= 2_000
        assert f"whole in {whole.short}" in finished.report.summary
        assert await shop.objects.value(whole) == "word " * 2_000


async def test_an_unknown_run_is_not_found(tmp_path: Path) -> None:
    async with workshop(tmp_path) as shop:
        with pytest.raises(RunNotFound, match="no run 'r0' is at work"):
            await shop.orchestrator.cancel("r0")
        with pytest.raises(RunNotFound):
            shop.orchestrator.steer("r0", "Stop")


async def test_a_run_whose_record_cannot_be_made_does_not_begin(tmp_path: Path) -> None:
    team = Solo(name="solo", description="Works.")
    async with workshop(tmp_path, ["once"]) as shop:
        finished = await shop.orchestrator.execute(team, Task("Go"), LOCAL, run_id="r1")
        with pytest.raises(StoreError, match="there is a run `r1` already"):
            await shop.orchestrator.execute(team, Task("Go"), LOCAL, run_id="r1")

        assert (finished.run, finished.status) == ("r1", "done")
        assert shop.orchestrator.live == {}


async def test_a_model_that_is_not_there_fails_the_run_with_the_cure(tmp_path: Path) -> None:
    team = Solo(name="solo", description="Works.", model="scripte")
    async with workshop(tmp_path) as shop:
        finished = await shop.orchestrator.execute(team, Task("Go"), LOCAL)

        assert (finished.status, finished.report.reason) == (
            "failed",
            "there is no model 'scripte': use `scripted`",
        )


def test_without_a_default_model_the_cure_is_told(tmp_path: Path) -> None:
    def orchestrator(*names: str, default: str | None = None) -> Orchestrator:
        nothing: Any = None
        return Orchestrator(
            dispatch=nothing,
            catalog=Catalog(),
            objects=nothing,
            journal=nothing,
            runs=nothing,
            models={name: ScriptedModel((), name=name) for name in names},
            defaults=RunDefaults(model=default),
        )

    assert orchestrator("a").model().name == "a"
    assert orchestrator("a", "b", default="b").model().name == "b"
    with pytest.raises(ConfigError, match="there are 2 models and no default: name one"):
        orchestrator("a", "b").model()
    with pytest.raises(ConfigError, match="there are 0 models and no default: configure one"):
        orchestrator().model()
    with pytest.raises(ConfigError, match="there is no model 'z': use one of"):
        orchestrator("a", "b").model("z")

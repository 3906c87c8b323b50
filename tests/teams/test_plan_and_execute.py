"""Plan and execute: parallel nodes, repair, replanning, joining; no finished node is redone."""

import json
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest

from guildry.errors import ModelUnavailable
from guildry.memory.events import Entry
from guildry.memory.journal import Journal
from guildry.memory.ledger import EffectLedger
from guildry.memory.objects import ObjectStore
from guildry.memory.runs import RunStore
from guildry.memory.store import Store
from guildry.teams.accounting import account
from guildry.teams.messages import Task
from guildry.teams.model import Completion, Request
from guildry.teams.orchestrator import Orchestrator
from guildry.teams.plan_and_execute import PlanAndExecute, Worker
from guildry.teams.scripted import ScriptedModel, call
from guildry.teams.team import Finished
from guildry.tools.base import READS, Call, Invoke, Outcome, Text, Tool
from guildry.tools.caller import Caller
from guildry.tools.dispatch import Dispatch
from guildry.tools.finding.index import ToolIndex
from guildry.tools.grants import Grant, Limits
from guildry.tools.registry import Catalog

LOCAL = Caller(grant=Grant.root("local", depth=4), run="local")
TABLE = [{"id": n, "total": n * 10} for n in range(1_000)]
TEAM = PlanAndExecute(name="survey", description="Surveys.")

Node = dict[str, Any]


def node(id: str, *needs: str, tools: tuple[str, ...] = (), **more: Any) -> Node:
    return {"id": id, "task": f"Do {id}", "tools": list(tools), "needs": list(needs), **more}


def asked(request: Request) -> str:
    return next(message for message in request.messages if message.role == "user").content


def part(request: Request) -> str:
    """Return which part of a team a request is for: `planner`, `aggregator`, or a node's task."""
    text = asked(request)
    if '"needs"' in text:
        return "planner"
    return "aggregator" if "\n\nReports:\n" in text else text.split("\n")[0]


@dataclass
class Program:
    """What the models say: plans in order, and per node a function of what it is shown."""

    plans: list[Any]
    nodes: Callable[[str, Request], Any] = lambda id, request: f"{id} is done"
    join: Callable[[Request], Any] = lambda request: "All joined."
    begun: Counter[str] = field(default_factory=Counter[str])
    prompts: dict[str, list[str]] = field(default_factory=dict[str, list[str]])

    def __call__(self, request: Request) -> Any:
        who = part(request)
        if len([m for m in request.messages if m.role == "user"]) == 1 and not any(
            m.role == "assistant" for m in request.messages
        ):
            self.begun[who] += 1
            self.prompts.setdefault(who, []).append(asked(request))
        if who == "planner":
            plan = self.plans[min(self.begun["planner"], len(self.plans)) - 1]
            return plan if isinstance(plan, str) else json.dumps({"nodes": plan})
        if who == "aggregator":
            return self.join(request)
        return self.nodes(who.removeprefix("Do "), request)


@dataclass
class Shop:
    objects: ObjectStore
    journal: Journal
    orchestrator: Orchestrator

    async def run(self, team: PlanAndExecute, task: Task, limits: Limits | None = None) -> Finished:
        return await self.orchestrator.execute(team, task, LOCAL, limits=limits)

    async def entries(self, run: str, kind: str) -> list[Entry]:
        return [entry for entry in await self.journal.read(run) if entry.kind == kind]


@asynccontextmanager
async def shop(folder: Path, program: Any, **tools: Invoke) -> AsyncGenerator[Shop]:
    async with Store.open(folder / "guildry.db") as store:
        objects, journal, catalog = (
            ObjectStore(store, folder / "objects"),
            Journal(store),
            Catalog(),
        )
        catalog.replace("tests", [tool(name, invoke) for name, invoke in tools.items()])
        orchestrator = Orchestrator(
            dispatch=Dispatch(catalog, objects, journal, EffectLedger(store)),
            catalog=catalog,
            objects=objects,
            journal=journal,
            runs=RunStore(store),
            models={"scripted": ScriptedModel(program)},
            index=ToolIndex(catalog),
        )
        with anyio.fail_after(20):
            yield Shop(objects, journal, orchestrator)


def tool(name: str, invoke: Invoke) -> Tool:
    return Tool(
        name=name,
        plug="tests",
        description=f"Do the {name.replace('_', ' ')} thing. And more.",
        input_schema={"type": "object", "properties": {"of": {"type": "array"}}},
        invoke=invoke,
        effects=READS,
    )


async def table(arguments: dict[str, Any], asking: Call) -> Outcome:
    return Outcome((Text(json.dumps(TABLE)),))


async def total(arguments: dict[str, Any], asking: Call) -> Outcome:
    return Outcome((Text(str(sum(row["total"] for row in arguments["of"]))),))


async def test_ready_nodes_work_side_by_side_and_the_reports_are_joined(tmp_path: Path) -> None:
    async def nodes(id: str) -> str:
        at_work.add(id)
        if {"a", "b"} <= at_work:
            both.set()
        await both.wait()
        return f"{id} found {len(id)}"

    at_work: set[str] = set()
    both = anyio.Event()
    program = Program([[node("a"), node("b"), node("c", "a", "b")]], nodes=lambda id, _: nodes(id))
    async with shop(tmp_path, program) as place:
        finished = await place.run(TEAM, Task("Survey it"))

        assert (finished.status, finished.report.summary) == ("done", "All joined.")
        assert program.prompts["Do c"] == [
            "Do c\n\nResults that this builds on:\n[a: done] a found 1\n[b: done] b found 1"
        ]
        assert program.prompts["aggregator"] == [
            "Task: Survey it\n\nReports:\n"
            "[a: done] a found 1\n[b: done] b found 1\n[c: done] c found 1"
        ]
        (plan,) = await place.entries(finished.run, "message")
        (joined,) = await place.entries(finished.run, "aggregate")
        assert (plan.data["type"], [each["id"] for each in plan.data["body"]["nodes"]]) == (
            "plan",
            ["a", "b", "c"],
        )
        assert joined.data == {"of": ["a", "b", "c"], "summary": "All joined."}


async def test_results_move_between_nodes_by_reference(tmp_path: Path) -> None:
    def nodes(id: str, request: Request) -> Any:
        last = request.messages[-1]
        if id == "make":
            return "The rows are in ref:table." if last.role == "tool" else call("table")
        return (
            f"The sum is {last.content}." if last.role == "tool" else call("total", of="ref:table")
        )

    program = Program(
        [[node("make", tools=("table",)), node("sum", "make", tools=("total",))]],
        nodes=nodes,
        join=lambda request: asked(request).partition("The sum is ")[2].partition(".")[0],
    )
    async with shop(tmp_path, program, table=table, total=total) as place:
        finished = await place.run(TEAM, Task("Sum the table"))

        (reference,) = finished.report.references
        assert finished.report.summary == "4995000"
        assert await place.objects.value(reference) == TABLE
        assert finished.spent.saved_tokens > 5_000
        accounts = account(await place.journal.read(finished.run))
        assert accounts.prompt_tokens == finished.spent.usage.prompt_tokens < 2_000
        assert accounts.calls == finished.spent.calls == 2
        # the table once after it was made, twice in the other node, once for the joining one
        assert accounts.by_value_prompt_tokens > accounts.prompt_tokens + 5 * 5_000
        assert accounts.by_value_completion_tokens > 5_000


async def test_nodes_get_only_the_tools_that_they_name(tmp_path: Path) -> None:
    program = Program([[node("a", tools=("table",)), node("b")]])
    async with shop(tmp_path, program, table=table, total=total) as place:
        finished = await place.run(TEAM, Task("Go"))

        spawned = await place.entries(finished.run, "spawn")
        assert {each.data["name"]: each.data["tools"] for each in spawned} == {
            "survey": ["table", "total"],
            "planner": [],
            "a": ["table"],
            "b": [],
            "aggregator": [],
        }


async def test_the_planner_reads_one_short_line_for_each_tool(tmp_path: Path) -> None:
    program = Program([[node("a")]])
    async with shop(tmp_path, program, table=table, git_total=total) as place:
        await place.run(TEAM, Task("Go"))

        assert program.prompts["planner"][0].startswith(
            "Task: Go\nTools:\n- table: Do the table thing\n- git_total: Do the git total thing\n"
        )


async def test_of_many_tools_the_planner_reads_those_that_fit_the_task(tmp_path: Path) -> None:
    program = Program([[node("a")]])
    many: dict[str, Invoke] = {f"unrelated_{n}": total for n in range(80)}
    async with shop(tmp_path, program, **many, count_authors=table) as place:
        await place.run(TEAM, Task("Count the authors of a repository"))

        lines = program.prompts["planner"][0].splitlines()
        assert len([line for line in lines if line.startswith("- ")]) <= 60
        assert "- count_authors: Do the count authors thing" in lines


async def test_a_bad_plan_goes_back_to_the_planner_with_its_faults(tmp_path: Path) -> None:
    bad = [node("a", "z", tools=("tabel",))]
    program = Program(["{}", bad, [node("a", tools=("table",))]])
    async with shop(tmp_path, program, table=table) as place:
        finished = await place.run(TEAM, Task("Go"))

        assert finished.status == "done"
        assert program.begun["planner"] == 3
        assert "there is no plan: no usable reply" in program.prompts["planner"][1]
        assert "node `a` needs `z`, which is not there: drop it" in program.prompts["planner"][2]
        assert "use `table`, or drop it" in program.prompts["planner"][2]
        assert program.begun["Do a"] == 1
        notes = await place.entries(finished.run, "message")
        assert [note.data["type"] for note in notes if note.agent == finished.run] == [
            "plan_refused",
            "plan_refused",
            "plan",
        ]


async def test_a_planner_that_never_mends_its_plan_fails_the_run_with_the_faults(
    tmp_path: Path,
) -> None:
    program = Program([[node("a", "a")]])
    async with shop(tmp_path, program) as place:
        finished = await place.run(TEAM, Task("Go"))

        assert finished.status == "failed"
        assert "wait for each other" in finished.report.reason
        assert (program.begun["planner"], program.begun["Do a"]) == (3, 0)


async def test_a_failed_node_is_repaired_with_its_failure_in_hand(tmp_path: Path) -> None:
    def nodes(id: str, request: Request) -> Any:
        if id == "b" and "An earlier attempt failed" not in asked(request):
            raise ModelUnavailable("no such branch")
        return f"{id} is done"

    program = Program([[node("a"), node("b"), node("c", "b")]], nodes=nodes)
    async with shop(tmp_path, program) as place:
        finished = await place.run(TEAM, Task("Go"))

        assert finished.status == "done"
        assert (program.begun["planner"], program.begun["Do a"], program.begun["Do b"]) == (1, 1, 2)
        assert "no such branch" in program.prompts["Do b"][1]


async def test_what_stays_failed_is_planned_anew_from_the_finished_nodes(tmp_path: Path) -> None:
    def nodes(id: str, request: Request) -> Any:
        if id == "b":
            raise ModelUnavailable("no such branch")
        return f"{id} is done"

    first = [node("a"), node("b"), node("c", "a", "b"), node("d", "a")]
    again = [node("b2", "a"), node("c2", "a", "b2")]
    program = Program([first, again], nodes=nodes)
    async with shop(tmp_path, program) as place:
        finished = await place.run(TEAM, Task("Go"))

        assert (finished.status, finished.report.summary) == ("done", "All joined.")
        assert {id: program.begun[f"Do {id}"] for id in ("a", "b", "c", "d", "b2", "c2")} == {
            "a": 1,
            "b": 2,
            "c": 0,
            "d": 1,
            "b2": 1,
            "c2": 1,
        }
        replanned = program.prompts["planner"][1]
        assert "Finished (never plan these again" in replanned
        assert "[a: done] a is done\n[d: done] d is done" in replanned
        assert "[b: failed]" in replanned
        assert "no such branch" in replanned


async def test_a_new_plan_that_redoes_finished_work_is_refused(tmp_path: Path) -> None:
    def nodes(id: str, request: Request) -> Any:
        if id == "b":
            raise ModelUnavailable("broken")
        return f"{id} is done"

    program = Program([[node("a"), node("b")], [node("a"), node("c")], [node("c")]], nodes=nodes)
    async with shop(tmp_path, program) as place:
        finished = await place.run(TEAM, Task("Go"))

        assert finished.status == "done"
        assert (program.begun["Do a"], program.begun["Do c"]) == (1, 1)
        assert "node `a` is finished already" in program.prompts["planner"][2]


async def test_replanning_is_bounded_and_what_was_done_is_handed_back(tmp_path: Path) -> None:
    def nodes(id: str, request: Request) -> Any:
        if id.startswith("b"):
            raise ModelUnavailable("broken")
        return f"{id} is done"

    program = Program([[node("a"), node("b")], [node("b2")], [node("b3")], [node("b4")]], nodes)
    async with shop(tmp_path, program) as place:
        finished = await place.run(TEAM, Task("Go"))

        assert (finished.status, finished.report.summary) == ("partial", "All joined.")
        assert program.begun["planner"] == 3
        assert program.begun["Do b3"] == 2
        assert program.begun["Do b4"] == 0
        assert "`b3` failed" in finished.report.reason


async def test_a_run_of_which_nothing_worked_is_failed_with_every_reason(tmp_path: Path) -> None:
    def nodes(id: str, request: Request) -> Any:
        raise ModelUnavailable("broken")

    team = PlanAndExecute(name="survey", description="Surveys.", replans=0, repairs=0)
    program = Program([[node("a"), node("b")]], nodes)
    async with shop(tmp_path, program) as place:
        finished = await place.run(team, Task("Go"))

        assert finished.status == "failed"
        assert "`a` failed" in finished.report.reason
        assert "`b` failed" in finished.report.reason
        assert program.begun["aggregator"] == 0


async def test_a_planner_may_hold_what_is_finished_to_be_enough(tmp_path: Path) -> None:
    def nodes(id: str, request: Request) -> Any:
        if id == "b":
            raise ModelUnavailable("broken")
        return "a is done"

    program = Program([[node("a"), node("b")], []], nodes)
    async with shop(tmp_path, program) as place:
        finished = await place.run(TEAM, Task("Go"))

        assert (finished.status, finished.report.summary) == ("partial", "All joined.")
        assert program.begun["planner"] == 2


async def test_reports_that_cannot_be_joined_are_handed_back_as_they_are(tmp_path: Path) -> None:
    def join(request: Request) -> Any:
        raise ModelUnavailable("the aggregator is broken")

    program = Program([[node("a"), node("b")]], join=join)
    async with shop(tmp_path, program) as place:
        finished = await place.run(TEAM, Task("Go"))

        assert finished.status == "partial"
        assert finished.report.summary == "[a: done] a is done\n[b: done] b is done"
        assert finished.report.reason.startswith("the reports could not be joined")


async def test_without_an_aggregator_the_last_node_has_the_last_word(tmp_path: Path) -> None:
    team = PlanAndExecute(name="survey", description="Surveys.", aggregator=None)
    program = Program([[node("a"), node("b")], [node("a"), node("b"), node("end", "a", "b")]])
    async with shop(tmp_path, program) as place:
        finished = await place.run(team, Task("Go"))

        assert (finished.status, finished.report.summary) == ("done", "end is done")
        assert "the result of node `a` reaches nobody" in program.prompts["planner"][1]


async def test_without_an_aggregator_a_missing_end_hands_back_what_there_is(
    tmp_path: Path,
) -> None:
    def nodes(id: str, request: Request) -> Any:
        if id == "end":
            raise ModelUnavailable("broken")
        return "a is done"

    team = PlanAndExecute(name="survey", description="Surveys.", aggregator=None, replans=0)
    program = Program([[node("a"), node("end", "a")]], nodes)
    async with shop(tmp_path, program) as place:
        finished = await place.run(team, Task("Go"))

        assert (finished.status, finished.report.summary) == ("partial", "[a: done] a is done")


async def test_a_plan_with_more_nodes_than_agents_is_refused(tmp_path: Path) -> None:
    program = Program([[node(id) for id in "abcd"], [node("a"), node("b")]])
    async with shop(tmp_path, program) as place:
        finished = await place.run(TEAM, Task("Go"), Limits(agents=5))

        assert finished.status == "done"
        assert "has room for 3 agents: join nodes" in program.prompts["planner"][1]
        assert finished.spent.agents == 5


async def test_a_budget_that_runs_out_ends_the_loops_and_hands_back_what_there_is(
    tmp_path: Path,
) -> None:
    def nodes(id: str, request: Request) -> Any:
        if id == "b":
            raise ModelUnavailable("broken")
        return "a is done"

    program = Program([[node("a"), node("b")]], nodes)
    async with shop(tmp_path, program) as place:
        finished = await place.run(TEAM, Task("Go"), Limits(agents=4))

        assert finished.status == "partial"
        assert finished.report.summary.startswith("[a: done] a is done")
        assert (finished.spent.agents, program.begun["planner"]) == (4, 1)


async def test_no_further_plan_is_asked_for_when_the_agents_are_spent(tmp_path: Path) -> None:
    program = Program([[node("a", "a")]])
    async with shop(tmp_path, program) as place:
        finished = await place.run(TEAM, Task("Go"), Limits(agents=1))

        assert finished.status == "failed"
        assert "the budget has room for 0 agents" in finished.report.reason
        assert program.begun["planner"] == 1


async def test_a_joining_that_was_cut_off_makes_the_whole_partial(tmp_path: Path) -> None:
    program = Program(
        [[node("a")]], join=lambda request: Completion(text="All joi", finish="length")
    )
    async with shop(tmp_path, program) as place:
        finished = await place.run(TEAM, Task("Go"))

        assert (finished.status, finished.report.summary) == ("partial", "All joi")
        assert finished.report.reason == "the reply was cut off at its limit"


async def test_nodes_leave_time_for_the_joining(tmp_path: Path) -> None:
    async with shop(tmp_path, Program([[node("a")]])) as place:
        finished = await place.run(TEAM, Task("Go"), Limits(wall_s=1_000.0))

        spawned = await place.entries(finished.run, "spawn")
        walls = {each.data["name"]: each.data["limits"]["wall_s"] for each in spawned}
        assert walls.pop("a") <= 900.0
        assert walls == {"survey": 1_000.0, "planner": 1_000.0, "aggregator": 1_000.0}


async def test_roles_hold_their_own_tools_and_instructions(tmp_path: Path) -> None:
    team = PlanAndExecute(
        name="survey",
        description="Surveys.",
        workers=(
            Worker(name="maker", instructions="Make tables.", tools=("tab*",)),
            Worker(name="summer", instructions="Sum up. Be brief.", tools=("total",)),
        ),
    )
    wrong = [node("a", tools=("total",), worker="maker")]
    right = [node("a", tools=("table",), worker="maker"), node("b", "a", worker="summer")]
    systems: dict[str, str] = {}

    def nodes(id: str, request: Request) -> Any:
        systems[id] = request.messages[0].content.split("\n")[0]
        return f"{id} is done"

    program = Program([wrong, right], nodes)
    async with shop(tmp_path, program, table=table, total=total) as place:
        finished = await place.run(team, Task("Go"))

        assert finished.status == "done"
        assert systems == {"a": "Make tables.", "b": "Sum up. Be brief."}
        assert (
            "- maker: Make tables; holds table\n- summer: Sum up; holds total"
            in (program.prompts["planner"][0])
        )
        assert "`total`, which is not granted to `maker`" in program.prompts["planner"][1]


async def test_a_node_with_a_schema_answers_with_a_value(tmp_path: Path) -> None:
    schema = {"type": "object", "required": ["files"]}
    program = Program([[node("a", answer_schema=schema)]], nodes=lambda id, request: '{"files": 3}')
    async with shop(tmp_path, program) as place:
        finished = await place.run(TEAM, Task("Go"))

        assert finished.status == "done"
        assert '{"files": 3}' in program.prompts["aggregator"][0]


async def test_the_answer_of_the_whole_meets_the_schema_of_the_task(tmp_path: Path) -> None:
    schema = {"type": "object", "required": ["files"]}
    program = Program([[node("a")]], join=lambda request: '{"files": 3}')
    async with shop(tmp_path, program) as place:
        finished = await place.run(TEAM, Task("Go", answer_schema=schema))

        assert finished.report.answer == {"files": 3}


async def test_what_the_caller_passes_reaches_the_nodes_that_name_it(tmp_path: Path) -> None:
    plan = [
        {"id": "named", "task": "Sum ref:first", "tools": ["total"], "needs": []},
        {"id": "all", "task": "Look at everything", "tools": ["total"], "needs": []},
        {"id": "later", "task": "Think", "tools": [], "needs": ["all"]},
    ]
    async with shop(tmp_path, Program([plan]), total=total) as place:
        given = [
            await place.objects.put(
                b"[]", media_type="application/json", name=name, namespace="local", owner="local"
            )
            for name in ("first", "second")
        ]
        finished = await place.run(TEAM, Task("Go", tuple(given)))

        spawned = await place.entries(finished.run, "spawn")
        ids = [reference.id for reference in given]
        assert {
            each.data["name"]: each.data["references"]
            for each in spawned
            if each.data["name"] in ("planner", "named", "all", "later")
        } == {"planner": ids, "named": ids[:1], "all": ids, "later": []}


@pytest.mark.parametrize("fanout", [1, 64])
async def test_the_join_of_many_long_reports_stays_short(tmp_path: Path, fanout: int) -> None:
    program = Program(
        [[node(f"n{n}") for n in range(fanout)]],
        nodes=lambda id, request: f"{id} " + "found a lot " * 400,
    )
    async with shop(tmp_path, program) as place:
        finished = await place.run(TEAM, Task("Go"))

        (joined,) = program.prompts["aggregator"]
        assert finished.status == "done"
        assert len(joined) / 4 < 21_500
        assert len(finished.report.references) == fanout  # the whole of each long report


async def test_of_very_many_tools_each_worker_gets_a_few_that_fit_its_own_sub_task(
    tmp_path: Path,
) -> None:
    offered: dict[str, list[str]] = {}

    def nodes(id: str, request: Request) -> str:
        offered[id] = [each.name for each in request.tools]
        return f"{id} is done"

    kinds = ("mail", "invoice", "weather", "picture", "ticket", "branch", "calendar", "recipe")
    tools = {f"{verb}_{kind}": table for kind in kinds for verb in VERBS}
    plan = [
        node("a") | {"task": "Do a\nRead the weather"},
        node("b", tools=("send_mail",)) | {"task": "Do b\nSend the picture by mail"},
        node("c", tools=("read_mail", "read_ticket", "read_recipe")),
    ]
    program = Program(plans=[plan], nodes=nodes)
    async with shop(tmp_path, program, **tools) as at:
        await at.run(TEAM, Task("Look into it."))

    assert len(tools) > 60
    assert "read_weather" in offered["a"]
    assert len(offered["a"]) <= 5
    assert "send_mail" in offered["b"]
    assert "send_picture" in offered["b"]
    assert len(offered["b"]) <= 5
    assert sorted(offered["c"]) == ["read_mail", "read_recipe", "read_ticket"]


VERBS = ("read", "send", "list", "find", "make", "drop", "move", "copy", "open")

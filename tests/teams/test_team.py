"""Teams as tools: what a caller gives, what it gets back, and what it is told when it cannot."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup

from guildry.errors import ModelUnavailable
from guildry.memory.journal import Journal
from guildry.memory.ledger import EffectLedger
from guildry.memory.objects import ObjectStore
from guildry.memory.references import Reference
from guildry.memory.runs import RunStore
from guildry.memory.store import Store
from guildry.teams.model import Request, estimated_tokens
from guildry.teams.orchestrator import Orchestrator
from guildry.teams.scripted import Program, ScriptedModel, call
from guildry.teams.team import Solo, team_tool
from guildry.tools.base import READS, Call, Json, Outcome, Result, Text, Tool
from guildry.tools.caller import Caller
from guildry.tools.dispatch import Dispatch
from guildry.tools.grants import Grant, Limits
from guildry.tools.registry import Catalog

LOCAL = Caller(grant=Grant.root("local", depth=4), run="local")
CLERK = Solo(name="clerk", description="Counts things.", tools=("count",))


@dataclass
class Shop:
    objects: ObjectStore
    runs: RunStore
    catalog: Catalog
    dispatch: Dispatch
    orchestrator: Orchestrator
    model: ScriptedModel

    async def ask(self, tool: str, caller: Caller = LOCAL, **arguments: Json) -> Result:
        return await self.dispatch.call(caller, tool, arguments)

    async def keep(self, text: str, owner: str = "local") -> Reference:
        return await self.objects.put(
            text.encode(), media_type="text/plain", name="notes", namespace="local", owner=owner
        )


async def count(arguments: dict[str, Any], asking: Call) -> Outcome:
    return Outcome((Text(str(len(arguments["text"]))),))


async def make(arguments: dict[str, Any], asking: Call) -> Outcome:
    return Outcome((Text(f"{asking.caller.grant.holder} " * 1_000),))


@asynccontextmanager
async def shop(
    folder: Path, program: Program, team: Solo = CLERK, tasks: TaskGroup | None = None
) -> AsyncGenerator[Shop]:
    async with Store.open(folder / "guildry.db") as store:
        objects, journal, catalog = (
            ObjectStore(store, folder / "objects"),
            Journal(store),
            Catalog(),
        )
        dispatch = Dispatch(catalog, objects, journal, EffectLedger(store))
        runs, model = RunStore(store), ScriptedModel(program)
        orchestrator = Orchestrator(
            dispatch=dispatch,
            catalog=catalog,
            objects=objects,
            journal=journal,
            runs=runs,
            models={"scripted": model},
            tasks=tasks,
        )
        text = {"type": "object", "properties": {"text": {"type": "string"}}}
        catalog.replace("guildry", orchestrator.tools())
        catalog.replace("teams", [team_tool(team, orchestrator)])
        catalog.replace(
            "tests",
            [
                Tool(
                    name=each.__name__,
                    plug="tests",
                    description="",
                    input_schema=text,
                    invoke=each,
                    effects=READS,
                )
                for each in (count, make)
            ],
        )
        with anyio.fail_after(20):
            yield Shop(objects, runs, catalog, dispatch, orchestrator, model)


def answered(request: Request) -> str | None:
    last = request.messages[-1]
    return last.content if last.role == "tool" else None


async def test_a_team_answers_in_the_shape_that_clients_rely_on(tmp_path: Path) -> None:
    def program(request: Request) -> Any:
        return "It is in ref:make." if answered(request) else call("make")

    team = Solo(name="clerk", description="Counts things.", tools=("make",))
    async with shop(tmp_path, program, team) as place:
        result = await place.ask("team_clerk", task="Make something long")

        made = await place.objects.by_name("local", "make")
        (record,) = await place.runs.listing()
        assert made is not None
        assert json.loads(result.text) == result.structured
        assert list(result.structured) == ["run", "status", "report", "references", "usage"]
        assert result.structured["run"] == record.id
        assert result.structured["status"] == "done"
        assert result.structured["report"] == "It is in ref:make."
        assert result.structured["references"] == [
            {
                "reference": "ref:make",
                "uri": made.uri,
                "media_type": "text/plain",
                "size": made.size,
                "sketch": made.sketch,
            }
        ]
        assert result.structured["usage"]["agents"] == 1
        assert result.structured["usage"]["tool_calls"] == 1
        assert result.structured["usage"]["saved_tokens"] > 1_000
        assert (record.kind, record.team, result.is_error) == ("team", "clerk", False)


async def test_a_team_is_given_references_by_name_and_by_uri(tmp_path: Path) -> None:
    def program(request: Request) -> Any:
        return answered(request) or call("count", text="ref:notes")

    async with shop(tmp_path, program) as place:
        notes = await place.keep("four")
        for form in (notes.short, notes.uri):
            result = await place.ask("team_clerk", task="Count", references=[form])
            assert result.structured["report"] == "4"


@pytest.mark.parametrize(
    ("reference", "said"),
    [
        ("ref:notes#/a", "'ref:notes#/a' is not a whole reference: give `ref:name`"),
        ("notes", "'notes' is not a whole reference"),
        ("ref:secret", "there is no reference 'ref:secret' here"),
    ],
)
async def test_a_reference_that_cannot_be_passed_is_refused_before_a_run_begins(
    tmp_path: Path, reference: str, said: str
) -> None:
    async with shop(tmp_path, ()) as place:
        await place.keep("four")
        await place.objects.put(
            b"x", media_type="text/plain", name="secret", namespace="local", owner="other"
        )
        result = await place.ask("team_clerk", task="Count", references=[reference])

        assert result.is_error
        assert said in result.text
        assert await place.runs.listing() == []


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({}, "`task`"),
        ({"task": ""}, "`task`"),
        ({"task": "Go", "tools": ["count"]}, "tools"),
        ({"task": "Go", "budget": {"tokens": -1}}, "tokens"),
        ({"task": "Go", "budget": {"dollars": 3}}, "dollars"),
        ({"task": "Go", "background": "yes"}, "background"),
    ],
)
async def test_wrong_arguments_are_refused_before_a_run_begins(
    tmp_path: Path, arguments: dict[str, Json], said: str
) -> None:
    async with shop(tmp_path, ()) as place:
        result = await place.ask("team_clerk", **arguments)

        assert result.is_error
        assert said in result.text
        assert await place.runs.listing() == []


async def test_a_budget_of_zero_is_zero(tmp_path: Path) -> None:
    async with shop(tmp_path, ["never asked"]) as place:
        for budget in ({"tokens": 0}, {"agents": 0}, {"wall_s": 0}):
            result = await place.ask("team_clerk", task="Go", budget=budget)

            assert (result.is_error, result.structured["status"]) == (True, "failed")
            assert "the budget of 0" in result.structured["reason"]
        assert place.model.requests == []


async def test_a_budget_above_the_callers_own_is_refused(tmp_path: Path) -> None:
    caller = Caller(grant=Grant.root("local", limits=Limits(agents=2)), run="local")
    async with shop(tmp_path, ["ok"]) as place:
        result = await place.ask("team_clerk", caller, task="Go", budget={"agents": 3})

        assert (result.is_error, result.text) == (
            True,
            "`team_clerk` cannot begin: `agents` is 3: at most 2 can be granted here",
        )


async def test_a_caller_who_may_start_no_agents_is_told(tmp_path: Path) -> None:
    caller = Caller(grant=Grant.root("local", depth=0), run="local")
    async with shop(tmp_path, ["ok"]) as place:
        result = await place.ask("team_clerk", caller, task="Go")

        assert result.is_error
        assert "`team_clerk` cannot begin: `local` may spawn 0 generation(s)" in result.text


async def test_a_failed_run_is_an_error_that_says_why(tmp_path: Path) -> None:
    def program(request: Request) -> Any:
        raise ModelUnavailable("the model is away")

    async with shop(tmp_path, program) as place:
        result = await place.ask("team_clerk", task="Go")

        assert (result.is_error, result.structured["status"]) == (True, "failed")
        assert result.structured["reason"] == "the model is away"


async def test_a_run_in_the_background_is_handed_out_at_once(tmp_path: Path) -> None:
    async def reply(request: Request) -> str:
        await go.wait()
        return "42"

    go = anyio.Event()
    async with anyio.create_task_group() as tasks, shop(tmp_path, reply, tasks=tasks) as place:
        result = await place.ask("team_clerk", task="Go", background=True)
        run = place.orchestrator.find(result.structured["run"])
        go.set()
        await run.ended.wait()

        record = await place.runs.get(run.id)
        assert result.structured == {
            "run": run.id,
            "status": "running",
            "report": "",
            "references": [],
            "usage": {},
        }
        assert record is not None
        assert record.report is not None
        assert (record.status, record.report["report"]) == ("done", "42")


async def test_nothing_goes_on_in_the_background_where_nobody_keeps_it(tmp_path: Path) -> None:
    async with shop(tmp_path, ()) as place:
        result = await place.ask("team_clerk", task="Go", background=True)

        assert result.is_error
        assert "call without `background`" in result.text


async def test_delegate_gives_an_agent_the_tools_named_and_spawn(tmp_path: Path) -> None:
    async with shop(tmp_path, lambda _: "done") as place:
        exact = await place.ask("delegate", task="Go", tools=["count"])
        wide = await place.ask("delegate", task="Go", tools=["ma*", "count"])

        shown = [[tool.name for tool in each.tools] for each in place.model.requests]
        records = await place.runs.listing()
        assert (exact.structured["status"], wide.structured["status"]) == ("done", "done")
        assert shown == [["count", "spawn"], ["count", "make", "spawn"]]
        assert [(each.kind, each.team) for each in records] == [("delegate", "delegate")] * 2


@pytest.mark.parametrize(
    ("tools", "said"),
    [
        (["cuont"], "`tools` names 'cuont', which you do not hold: did you mean `count`?"),
        (["zzz"], "`tools` names 'zzz', which you do not hold: name tools that you were shown"),
        ([], "tools"),
    ],
)
async def test_delegate_refuses_tools_that_the_caller_does_not_hold(
    tmp_path: Path, tools: list[str], said: str
) -> None:
    async with shop(tmp_path, ()) as place:
        result = await place.ask("delegate", task="Go", tools=tools)

        assert result.is_error
        assert said in result.text


async def test_a_child_hands_its_parent_what_it_made(tmp_path: Path) -> None:
    def program(request: Request) -> Any:
        said = answered(request)
        if "Child" in request.messages[1].content:
            return "See ref:make." if said else call("make")
        if said is None:
            return call("spawn", task="Child", tools=["make"])
        if said.startswith("{"):
            answer = json.loads(said)
            assert list(answer) == ["status", "report", "references"]
            return call("count", text=answer["references"][0]["reference"])
        return said

    async with shop(tmp_path, program) as place:
        result = await place.ask("delegate", task="Parent", tools=["make", "count"])

        holder = f"{result.structured['run']}/2 "
        assert result.structured["report"] == str(len(holder) * 1_000)


async def test_a_failed_child_is_told_to_its_parent(tmp_path: Path) -> None:
    def program(request: Request) -> Any:
        if "Child" in request.messages[1].content:
            raise ModelUnavailable("away")
        return answered(request) or call("spawn", task="Child", tools=["make"])

    async with shop(tmp_path, program) as place:
        result = await place.ask("delegate", task="Parent", tools=["make"])

        child = json.loads(result.structured["report"])
        assert (child["status"], child["reason"]) == ("failed", "away")


async def test_a_result_with_many_references_stays_inline_and_loses_none(tmp_path: Path) -> None:
    def program(request: Request) -> Any:
        names = [f"ref:make{'' if n == 1 else f'_{n}'}" for n in range(1, 31)]
        return " ".join(names) if answered(request) else tuple(call("make") for _ in range(30))

    team = Solo(name="clerk", description="Counts things.", tools=("make",))
    async with shop(tmp_path, program, team) as place:
        result = await place.ask("team_clerk", task="Make 30")

        listed = await place.objects.by_name("local", "references")
        assert len(result.text) < 4_000
        assert result.has_structured
        assert listed is not None
        assert listed.readable_by("local")
        assert result.structured["references"][-1]["reference"] == "ref:references"
        assert len(await place.objects.value(listed)) == 30


async def test_a_team_adds_little_to_what_an_agent_is_sent(tmp_path: Path) -> None:
    async with shop(tmp_path, lambda _: "done") as place:
        await place.ask("delegate", task="Go", tools=["count"])

        (request,) = place.model.requests
        bare = Request(
            messages=(request.messages[-1],),
            tools=tuple(tool for tool in request.tools if tool.name == "count"),
        )
        reply = await place.model.complete(request)
        sent = estimated_tokens(request, reply).prompt_tokens
        assert sent - estimated_tokens(bare, reply).prompt_tokens < 300

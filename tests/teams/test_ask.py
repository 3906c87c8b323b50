"""Agents that ask the person who gave the task, and calls of theirs that a person must allow."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from guildry.memory.journal import Journal
from guildry.memory.ledger import EffectLedger
from guildry.memory.objects import ObjectStore
from guildry.memory.questions import QuestionStore
from guildry.memory.runs import RunStore
from guildry.memory.store import Store
from guildry.teams.messages import Task
from guildry.teams.model import Request
from guildry.teams.orchestrator import Orchestrator
from guildry.teams.plan_and_execute import PlanAndExecute, Worker
from guildry.teams.run import Team
from guildry.teams.scripted import Program, ScriptedModel, call
from guildry.teams.team import Finished, Solo, team_tool
from guildry.teams.team_file import read_team
from guildry.tools.asking.approval import Approval
from guildry.tools.asking.board import OpenQuestion, QuestionBoard
from guildry.tools.asking.questions import Answer, Channel, Question, QuestionKind
from guildry.tools.base import Call, Effects, Outcome, Text, Tool
from guildry.tools.caller import Caller
from guildry.tools.dispatch import Dispatch
from guildry.tools.grants import Grant
from guildry.tools.registry import Catalog

ANN = Caller(grant=Grant.root("ann", depth=6), run="ann")
CLERK = Solo(name="clerk", description="Asks.", asks=True)


@dataclass
class Office:
    catalog: Catalog
    dispatch: Dispatch
    journal: Journal
    board: QuestionBoard
    orchestrator: Orchestrator
    model: ScriptedModel
    tasks: TaskGroup
    finished: list[Finished] = field(default_factory=list[Finished])

    async def work(self, team: Team, caller: Caller = ANN) -> None:
        self.finished.append(await self.orchestrator.execute(team, Task("Go"), caller))

    async def asked(self) -> OpenQuestion:
        while not (found := await self.board.open()):
            await checkpoint()
        return found[0]

    @property
    def shown(self) -> list[set[str]]:
        """The tools that each request showed to the model."""
        return [{tool.name for tool in request.tools} for request in self.model.requests]


async def wipe(arguments: dict[str, Any], asking: Call) -> Outcome:
    return Outcome((Text("wiped"),))


WIPE = Tool(
    name="wipe",
    plug="disk",
    description="Wipe.",
    input_schema={"type": "object", "properties": {"path": {"type": "string"}}},
    invoke=wipe,
    effects=Effects(admits=True),
)


@asynccontextmanager
async def office(
    folder: Path, program: Program, *, wait_s: float = 3_600.0
) -> AsyncGenerator[Office]:
    with anyio.fail_after(30):
        async with (
            Store.open(folder / "guildry.db") as store,
            anyio.create_task_group() as tasks,
        ):
            catalog, journal = Catalog(), Journal(store)
            objects, model = ObjectStore(store, folder / "objects"), ScriptedModel(program)
            board = QuestionBoard(QuestionStore(store), wait_s=wait_s, journal=journal)
            dispatch = Dispatch(
                catalog,
                objects,
                journal,
                EffectLedger(store),
                guards=[Approval(board)],
                board=board,
            )
            orchestrator = Orchestrator(
                dispatch=dispatch,
                catalog=catalog,
                objects=objects,
                journal=journal,
                runs=RunStore(store),
                models={"scripted": model},
                tasks=tasks,
            )
            catalog.replace("guildry", orchestrator.tools())
            catalog.replace("disk", [WIPE])
            yield Office(catalog, dispatch, journal, board, orchestrator, model, tasks)


def asking(**arguments: Any) -> Program:
    """Ask once, then report what was told."""

    def program(request: Request) -> Any:
        last = request.messages[-1]
        return last.content if last.role == "tool" else call("ask", **arguments)

    return program


async def test_an_agent_asks_and_the_answer_is_what_its_call_returns(tmp_path: Path) -> None:
    async with office(tmp_path, asking(question="Which folder?")) as o:
        o.tasks.start_soon(o.work, CLERK)
        asked = await o.asked()
        await o.board.answer(asked.id, Answer("accept", {"answer": "src"}), principal="ann")

    (done,) = o.finished
    assert done.report.summary == "src"
    assert asked.question.chain == ("ann", done.run, f"{done.run}/1")
    assert asked.question.message == f"Which folder?\nAsked by: ann → {done.run} → {done.run}/1"
    assert (asked.run, asked.question.kind, asked.question.tool) == (done.run, "form", "ask")


async def test_a_run_tells_in_its_journal_what_was_asked_and_answered(tmp_path: Path) -> None:
    async with office(tmp_path, asking(question="Which?"), wait_s=0.01) as o:
        await o.work(CLERK)
        entries = await o.journal.read(o.finished[0].run)

    kinds = [each.kind for each in entries if each.kind in ("ask", "answer", "tool")]
    asked, answered = (next(e.data for e in entries if e.kind == k) for k in ("ask", "answer"))
    assert kinds == ["ask", "answer", "tool"]
    assert (asked["type"], asked["tool"], asked["can_be_answered"]) == ("form", "ask", True)
    assert answered == {"question": asked["question"], "action": "decline", "by": "deadline"}


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (Answer("accept", {"answer": "blue"}), "blue"),
        (Answer("decline"), "The person declined to answer: go on without it, and say in your"),
        (Answer("cancel"), "The question was closed without an answer: go on without it"),
    ],
)
async def test_an_agent_is_told_how_to_go_on(tmp_path: Path, answer: Answer, told: str) -> None:
    program = asking(question="Which colour?", choices=["red", "blue"])
    async with office(tmp_path, program) as o:
        o.tasks.start_soon(o.work, CLERK)
        asked = await o.asked()
        await o.board.answer(asked.id, answer)

    assert o.finished[0].report.summary.startswith(told)
    assert asked.question.schema["properties"]["answer"]["enum"] == ["red", "blue"]


async def test_an_agent_that_nobody_answers_goes_on_without(tmp_path: Path) -> None:
    async with office(tmp_path, asking(question="Which?"), wait_s=0.01) as o:
        await o.work(CLERK)

    assert o.finished[0].report.status == "done"
    assert o.finished[0].report.summary.startswith("Nobody answered in time: go on without it")


async def test_an_agent_may_ask_for_a_form(tmp_path: Path) -> None:
    schema = {
        "properties": {
            "age": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string", "enum": ["a", "b"]}},
        },
        "required": ["age"],
    }
    program = asking(question="Who?", schema=schema)
    async with office(tmp_path, program) as o:
        o.tasks.start_soon(o.work, CLERK)
        asked = await o.asked()
        await o.board.answer(asked.id, Answer("accept", {"age": 3, "tags": ["a"]}))

    assert json.loads(o.finished[0].report.summary) == {"age": 3, "tags": ["a"]}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"choices": ["a", "b"], "schema": {}}, "takes `choices` or `schema`: leave one of them"),
        ({"schema": {}}, "`schema` describes no form: give it 1 to 20 `properties`"),
        ({"schema": {"type": "array"}}, "`schema` describes no form: the input schema has the"),
        (
            {"schema": {"properties": {"a": {"type": "object"}}}},
            "the type of `a` is 'object': use one of boolean, integer, number, string",
        ),
        (
            {"schema": {"properties": {"a": {"type": "array", "items": {"type": "string"}}}}},
            "the items of `a` are no strings with an `enum`",
        ),
        ({"choices": ["a"]}, "`ask` was not called"),
    ],
)
async def test_a_question_that_no_person_can_be_shown_is_refused(
    tmp_path: Path, arguments: dict[str, Any], told: str
) -> None:
    async with office(tmp_path, asking(question="Which?", **arguments)) as o:
        await o.work(CLERK)

    assert told in o.finished[0].report.summary


async def test_only_agents_that_may_ask_have_the_tool_and_nobody_else_can_use_it(
    tmp_path: Path,
) -> None:
    async with office(tmp_path, lambda _: "ok") as o:
        await o.work(Solo(name="mute", description="Never asks."))
        await o.work(CLERK)
        by_client = await o.dispatch.call(ANN, "ask", {"question": "Which?"})

        assert ["ask" in each for each in o.shown] == [False, True]
        assert by_client.text == "`ask` is for agents at work: ask whoever called you"


async def test_a_helper_may_ask_only_where_its_parent_hands_the_tool_on(tmp_path: Path) -> None:
    def program(request: Request) -> Any:
        if request.messages[1].content != "Go" or request.messages[-1].role == "tool":
            return "ok"
        return (
            call("spawn", task="One", tools=["wipe"]),
            call("spawn", task="Two", tools=["ask"]),
        )

    team = Solo(name="boss", description="Spawns.", asks=True, may_spawn=True)
    async with office(tmp_path, program) as o:
        await o.work(team)

    helpers = {
        request.messages[1].content: {tool.name for tool in request.tools}
        for request in o.model.requests
    }
    assert helpers["One"] == {"wipe"}
    assert helpers["Two"] == {"ask"}


async def test_a_team_inside_a_team_that_may_not_ask_may_not_ask_either(tmp_path: Path) -> None:
    def program(request: Request) -> Any:
        if request.messages[1].content == "Go" and request.messages[-1].role != "tool":
            return call("team_clerk", task="Inner")
        return "ok"

    async with office(tmp_path, program) as o:
        o.catalog.replace("teams", [team_tool(CLERK, o.orchestrator)])
        await o.work(Solo(name="outer", description="Calls.", tools=("team_clerk",)))
        await o.work(Solo(name="outer", description="Calls.", tools=("team_clerk",), asks=True))

    assert o.shown == [
        {"team_clerk"},
        set(),
        {"team_clerk"},
        {"team_clerk", "ask"},
        {"ask"},
        {"team_clerk", "ask"},
    ]


async def test_the_planner_and_the_workers_of_a_team_ask_and_who_joins_does_not(
    tmp_path: Path,
) -> None:
    def program(request: Request) -> Any:
        text = next(m for m in request.messages if m.role == "user").content
        if '"needs"' in text:
            who = "planner"
            reply = json.dumps(
                {
                    "nodes": [
                        {"id": "a", "task": "A", "tools": [], "needs": [], "worker": "open"},
                        {"id": "b", "task": "B", "tools": [], "needs": [], "worker": "shy"},
                    ]
                }
            )
        else:
            who, reply = ("aggregator" if "Reports:" in text else text), "ok"
        may_ask[who] = "ask" in {tool.name for tool in request.tools}
        return reply

    may_ask: dict[str, bool] = {}
    team = PlanAndExecute(
        name="survey",
        description="Surveys.",
        asks=True,
        workers=(Worker(name="open"), Worker(name="shy", asks=False)),
    )
    async with office(tmp_path, program) as o:
        await o.work(team)

    assert may_ask == {"planner": True, "A": True, "B": False, "aggregator": False}


def test_a_team_file_says_who_may_ask() -> None:
    solo = 'name = "one"\ndescription = "Works."\npattern = "solo"\nasks = true\n'
    planned = solo.replace("solo", "plan_and_execute")
    worker = '[[workers]]\nname = "shy"\nasks = false\n'

    assert read_team(solo, "one.toml") == Solo(name="one", description="Works.", asks=True)
    assert read_team(planned + worker, "one.toml") == PlanAndExecute(
        name="one", description="Works.", asks=True, workers=(Worker(name="shy", asks=False),)
    )


async def test_where_nobody_can_be_asked_the_agent_is_told_so(tmp_path: Path) -> None:
    async with Store.open(tmp_path / "guildry.db") as store:
        catalog, journal = Catalog(), Journal(store)
        objects = ObjectStore(store, tmp_path / "objects")
        orchestrator = Orchestrator(
            dispatch=Dispatch(catalog, objects, journal, EffectLedger(store)),
            catalog=catalog,
            objects=objects,
            journal=journal,
            runs=RunStore(store),
            models={"scripted": ScriptedModel(asking(question="Which?"))},
        )
        catalog.replace("guildry", orchestrator.tools())
        with anyio.fail_after(30):
            finished = await orchestrator.execute(CLERK, Task("Go"), ANN)

    assert finished.report.summary.startswith("Nobody can be asked here: go on without it")


class Line(Channel):
    """A client that allows everything."""

    def __init__(self) -> None:
        self.asked: list[Question] = []

    def takes(self, kind: QuestionKind) -> bool:
        return True

    async def ask(self, question: Question) -> Answer:
        self.asked.append(question)
        return Answer("accept", by="ann")


def two_levels(request: Request) -> Any:
    """The outer agent calls the inner team, whose agent spawns a helper, which wipes."""
    task = request.messages[1].content
    if request.messages[-1].role == "tool":
        return request.messages[-1].content
    if task == "Go":
        return call("team_inner", task="Inner")
    return call("wipe", path="/tmp/x")


INNER = Solo(name="inner", description="Wipes.", tools=("wipe",))
OUTER = Solo(name="outer", description="Calls.", tools=("team_inner", "wipe"))


async def test_a_nested_agents_call_waits_for_a_person_who_sees_the_whole_chain(
    tmp_path: Path,
) -> None:
    async with office(tmp_path, two_levels) as o:
        o.catalog.replace("teams", [team_tool(INNER, o.orchestrator)])
        o.tasks.start_soon(o.work, OUTER)
        asked = await o.asked()
        outer, inner = asked.question.chain[1], asked.question.chain[3]
        by_outer_run = await o.board.open(run=outer)
        await o.board.answer(asked.id, Answer("accept"), principal="ann")

    chain = ("ann", outer, f"{outer}/1", inner, f"{inner}/1")
    assert asked.question.chain == chain
    assert f"Asked by: {' → '.join(chain)}" in asked.question.message
    assert (asked.run, asked.principal) == (inner, "ann")
    assert by_outer_run == [asked]
    assert "wiped" in o.finished[0].report.summary


async def test_a_nested_agents_call_is_refused_at_the_deadline_with_the_chain(
    tmp_path: Path,
) -> None:
    async with office(tmp_path, two_levels, wait_s=0.01) as o:
        o.catalog.replace("teams", [team_tool(INNER, o.orchestrator)])
        await o.work(OUTER)

    (done,) = o.finished
    assert f"asked by ann → {done.run} → {done.run}/1 → r" in done.report.summary
    assert "nobody allowed it in time: go on without it" in done.report.summary


async def test_the_client_that_waits_is_asked_through_every_level(tmp_path: Path) -> None:
    line = Line()
    async with office(tmp_path, two_levels) as o:
        o.catalog.replace("teams", [team_tool(INNER, o.orchestrator)])
        await o.work(OUTER, Caller(grant=ANN.grant, run="ann", channel=line))

    (question,) = line.asked
    assert len(question.chain) == 5
    assert "wiped" in o.finished[0].report.summary


async def test_a_run_in_the_background_does_not_ask_the_client_that_began_it(
    tmp_path: Path,
) -> None:
    line = Line()
    async with office(tmp_path, lambda r: _once(r, call("wipe", path="x"))) as o:
        caller = Caller(grant=ANN.grant, run="ann", channel=line)
        run = await o.orchestrator.start(INNER, Task("Go"), caller)
        asked = await o.asked()
        await o.board.answer(asked.id, Answer("accept"))
        live = o.orchestrator.live.get(run)
        if live is not None:
            await live.ended.wait()

    assert line.asked == []


async def test_a_cancelled_run_takes_its_questions_down(tmp_path: Path) -> None:
    async with office(tmp_path, asking(question="Which?")) as o:
        o.tasks.start_soon(o.work, CLERK)
        asked = await o.asked()
        await o.orchestrator.cancel(asked.run)

        assert await o.board.open() == []


def _once(request: Request, first: Any) -> Any:
    return "done" if request.messages[-1].role == "tool" else first

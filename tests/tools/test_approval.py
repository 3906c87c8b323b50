"""Approval: which calls a person is asked about, what is shown, and what comes of each answer."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint

from guildry.errors import PlugError
from guildry.memory.journal import Journal
from guildry.memory.ledger import EffectLedger
from guildry.memory.objects import ObjectStore
from guildry.memory.questions import QuestionStore
from guildry.memory.store import Store
from guildry.tools.asking.approval import Approval, AskDestructive
from guildry.tools.asking.board import OpenQuestion, QuestionBoard
from guildry.tools.asking.questions import Answer
from guildry.tools.base import READS, Call, Effects, Outcome, Text, Tool
from guildry.tools.caller import Caller
from guildry.tools.dispatch import Dispatch
from guildry.tools.grants import Grant
from guildry.tools.plugs.board import PlugBoard
from guildry.tools.registry import Catalog

ME = Grant.root("ann", depth=4)
AGENT = ME.narrow("r1", tools=("wipe", "look", "pay_bill")).narrow(
    "r1/1", tools=("wipe", "look", "pay_bill")
)
DESTROYS = Effects(admits=True)


async def done(arguments: dict[str, Any], call: Call) -> Outcome:
    return Outcome((Text("done"),))


def tool(name: str, effects: Effects = READS, plug: str = "mine") -> Tool:
    return Tool(
        name=name,
        plug=plug,
        description="",
        input_schema={"type": "object", "properties": {"path": {}}},
        invoke=done,
        effects=effects,
    )


@dataclass
class Place:
    board: QuestionBoard
    dispatch: Dispatch
    objects: ObjectStore
    journal: Journal
    tasks: TaskGroup
    results: list[str] = field(default_factory=list[str])

    async def call(self, grant: Grant, name: str, arguments: dict[str, Any]) -> None:
        caller = Caller(grant, grant.chain[1] if len(grant.chain) > 1 else "ann")
        self.results.append((await self.dispatch.call(caller, name, arguments)).text)

    async def asked(self) -> OpenQuestion:
        while not (found := await self.board.open()):
            await checkpoint()
        return found[0]


@asynccontextmanager
async def place(
    folder: Path,
    *tools: Tool,
    ask_first: Sequence[str] = (),
    ask_destructive: AskDestructive = "always",
    wait_s: float = 3_600.0,
) -> AsyncGenerator[Place]:
    with anyio.fail_after(30):
        async with (
            Store.open(folder / "guildry.db") as store,
            anyio.create_task_group() as tasks,
        ):
            catalog, objects = Catalog(), ObjectStore(store, folder / "objects")
            journal = Journal(store)
            board = QuestionBoard(QuestionStore(store), wait_s=wait_s, journal=journal)
            approval = Approval(board, ask_first=ask_first, ask_destructive=ask_destructive)
            catalog.replace("mine", tools)
            dispatch = Dispatch(
                catalog, objects, journal, EffectLedger(store), guards=[approval], board=board
            )
            yield Place(board, dispatch, objects, journal, tasks)


@pytest.mark.parametrize(
    ("mode", "mine", "agents"),
    [("always", True, True), ("agents", False, True), ("never", False, False)],
)
def test_whose_destructive_calls_are_asked_about_can_be_set(
    mode: AskDestructive, mine: bool, agents: bool
) -> None:
    nothing: Any = None
    approval = Approval(nothing, ask_destructive=mode)
    wipe = tool("wipe", DESTROYS)

    assert (approval.asks(wipe, ME), approval.asks(wipe, AGENT)) == (mine, agents)


def test_only_what_says_of_itself_that_it_destroys_is_asked_about_unless_it_is_named() -> None:
    nothing: Any = None
    approval = Approval(nothing, ask_first=["pay_*", "look"])

    def asks(name: str, effects: Effects, plug: str = "mine") -> bool:
        return approval.asks(tool(name, effects, plug), ME)

    assert not asks("wipe", Effects())
    assert asks("wipe", DESTROYS)
    assert not asks("wipe", Effects(admits=True, destructive=False))
    assert not asks("wipe", Effects(admits=True, writes=False))
    assert asks("pay_bill", Effects())
    assert asks("look", READS)
    assert not asks("look_up", READS)
    assert not asks("pay_bill", DESTROYS, plug="guildry")


@pytest.mark.requirement("tools.human")
async def test_a_call_is_made_once_it_is_allowed(tmp_path: Path) -> None:
    async with place(tmp_path, tool("wipe", DESTROYS)) as p:
        p.tasks.start_soon(p.call, ME, "wipe", {"path": "/tmp/x"})
        asked = await p.asked()
        question = asked.question
        assert p.results == []
        await p.board.answer(asked.id, Answer("accept"))

    assert p.results == ["done"]
    assert (question.key, question.kind, question.repeatable) == ("approve:wipe", "approval", True)
    assert question.message == "Allow the call of `wipe` of `mine`? What it changes may be lost."
    assert dict(question.arguments) == {"path": "/tmp/x"}


async def test_an_agents_call_names_who_asks_through_whom_and_what_it_reads(
    tmp_path: Path,
) -> None:
    async with place(tmp_path, tool("pay_bill", READS), ask_first=["pay*"]) as p:
        made = [
            await p.objects.put(
                f"[{n}]".encode(),
                media_type="application/json",
                name="bills",
                namespace="r1",
                owner="r1/1",
            )
            for n in range(12)
        ]
        arguments = {"path": [each.short for each in made]}
        p.tasks.start_soon(p.call, AGENT, "pay_bill", arguments)
        asked = await p.asked()
        await p.board.answer(asked.id, Answer("decline", by="ann"))

        assert asked.question.message.splitlines()[:4] == [
            "Allow `r1/1` to call `pay_bill` of `mine`?",
            "Asked by: ann → r1 → r1/1",
            "It reads:",
            f"- ref:bills {made[0].sketch}",
        ]
        assert asked.question.message.splitlines()[-1] == "- and 2 more"
        assert dict(asked.question.arguments) == arguments
        assert not asked.question.repeatable

    assert p.results == [
        "`pay_bill` needs a person's approval and was not called (asked by ann → r1 → r1/1);"
        " it was declined by `ann`: go on without it and say in your report that it is needed"
    ]


@pytest.mark.parametrize(
    ("grant", "said"),
    [
        (AGENT, "nobody allowed it in time: go on without it and say in your report"),
        (ME, "nobody allowed it in time: a person allows it where it is asked, or with"),
    ],
)
@pytest.mark.requirement("tools.human")
async def test_what_nobody_allows_is_refused_at_the_deadline(
    tmp_path: Path, grant: Grant, said: str
) -> None:
    async with place(tmp_path, tool("wipe", DESTROYS), wait_s=0.01) as p:
        await p.call(grant, "wipe", {})
        entries = await p.journal.read(grant.chain[min(1, len(grant.chain) - 1)])

    assert said in p.results[0]
    assert [each.kind for each in entries] == ["ask", "answer", "tool"]
    assert entries[-1].data["status"] == "refused"


async def test_a_question_that_is_closed_without_a_decision_refuses_too(tmp_path: Path) -> None:
    async with place(tmp_path, tool("wipe", DESTROYS)) as p:
        p.tasks.start_soon(p.call, ME, "wipe", dict[str, Any]())
        await p.board.answer((await p.asked()).id, Answer("cancel"))

    assert "the question was closed without a decision" in p.results[0]


async def test_a_wrong_call_is_refused_before_anybody_is_asked(tmp_path: Path) -> None:
    async with place(tmp_path, tool("wipe", DESTROYS)) as p:
        await p.call(ME, "wipe", {"paht": "x"})

        assert "did you mean `path`?" in p.results[0]
        assert await p.journal.read("ann") != []
        assert [each.kind for each in await p.journal.read("ann")] == ["tool"]


async def test_long_arguments_are_shown_by_their_beginnings(tmp_path: Path) -> None:
    long: dict[str, Any] = {"text": "x" * 3_000, "rows": list(range(2_000)), "n": 3}
    free = Tool(
        name="wipe",
        plug="mine",
        description="",
        input_schema={"type": "object", "additionalProperties": True},
        invoke=done,
        effects=DESTROYS,
    )
    async with place(tmp_path, free) as p:
        p.tasks.start_soon(p.call, ME, "wipe", long)
        asked = await p.asked()
        await p.board.answer(asked.id, Answer("accept"))

    shown = dict(asked.question.arguments)
    assert shown["text"] == f"{'x' * 2_000}… (3,000 characters)"
    assert shown["rows"].startswith("[0, 1, 2,")
    assert shown["n"] == 3


async def test_no_plug_takes_the_name_of_the_tools_that_are_not_asked_about(
    tmp_path: Path,
) -> None:
    (tmp_path / "guildry.py").write_text('def wipe() -> str:\n    """Wipe."""\n    return ""\n')
    with anyio.fail_after(30):
        async with PlugBoard(Catalog(), folder=tmp_path) as board:
            for source, name in (("guildry.py", None), ("guildry.py", "guildry")):
                with pytest.raises(PlugError, match="`guildry` is the name of Guildry's own tools"):
                    await board.plug(source, name)
            report = await board.plug("guildry.py", "mine")

    assert report.tools == ("wipe",)

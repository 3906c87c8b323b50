"""The tree of a run: the same from a journal as it grows and as it is read back."""

import io
from collections.abc import AsyncIterator
from typing import Any

import anyio
from rich.console import Console

from guildry.memory.events import Entry, EventKind
from guildry.server.console import RunTree, money, plain, show_report, watch


def entry(kind: EventKind, agent: str, at: float, **data: Any) -> Entry:
    return Entry("r1", 0, at, kind, agent, data)


USAGE = {"prompt_tokens": 1200, "completion_tokens": 34, "tool_calls": 1, "agents": 1}
RUN = (
    entry("spawn", "r1", 100.0, name="survey", parent=None, tools=["a", "b"], model="m"),
    entry("spawn", "r1/1", 100.5, name="reader", parent="r1", tools=["a"], model="m"),
    entry("delegate", "r1", 100.5, to="r1/1", task="Read it."),
    entry("model", "r1/1", 101.0, prompt_tokens=1200, completion_tokens=34),
    entry("tool", "r1/1", 101.5, tool="read", status="ok", duration_s=0.2, reference="ref:rows"),
    entry("tool", "r1/1", 101.6, tool="read", status="error", duration_s=0.1, reference=None),
    entry("return", "r1/1", 102.0, status="done", summary="It is\nread.", usage={}),
    entry("return", "r1", 103.0, status="done", summary="All of it.", usage=USAGE),
    entry("stop", "r1", 103.0, reason="done", detail="finished"),
)


async def replay(entries: tuple[Entry, ...]) -> AsyncIterator[Entry]:
    for each in entries:
        await anyio.lowlevel.checkpoint()
        yield each


def test_a_finished_run_is_a_tree_of_its_agents() -> None:
    tree = RunTree()
    for each in RUN:
        tree.fold(each)

    assert tree.text().splitlines() == [
        "✔ survey  done  3.0 s  All of it.",
        "  ✔ reader  done  1 turn · 2 calls (1 failed) · 1,234 tokens · 1.5 s  It is read.",
    ]
    assert tree.usage == USAGE
    assert [(each["agent"], each["status"]) for each in tree.as_json()] == [
        ("r1", "done"),
        ("r1/1", "done"),
    ]


def test_an_agent_at_work_shows_its_task_and_then_its_tools() -> None:
    tree = RunTree()
    for each in RUN[:3]:
        tree.fold(each)
    begun = tree.rows(now=104.5)[1][2]
    for each in RUN[3:5]:
        tree.fold(each)

    assert begun == "reader  running  4.0 s  Read it."
    assert tree.rows(now=104.5)[1][2].endswith("4.0 s  read")


def test_an_agent_that_asks_shows_its_question_and_how_to_answer_it() -> None:
    tree = RunTree()
    for each in RUN[:5]:
        tree.fold(each)
    asks = tree.fold(
        entry("ask", "r1/1", 101.7, question="q1", message="Which\none?", can_be_answered=True)
    )
    asking = tree.rows(now=104.5)[1][2]
    only_client = tree.fold(
        entry("ask", "r1/1", 101.8, question="q2", message="Complete", can_be_answered=False)
    )
    answered = [
        tree.fold(entry("answer", "r1/1", 102.0, question=id, action="decline", by="deadline"))
        for id in ("q1", "q2", "unknown")
    ]

    assert asks == "reader asks (`guildry approve q1`): Which\none?"
    assert asking.endswith("4.0 s  asks (`guildry approve q1`): Which one?")
    assert only_client == "reader asks: Complete"
    assert set(answered) == {"reader: the answer is decline by deadline"}
    assert tree.rows(now=104.5)[1][2].endswith("4.0 s  read")


def test_a_run_that_was_cut_off_shows_why() -> None:
    tree = RunTree()
    for each in (*RUN[:2], entry("stop", "r1", 109.0, reason="interrupted")):
        tree.fold(each)

    assert tree.text().startswith("■ survey  interrupted  9.0 s")


async def test_outside_a_terminal_each_event_worth_a_line_is_one() -> None:
    out = io.StringIO()

    with anyio.fail_after(30):
        await watch(replay(RUN), Console(file=out, width=40))

    assert out.getvalue().splitlines() == [
        "survey began with 2 tools",
        "reader began with 1 tool",
        "reader: read ok in 0.20 s → ref:rows",
        "reader: read error in 0.10 s",
        "reader done: It is read.",
        "survey done: All of it.",
    ]


async def test_in_a_terminal_the_tree_is_drawn_and_left_standing() -> None:
    out = io.StringIO()

    with anyio.fail_after(30):
        tree = await watch(replay(RUN), Console(file=out, width=120, force_terminal=True))

    assert tree.agents["r1/1"].calls == 2
    assert "reader  done" in out.getvalue().split("survey  done")[-1]


def test_nothing_that_a_model_wrote_steers_the_terminal() -> None:
    out = io.StringIO()
    text = "fine\x1b[2J\n[red]x[/red]"
    report: dict[str, Any] = {"report": text, "references": [], "answer": {"a": 1}}

    show_report(Console(file=out, width=20), report, USAGE)

    assert "\x1b" not in out.getvalue()
    assert "[red]x[/red]" in out.getvalue()
    assert plain("a\x1b[31m\tb\n" + "c" * 200, 20) == "a [31m b cccccccccc…"
    assert "1,200 tokens sent (0 cached), 34 written" in money(USAGE)

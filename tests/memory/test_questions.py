"""Questions as they are kept: one answer each, whoever gives it."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from guildry.memory.questions import QuestionRecord, QuestionStore
from guildry.memory.runs import this_process
from guildry.memory.store import Store

YES: dict[str, Any] = {"action": "accept", "content": {}, "by": "ann"}
NO: dict[str, Any] = {"action": "decline", "content": {}, "by": "ben"}
MOVED: dict[str, Any] = {"action": "cancel", "content": {}, "by": "moved"}


async def test_a_question_is_kept_with_its_answer(tmp_path: Path) -> None:
    asked = {"key": "k", "message": "May I? \ud800", "chain": ["ann", "r1"]}
    with anyio.fail_after(30):
        async with Store.open(tmp_path / "guildry.db") as store:
            questions = QuestionStore(store, clock=lambda: 5.0)
            record = await questions.create("q1", "r1", "ann", asked, 9.0)
            open_before = await questions.open()
            answered = await questions.answer("q1", YES)
        async with Store.open(tmp_path / "guildry.db") as store:
            kept = await QuestionStore(store).get("q1")

    assert record == QuestionRecord("q1", "r1", "ann", asked, 5.0, 9.0, this_process())
    assert open_before == [record]
    assert answered
    assert record is not None
    assert kept == replace(record, answer=YES, answered_at=5.0)


async def test_the_first_answer_stays_whoever_gives_another() -> None:
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            questions = QuestionStore(store)
            await questions.create("q1", "ann", "ann", {}, 4e9)

            assert await questions.answer("q1", YES)
            assert not await questions.answer("q1", NO)
            assert not await questions.close("q1", NO)
            questions.abandon("q1")
            assert await questions.open() == []
            assert not await questions.answer("q2", YES)
            kept = await questions.get("q1")

    assert kept is not None
    assert kept.answer == YES


async def test_no_answer_is_taken_once_the_time_is_over() -> None:
    now = 5.0
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            questions = QuestionStore(store, clock=lambda: now)
            await questions.create("q1", "ann", "ann", {}, 9.0)
            now = 9.0

            assert not await questions.answer("q1", YES)
            assert await questions.open() == []
            assert await questions.close("q1", NO)


async def test_what_is_open_is_listed_the_oldest_first() -> None:
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            questions = QuestionStore(store)
            for number in range(4):
                principal = "ann" if number % 2 else "ben"
                await questions.create(f"q{number}", f"r{number}", principal, {}, 4e9)
            questions.abandon("q3")

            async def ids(**chosen: Any) -> list[str]:
                return [each.id for each in await questions.open(**chosen)]

            assert await ids() == ["q0", "q1", "q2"]
            assert await ids(principal="ann") == ["q1"]
            assert await ids(run="r2") == ["q2"]
            assert await ids(principal="ann", run="r2") == []
            assert [each.id for each in await questions.all_of(["q3", "q0", "q9"])] == ["q0", "q3"]


async def test_a_principal_may_have_so_many_questions_open_and_no_more() -> None:
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            questions = QuestionStore(store)

            async def ask(id: str, principal: str) -> bool:
                return await questions.create(id, "r", principal, {}, 4e9, most=1) is not None

            assert await ask("q1", "ann")
            assert not await ask("q2", "ann")
            assert await ask("q3", "ben")
            assert await questions.answer("q1", YES)
            assert await ask("q4", "ann")


async def test_the_questions_of_a_process_that_is_gone_are_closed() -> None:
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            questions = QuestionStore(store)
            await questions.create("q1", "ann", "ann", {}, 4e9)
            await questions.create("q2", "ann", "ann", {}, 4e9)
            await questions.answer("q1", YES)

            assert await questions.close_of_dead() == ()
            assert await questions.close_of_dead(lambda process: process != this_process()) == (
                "q2",
            )
            assert await questions.close_of_dead(lambda _: False) == ()
            closed = await questions.get("q2")

    assert closed is not None
    assert closed.answer == {"action": "cancel", "content": {}, "by": "nobody"}


@pytest.mark.parametrize(
    ("before", "principal", "taken"),
    [
        ("open", "ann", True),
        ("open", "ben", False),
        ("answered", "ann", False),
        ("abandoned", "ann", True),
        ("expired", "ann", False),
        ("unknown", "ann", True),
    ],
)
async def test_a_call_is_taken_over_once_and_only_while_nobody_has_answered(
    before: str, principal: str, taken: bool
) -> None:
    now = 5.0
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            questions = QuestionStore(store, clock=lambda: now)
            if before != "unknown":
                await questions.create("q1", "ann", "ann", {}, 9.0)
            await questions.create("q2", "ann", "ann", {}, 99.0)
            if before == "answered":
                await questions.answer("q1", YES)
            elif before == "abandoned":
                questions.abandon("q1")
            elif before == "expired":
                now = 9.0

            assert await questions.claim(["q1", "q2"], principal, MOVED) is taken
            assert not await questions.claim(["q1", "q2"], principal, MOVED)
            assert await questions.answer("q2", YES) is not taken


async def test_what_is_long_over_is_forgotten() -> None:
    now = 5.0
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            questions = QuestionStore(store, clock=lambda: now)
            await questions.create("early", "ann", "ann", {}, 9.0)
            await questions.create("late", "ann", "ann", {}, 9.0)
            await questions.create("open", "ann", "ann", {}, 99.0)
            await questions.answer("early", YES)
            now = 8.0
            await questions.answer("late", YES)

            assert await questions.forget(before=7.0) == 1
            kept = [each.id for each in await questions.all_of(["early", "late", "open"])]

    assert kept == ["late", "open"]

"""One task's state: only the transitions of the protocol, keys that never come again."""

from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from hypothesis import given
from hypothesis import strategies as st
from mcp_types import ClientCapabilities

from guildry.memory.tasks import TaskRecord
from guildry.server.asking.inputs import UnfitAnswer
from guildry.server.tasks.task import LiveTask
from guildry.tools.asking.questions import Answer, Question

ALLOWED = {
    "working": {"working", "input_required", "completed", "failed", "cancelled"},
    "input_required": {"input_required", "working", "completed", "failed", "cancelled"},
}
"""What may follow a status; nothing may follow the others."""

FORM = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
ASKABLE = ClientCapabilities.model_validate({"elicitation": {"form": {}}})


def question(key: str = "n") -> Question:
    return Question(key=key, kind="form", message="How many?", schema=FORM)


def begun(seen: list[TaskRecord] | None = None, now: list[float] | None = None) -> LiveTask:
    clock = now or [0.0]
    record = TaskRecord(
        id="t1", principal="ann", tool="dig", created_at=0.0, updated_at=0.0, expires_at=60.0
    )

    def changed(live: LiveTask) -> None:
        if seen is not None:
            seen.append(live.record)

    return LiveTask(record, ASKABLE, clock=lambda: clock[0], ttl_s=60.0, changed=changed)


STEPS = st.one_of(
    st.tuples(st.just("ask"), st.sampled_from("abc")),
    st.tuples(st.just("answer"), st.sampled_from(["a", "b", "c", "a-2", "a-3", "b-2", "never"])),
    st.tuples(st.just("withdraw"), st.integers(0, 5)),
    st.tuples(st.just("say"), st.just("digging")),
    st.tuples(st.just("wait"), st.floats(-5.0, 5.0)),
    st.tuples(st.just("end"), st.sampled_from(["completed", "failed", "cancelled"])),
)


@dataclass
class Play:
    """Steps, played on a task."""

    live: LiveTask
    now: list[float]
    tasks: TaskGroup
    asked: list[anyio.CancelScope] = field(default_factory=list[anyio.CancelScope])

    def ask(self, key: str) -> None:
        scope = anyio.CancelScope()
        self.asked.append(scope)
        self.tasks.start_soon(self._ask, key, scope)

    async def _ask(self, key: str, scope: anyio.CancelScope) -> None:
        with scope:
            await self.live.ask(question(key))

    def answer(self, key: str) -> None:
        self.live.answer({key: {"action": "accept", "content": {"n": 1}}})

    def withdraw(self, number: int) -> None:
        for scope in self.asked[number : number + 1]:
            scope.cancel()

    def say(self, message: str) -> None:
        self.live.say(message)

    def wait(self, seconds: float) -> None:
        self.now[0] += seconds

    def end(self, status: Any) -> None:
        self.live.end(status, {"result": {}}, None)


@given(st.lists(STEPS, max_size=25))
@pytest.mark.requirement("tasks.status")
async def test_whatever_comes_only_allowed_transitions_are_seen(steps: list[Any]) -> None:
    seen: list[TaskRecord] = []
    now = [0.0]
    live = begun(seen, now)
    seen.append(live.record)
    keys: list[str] = []
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            play = Play(live, now, tasks)
            for step, what in steps:
                getattr(play, step)(what)
                await anyio.wait_all_tasks_blocked()
                seen.append(live.record)
                keys += [key for key in live.record.requests if key not in keys]
            tasks.cancel_scope.cancel()

    for before, after in zip(seen, seen[1:], strict=False):
        assert after == before or after.status in ALLOWED[before.status]
        assert after.updated_at >= before.updated_at
    for each in seen:
        assert (each.status == "input_required") == bool(each.requests)
    assert len(keys) == len(set(keys))


async def test_an_answer_ends_one_question_and_leaves_the_others() -> None:
    live = begun()
    answers: dict[str, Answer] = {}

    async def ask(key: str) -> None:
        answers[key] = await live.ask(question(key))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, "a")
            tasks.start_soon(ask, "b")
            await anyio.wait_all_tasks_blocked()
            both = live.record
            live.answer({"a": {"action": "accept", "content": {"n": 1}}, "x": {"ignored": True}})
            one = live.record
            await anyio.wait_all_tasks_blocked()
            first = dict(answers)
            live.answer({"a": {"action": "cancel"}, "b": {"action": "decline"}})
            none = live.record

            assert set(both.requests) == {"a", "b"}
            assert (one.status, set(one.requests)) == ("input_required", {"b"})
            assert first == {"a": Answer("accept", {"n": 1}, "ann")}
            assert (none.status, dict(none.requests)) == ("working", {})
    assert answers["b"] == Answer("decline", {}, "ann")


@pytest.mark.requirement("tasks.questions")
async def test_a_key_is_never_used_again() -> None:
    live = begun()
    seen: list[str] = []
    with anyio.fail_after(10):
        for _ in range(3):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(live.ask, question("a"))
                await anyio.wait_all_tasks_blocked()
                (key,) = live.record.requests
                seen.append(key)
                live.answer({key: {"action": "decline"}})

    assert seen == ["a", "a-2", "a-3"]


@pytest.mark.parametrize(
    "response", [None, {"action": "maybe"}, {"action": "accept", "content": {"n": "many"}}, []]
)
async def test_what_is_no_answer_is_refused_and_takes_none_of_the_others(response: Any) -> None:
    live = begun()
    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(live.ask, question("a"))
            tasks.start_soon(live.ask, question("b"))
            await anyio.wait_all_tasks_blocked()
            with pytest.raises(UnfitAnswer, match="`inputResponses` does not answer 'b'"):
                live.answer({"a": {"action": "decline"}, "b": response})
            tasks.cancel_scope.cancel()

            assert set(live.record.requests) == {"a", "b"}


async def test_what_a_client_cannot_be_asked_is_answered_by_nobody() -> None:
    answer = await begun().ask(Question(key="p", kind="sampling", message="", params={}))

    assert answer == Answer("cancel", by="nobody")


async def test_progress_is_the_message_and_is_told_now_and_then() -> None:
    seen: list[TaskRecord] = []
    now = [0.0]
    live = begun(seen, now)
    for number in range(20):
        now[0] += 0.25
        live.say(f"{number} done")

    assert live.record.message == "19 done"
    assert [each.message for each in seen] == [f"{number} done" for number in (3, 7, 11, 15, 19)]


async def test_an_open_task_does_not_expire_and_an_ended_one_does() -> None:
    now = [50.0]
    live = begun(now=now)
    live.renew()
    renewed = live.record.expires_at
    now[0] = 80.0
    live.end("completed", {"result": {}}, None)
    now[0] = 200.0
    live.renew()

    assert (renewed, live.record.expires_at) == (110.0, 140.0)

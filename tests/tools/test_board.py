"""The board of questions: of all who may answer, the first one does."""

import tempfile
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint
from hypothesis import given, settings
from hypothesis import strategies as st

from guildry.errors import QuestionNotFound, StoreError, ToolFailed, ToolRetry
from guildry.memory.journal import Journal
from guildry.memory.questions import QuestionStore
from guildry.memory.store import Store
from guildry.tools.asking.board import OpenQuestion, QuestionBoard
from guildry.tools.asking.questions import Answer, Channel, Question, QuestionKind
from guildry.tools.caller import Caller
from guildry.tools.grants import Grant

MAY_I = Question(key="k", kind="approval", message="May I?", tool="wipe")
NAME = Question(
    key="n",
    kind="form",
    message="Which one?",
    schema={"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
)
SAMPLE = Question(key="s", kind="sampling", message="Complete", params={"messages": []})
LONG_S = 3_600.0


@dataclass
class Line(Channel):
    """A client that is asked, and answers when it is told to."""

    kinds: frozenset[QuestionKind] = frozenset({"approval", "form", "sampling"})
    answer: Answer | Exception | None = None
    asked: list[Question] = field(default_factory=list[Question])
    ringing: anyio.Event = field(default_factory=anyio.Event)
    go: anyio.Event = field(default_factory=anyio.Event)
    was_cancelled: bool = False

    def takes(self, kind: QuestionKind) -> bool:
        return kind in self.kinds

    async def ask(self, question: Question) -> Answer:
        self.asked.append(question)
        self.ringing.set()
        try:
            await self.go.wait()
        except anyio.get_cancelled_exc_class():
            self.was_cancelled = True
            raise
        if isinstance(self.answer, Exception):
            raise self.answer
        assert self.answer is not None
        return self.answer


def caller(principal: str = "ann", **more: Any) -> Caller:
    return Caller(Grant.root(principal), principal, **more)


@dataclass
class Place:
    store: Store
    board: QuestionBoard
    questions: QuestionStore
    journal: Journal
    heard: list[tuple[str, bool]]
    tasks: TaskGroup

    async def asked(self) -> OpenQuestion:
        """Wait until a question is open, and return it."""
        while not (found := await self.board.open()):
            await checkpoint()
        return found[0]


@asynccontextmanager
async def place(path: Path | None = None, wait_s: float = LONG_S) -> AsyncGenerator[Place]:
    with anyio.fail_after(60):
        async with Store.open(path) as store, anyio.create_task_group() as tasks:
            questions, journal = QuestionStore(store), Journal(store)
            board = QuestionBoard(questions, wait_s=wait_s, journal=journal)
            heard: list[tuple[str, bool]] = []
            board.listen(lambda asked, is_open: heard.append((asked.question.key, is_open)))
            yield Place(store, board, questions, journal, heard, tasks)


class Asking:
    """A question that is being asked, and what came of it."""

    def __init__(self, board: QuestionBoard, who: Caller, question: Question = MAY_I) -> None:
        self.board, self.who, self.question = board, who, question
        self.answer: Answer | None = None
        self.scope = anyio.CancelScope()

    async def __call__(self) -> None:
        with self.scope:
            self.answer = await self.board.ask(self.who, self.question)


async def test_a_question_waits_until_somebody_answers() -> None:
    async with place() as p:
        asking = Asking(p.board, caller(), NAME)
        p.tasks.start_soon(asking)
        asked = await p.asked()

        answered = await p.board.answer(asked.id, Answer("accept", {"name": "x"}), principal="ann")

    assert asking.answer == Answer("accept", {"name": "x"}, "ann")
    assert answered == asked
    assert asked.question == replace(NAME, chain=("ann",), id=asked.id)
    assert (asked.principal, asked.run) == ("ann", "ann")
    assert asked.expires_at - asked.asked_at == pytest.approx(LONG_S)
    assert p.heard == [("n", True), ("n", False)]


async def test_an_answer_that_does_not_fit_is_refused_and_the_question_stays_open() -> None:
    async with place() as p:
        asking = Asking(p.board, caller(), NAME)
        p.tasks.start_soon(asking)
        asked = await p.asked()

        with pytest.raises(ToolRetry, match="`name` is missing: give a string"):
            await p.board.answer(asked.id, Answer("accept", {}))
        with pytest.raises(ToolRetry, match=r"`name` is 3 \(integer\): give a string"):
            await p.board.answer(asked.id, Answer("accept", {"name": 3}))
        assert await p.board.open() == [asked]
        await p.board.answer(asked.id, Answer("decline", {"name": 3}))

    assert asking.answer == Answer("decline", {}, "administrator")


@pytest.mark.requirement("elicitation.bound")
async def test_only_what_is_open_and_ones_own_can_be_answered() -> None:
    async with place() as p:
        p.tasks.start_soon(Asking(p.board, caller()))
        asked = await p.asked()
        yes = Answer("accept")

        told: set[str] = set()
        for id, principal in ((asked.id, "ben"), ("q0", "ann"), ("q0", None)):
            with pytest.raises(QuestionNotFound) as refused:
                await p.board.answer(id, yes, principal=principal)
            told.add(str(refused.value).replace(id, "X"))
        await p.board.answer(asked.id, yes, principal="ann")
        with pytest.raises(QuestionNotFound) as refused:
            await p.board.answer(asked.id, yes, principal="ann")
        told.add(str(refused.value).replace(asked.id, "X"))

    assert len(told) == 1


async def test_nobodys_answer_is_a_no_at_the_deadline_and_is_recorded() -> None:
    async with place(wait_s=0.01) as p:
        answer = await p.board.ask(caller(), MAY_I)
        open_after = await p.board.open()
        (asked, answered) = await p.journal.read("ann")

    assert answer == Answer("decline", by="deadline")
    assert open_after == []
    assert asked.data["message"] == "May I?"
    assert answered.data == {
        "question": asked.data["question"],
        "action": "decline",
        "by": "deadline",
    }


async def test_the_callers_own_deadline_is_a_deadline_too() -> None:
    async with place() as p:
        late = replace(Grant.root("ann"), deadline=anyio.current_time())

        assert await p.board.ask(Caller(late, "ann"), MAY_I) == Answer("decline", by="deadline")


async def test_a_call_that_is_cancelled_takes_its_questions_down() -> None:
    async with place() as p:
        asking = Asking(p.board, caller())
        p.tasks.start_soon(asking)
        asked = await p.asked()
        asking.scope.cancel()
        while await p.board.open():
            await checkpoint()
        with pytest.raises(QuestionNotFound):
            await p.board.answer(asked.id, Answer("accept"))
        kept = await p.questions.get(asked.id)

    assert kept is not None
    assert kept.answer == {"action": "cancel", "content": {}, "by": "nobody"}
    assert p.heard == [("k", True), ("k", False)]


async def test_the_client_that_waits_is_asked_at_the_same_time() -> None:
    line = Line(answer=Answer("accept"))
    async with place() as p:
        asking = Asking(p.board, caller(channel=line))
        p.tasks.start_soon(asking)
        await line.ringing.wait()
        asked = await p.asked()
        line.go.set()

    assert asking.answer == Answer("accept", by="ann")
    assert line.asked == [asked.question]


async def test_a_client_is_left_alone_once_somebody_else_has_answered() -> None:
    line = Line()
    async with place() as p:
        asking = Asking(p.board, caller(channel=line))
        p.tasks.start_soon(asking)
        await line.ringing.wait()
        await p.board.answer((await p.asked()).id, Answer("decline", by="ben"))

    assert asking.answer == Answer("decline", by="ben")
    assert line.was_cancelled


@pytest.mark.parametrize(
    "answer",
    [
        Answer("cancel", by="nobody"),
        Answer("cancel", by="deadline"),
        Answer("accept", {"name": 3}, by="ann"),
        ConnectionError("the client is gone"),
    ],
)
async def test_a_client_that_gives_no_answer_leaves_the_question_to_others(
    answer: Answer | Exception,
) -> None:
    line = Line(answer=answer)
    async with place() as p:
        asking = Asking(p.board, caller(channel=line), NAME)
        p.tasks.start_soon(asking)
        line.go.set()
        await line.ringing.wait()
        await checkpoint()
        await p.board.answer((await p.asked()).id, Answer("accept", {"name": "x"}, "ben"))

    assert asking.answer == Answer("accept", {"name": "x"}, "ben")


async def test_a_client_that_answers_too_late_is_not_heard() -> None:
    """The question is closed in the rows before the client's answer comes."""
    line = Line(answer=Answer("accept"))
    async with place() as p:
        asking = Asking(p.board, caller(channel=line))
        p.tasks.start_soon(asking)
        asked = await p.asked()
        await line.ringing.wait()
        await p.questions.answer(asked.id, {"action": "decline", "content": {}, "by": "ben"})
        line.go.set()

    assert asking.answer == Answer("decline", by="ben")


async def test_what_only_the_client_can_answer_is_put_to_it_alone() -> None:
    line = Line(answer=Answer("accept", {"role": "assistant"}))
    line.go.set()
    async with place() as p:
        without = await p.board.ask(caller(), SAMPLE)
        deaf = await p.board.ask(caller(channel=Line(kinds=frozenset({"form"}))), SAMPLE)
        answer = await p.board.ask(caller(channel=line), SAMPLE)
        listed = await p.questions.all_of([each.id for each in line.asked])

    assert without == deaf == Answer("cancel", by="nobody")
    assert answer == Answer("accept", {"role": "assistant"}, "ann")
    assert listed == []


async def test_what_only_the_client_can_answer_has_a_deadline_too() -> None:
    async with place(wait_s=0.01) as p:
        answer = await p.board.ask(caller(channel=Line()), SAMPLE)

    assert answer == Answer("cancel", by="deadline")


async def test_questions_are_found_by_run_and_by_the_runs_that_it_is_in() -> None:
    outer = Grant.root("ann", depth=5).narrow("r1", tools=())
    inner = outer.narrow("r1/1", tools=()).narrow("r2", tools=())
    async with place() as p:
        p.tasks.start_soon(Asking(p.board, Caller(inner, "r2")))
        p.tasks.start_soon(Asking(p.board, caller("ben")))
        while len(await p.board.open()) < 2:
            await checkpoint()

        async def keys(**chosen: Any) -> list[str]:
            return [each.run for each in await p.board.open(**chosen)]

        assert await keys(run="r2") == ["r2"]
        assert await keys(run="r1") == ["r2"]
        assert await keys(run="r1", principal="ben") == []
        assert await keys(principal="ben") == ["ben"]
        assert (await p.board.open(run="r2"))[0].question.chain == ("ann", "r1", "r1/1", "r2")
        p.tasks.cancel_scope.cancel()


async def test_a_principal_cannot_fill_the_board() -> None:
    async with place() as p:
        for _ in range(100):
            p.tasks.start_soon(Asking(p.board, caller()))
        while len(await p.board.open()) < 100:
            await checkpoint()

        with pytest.raises(ToolFailed, match="100 questions wait for an answer already"):
            await p.board.ask(caller(), MAY_I)
        ben = Asking(p.board, caller("ben"))
        p.tasks.start_soon(ben)
        while not (asked := await p.board.open(principal="ben")):
            await checkpoint()
        await p.board.answer(asked[0].id, Answer("accept"))
        p.tasks.cancel_scope.cancel()


async def test_a_question_with_a_schema_that_is_none_is_not_asked() -> None:
    broken = replace(NAME, schema={"type": "object", "properties": {"a": {"type": "text"}}})
    async with place() as p:
        with pytest.raises(ToolFailed, match="`n` cannot be asked: the input schema is not valid"):
            await p.board.ask(caller(), broken)


async def test_the_caller_hears_that_a_person_is_waited_for() -> None:
    words: list[str] = []

    async def hear(done: float, total: float | None = None, message: str | None = None) -> None:
        words.append(message or "")

    async with place() as p:
        p.tasks.start_soon(Asking(p.board, caller(progress=hear)))
        asked = await p.asked()
        await p.board.answer(asked.id, Answer("accept"))

    assert words == [f"waits for an answer: `guildry approve {asked.id}`"]


async def test_a_listener_that_fails_or_leaves_disturbs_nobody() -> None:
    heard: list[bool] = []

    def fail(asked: OpenQuestion, is_open: bool) -> None:
        raise RuntimeError("broken")

    async with place(wait_s=0.01) as p:
        p.board.listen(fail)
        leave = p.board.listen(lambda _, is_open: heard.append(is_open))
        await p.board.ask(caller(), MAY_I)
        leave()
        await p.board.ask(caller(), MAY_I)

    assert heard == [True, False]


async def test_another_process_answers_through_the_rows_and_tells_so(tmp_path: Path) -> None:
    """Two stores on one file are what two processes have of each other."""
    path = tmp_path / "guildry.db"
    async with place(path) as here, place(path) as there:
        there.board.nudge = here.board.heard
        asking = Asking(here.board, caller())
        here.tasks.start_soon(asking)
        asked = await there.asked()

        await there.board.answer(asked.id, Answer("accept", by="ben"))

    assert asking.answer == Answer("accept", by="ben")


async def test_without_a_word_the_answer_of_another_process_is_found_by_looking(
    tmp_path: Path,
) -> None:
    path = tmp_path / "guildry.db"
    async with place(path) as here, place(path) as there:
        asking = Asking(here.board, caller())
        here.tasks.start_soon(asking)
        await there.board.answer((await there.asked()).id, Answer("accept", by="ben"))

    assert asking.answer == Answer("accept", by="ben")


async def test_a_call_that_goes_on_elsewhere_ends_here(tmp_path: Path) -> None:
    path = tmp_path / "guildry.db"
    async with place(path) as here, place(path) as there:
        there.board.nudge = here.board.heard
        asking, own = Asking(here.board, caller()), Asking(there.board, caller("ben"))
        here.tasks.start_soon(asking)
        asked = await there.asked()

        assert not await there.board.claim([asked.id], "ben")
        assert await there.board.claim([asked.id], "ann")
        assert not await here.board.claim([asked.id], "ann")
        here.tasks.start_soon(own)
        (mine,) = [each async for each in _until(there.board, "ben")]
        assert await there.board.claim([mine.id], "ben")

    assert asking.answer == Answer("cancel", by="moved")
    assert own.answer == Answer("cancel", by="moved")


async def _until(board: QuestionBoard, principal: str) -> AsyncGenerator[OpenQuestion]:
    while not (found := await board.open(principal=principal)):
        await checkpoint()
    yield found[0]


async def test_questions_of_a_process_that_is_gone_are_not_open(tmp_path: Path) -> None:
    async with place() as p:

        def orphan(connection: Any) -> None:
            connection.execute("UPDATE questions SET process = '4194304999:1'")

        await p.questions.create("q1", "ann", "ann", _kept(MAY_I), 4e9)
        await p.questions.create("q2", "ann", "ann", _kept(MAY_I), 4e9)
        await p.store.write(orphan)

        with pytest.raises(QuestionNotFound):
            await p.board.answer("q1", Answer("accept"))
        await p.store.write(lambda c: c.execute("UPDATE questions SET answer = NULL"))
        assert await p.board.open() == []
        await p.store.write(lambda c: c.execute("UPDATE questions SET answer = NULL"))
        assert await p.board.tidy(before=0) == ("q1", "q2")
        assert await p.board.tidy(before=4e9) == ()
        assert await p.questions.get("q1") is None


def _kept(question: Question) -> dict[str, Any]:
    return {"key": question.key, "kind": question.kind, "message": question.message, "chain": []}


AWAY = "ALTER TABLE questions RENAME TO away"
BACK = "ALTER TABLE away RENAME TO questions"


async def test_a_store_that_cannot_take_the_question_says_so() -> None:
    async with place() as p:
        await p.store.write(lambda c: c.execute(AWAY))
        with pytest.raises(StoreError, match="no such table"):
            await p.board.ask(caller(channel=Line()), MAY_I)
        with pytest.raises(StoreError):  # nor can it be taken down again
            await p.store.flush()
        await p.store.write(lambda c: c.execute(BACK))


async def test_a_store_that_fails_for_a_while_costs_no_question() -> None:
    """The table is away while the board looks, and while the client answers; then it is back."""
    line = Line(answer=Answer("accept"))
    async with place() as p:
        asking = Asking(p.board, caller(channel=line))
        p.tasks.start_soon(asking)
        asked = await p.asked()
        await p.store.write(lambda c: c.execute(AWAY))
        p.board.heard()
        line.go.set()
        with pytest.raises(StoreError):
            await p.board.look()
        await p.store.write(lambda c: c.execute(BACK))
        while asking.answer is None:
            with suppress(QuestionNotFound):
                await p.board.answer(asked.id, Answer("accept", by="ben"))

    assert asking.answer is not None
    assert asking.answer.action == "accept"


async def test_a_store_that_is_broken_at_the_deadline_does_not_hide_it() -> None:
    failed: list[str] = []

    async def ask(board: QuestionBoard, who: Caller) -> None:
        try:
            await board.ask(who, MAY_I)
        except StoreError as error:
            failed.append(str(error))

    async with place(wait_s=0.2) as p:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask, p.board, caller())
            tasks.start_soon(ask, p.board, caller(channel=Line()))
            while len(await p.board.open()) < 2:
                await checkpoint()
            await p.store.write(lambda c: c.execute(AWAY))
        with pytest.raises(StoreError):
            await p.store.flush()
        await p.store.write(lambda c: c.execute(BACK))

    assert len(failed) == 2


async def test_a_journal_that_takes_nothing_more_stops_no_question() -> None:
    released = threading.Event()
    async with place(wait_s=0.05) as p:

        def hold(_: Any) -> None:
            released.wait(30)

        async def fill() -> None:
            with pytest.raises(StoreError):
                for _ in range(1_000_000):
                    p.store.post("SELECT 1", ())

        p.tasks.start_soon(p.store.write, hold)
        while not p.store.waiting:
            p.store.post("SELECT 1", ())
            await checkpoint()
        await fill()
        asking = Asking(p.board, caller())
        p.tasks.start_soon(asking)
        await checkpoint()
        released.set()

    assert asking.answer == Answer("decline", by="deadline")


class Race:
    """Answers of this process, of another one and of the client, and a call that is cancelled."""

    def __init__(self, here: Place, there: Place) -> None:
        there.board.nudge = here.board.heard
        self.here, self.there = here, there
        self.line = Line(answer=Answer("accept", {"name": "c"}, "client"))
        self.asking = Asking(here.board, caller(channel=self.line), NAME)
        self.won: list[str] = []

    async def run(self, kind: str, id: str) -> None:
        match kind:
            case "here":
                await self._answer(self.here.board, id, kind, "h")
            case "there":
                await self._answer(self.there.board, id, kind, "t")
            case "wrong":
                await self._answer(self.there.board, id, kind, 1)
            case "client":
                self.line.go.set()
            case "claim":
                if await self.there.board.claim([id], "ann"):
                    self.won.append("moved")
            case _:
                self.asking.scope.cancel()

    async def _answer(self, board: QuestionBoard, id: str, by: str, name: Any) -> None:
        with suppress(QuestionNotFound, ToolRetry):
            await board.answer(id, Answer("accept", {"name": name}, by))
            self.won.append(by)


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["here", "there", "client", "cancel", "wrong", "claim"]),
        st.integers(0, 6),
    ),
    max_size=6,
)


@settings(max_examples=150)
@given(steps=STEPS, wait_s=st.sampled_from([0.002, LONG_S]))
async def test_one_answer_wins_under_any_interleaving(
    steps: list[tuple[str, int]], wait_s: float
) -> None:
    last = [] if wait_s < LONG_S else [("here", 0)]  # else the deadline ends it
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "guildry.db"
        async with place(path, wait_s) as here, place(path) as there:
            race, ids = Race(here, there), list[str]()
            here.board.listen(lambda asked, _: ids.append(asked.id))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(race.asking)
                while not ids:
                    await checkpoint()
                for kind, pause in [*steps, *last]:
                    tasks.start_soon(race.run, kind, ids[0])
                    for _ in range(pause):
                        await checkpoint()
            await here.store.flush()
            (kept,) = await here.questions.all_of(ids[:1])

    assert kept.answer is not None
    by, answer = kept.answer["by"], race.asking.answer
    assert race.won == [by] if race.won else by in ("client", "deadline", "nobody")
    assert by != "wrong"
    if answer is None:
        assert race.asking.scope.cancelled_caught
    else:
        assert (answer.by, dict(answer.content)) == (by, kept.answer["content"])

"""The board of questions: each waits there until a person answers it, or its time is over.

Of all who may answer (the client that waits for the call, anybody at the command line, another
process), the first one does. Knows no client and no wire.
"""

import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from math import inf
from typing import Final

import anyio
import structlog

from guildry.errors import QuestionNotFound, StoreError, ToolFailed, ToolRetry
from guildry.memory.events import Event
from guildry.memory.journal import Journal
from guildry.memory.questions import QuestionStore
from guildry.memory.runs import is_running
from guildry.tools.asking.asked import (
    KEPT,
    OpenQuestion,
    answered_event,
    asked_event,
    given,
    new_id,
    opened,
    runs_of,
    said,
    waiting_word,
)
from guildry.tools.asking.questions import Answer, Channel, Question
from guildry.tools.asking.replies import checked
from guildry.tools.caller import Caller
from guildry.tools.redaction import HIDDEN
from guildry.tools.schema import schema_fault

__all__ = ["DEADLINE", "MOVED", "NOBODY", "OpenQuestion", "QuestionBoard"]

log = structlog.get_logger()

DEADLINE: Final = "deadline"
"""Who answered a question that nobody answered in time: `Answer.by`."""

NOBODY: Final = "nobody"
"""Who answered a question that could be put to nobody, or whose call was cancelled: `Answer.by`."""

MOVED: Final = "moved"
"""Who closed a question whose call was begun anew elsewhere: `Answer.by`."""

_LOOK_S: Final = 2.0
_MOST_OPEN: Final = 100


@dataclass(slots=True)
class _Waiting:
    """A question of this process, until its call has its answer."""

    open: OpenQuestion
    ends: float
    answer: Answer | None = None
    woken: anyio.Event = field(default_factory=anyio.Event)

    def settle(self, answer: Answer) -> None:
        self.answer = self.answer or answer
        self.woken.set()


class QuestionBoard:
    """Put questions up, and take the first answer to each.

    Args:
        store: where they are kept, so that other processes can answer.
        wait_s: seconds after which a question that nobody has answered counts as declined.
        journal: takes an event for each question and for each answer.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        store: QuestionStore,
        *,
        wait_s: float,
        journal: Journal | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.nudge: Callable[[], None] | None = None
        """Tells other processes that one of their questions may have been answered here."""
        self._store = store
        self._wait_s = wait_s
        self._journal = journal
        self._clock = clock
        self._waiting: dict[str, _Waiting] = {}
        self._listeners: list[Callable[[OpenQuestion, bool], None]] = []
        self._looked = -inf

    async def ask(self, caller: Caller, question: Question) -> Answer:
        """Put a question and wait for its answer, which comes at its deadline at the latest.

        An approval or a form is kept, and anybody who may can answer it; a client that waits for
        the call is asked at the same time. All else only that client can answer.

        A channel's answer by `nobody` or `deadline` is none: the question stays open for others.

        Raises:
            ToolFailed: the question cannot be put; says why.
            StoreError: it cannot be kept.
        """
        principal = caller.grant.chain[0]
        if question.schema and (fault := schema_fault(dict(question.schema))):
            raise ToolFailed(f"`{question.key}` cannot be asked: {fault}")
        question = replace(
            question,
            id=new_id(),
            chain=caller.grant.chain,
            message=HIDDEN.known(question.message),
            params=HIDDEN.value(question.params),
            arguments=HIDDEN.value(question.arguments),
        )
        answer = Answer("cancel", by=NOBODY)
        self._note(caller, partial(asked_event, question))
        try:
            if question.kind in KEPT:
                answer = await self._kept(caller, principal, question)
            else:
                answer = await self._through(caller, principal, question)
        finally:
            self._note(caller, partial(answered_event, question, answer))
        return answer

    async def answer(
        self, id: str, answer: Answer, *, principal: str | None = None
    ) -> OpenQuestion:
        """Answer a question, of this process or of another one of the same home.

        Args:
            id: of the question.
            answer: what is answered; `by` is filled in where it is empty.
            principal: whose questions may be answered; None for everybody's.

        Raises:
            QuestionNotFound: it is unknown, another principal's, answered or expired.
            ToolRetry: the content does not fit; the question stays open.
            StoreError: the answer cannot be kept.
        """
        asked = await self._find(id, principal)
        answer = replace(
            checked(asked.question, answer), by=answer.by or principal or "administrator"
        )
        if not await self._store.answer(id, given(answer)):
            raise _not_open(id)
        waiting = self._waiting.get(id)
        if waiting is not None:
            waiting.settle(answer)
        elif self.nudge is not None:
            self.nudge()
        return asked

    async def claim(self, questions: Iterable[str], principal: str) -> bool:
        """Take over a call from the process where it asks; tell whether it may begin anew here.

        Of all processes that ask, one is told so, and none once somebody has answered. There, the
        questions are closed without a decision.

        Raises:
            StoreError: the database refuses.
        """
        moved = Answer("cancel", by=MOVED)
        ids = tuple(questions)
        if not await self._store.claim(ids, principal, given(moved)):
            return False
        for id in ids:
            if (waiting := self._waiting.get(id)) is not None:
                waiting.settle(moved)
        if self.nudge is not None:
            self.nudge()
        return True

    async def open(
        self, *, principal: str | None = None, run: str | None = None
    ) -> list[OpenQuestion]:
        """Return what is open in this home, the oldest first.

        Args:
            principal: only what this one's calls ask.
            run: only what this run asks, or runs that its agents have started.

        Raises:
            StoreError: the questions cannot be read.
        """
        records = await self._store.open(principal)
        alive = {process: is_running(process) for process in {each.process for each in records}}
        if not all(alive.values()):
            await self._store.close_of_dead()
        found = [opened(each) for each in records if alive[each.process]]
        return [each for each in found if run is None or run in (each.run, *each.question.chain)]

    def listen(self, listener: Callable[[OpenQuestion, bool], None]) -> Callable[[], None]:
        """Tell `listener` of each question of this process: that it is open, that it no longer is.

        Returns the way to stop it.
        """
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def look(self) -> None:
        """Find out what other processes have answered.

        Raises:
            StoreError: the questions cannot be read.
        """
        self._looked = anyio.current_time()
        for record in await self._store.all_of(list(self._waiting)):
            waiting = self._waiting.get(record.id)
            if waiting is not None and record.answer is not None:
                waiting.settle(Answer(**record.answer))

    async def tidy(self, *, before: float) -> tuple[str, ...]:
        """Close what calls of processes that are gone have asked, and drop what is old.

        Args:
            before: what was over at that time (seconds since the epoch) is dropped.

        Returns:
            The ids of what was closed.

        Raises:
            StoreError: the database refuses.
        """
        closed = await self._store.close_of_dead()
        await self._store.forget(before=before)
        return closed

    def heard(self) -> None:
        """Take word that another process may have answered: those who wait look soon."""
        self._looked = -inf
        for waiting in self._waiting.values():
            waiting.woken.set()

    # Asking -------------------------------------------------------------------------------------

    async def _kept(self, caller: Caller, principal: str, question: Question) -> Answer:
        """Put a question where everybody finds it, and wait."""
        left = self._left(caller)
        id, is_told = question.id, False
        try:
            record = await self._store.create(
                id, caller.run, principal, said(question), self._clock() + left, most=_MOST_OPEN
            )
            if record is None:
                raise ToolFailed(
                    f"{_MOST_OPEN} questions wait for an answer already: answer some of them"
                    " (`guildry approve` lists them), then ask again"
                )
            asked = OpenQuestion(
                id, caller.run, principal, question, record.asked_at, record.expires_at
            )
            waiting = self._waiting[id] = _Waiting(asked, anyio.current_time() + left)
            is_told = True
            self._tell(asked, True)
            if caller.progress is not None:
                await caller.progress(0, None, waiting_word(id))
            return await self._first(waiting, caller.channel)
        except BaseException:
            with suppress(StoreError):  # it expires by itself
                self._store.abandon(id)
            raise
        finally:
            if is_told:
                self._tell(self._waiting.pop(id).open, False)

    async def _first(self, waiting: _Waiting, channel: Channel | None) -> Answer:
        """Return the first answer: the client's that waits, somebody else's, or the deadline's."""
        if channel is None or not channel.takes(waiting.open.question.kind):
            return await self._settled(waiting)
        outcome: Answer | StoreError = Answer("cancel", by=NOBODY)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(self._put, waiting, channel)
            try:
                outcome = await self._settled(waiting)
            except StoreError as error:  # raised below as it is, not in a group
                outcome = error
            tasks.cancel_scope.cancel()
        if isinstance(outcome, StoreError):
            raise outcome
        return outcome

    async def _settled(self, waiting: _Waiting) -> Answer:
        while waiting.answer is None:
            left = waiting.ends - anyio.current_time()
            if left <= 0:
                return await self._expired(waiting.open.id)
            with anyio.move_on_after(min(left, _LOOK_S)):
                await waiting.woken.wait()
            waiting.woken = anyio.Event()
            if waiting.answer is None and anyio.current_time() - self._looked >= _LOOK_S:
                await self._peek()
        return waiting.answer

    async def _peek(self) -> None:
        try:
            await self.look()
        except StoreError as error:  # the next look may well succeed
            log.warning("questions_not_read", error=str(error))

    async def _expired(self, id: str) -> Answer:
        """Decline in the name of the deadline, unless somebody was faster by a hair."""
        declined = Answer("decline", by=DEADLINE)
        if await self._store.close(id, given(declined)):
            return declined
        record = await self._store.get(id)
        found = None if record is None else record.answer
        return declined if found is None else Answer(**found)

    async def _put(self, waiting: _Waiting, channel: Channel) -> None:
        """Ask the client that waits. What is no answer leaves the question open for others."""
        question = waiting.open.question
        try:
            answer = await channel.ask(question)
            if answer.by in (NOBODY, DEADLINE):
                return
            answer = replace(checked(question, answer), by=answer.by or waiting.open.principal)
            if await self._store.answer(question.id, given(answer)):
                waiting.settle(answer)
            else:
                self.heard()
        except (ToolRetry, StoreError) as error:
            log.warning("answer_not_taken", question=question.id, error=str(error))
        except Exception:
            log.exception("question_not_put", question=question.id, kind=question.kind)

    async def _through(self, caller: Caller, principal: str, question: Question) -> Answer:
        """Ask the client that waits, where it takes such a question; nobody else can answer it."""
        channel = caller.channel
        if channel is None or not channel.takes(question.kind):
            return Answer("cancel", by=NOBODY)
        with anyio.move_on_after(self._left(caller)):
            answer = await channel.ask(question)
            return replace(answer, by=answer.by or principal)
        return Answer("cancel", by=DEADLINE)

    def _left(self, caller: Caller) -> float:
        """Return how long a question of this caller may wait."""
        if caller.grant.deadline is None:
            return self._wait_s
        return max(0.0, min(self._wait_s, caller.grant.deadline - anyio.current_time()))

    def _tell(self, asked: OpenQuestion, is_open: bool) -> None:
        for listener in tuple(self._listeners):
            try:
                listener(asked, is_open)
            except Exception:
                log.exception("question_listener_failed", question=asked.id)

    def _note(self, caller: Caller, event: Callable[[str], Event]) -> None:
        """Enter an event in the journals of the run that asks and of those that it is in."""
        if self._journal is None:
            return
        try:
            for run, agent in runs_of(caller).items():
                self._journal.append(run, event(agent))
        except StoreError as error:  # a call must not fail, or live on, for its journal
            log.warning("question_not_journaled", run=caller.run, error=str(error))

    # Answering ----------------------------------------------------------------------------------

    async def _find(self, id: str, principal: str | None) -> OpenQuestion:
        waiting = self._waiting.get(id)
        if waiting is not None:
            found = waiting.open
        else:
            record = await self._store.get(id)
            if record is None or record.answer is not None:
                raise _not_open(id)
            if not is_running(record.process):
                await self._store.close_of_dead()
                raise _not_open(id)
            found = opened(record)
        if principal is not None and found.principal != principal:
            raise _not_open(id)
        return found


def _not_open(id: str) -> QuestionNotFound:
    return QuestionNotFound(
        f"there is no open question {id!r} here: it may have been answered, or its time may be"
        " over; list those that are open"
    )

"""Calls that may ask their client: work, open questions, and the requests that wait for them.

Knows no transport and no seal. A client of the modern era is asked by the answer to its request,
and answers in the next one; the work goes on meanwhile.
"""

import time
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import anyio

from guildry.server.asking.channels import ClientLog, Contact, log_of
from guildry.server.asking.inputs import NOTHING, UnfitAnswer, answer_of, client_takes, request_of
from guildry.tools.asking.questions import Answer, Question, QuestionKind
from guildry.tools.base import Json

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp_types import ClientCapabilities

__all__ = ["Held", "Work"]

Work = Callable[[Contact], Awaitable[dict[str, Any]]]
"""What is done for one request, with the client that waits for it."""

_MAX_ASKED: Final = 32
_KEPT_S: Final = 60.0
_GATHER_S: Final = 0.05
"""How long a first question waits for others that are asked at the same time."""


@dataclass(slots=True)
class _Open:
    """A question that waits for its answer."""

    question: Question
    answered: anyio.Event = field(default_factory=anyio.Event)
    answer: Answer = Answer("cancel", by="deadline")
    fault: str = ""


class Held:
    """One call. Satisfies `guildry.tools.asking.questions.Channel`.

    Args:
        id: names it to those who may come back to it.
        principal: who made it.
        wait_s: seconds that one question may take.
        given: answers that came before their questions, as the client sent them.
    """

    def __init__(
        self,
        id: str,
        principal: str,
        *,
        wait_s: float,
        given: Mapping[str, Json],
    ) -> None:
        self.id: Final = id
        self.principal: Final = principal
        self.scope: Final = anyio.CancelScope()
        self.repeatable = True
        self.answers: Final[dict[str, Json]] = {}
        self._wait_s = wait_s
        self._given = dict(given)
        self._put: set[str] = set()
        self._names: dict[str, int] = {}
        self._open: dict[str, _Open] = {}
        self._waiting: list[ServerRequestContext[Any, Any]] = []
        self._capabilities: ClientCapabilities | None = None
        self._kinds: frozenset[QuestionKind] = NOTHING
        self._outcome: dict[str, Any] | None = None
        self._failure: Exception | None = None
        self._ended = False
        self._changed = anyio.Event()
        self._taken = anyio.Event()

    @property
    def waiting(self) -> int:
        """How many requests wait for it. A call that none waits for is parked."""
        return len(self._waiting)

    @property
    def is_over(self) -> bool:
        """Tell whether it was given up."""
        return self._ended or self.scope.cancel_called

    def takes(self, kind: QuestionKind) -> bool:
        """Tell whether the client that waits, or waited last, can be asked that."""
        return kind in self._kinds

    async def ask(self, question: Question) -> Answer:
        """Put the question, or take the answer that was given in advance."""
        if request_of(question, self._capabilities) is None:
            return Answer("cancel", by="nobody")
        self.repeatable = self.repeatable and question.repeatable
        key, waiting = self._named(question.key), _Open(question)
        self._open[key] = waiting
        if key in self._given and (key in self._put or question.kind != "approval"):
            self._take(key, self._given.pop(key))
        self._tell()
        try:
            with anyio.move_on_after(self._wait_s):
                await waiting.answered.wait()
        finally:
            if self._open.get(key) is waiting:
                del self._open[key]
            self._tell()
        return waiting.answer

    def feed(self, responses: Mapping[str, Json], put: Collection[str]) -> None:
        """Take what the client answered.

        Args:
            responses: by the keys of the questions. What answers no question is passed over.
            put: the keys of the questions that are known to have been put to this client: they
                may be open here, or will be once the work has come so far.
        """
        for key in [key for key in self._open if key in responses]:
            self._take(key, responses[key])
        self._put |= set(put)
        self._given |= {key: responses[key] for key in put if key in responses}
        self._tell()

    def _named(self, key: str) -> str:
        """Return the name of a question: its key, and a number when it comes again."""
        count = self._names[key] = self._names.get(key, 0) + 1
        return key if count == 1 else f"{key}#{count}"

    def _take(self, key: str, response: Json) -> None:
        waiting = self._open[key]
        try:
            waiting.answer = answer_of(waiting.question, response, self.principal)
        except UnfitAnswer as error:
            waiting.fault = str(error)
            return
        self.answers[key] = response
        del self._open[key]
        waiting.answered.set()

    async def through(self, work: Work) -> None:
        """Do the work and keep what came of it until somebody takes it."""
        first = self.log_now()
        log = None if first is None else _HeldLog(self, first.level)
        try:
            self._outcome = await work(Contact(self, self._progress, log))
        except Exception as error:  # raised where a request waits for it
            self._failure = error
        self._tell()
        await self._taken.wait()

    def end(self) -> None:
        """Let go of everybody: nothing more comes."""
        self._ended = True
        self._tell()

    def log_now(self) -> ClientLog | None:
        """Return where log messages go now, if a request waits that wants them."""
        return log_of(self._waiting[-1]) if self._waiting else None

    @contextmanager
    def attached(self, context: "ServerRequestContext[Any, Any]") -> Generator[None]:
        """Wait for it in the name of one request; who gives up first ends what nobody else awaits.

        Left in peace, it is parked, and ends by itself once its questions have had their time.
        """
        self._waiting.append(context)
        self._capabilities = context.session.client_capabilities
        self._kinds = client_takes(self._capabilities)
        self.scope.deadline = float("inf")
        try:
            yield
        except anyio.get_cancelled_exc_class():
            if len(self._waiting) == 1:
                self.scope.cancel()
            raise
        finally:
            self._waiting.remove(context)
            if not self._waiting:
                self.scope.deadline = anyio.current_time() + self.lasts_s

    @property
    def lasts_s(self) -> float:
        """How long it is kept when no request waits for it: somewhat longer than a question."""
        return self._wait_s + min(self._wait_s, _KEPT_S)

    async def stopped(self) -> dict[str, Json]:
        """Wait until it has ended or asks. Return what it asks: nothing, where it has ended."""
        while self._outcome is None and self._failure is None and not self._ended:
            changed = self._changed
            if not (asked := self._asked()):
                await changed.wait()
                continue
            with anyio.move_on_after(_GATHER_S):
                await changed.wait()
                continue
            return asked
        return {}

    def outcome(self) -> dict[str, Any] | None:
        """Return what came of it, which raises what went wrong; None where it was ended early."""
        self._taken.set()
        if self._failure is not None:
            raise self._failure
        return self._outcome

    def open_questions(self) -> dict[str, str]:
        """Return the ids of what is open, by key."""
        return {key: waiting.question.id for key, waiting in self._open.items()}

    def expires_at(self) -> float:
        """Return when it will be too late to come back."""
        return time.time() + self.lasts_s

    def _asked(self) -> dict[str, Json]:
        """Return what is asked in this round: what is open, the oldest first, up to a bound."""
        asked: dict[str, Json] = {}
        for key, waiting in self._open.items():
            request = request_of(waiting.question, self._capabilities, waiting.fault)
            if request is not None and len(asked) < _MAX_ASKED:
                asked[key] = request
        return asked

    def _tell(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _progress(self, done: float, total: float | None, message: str | None) -> None:
        """Tell the request that came last, if there is one."""
        if self._waiting:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                await self._waiting[-1].session.report_progress(done, total, message)


class _HeldLog:
    """The log messages of a call, for whichever request waits for it. Satisfies `Log`."""

    def __init__(self, held: Held, level: str) -> None:
        self._held = held
        self._level = level

    @property
    def level(self) -> str:
        """The least level that the client wanted when it made the call."""
        return self._level

    async def __call__(self, level: str, data: Json, logger: str | None = None) -> None:
        """Send a message, if a request waits that wants it."""
        log = self._held.log_now()
        if log is not None:
            await log(level, data, logger)

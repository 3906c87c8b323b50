"""One task at work: its state, what it asks its client, and what it is told. Keeps no rows.

Its status follows from what is there: it has ended, or it asks something, or it is working. So no
transition is possible that the protocol does not have.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from itertools import count
from typing import TYPE_CHECKING, Any, Final

import anyio

from guildry.server.asking.inputs import UnfitAnswer, answer_of, request_of
from guildry.tools.asking.questions import Answer

if TYPE_CHECKING:
    from mcp_types import ClientCapabilities

    from guildry.memory.tasks import TaskRecord, TaskStatus
    from guildry.tools.asking.questions import Question

__all__ = ["LiveTask"]

_WORD_EVERY_S: Final = 1.0
_NONE: Final = Answer("cancel", by="nobody")


@dataclass(slots=True)
class _Asked:
    question: "Question"
    request: Mapping[str, Any]
    answered: anyio.Event = field(default_factory=anyio.Event)
    answer: Answer = _NONE


class LiveTask:
    """The state of one task, from its beginning to its end.

    Args:
        record: how it begins.
        capabilities: what the client that began it declared.
        clock: seconds since the epoch.
        ttl_s: how long it is kept after its end.
        changed: is told of each change of its status and of what it asks, and now and then of
            its message.
    """

    def __init__(
        self,
        record: "TaskRecord",
        capabilities: "ClientCapabilities | None" = None,
        *,
        clock: Callable[[], float],
        ttl_s: float,
        changed: Callable[["LiveTask"], None],
    ) -> None:
        self.scope: Final = anyio.CancelScope()
        self.recorded: Final = anyio.Event()
        self.ended: Final = anyio.Event()
        self.is_stopped = False
        self._record = record
        self._capabilities = capabilities
        self._clock = clock
        self._ttl_s = ttl_s
        self._tell = changed
        self._told_at = record.updated_at
        self._asked: dict[str, _Asked] = {}
        self._keys: set[str] = set()

    @property
    def record(self) -> "TaskRecord":
        """What is to be said of it now."""
        return self._record

    @property
    def is_open(self) -> bool:
        """Tell whether it has not ended."""
        return self._record.is_open

    async def ask(self, question: "Question") -> "Answer":
        """Ask the client, and wait until it answers."""
        request = request_of(question, self._capabilities)
        if request is None:
            return _NONE
        key, asked = self._key(question.key), _Asked(question, request)
        self._asked[key] = asked
        self._change()
        try:
            await asked.answered.wait()
        finally:
            if self._asked.pop(key, None) is not None:
                self._change()
        return asked.answer

    def answer(self, responses: Mapping[str, Any]) -> None:
        """Take answers to what is asked. Those to anything else are passed over.

        Raises:
            UnfitAnswer: one of them is no answer to its question; then none is taken.
        """
        answers = {
            key: self._judged(key, response)
            for key, response in responses.items()
            if key in self._asked
        }
        for key, answer in answers.items():
            asked = self._asked.pop(key)
            asked.answer = answer
            asked.answered.set()
        if answers:
            self._change()

    def say(self, message: str) -> None:
        """Say what it does now."""
        if not self.is_open:
            return
        now = self._now()
        self._record = replace(self._record, message=message, updated_at=now)
        if now - self._told_at >= _WORD_EVERY_S:
            self._told_at = now
            self._tell(self)

    def end(
        self, status: "TaskStatus", outcome: Mapping[str, Any] | None, message: str | None
    ) -> bool:
        """End it; False if it has ended before."""
        if not self.is_open:
            return False
        self._asked.clear()
        now = self._now()
        self._record = replace(
            self._record,
            status=status,
            outcome=outcome,
            message=message,
            requests={},
            updated_at=now,
            expires_at=now + self._ttl_s,
        )
        return True

    def renew(self) -> None:
        """Put off its end of life: an open task does not expire."""
        now = self._clock()
        if self.is_open and now > self._record.expires_at - self._ttl_s / 2:
            self._record = replace(self._record, expires_at=now + self._ttl_s)

    def _judged(self, key: str, response: Any) -> Answer:
        try:
            return answer_of(self._asked[key].question, response, self._record.principal)
        except UnfitAnswer as error:
            raise UnfitAnswer(f"`inputResponses` does not answer {key!r}: {error}") from error

    def _key(self, wanted: str) -> str:
        """Return a key that this task has not used: the one that is wanted, if it is free."""
        others = (f"{wanted}-{number}" for number in count(2))
        key = wanted if wanted not in self._keys else next(k for k in others if k not in self._keys)
        self._keys.add(key)
        return key

    def _change(self) -> None:
        if not self.is_open:
            return
        self._told_at = self._now()
        self._record = replace(
            self._record,
            status="input_required" if self._asked else "working",
            requests={key: each.request for key, each in self._asked.items()},
            updated_at=self._told_at,
        )
        self._tell(self)

    def _now(self) -> float:
        return max(self._clock(), self._record.updated_at)

"""Where a call that may become a task puts its questions: on its request, then on the task."""

from typing import TYPE_CHECKING, Final

import anyio

if TYPE_CHECKING:
    from guildry.server.tasks.task import LiveTask
    from guildry.tools.asking.questions import Answer, Channel, Question, QuestionKind

__all__ = ["Stage"]

_QUESTIONS_FIRST_S: Final = 1.0
"""How long a call that may ask something first is waited for, before it becomes a task."""


class Stage:
    """The way from a call to its client: the call's own request at first, then the task.

    Satisfies `guildry.tools.asking.questions.Channel`. Questions that leave everything as it was
    are put on the request while there is no task yet; with the first other one the task begins.

    Args:
        live: the task that it is, or is to become.
        takes: what its client can be asked.
        before: the way to the client that waits for the answer to the call, where that one is to
            be asked first.
    """

    def __init__(
        self, live: "LiveTask", takes: "frozenset[QuestionKind]", before: "Channel | None"
    ) -> None:
        self._live = live
        self._takes = takes
        self._before = before
        self._asking: set[anyio.CancelScope] = set()
        self._moved = anyio.Event()

    def takes(self, kind: "QuestionKind") -> bool:
        """Tell whether this client can be asked that kind of question."""
        return kind in self._takes

    async def ask(self, question: "Question") -> "Answer":
        """Put the question and wait."""
        before = self._before
        if before is None or not question.repeatable or not before.takes(question.kind):
            self.begin()
            return await self._live.ask(question)
        asking = anyio.CancelScope()
        self._asking.add(asking)
        try:
            with asking:
                return await before.ask(question)
        finally:
            self._asking.remove(asking)
            self._moved.set()
        return await self._live.ask(question)

    async def report(
        self, done: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Take word of progress as the message of the task."""
        whole = "" if total is None else f" of {total:g}"
        self._live.say(message or f"{done:g}{whole} done")

    def begin(self) -> None:
        """Ask nothing on the request any more: the task begins, and what is open goes with it."""
        self._before = None
        for asking in self._asking:
            asking.cancel()
        self._moved.set()

    async def begun(self) -> None:
        """Wait until the task begins: by a sign of it, or once nothing was asked for a while."""
        while self._before is not None:
            self._moved = anyio.Event()
            with anyio.move_on_after(_QUESTIONS_FIRST_S) as patience:
                await self._moved.wait()
            if patience.cancelled_caught and not self._asking:
                self.begin()

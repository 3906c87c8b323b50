"""Errands: requests to an MCP server for a caller, who hears of them and answers what is asked.

Knows who asked for what. Knows no connection, and no way to a client but those it is given.
"""

import math
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from itertools import count
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

import anyio

from guildry.errors import GuildryError, ToolFailed
from guildry.tools.asking.questions import Answer, Ask, Channel, Question, QuestionKind
from guildry.tools.base import Json, Log, Progress

if TYPE_CHECKING:
    import mcp_types as wire

__all__ = ["Errand", "current_errand"]

T = TypeVar("T")

_ROUNDS: Final = 32
_PAUSE_S: Final = 0.05
_PAUSE_MAX_S: Final = 1.0
_REJECTED: Final = -1
_SHOWN_CHARACTERS: Final = 200
_current: ContextVar["Errand | None"] = ContextVar("errand", default=None)


def current_errand() -> "Errand | None":
    """Return the errand that this task, or the one that sent what came in, is on."""
    return _current.get()


class Errand:
    """One request to an MCP server, made for a caller.

    Args:
        name: of what is called, as the caller knows it.
        plug: the plug of the server.
        limit_s: seconds without progress that it may take; waiting for an answer does not count.
        ask_s: seconds that one question may take.
        ask: puts questions, or None: then the channel is asked what it takes.
        channel: the way to the client that waits for it.
        progress: where word of progress goes.
        log: where the server's log messages go.
    """

    def __init__(
        self,
        name: str,
        plug: str,
        *,
        limit_s: float,
        ask_s: float,
        ask: Ask | None = None,
        channel: Channel | None = None,
        progress: Progress | None = None,
        log: Log | None = None,
    ) -> None:
        self.name = name
        self.plug = plug
        self.limit_s = limit_s
        self.log = log
        self.waited_s = 0.0
        self.is_over = False
        self.is_between_rounds = False  # the server has said what it wants, and waits for nothing
        self._ask_s = ask_s
        self._ask = ask
        self._channel = channel
        self._progress = progress
        self._open = 0
        self._keys: set[str] = set()
        self._numbers = count(1)
        self._scope = anyio.CancelScope()

    def limited(self) -> AbstractContextManager[anyio.CancelScope]:
        """Return the scope that ends it at its limit. Entered once for each request."""
        self._scope = anyio.move_on_after(max(0.0, self.limit_s - self.waited_s))
        return self._scope

    @property
    def left_s(self) -> float:
        """Seconds that it may still take without a word; 0 while a question of it is open."""
        if self._open or self.is_over:
            return 0.0
        return min(self.limit_s, max(0.0, self._scope.deadline - anyio.current_time()))

    def set_out(self) -> Callable[[], None]:
        """Make this the errand of the task and of all that it sends. Returns the way back."""
        token = _current.set(self)
        return lambda: _current.reset(token)

    async def progressed(
        self, progress: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Pass progress on, and allow the whole time anew."""
        self._renew()
        if self._progress is not None and not self.is_over:
            await self._progress(progress, total, message)

    def takes(self, kind: QuestionKind) -> bool:
        """Tell whether anybody can answer a question of that kind."""
        if self._ask is not None and kind in ("approval", "form"):
            return True
        return self._channel is not None and self._channel.takes(kind)

    def capabilities(self) -> dict[str, Json]:
        """Return what the server may ask, in the form of a client's capabilities."""
        modes: dict[str, Json] = {mode: {} for mode, kind in _MODES.items() if self.takes(kind)}
        told: dict[str, Json] = {"elicitation": modes} if modes else {}
        for kind in _WHOLE:
            if self.takes(kind):
                told[kind] = {}
        return told

    def meta(self) -> "wire.RequestParamsMeta | None":
        """Return what goes with the request: which log messages the client wants."""
        from mcp_types import LOG_LEVEL_META_KEY

        if self.log is None:
            return None
        return cast("wire.RequestParamsMeta", {LOG_LEVEL_META_KEY: self.log.level})

    async def settled(
        self,
        send: Callable[["wire.InputResponses | None", str | None], Awaitable[Any]],
        kind: type[T],
    ) -> T:
        """Send a request until its result is whole, answering what the server asks in between.

        Raises:
            ToolFailed: a question has no answer that the server can use, or it asks without end.
        """
        from mcp_types import InputRequiredResult

        responses, state, pause_s = None, None, _PAUSE_S
        for _ in range(_ROUNDS):
            result = await send(responses, state)
            if isinstance(result, kind):
                return result
            assert isinstance(result, InputRequiredResult)
            state = result.request_state
            self.is_between_rounds = True
            if result.input_requests:
                responses, pause_s = await self._answers(result.input_requests), _PAUSE_S
            else:
                responses = None
                await anyio.sleep(pause_s)
                pause_s = min(2 * pause_s, _PAUSE_MAX_S)
            self.is_between_rounds = False
        raise ToolFailed(
            f"`{self.name}` of `{self.plug}` was asked {_ROUNDS} times and still wants more input:"
            " call another tool, or give it all it needs at once"
        )

    async def _answers(self, requests: "Mapping[str, wire.InputRequest]") -> "wire.InputResponses":
        """Put all questions of one round at the same time."""
        from mcp_types import ErrorData

        answers: dict[str, Any] = {}
        refused: list[GuildryError] = []

        async def one(key: str, request: "wire.InputRequest") -> None:
            try:
                answer = await self.answer(request, self._fresh(key))
            except GuildryError as error:
                refused.append(error)
                asking.cancel_scope.cancel()
                return
            if isinstance(answer, ErrorData):
                said = f"`{self.name}` of `{self.plug}` cannot go on: {answer.message}"
                refused.append(ToolFailed(said))
                asking.cancel_scope.cancel()
            else:
                answers[key] = answer

        async with anyio.create_task_group() as asking:
            for key, request in requests.items():
                asking.start_soon(one, key, request)
        if refused:
            raise refused[0]
        return answers

    def _fresh(self, key: str) -> str:
        """Return the key of a question; one that this call used before gets a number."""
        fresh, n = key, 2
        while fresh in self._keys:
            fresh, n = f"{key}:{n}", n + 1
        self._keys.add(fresh)
        return fresh

    async def answer(
        self, request: "wire.InputRequest", key: str | None = None
    ) -> "wire.InputResponse | wire.ErrorData":
        """Put what the server asks to the caller, and return the answer as the server gets it.

        Args:
            request: as it came.
            key: names the question within the call; numbered in order if None.
        """
        key = key or f"ask:{next(self._numbers)}"
        if request.method == "elicitation/create":
            return await self._elicited(request.params, key)
        if request.method == "sampling/createMessage":
            return await self._sampled(request.params, key)
        return await self._rooted(key)

    async def _elicited(self, params: "wire.ElicitRequestParams", key: str) -> "wire.ElicitResult":
        from mcp_types import ElicitResult
        from pydantic import ValidationError

        form = params.mode == "form"
        question = Question(
            key=key,
            kind="form" if form else "url",
            message=params.message,
            schema=params.requested_schema if params.mode == "form" else {},
            params=_plain(params),
            tool=self.name,
            plug=self.plug,
        )
        answer = await self._put(question)
        content = dict(answer.content) if form and answer.action == "accept" else None
        try:
            return ElicitResult(action=answer.action, content=content)
        except ValidationError:  # what was filled in is nothing that a form can hold
            return ElicitResult(action="cancel")

    async def _sampled(
        self, params: "wire.CreateMessageRequestParams", key: str
    ) -> "wire.CreateMessageResult | wire.CreateMessageResultWithTools | wire.ErrorData":
        from mcp_types import CreateMessageResult, CreateMessageResultWithTools

        words = params.system_prompt or next(
            (
                block.text
                for each in params.messages
                for block in each.content_as_list
                if block.type == "text"
            ),
            "",
        )
        message = (
            f"`{self.plug}` wants your model to complete a prompt: {words:.{_SHOWN_CHARACTERS}}"
        )
        return await self._whole(
            Question(
                key=key,
                kind="sampling",
                message=message,
                params=_plain(params),
                tool=self.name,
                plug=self.plug,
            ),
            "a completion by the client's model",
            CreateMessageResultWithTools if params.tools else CreateMessageResult,
        )

    async def _rooted(self, key: str) -> "wire.ListRootsResult | wire.ErrorData":
        from mcp_types import ListRootsResult

        question = Question(
            key=key,
            kind="roots",
            message=f"`{self.plug}` wants to know which folders it may work in",
            tool=self.name,
            plug=self.plug,
        )
        return await self._whole(question, "the client's folders", ListRootsResult)

    async def _whole(self, question: Question, what: str, kind: type[T]) -> "T | wire.ErrorData":
        """Return an answer that is a whole result from the wire, or why there is none."""
        from mcp_types import INVALID_REQUEST, ErrorData
        from pydantic import TypeAdapter, ValidationError

        if not self.takes(question.kind):
            said = f"it wants {what}, which the client of this call does not give"
            return ErrorData(code=INVALID_REQUEST, message=said)
        answer = await self._put(question)
        if answer.action != "accept":
            said = f"it wants {what}, which was refused"
            return ErrorData(code=_REJECTED, message=said)
        try:
            return TypeAdapter(kind).validate_python(dict(answer.content))
        except ValidationError:
            said = f"it wants {what}, and what the client gave is no such thing"
            return ErrorData(code=INVALID_REQUEST, message=said)

    async def _put(self, question: Question) -> Answer:
        """Ask whoever can answer; the limit of the request stands still meanwhile."""
        ask = self._ask
        if ask is None and self._channel is not None and self._channel.takes(question.kind):
            ask = self._channel.ask
        if ask is None or self.is_over:
            return Answer("cancel", by="nobody")
        self._open += 1
        self._scope.deadline = math.inf
        try:
            with anyio.move_on_after(self._ask_s):
                return await ask(question)
            return Answer("cancel", by="deadline")
        finally:
            self._open -= 1
            self._renew()

    def _renew(self) -> None:
        if not self._open:
            self._scope.deadline = anyio.current_time() + self.limit_s


_MODES: Final[Mapping[str, QuestionKind]] = {"form": "form", "url": "url"}
_WHOLE: Final[tuple[QuestionKind, ...]] = ("sampling", "roots")


def _plain(params: Any) -> dict[str, Json]:
    plain: dict[str, Json] = params.model_dump(
        by_alias=True, mode="json", exclude_unset=True, exclude={"meta", "task"}
    )
    return plain

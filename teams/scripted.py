"""ScriptedModel: a model that plays a program. For tests, demonstrations and dry runs."""

import inspect
import json
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import anyio

from guildry.errors import ModelReplyError
from guildry.teams.model import Completion, Request, ToolCall, Usage, estimated_tokens

__all__ = ["Program", "Reply", "ScriptedModel", "call"]

Reply = str | ToolCall | tuple[ToolCall, ...] | list[ToolCall] | Completion
"""What a program says: a text, one or more tool calls, or a whole completion."""

Program = Sequence[Reply] | Callable[[Request], Reply | Awaitable[Reply]]
"""Replies in the order they are given, or a function of what the model is shown."""


def call(name: str, /, **arguments: Any) -> ToolCall:
    """Return a tool call for a program; the model that plays it gives it an id."""
    return ToolCall("", name, json.dumps(arguments))


class ScriptedModel:
    """Play a program of replies. Safe to call from many tasks: replies go out as requests arrive.

    Args:
        program: the replies in order, or a function of the request (it may be `async`).
        name: what the journal calls this model.
        latency_s: how long each reply takes.
        context_tokens: how many tokens it may be sent at once.

    `requests` keeps every request, in order of arrival. Usage that a reply does not state is
    estimated: characters of messages and tool schemas, divided by four.
    """

    def __init__(
        self,
        program: Program,
        *,
        name: str = "scripted",
        latency_s: float = 0.0,
        context_tokens: int = 32_000,
    ) -> None:
        self._program = program
        self._name = name
        self._context_tokens = context_tokens
        self._latency_s = latency_s
        self._ids = count(1)
        self.requests: list[Request] = []

    @property
    def name(self) -> str:
        """What the journal calls this model."""
        return self._name

    @property
    def context_tokens(self) -> int:
        """How many tokens it may be sent at once."""
        return self._context_tokens

    async def complete(
        self, request: Request, *, on_text: Callable[[str], None] | None = None
    ) -> Completion:
        """Return the next reply of the program.

        Raises:
            ModelReplyError: the program has no reply left.
        """
        index = len(self.requests)
        self.requests.append(request)
        if self._latency_s > 0:
            await anyio.sleep(self._latency_s)
        completion = self._completed(await self._reply(request, index))
        if completion.usage == Usage():
            completion = replace(completion, usage=estimated_tokens(request, completion))
        if on_text is not None and completion.text:
            on_text(completion.text)
        return completion

    async def aclose(self) -> None:
        """Release nothing: there is no connection."""

    async def _reply(self, request: Request, index: int) -> Reply:
        if callable(self._program):
            reply = self._program(request)
            return await reply if inspect.isawaitable(reply) else reply
        if index >= len(self._program):
            raise ModelReplyError(
                f"the script of `{self._name}` is exhausted: it has {len(self._program)} "
                f"replies and this is request {index + 1}. Add a reply to it"
            )
        return self._program[index]

    def _completed(self, reply: Reply) -> Completion:
        if isinstance(reply, str):
            return Completion(text=reply)
        if isinstance(reply, ToolCall):
            reply = (reply,)
        if not isinstance(reply, Completion):
            reply = Completion(calls=tuple(reply), finish="tool_calls")
        if all(asked.id for asked in reply.calls):
            return reply
        calls = tuple(
            asked if asked.id else replace(asked, id=f"call_{next(self._ids)}")
            for asked in reply.calls
        )
        return replace(reply, calls=calls)

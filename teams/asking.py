"""One reply of a model: room reserved before, settled after, and entered in the journal."""

from collections.abc import Mapping
from time import perf_counter
from typing import Any, Final

from guildry.errors import ModelError, ModelReplyError
from guildry.memory.events import Completed
from guildry.teams.context import Conversation
from guildry.teams.desk import AgentSpec, Desk
from guildry.teams.model import Completion, Request, ToolSpec, Usage, estimated_tokens

__all__ = ["Asker", "REPLY_TOKENS"]

REPLY_TOKENS: Final = 4_096
"""Room kept for a reply where nobody says how long it may be."""

_LEAST_REPLY_TOKENS: Final = 512


class Asker:
    """Ask an agent's model, reply by reply.

    Args:
        spec: whose model, and how it is asked.
        desk: the budget and the journal.
        conversation: what is sent.
    """

    __slots__ = ("_conversation", "_desk", "_spec", "turn")

    def __init__(self, spec: AgentSpec, desk: Desk, conversation: Conversation) -> None:
        self._spec = spec
        self._desk = desk
        self._conversation = conversation
        self.turn = 0

    async def ask(
        self, tools: tuple[ToolSpec, ...], schema: Mapping[str, Any] | None
    ) -> Completion:
        """Return the model's next reply.

        Raises:
            BudgetExceeded: there is no room for one.
            ModelError: there is none.
        """
        prompt = self._conversation.tokens
        want, most = self._spec.max_reply_tokens or REPLY_TOKENS, self._spec.max_reply_tokens
        room = self._desk.budget.remaining().tokens
        if room is not None:
            if prompt + want > room:
                want = max(room - prompt, min(want, _LEAST_REPLY_TOKENS))
            most = want
        return await self._ask(self._request(tools, schema, most), prompt, want)

    async def ask_last(self, schema: Mapping[str, Any] | None, reply: int) -> Completion:
        """Return a last reply of at most `reply` tokens, from what is kept back for it.

        Raises:
            BudgetExceeded: there is no room for one.
            ModelError: there is none.
        """
        prompt = self._conversation.tokens
        return await self._ask(self._request((), schema, reply), prompt, reply, hand_back=True)

    def _request(
        self, tools: tuple[ToolSpec, ...], schema: Mapping[str, Any] | None, most: int | None
    ) -> Request:
        return Request(
            messages=tuple(self._conversation.messages),
            tools=tools,
            response_schema=schema,
            max_tokens=most,
            temperature=self._spec.temperature,
        )

    async def _ask(
        self, request: Request, prompt: int, reply: int, *, hand_back: bool = False
    ) -> Completion:
        desk = self._desk
        reservation = await desk.budget.obtain(tokens=prompt + reply, hand_back=hand_back)
        began = perf_counter()
        try:
            completion = await self._spec.model.complete(request, on_text=desk.on_text)
        except ModelError as error:
            if isinstance(error, ModelReplyError):
                reservation.settle(usage=Usage(prompt))  # it was read, whatever came back
            else:
                reservation.release()
            raise
        except BaseException:
            reservation.settle(usage=Usage(prompt))
            raise
        usage = completion.usage
        if not usage.total:
            usage = estimated_tokens(request, completion)
        reservation.settle(usage=usage)
        self._conversation.learn(usage.prompt_tokens)
        self.turn += 1
        self._record(completion, usage, perf_counter() - began)
        return completion

    def _record(self, completion: Completion, usage: Usage, duration_s: float) -> None:
        self._desk.journal.append(
            self._desk.caller.run,
            Completed(
                agent=self._desk.agent,
                turn=self.turn,
                text=completion.text,
                calls=tuple([(c.id, c.name, c.arguments) for c in completion.calls]),
                prompt_tokens=usage.prompt_tokens,
                completion_tokens=usage.completion_tokens,
                cached_tokens=usage.cached_tokens,
                duration_s=round(duration_s, 6),
                finish=completion.finish,
            ),
        )

"""One agent: a model, a grant and a loop, from a task to a report.

Knows nothing of teams and spawns nobody. Whatever ends the work early, a report comes back.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any, Final

import anyio

from guildry.errors import (
    BudgetExceeded,
    GuildryError,
    ModelError,
    ModelRejected,
    ModelReplyError,
)
from guildry.memory.events import Messaged
from guildry.memory.references import Reference
from guildry.teams.asking import REPLY_TOKENS, Asker
from guildry.teams.budget import SOFT_SHARE
from guildry.teams.calls import CallRunner
from guildry.teams.context import Conversation
from guildry.teams.desk import AgentSpec, Desk
from guildry.teams.messages import Report, ReportStatus, Spent, Task
from guildry.teams.model import CHARS_PER_TOKEN, Completion, Message, Usage
from guildry.teams.prompt import opening, shown_tools
from guildry.teams.reply import Broken, mentioned, read_answer, writes_a_call
from guildry.teams.reports import merged, shortened
from guildry.teams.shown import ABOUT_FINDING, ShownTools

__all__ = ["AgentSpec", "Desk", "work"]

_HAND_BACK_REPLY_TOKENS: Final = 500
_LEAST_HAND_BACK_TOKENS: Final = 64
_NUDGES: Final = 3
_GRACE_SHARE: Final = 0.1
_MOST_GRACE_S: Final = 10.0

_EMPTY: Final = "Your reply was empty. Call a tool, or give your answer as text."
_CUT: Final = (
    "Your reply was cut off at its limit before it said anything. Answer at once, briefly."
)
_WRITTEN: Final = "You wrote a tool call as text, so nothing was run. Make it as a tool call."
_SOFT: Final = "Most of your budget is spent. Do only what still matters, then answer."
_STOP: Final = (
    "Stop here: {reason}. No tool can be called any more. Report briefly what you have found, and "
    "name the references (ref:name) that hold it."
)


async def work(spec: AgentSpec, task: Task, desk: Desk) -> Report:
    """Have an agent do a task.

    A limit that is reached gives a `partial` report with what there is; a model that cannot be
    reached or whose replies stay unusable gives a `failed` one, or `partial` with what there is.
    """
    worker = _Worker(spec, task, desk)
    try:
        return await worker.run()
    except GuildryError as error:
        return await worker.left(str(error))


@dataclass(frozen=True, slots=True)
class _Stop:
    """Why the work ends early, and whether the model can still be asked for a last report."""

    reason: str
    ask: bool = True


class _Worker:
    """One agent at work on one task."""

    __slots__ = (
        "_asker",
        "_base",
        "_calls",
        "_constrain",
        "_context_tokens",
        "_conversation",
        "_desk",
        "_faults",
        "_grant",
        "_noticed",
        "_refolded",
        "_shown",
        "_spec",
        "_started",
        "_task",
    )

    def __init__(self, spec: AgentSpec, task: Task, desk: Desk) -> None:
        self._spec = spec
        self._context_tokens = spec.context_tokens or spec.model.context_tokens
        self._task = task
        self._desk = desk
        self._grant = desk.caller.grant
        granted = shown_tools(spec.tools, self._grant, desk.catalog.current)
        self._shown = ShownTools(granted)
        told = spec.instructions + (ABOUT_FINDING if self._shown.is_partial else "")
        first = opening(told, task, desk.caller.run, tools=bool(granted))
        self._conversation = Conversation(first, self._shown.now)
        self._asker = Asker(spec, desk, self._conversation)
        names = tuple(tool.name for tool in self._shown.now)
        self._calls = CallRunner(desk.dispatch, desk.catalog, desk.caller, names)
        self._started = anyio.current_time()
        self._base = desk.budget.usage
        self._faults = 0
        self._noticed = self._refolded = False
        self._constrain = not granted

    async def run(self) -> Report:
        """Work until there is a report."""
        ends = [at for at in (self._grant.deadline, self._desk.budget.deadline) if at is not None]
        deadline = min(ends, default=inf)
        left_s = max(0.0, deadline - self._started)
        grace_s = 0.0 if deadline == inf else min(_MOST_GRACE_S, left_s * _GRACE_SHARE)
        outcome: Report | _Stop = _Stop("the time is over")
        with anyio.CancelScope(deadline=deadline - grace_s):
            outcome = await self._turns()
        if isinstance(outcome, Report):
            return outcome
        if outcome.ask:
            with anyio.CancelScope(deadline=deadline):
                report = await self._ask_for_the_rest(outcome.reason)
                if report is not None:
                    return report
        return await self.left(outcome.reason)

    async def left(self, reason: str) -> Report:
        """Return what there is without asking the model: its last words and what it made."""
        words = self._conversation.last_words
        made = self._calls.references
        status: ReportStatus = "partial" if words or made or self._calls.served else "failed"
        return await self._report(status, words or f"Stopped: {reason}.", reason, more=made)

    async def _turns(self) -> Report | _Stop:
        most = self._spec.max_turns
        while self._asker.turn < most:
            self._hear()
            outcome = await self._step()
            if isinstance(outcome, Report | _Stop):
                return outcome
            self._faults = 0 if outcome is None else self._faults + 1
            if self._faults > _NUDGES:
                return _Stop(f"no usable reply after {_NUDGES} nudges: {outcome}", ask=False)
            self._notice()
        return _Stop(f"{most} turns were not enough")

    async def _step(self) -> Report | _Stop | str | None:
        """Take one turn; return how the work ends, or what was wrong with the reply, or None."""
        if not await self._conversation.fold(self._room(), self._keep):
            return _Stop(self._too_long(), ask=False)
        schema = self._task.answer_schema if self._constrain else None
        try:
            completion = await self._asker.ask(() if self._constrain else self._shown.now, schema)
        except (BudgetExceeded, ModelError) as error:
            return await self._unanswered(error)
        if not completion.calls:
            return await self._answered(completion)
        left = self._desk.budget.remaining().calls
        scarce = left is not None and left < len(completion.calls)
        before = len(self._conversation.messages)
        fault = await self._calls.run(completion, self._conversation)
        self._show_found(before)
        return _Stop("the budget of tool calls is spent") if scarce else fault

    def _show_found(self, since: int) -> None:
        """Show the model, from now on, what its searches found, and reckon with its tokens."""
        conversation = self._conversation
        new = self._shown.found(conversation.messages[since:])
        if new:
            more = sum(tool.size for tool in new) // CHARS_PER_TOKEN
            conversation.learn(conversation.tokens + more)

    async def _unanswered(self, error: BudgetExceeded | ModelError) -> _Stop | str | None:
        if isinstance(error, BudgetExceeded):
            return _Stop(str(error))
        if isinstance(error, ModelReplyError):
            return str(error)
        too_long = isinstance(error, ModelRejected) and error.status in (400, 413)
        if too_long and await self._fold_once_more():
            return None
        return _Stop(str(error), ask=False)

    async def _answered(self, completion: Completion) -> Report | str:
        """Return the report that a reply without calls is, or what is wrong with it."""
        text = completion.text.strip()
        if not text:
            return self._nudge(_CUT if completion.finish == "length" else _EMPTY)
        tools = [tool.name for tool in self._shown.now]
        if tools and writes_a_call(text, tools):
            return self._nudge(_WRITTEN, text)
        answer = None
        if self._task.answer_schema is not None:
            try:
                answer = read_answer(text, self._task.answer_schema)
            except Broken as error:
                self._constrain = True
                return self._nudge(str(error), text)
        if completion.finish == "length":
            return await self._report("partial", text, "the reply was cut off at its limit", answer)
        return await self._report("done", text, "finished", answer)

    async def _ask_for_the_rest(self, reason: str) -> Report | None:
        """Ask for a last report, with no tools, from what the budget keeps back for it."""
        conversation = self._conversation
        conversation.add(Message("user", _STOP.format(reason=reason)))
        room = self._desk.budget.remaining(hand_back=True).tokens
        most = self._context_tokens if room is None else min(room, self._context_tokens)
        reply = min(self._spec.max_reply_tokens or _HAND_BACK_REPLY_TOKENS, _HAND_BACK_REPLY_TOKENS)
        reply = min(reply, max(most // 4, _LEAST_HAND_BACK_TOKENS))
        if not await conversation.fold(most - reply, self._keep):
            return None
        schema = self._task.answer_schema
        try:
            completion = await self._asker.ask_last(schema, reply)
        except (BudgetExceeded, ModelError):
            return None
        text, answer = completion.text.strip(), None
        if not text:
            return None
        if schema is not None:
            try:
                answer = read_answer(text, schema)
            except Broken:
                answer = None  # a last report is taken as it is
        return await self._report("partial", text, reason, answer)

    async def _report(
        self,
        status: ReportStatus,
        text: str,
        reason: str,
        answer: Any = None,
        more: Sequence[Reference] = (),
    ) -> Report:
        desk = self._desk
        named = await mentioned(text, desk.caller, desk.objects) if "ref:" in text else ()
        report = Report(status, text, merged(named, more), answer, reason, self._spent())
        return await shortened(
            report,
            desk.objects,
            name=self._spec.name,
            namespace=desk.caller.run,
            owner=self._grant.holder,
            labels=self._calls.labels,
        )

    def _spent(self) -> Spent:
        budget = self._desk.budget
        used, usage, base = budget.used(), budget.usage, self._base
        return Spent(
            usage=Usage(
                usage.prompt_tokens - base.prompt_tokens,
                usage.completion_tokens - base.completion_tokens,
                usage.cached_tokens - base.cached_tokens,
            ),
            calls=used.calls or 0,
            agents=1 + (used.agents or 0),
            saved_tokens=self._calls.saved_tokens,
            wall_s=anyio.current_time() - self._started,
        )

    def _room(self) -> int:
        """Return how long the prompt may be, with space left for the reply."""
        whole = self._context_tokens
        return whole - min(self._spec.max_reply_tokens or REPLY_TOKENS, whole // 4)

    def _too_long(self) -> str:
        return (
            f"the task alone is about {self._conversation.tokens:,} tokens, and "
            f"`context_tokens` is {self._context_tokens:,}: pass large values by reference"
        )

    async def _fold_once_more(self) -> bool:
        """Halve a conversation that an endpoint finds too long, once."""
        again, self._refolded = not self._refolded, True
        before = self._conversation.tokens
        if again:
            await self._conversation.fold(before // 2, self._keep)
        return self._conversation.tokens < before

    async def _keep(self, name: str, text: str) -> str:
        kept = await self._desk.objects.put(
            text.encode("utf-8", "replace"),
            media_type="text/plain",
            name=name,
            namespace=self._desk.caller.run,
            owner=self._grant.holder,
            labels=self._calls.labels,
        )
        return f"{kept.short} {kept.sketch}"

    def _hear(self) -> None:
        inbox = self._desk.inbox
        while inbox:
            self._conversation.add(Message("user", inbox.pop(0)))

    def _notice(self) -> None:
        """Tell the agent, once, that it is near one of its limits."""
        late = self._asker.turn >= SOFT_SHARE * self._spec.max_turns
        if not self._noticed and (late or self._desk.budget.soft):
            self._noticed = True
            self._conversation.add(Message("user", _SOFT))

    def _nudge(self, text: str, said: str = "") -> str:
        """Tell the model what to change, and return that as the fault."""
        if said:
            self._conversation.add(Message("assistant", said))
        self._conversation.add(Message("user", text))
        desk = self._desk
        desk.journal.append(desk.caller.run, Messaged(desk.agent, desk.agent, "nudge", text))
        return text

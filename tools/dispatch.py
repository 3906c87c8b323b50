"""Dispatch: the one gate that every tool call passes, whoever makes it.

The way of a call, in order: grant, references in, arguments, contract and approval, budget, ledger,
call, references out, journal.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from math import inf
from time import perf_counter, time_ns
from typing import Final, Literal

import anyio
import structlog

from guildry.errors import (
    BudgetExceeded,
    GuildryError,
    ToolError,
    ToolFailed,
    ToolProtocolError,
)
from guildry.memory.events import ToolCalled
from guildry.memory.journal import Journal
from guildry.memory.ledger import EffectLedger
from guildry.memory.objects import ObjectStore
from guildry.memory.references import Reference
from guildry.memory.store import storable
from guildry.tools.asking.board import QuestionBoard
from guildry.tools.asking.questions import Answer, Question
from guildry.tools.base import Call, Failure, Json, Outcome, Result, Text, Tool
from guildry.tools.caller import Caller
from guildry.tools.flow import Flow, Scope
from guildry.tools.passing import pass_references
from guildry.tools.redaction import HIDDEN
from guildry.tools.registry import Catalog, UnknownTool
from guildry.tools.results import ResultContract, size_of
from guildry.tools.schema import as_list, as_object, check_arguments
from guildry.tools.usage import Usage

__all__ = ["Dispatch", "Guard", "Intent", "arguments_digest"]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Intent:
    """A call that is about to be made.

    Args:
        caller: who makes it.
        tool: what is called.
        arguments: as the caller wrote them.
        given: as the tool gets them, with references resolved and checked against its schema.
        references: what is read for it.
    """

    caller: Caller
    tool: Tool
    arguments: Mapping[str, Json]
    given: Mapping[str, Json]
    references: tuple[Reference, ...]


Guard = Callable[[Intent], Awaitable[None]]
"""A check before a call runs: a contract, an approval. Raises `ToolError` to refuse it."""

_JOURNALED_CHARACTERS: Final = 4_000
_JOURNALED_DEPTH: Final = 40
_CALLERS_FAULT: Final = frozenset({-32602, -32042})  # arguments; a URL that is to be opened first
_canonical = json.JSONEncoder(sort_keys=True, default=str).encode
_numbers = count()


@dataclass(slots=True)
class _Record:
    """What the journal will say of one call."""

    arguments: dict[str, Json]
    status: Literal["ok", "error", "refused", "cancelled"] = "refused"
    read: tuple[Reference, ...] = ()
    started: float = field(default_factory=perf_counter)
    is_checked: bool = False
    reached: float | None = None


class Dispatch:
    """Run tool calls under grants, with references resolved, limits kept and everything recorded.

    Args:
        catalog: where the tools are.
        objects: where references lead, and where long answers go.
        journal: takes one `ToolCalled` for every call, refused ones included.
        ledger: takes the intent of a durable call that must not be repeated, before it runs.
        inline_tokens: longest answer that is given inline, in estimated tokens.
        object_ttl_s: seconds that a stored answer is kept, or None for ever.
        call_timeout_s: seconds a call may take where its tool does not say.
        guards: checks that may refuse a call, run in order.
        board: where tools put their questions; None where nobody can be asked.
        flow: knows the labels of what each agent has seen.
        usage: takes note of how each tool does.
    """

    def __init__(
        self,
        catalog: Catalog,
        objects: ObjectStore,
        journal: Journal,
        ledger: EffectLedger,
        *,
        inline_tokens: int = 1_000,
        object_ttl_s: float | None = None,
        call_timeout_s: float = 60.0,
        guards: Sequence[Guard] = (),
        board: QuestionBoard | None = None,
        flow: Flow | None = None,
        usage: Usage | None = None,
    ) -> None:
        self._usage = usage
        self.flow: Final = flow or Flow()
        self._catalog = catalog
        self._objects = objects
        self._journal = journal
        self._ledger = ledger
        self._contract = ResultContract(objects, inline_tokens=inline_tokens, ttl_s=object_ttl_s)
        self._call_timeout_s = call_timeout_s
        self._guards = tuple(guards)
        self._board = board

    async def call(self, caller: Caller, name: str, arguments: Mapping[str, Json]) -> Result:
        """Call a tool. What a model can mend, and what a tool did wrong, is told in the result.

        Raises:
            UnknownTool: there is no such tool, or the caller was not granted it.
            ToolProtocolError: the tool has an error of the protocol for a caller that is no model.
        """
        tool = self._granted(caller, name)
        record = _Record(dict(arguments))
        try:
            with self.flow.call(caller, tool) as scope:
                result = await self._run(caller, tool, record, scope)
        except ToolProtocolError as error:
            result = _told(str(error), "misused" if error.code in _CALLERS_FAULT else "failed")
            if not caller.for_model:
                self._write(caller, tool, record, result)
                raise
        except (ToolError, BudgetExceeded) as error:
            result = _told(str(error), _failure(record, error))
        except GuildryError as error:
            log.error("tool_call_failed", tool=name, error=str(error))
            result = _told(f"`{name}` could not be served: {error}", "denied")
        except anyio.get_cancelled_exc_class():
            record.status = "cancelled"
            self._write(caller, tool, record, _told("cancelled", "denied"))
            raise
        self._write(caller, tool, record, result)
        return result

    def _granted(self, caller: Caller, name: str) -> Tool:
        grant, tools = caller.grant, self._catalog.current.tools
        tool = tools.get(name)
        if tool is not None and grant.allows(name) and tool.scope in grant.scopes:
            return tool
        others = [each for each in tools.values() if each.scope in grant.scopes]
        raise UnknownTool(name, [each.name for each in others if grant.allows(each.name)])

    async def _run(self, caller: Caller, tool: Tool, record: _Record, scope: Scope) -> Result:
        given, record.read = await pass_references(self._objects, caller, tool, record.arguments)
        check_arguments(tool, given)
        record.is_checked = True
        if self._guards:
            intent = Intent(caller, tool, record.arguments, given, record.read)
            for guard in self._guards:
                await guard(intent)
        caller.meter.charge_call()
        key = await self._intend(caller, tool, record)
        record.status, record.reached = "error", perf_counter()
        scope.invoked = True
        outcome = HIDDEN.outcome(await self._invoke(caller, tool, given, record))
        result = await self._contract.apply(tool, caller, outcome, scope.answer())
        record.status = "error" if result.is_error else "ok"
        if key is not None:
            self._ledger.settle(caller.run, key, result.text, record.status)
        return result

    async def _intend(self, caller: Caller, tool: Tool, record: _Record) -> str | None:
        """Enter a call that must not be repeated, and wait until the entry is on the disk."""
        if not caller.durable or tool.effects.repeatable:
            return None
        holder, chain = caller.grant.holder, caller.grant.chain
        program = f"-{chain[-1]}" if chain and chain[-1] != holder else ""
        key = f"{time_ns():x}-{next(_numbers):x}{program}"
        digest = arguments_digest(record.arguments)
        await self._ledger.intend(caller.run, key, holder, tool.name, digest)
        return key

    async def _invoke(
        self, caller: Caller, tool: Tool, given: dict[str, Json], record: _Record
    ) -> Outcome:
        own = allowed = self._call_timeout_s if tool.timeout_s is None else tool.timeout_s
        if caller.grant.deadline is not None:
            allowed = min(allowed, max(0.0, caller.grant.deadline - anyio.current_time()))
        try:
            with anyio.move_on_after(None if allowed == inf else allowed) as scope:
                board = self._board
                ask = None if board is None else _Asking(board, caller, tool, scope, record).ask
                return await tool.invoke(given, Call(tool, caller, caller.progress, ask))
        except GuildryError:
            raise
        except Exception as error:
            log.exception("tool_crashed", tool=tool.name, plug=tool.plug)
            raise ToolFailed(
                f"`{tool.name}` of `{tool.plug}` failed inside ({type(error).__name__}):"
                " the same call will fail again"
            ) from error
        raise (_OutOfTime if allowed < own else ToolFailed)(
            f"`{tool.name}` of `{tool.plug}` gave no answer within {allowed:g} s and was stopped:"
            " ask for less in one call"
        )

    def _write(self, caller: Caller, tool: Tool, record: _Record, result: Result) -> None:
        self._journal.append(
            caller.run,
            ToolCalled(
                agent=caller.grant.holder,
                tool=tool.name,
                arguments={key: _bounded(each) for key, each in record.arguments.items()},
                status=record.status,
                duration_s=round(perf_counter() - record.started, 6),
                size=result.size,
                text=_bounded(result.text),
                reference=result.references[-1].id if result.references else None,
                read=tuple(reference.id for reference in record.read),
                saved_tokens=result.saved_tokens,
            ),
        )
        if self._usage is not None and record.reached is not None:
            self._usage.note(tool, result, perf_counter() - record.reached)


def arguments_digest(arguments: Mapping[str, Json]) -> str:
    """Return the digest by which the effect ledger knows the arguments of a call."""
    return hashlib.sha256(_canonical(arguments).encode()).hexdigest()


class _OutOfTime(ToolFailed):
    """Report a tool that was stopped since its caller had no more time."""


class _Asking:
    """Put the questions of one call. Its time limit stands still while one of them is open."""

    __slots__ = ("_board", "_caller", "_left", "_open", "_record", "_scope", "_since", "_tool")

    def __init__(
        self,
        board: QuestionBoard,
        caller: Caller,
        tool: Tool,
        scope: anyio.CancelScope,
        record: _Record,
    ) -> None:
        self._record = record
        self._since = 0.0
        self._board = board
        self._caller = caller
        self._tool = tool
        self._scope = scope
        self._open = 0
        self._left = inf

    async def ask(self, question: Question) -> Answer:
        """Put a question and wait for its answer. Only the grant's deadline goes on meanwhile."""
        if not self._open:
            self._since = perf_counter()
            self._left = self._scope.deadline - anyio.current_time()
            self._scope.deadline = self._ends
        self._open += 1
        try:
            named = replace(
                question,
                tool=question.tool or self._tool.name,
                plug=question.plug or self._tool.plug,
            )
            return await self._board.ask(self._caller, named)
        finally:
            self._open -= 1
            if not self._open:
                if self._record.reached is not None:  # that time was not the tool's
                    self._record.reached += perf_counter() - self._since
                self._scope.deadline = min(anyio.current_time() + self._left, self._ends)

    @property
    def _ends(self) -> float:
        deadline = self._caller.grant.deadline
        return inf if deadline is None else deadline


def _failure(record: _Record, error: GuildryError) -> Failure:
    if record.reached is None:
        return "denied" if record.is_checked else "refused"
    if isinstance(error, _OutOfTime):
        return "late"
    return "failed" if isinstance(error, ToolFailed) else "misused"


def _told(text: str, failure: Failure) -> Result:
    text = storable(HIDDEN.clean(text))
    return Result(text, (Text(text),), is_error=True, size=size_of(text), failure=failure)


def _bounded(value: Json, depth: int = 0) -> Json:
    """Return `value` as a journal keeps it: secrets hidden, and what is long or deep cut."""
    if isinstance(value, str):
        if len(value) <= _JOURNALED_CHARACTERS:
            return HIDDEN.clean(value)
        return f"{HIDDEN.cut(value, _JOURNALED_CHARACTERS)}… ({len(value):,} characters)"
    members = as_object(value)
    items = as_list(value) if isinstance(value, list) else []
    if (members or items) and depth == _JOURNALED_DEPTH:
        return "… (nested deeper)"
    if members is not None:
        return {key: _bounded(each, depth + 1) for key, each in members.items()}
    return [_bounded(each, depth + 1) for each in items] if isinstance(value, list) else value

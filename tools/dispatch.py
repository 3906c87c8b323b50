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
from guildry.tools.base import Call, Json, Outcome, Result, Text, Tool
from guildry.tools.caller import Caller
from guildry.tools.passing import pass_references
from guildry.tools.registry import Catalog, UnknownTool
from guildry.tools.results import ResultContract, size_of
from guildry.tools.schema import as_list, as_object, check_arguments

__all__ = ["Dispatch", "Guard", "Intent"]

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
_canonical = json.JSONEncoder(sort_keys=True, default=str).encode
_numbers = count()


@dataclass(slots=True)
class _Record:
    """What the journal will say of one call."""

    arguments: dict[str, Json]
    status: Literal["ok", "error", "refused", "cancelled"] = "refused"
    read: tuple[Reference, ...] = ()
    started: float = field(default_factory=perf_counter)


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
    ) -> None:
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
            result = await self._run(caller, tool, record)
        except ToolProtocolError as error:
            result = _told(str(error))
            if not caller.for_model:
                self._write(caller, tool, record, result)
                raise
        except (ToolError, BudgetExceeded) as error:
            result = _told(str(error))
        except GuildryError as error:
            log.error("tool_call_failed", tool=name, error=str(error))
            result = _told(f"`{name}` could not be served: {error}")
        except anyio.get_cancelled_exc_class():
            record.status = "cancelled"
            self._write(caller, tool, record, _told("cancelled"))
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

    async def _run(self, caller: Caller, tool: Tool, record: _Record) -> Result:
        given, record.read = await pass_references(self._objects, caller, tool, record.arguments)
        check_arguments(tool, given)
        if self._guards:
            intent = Intent(caller, tool, record.arguments, given, record.read)
            for guard in self._guards:
                await guard(intent)
        caller.meter.charge_call()
        key = await self._intend(caller, tool, record)
        record.status = "error"
        outcome = await self._invoke(caller, tool, given)
        labels = [label for reference in record.read for label in reference.labels]
        result = await self._contract.apply(tool, caller, outcome, labels)
        record.status = "error" if result.is_error else "ok"
        if key is not None:
            self._ledger.settle(caller.run, key, result.text, record.status)
        return result

    async def _intend(self, caller: Caller, tool: Tool, record: _Record) -> str | None:
        """Enter a call that must not be repeated, and wait until the entry is on the disk."""
        if not caller.durable or tool.effects.repeatable:
            return None
        text = _canonical(record.arguments)
        key = f"{time_ns():x}-{next(_numbers):x}"
        digest = hashlib.sha256(text.encode()).hexdigest()
        await self._ledger.intend(caller.run, key, caller.grant.holder, tool.name, digest)
        return key

    async def _invoke(self, caller: Caller, tool: Tool, given: dict[str, Json]) -> Outcome:
        allowed = self._call_timeout_s if tool.timeout_s is None else tool.timeout_s
        if caller.grant.deadline is not None:
            allowed = min(allowed, max(0.0, caller.grant.deadline - anyio.current_time()))
        try:
            with anyio.move_on_after(None if allowed == inf else allowed) as scope:
                ask = None if self._board is None else _Asking(self._board, caller, tool, scope).ask
                return await tool.invoke(given, Call(tool, caller, caller.progress, ask))
        except GuildryError:
            raise
        except Exception as error:
            log.exception("tool_crashed", tool=tool.name, plug=tool.plug)
            raise ToolFailed(
                f"`{tool.name}` of `{tool.plug}` failed inside ({type(error).__name__}):"
                " the same call will fail again"
            ) from error
        raise ToolFailed(
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


class _Asking:
    """Put the questions of one call. Its time limit stands still while one of them is open."""

    __slots__ = ("_board", "_caller", "_left", "_open", "_scope", "_tool")

    def __init__(
        self, board: QuestionBoard, caller: Caller, tool: Tool, scope: anyio.CancelScope
    ) -> None:
        self._board = board
        self._caller = caller
        self._tool = tool
        self._scope = scope
        self._open = 0
        self._left = inf

    async def ask(self, question: Question) -> Answer:
        """Put a question and wait for its answer. Only the grant's deadline goes on meanwhile."""
        if not self._open:
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
                self._scope.deadline = min(anyio.current_time() + self._left, self._ends)

    @property
    def _ends(self) -> float:
        deadline = self._caller.grant.deadline
        return inf if deadline is None else deadline


def _told(text: str) -> Result:
    text = storable(text)
    return Result(text, (Text(text),), is_error=True, size=size_of(text))


def _bounded(value: Json, depth: int = 0) -> Json:
    """Return `value` as a journal keeps it: what is long or nested deep is cut, with a word."""
    if isinstance(value, str):
        if len(value) <= _JOURNALED_CHARACTERS:
            return value
        return f"{value[:_JOURNALED_CHARACTERS]}… ({len(value):,} characters)"
    members = as_object(value)
    items = as_list(value) if isinstance(value, list) else []
    if (members or items) and depth == _JOURNALED_DEPTH:
        return "… (nested deeper)"
    if members is not None:
        return {key: _bounded(each, depth + 1) for key, each in members.items()}
    return [_bounded(each, depth + 1) for each in items] if isinstance(value, list) else value

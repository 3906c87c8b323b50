"""Dispatch: the one gate that every tool call passes, whoever makes it.

The way of a call, in order: grant, references in, arguments, contract and approval, budget, ledger,
call, references out, journal.
"""

import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from math import inf
from time import perf_counter, time_ns
from typing import Final, Literal

import anyio
import structlog

from guildry.errors import BudgetExceeded, GuildryError, ToolError, ToolFailed
from guildry.memory.events import ToolCalled
from guildry.memory.journal import Journal
from guildry.memory.ledger import EffectLedger
from guildry.memory.objects import ObjectStore
from guildry.memory.references import Reference
from guildry.tools.base import Call, Json, Outcome, Result, Text, Tool
from guildry.tools.caller import Caller
from guildry.tools.passing import pass_references
from guildry.tools.registry import Catalog, UnknownTool
from guildry.tools.results import ResultContract, size_of
from guildry.tools.schema import as_list, as_object, check_arguments

__all__ = ["Dispatch", "Guard"]

log = structlog.get_logger()

Guard = Callable[[Caller, Tool, dict[str, Json]], Awaitable[None]]
"""A check before a call runs: a contract, an approval. Raises `ToolError` to refuse it."""

_JOURNALED_CHARACTERS: Final = 4_000
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
    ) -> None:
        self._catalog = catalog
        self._objects = objects
        self._journal = journal
        self._ledger = ledger
        self._contract = ResultContract(objects, inline_tokens=inline_tokens, ttl_s=object_ttl_s)
        self._call_timeout_s = call_timeout_s
        self._guards = tuple(guards)

    async def call(self, caller: Caller, name: str, arguments: Mapping[str, Json]) -> Result:
        """Call a tool. What a model can mend, and what a tool did wrong, is told in the result.

        Raises:
            UnknownTool: there is no such tool, or the caller was not granted it.
        """
        tool = self._granted(caller, name)
        record = _Record(dict(arguments))
        try:
            result = await self._run(caller, tool, record)
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
        tool = self._catalog.current.get(name)
        if not caller.grant.allows(name) or tool.scope not in caller.grant.scopes:
            raise UnknownTool(name)
        return tool

    async def _run(self, caller: Caller, tool: Tool, record: _Record) -> Result:
        given, record.read = await pass_references(self._objects, caller, tool, record.arguments)
        check_arguments(tool, given)
        for guard in self._guards:
            await guard(caller, tool, given)
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
        call = Call(tool, caller, caller.progress)
        try:
            with anyio.move_on_after(None if allowed == inf else allowed):
                return await tool.invoke(given, call)
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


def _told(text: str) -> Result:
    return Result(text, (Text(text),), is_error=True, size=size_of(text))


def _bounded(value: Json) -> Json:
    """Return `value` as a journal keeps it: long strings are cut, with their length said."""
    if isinstance(value, str):
        if len(value) <= _JOURNALED_CHARACTERS:
            return value
        return f"{value[:_JOURNALED_CHARACTERS]}… ({len(value):,} characters)"
    members = as_object(value)
    if members is not None:
        return {key: _bounded(each) for key, each in members.items()}
    return [_bounded(each) for each in as_list(value)] if isinstance(value, list) else value

"""Choosing: which of several tools is called first, and whether another may follow one that failed.

Every call goes through dispatch, under the caller's own grant. Another tool follows only where
nothing can have been done: the failed one was never reached, or may be called twice.

Source: to spend the least until the first success, try in the order of falling chance over cost
(Mitten, "An analytic solution to the least cost testing sequence problem", 1960). The chance is
drawn by Thompson sampling (Thompson, "On the likelihood that one unknown probability exceeds
another", 1933; Chapelle and Li, "An empirical evaluation of Thompson sampling", 2011), within one
standard deviation of its mean; where nothing was measured the order stays as it was given.
"""

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Final, Literal

import anyio

from guildry.errors import ToolProtocolError
from guildry.tools.base import Effects, Failure, Json, Result, Text, Tool
from guildry.tools.caller import Caller
from guildry.tools.dispatch import Dispatch
from guildry.tools.registry import Catalog, UnknownTool
from guildry.tools.schema import as_list, as_object, at, types_wanted
from guildry.tools.usage import Expectation, Usage

__all__ = ["Attempt", "Bounds", "Candidate", "Route", "Router", "same_tools"]

_OVERHEAD_S: Final = 0.5
_UNKNOWN_S: Final = 1.0
_S_PER_TOKEN: Final = 0.001
_BYTES_PER_TOKEN: Final = 4
_PATIENCE: Final = 2.0
_SAID: Final = 200
_INVALID_PARAMS: Final = -32602
_OPEN_URL_FIRST: Final = -32042
_STOPPED: Final = "the others were not tried: "

Ended = Literal["ok", "refused", "denied", "misused", "failed", "late", "unknown", "untried"]
"""How an attempt ended: as `guildry.tools.base.Failure` has it, or there was no such tool, or it
was never its turn.
"""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A call that would do."""

    tool: str
    arguments: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class Bounds:
    """How much may be spent on one answer.

    Args:
        calls: calls that may reach a tool.
        seconds: for all of them together; None: as long as each may take by itself.
    """

    calls: int = 3
    seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Attempt:
    """What came of one candidate, and what had been expected of it."""

    tool: str
    ended: Ended
    chance: float
    took_s: float = 0.0
    said: str = ""

    def as_json(self) -> dict[str, Json]:
        """Return the attempt, less what it has nothing of."""
        told: dict[str, Json] = {"tool": self.tool, "ended": self.ended}
        told["chance"] = round(self.chance, 2)
        if self.ended not in ("untried", "unknown"):
            told["took_s"] = float(f"{self.took_s:.3g}")
        return told | ({"said": self.said} if self.said else {})


@dataclass(frozen=True, slots=True)
class Route:
    """How an answer was come by.

    Args:
        result: the answer; that of the last attempt where none succeeded.
        attempts: every candidate, in the order in which they were taken.
        why: why no further one was tried, where all that were tried failed.
    """

    result: Result
    attempts: tuple[Attempt, ...]
    why: str = ""

    @property
    def tool(self) -> str | None:
        """The tool that answered, or None."""
        return next((each.tool for each in self.attempts if each.ended == "ok"), None)

    def as_json(self) -> list[dict[str, Json]]:
        """Return the attempts in order."""
        return [each.as_json() for each in self.attempts]


class Router:
    """Call one of several tools, and others after it where that may be and helps.

    Args:
        dispatch: the gate that every call passes.
        catalog: the tools there are.
        usage: how they have done.
        dice: where the draws come from.
    """

    def __init__(
        self,
        dispatch: Dispatch,
        catalog: Catalog,
        usage: Usage,
        dice: random.Random | None = None,
    ) -> None:
        self._dispatch = dispatch
        self._catalog = catalog
        self._usage = usage
        self._dice = dice or random.Random()

    def order(self, candidates: Sequence[Candidate]) -> list[Candidate]:
        """Return the candidates in the order in which they are best tried."""
        expected = [self._expected(each) for each in candidates]
        costs = [_cost_s(each) for each in expected if each.is_known]
        usual = median(costs) if costs else _UNKNOWN_S
        worth = [
            self._drawn(each) / (_cost_s(each) if each.is_known else usual) for each in expected
        ]
        ranked = sorted(range(len(candidates)), key=lambda n: -worth[n])  # stable: ties as given
        return [candidates[n] for n in ranked]

    async def call(
        self, caller: Caller, candidates: Sequence[Candidate], bounds: Bounds = Bounds()
    ) -> Route:
        """Return the first good answer, or the last bad one, with the way to it.

        Raises:
            UnknownTool: not one of the tools is there, or was granted; names the first candidate.
        """
        ends = math.inf if bounds.seconds is None else anyio.current_time() + bounds.seconds
        waiting, attempts, result = self.order(candidates), list[Attempt](), None
        unknown: UnknownTool | None = None
        left, why = bounds.calls, ""
        while waiting and not why:
            each = waiting.pop(0)
            tool = self._catalog.current.tools.get(each.tool)
            chance = self._expected(each).success
            began = anyio.current_time()
            try:
                result = await self._called(
                    self._limited(caller, tool, ends, len(waiting)), each, is_last=not waiting
                )
            except UnknownTool as error:
                unknown = error if unknown is None or each is candidates[0] else unknown
                attempts.append(Attempt(each.tool, "unknown", chance))
                continue
            ended = _ended(result)
            took_s = anyio.current_time() - began
            said = "" if ended == "ok" else _brief(result.text)
            attempts.append(Attempt(each.tool, ended, chance, took_s, said))
            if ended == "ok":
                break
            left -= ended != "refused"
            why = _why_stopped(tool, ended, left, ends) if waiting else ""
        if result is None:
            raise unknown or UnknownTool(candidates[0].tool)
        attempts += [
            Attempt(each.tool, "untried", self._expected(each).success) for each in waiting
        ]
        return Route(result, tuple(attempts), why)

    async def _called(self, caller: Caller, each: Candidate, *, is_last: bool) -> Result:
        try:
            return await self._dispatch.call(caller, each.tool, each.arguments)
        except ToolProtocolError as error:
            if is_last or error.code == _OPEN_URL_FIRST:  # the client knows what to do
                raise
            failure: Failure = "misused" if error.code == _INVALID_PARAMS else "failed"
            return Result(str(error), (Text(str(error)),), is_error=True, failure=failure)

    def _limited(self, caller: Caller, tool: Tool | None, ends: float, others: int) -> Caller:
        """Return the caller with its share of the time: what cannot be done twice gets all."""
        if ends == math.inf or tool is None:
            return caller
        now = anyio.current_time()
        rest = max(0.0, ends - now)
        share = rest
        if others and tool.effects.repeatable:
            usual = self._usage.of(tool).p95_s or 0.0
            share = max(rest / (others + 1), min(rest, _PATIENCE * usual))
        deadline = now + share
        if caller.grant.deadline is not None:
            deadline = min(deadline, caller.grant.deadline)
        return replace(caller, grant=replace(caller.grant, deadline=deadline))

    def _expected(self, candidate: Candidate) -> Expectation:
        tool = self._catalog.current.tools.get(candidate.tool)
        return Expectation() if tool is None else self._usage.of(tool)

    def _drawn(self, expected: Expectation) -> float:
        """Draw a chance of success; what was never measured keeps its mean."""
        if not expected.is_known:
            return expected.success
        hits, misses = expected.hits, expected.misses
        total = hits + misses
        deviation = math.sqrt(hits * misses / (total * total * (total + 1)))
        drawn = self._dice.betavariate(hits, misses)
        return min(max(drawn, expected.success - deviation), expected.success + deviation)


def same_tools(catalog: Catalog, caller: Caller, name: str) -> list[str]:
    """Return the tools of other plugs that do what the tool `name` does, as far as can be told.

    They have its name at their source, take what it takes, do no more to the world, and may be
    called by the caller.
    """
    tools = catalog.current.tools
    tool = tools.get(name)
    if tool is None:
        return []
    grant = caller.grant
    return [
        other.name
        for other in tools.values()
        if other.source_name == tool.source_name
        and other.plug != tool.plug
        and other.scope == tool.scope
        and other.scope in grant.scopes
        and grant.allows(other.name)
        and _does_no_more(other.effects, tool.effects)
        and _takes_the_same(tool.input_schema, other.input_schema)
    ]


def _does_no_more(one: Effects, than: Effects) -> bool:
    return (
        (not one.writes or than.writes)
        and (not one.egress or than.egress)
        and (not one.destructive or than.destructive)
        and one.idempotent >= than.idempotent
    )


def _takes_the_same(one: Mapping[str, Json], other: Mapping[str, Json]) -> bool:
    """Tell whether two schemas want the same parameters, of the same types."""
    mine, theirs = (set(as_object(each.get("properties")) or {}) for each in (one, other))
    if set(as_list(other.get("required"))) - mine or set(as_list(one.get("required"))) - theirs:
        return False
    return all(
        types_wanted(at(one, name, one), one) == types_wanted(at(other, name, other), other)
        for name in mine & theirs
    )


def _cost_s(expected: Expectation) -> float:
    """Return what a call costs, in seconds: its time, and that of reading its answer."""
    reading_s = expected.size / _BYTES_PER_TOKEN * _S_PER_TOKEN
    return _OVERHEAD_S + (expected.mean_s or 0.0) + reading_s


def _ended(result: Result) -> Ended:
    if not result.is_error:
        return "ok"
    return result.failure or "failed"


def _why_stopped(tool: Tool | None, ended: Ended, left: int, ends: float) -> str:
    """Return why no other tool may follow one that failed, or nothing where one may."""
    if ended == "denied":
        return _STOPPED + "the call was not allowed"
    if ended != "refused" and not (tool is not None and tool.effects.repeatable):
        return _STOPPED + "the one that failed may have done something"
    if left < 1:
        return _STOPPED + "the budget of calls is spent"
    if anyio.current_time() >= ends:
        return _STOPPED + "the budget of seconds is spent"
    return ""


def _brief(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _SAID else f"{line[: _SAID - 1]}…"

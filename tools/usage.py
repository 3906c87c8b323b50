"""Usage: how well, how fast and how briefly each tool has answered, and what to expect of it.

What is long ago counts less. Failures are those of the tool: what the caller did wrong, refused
or gave up does not count against it.

Source: a tool's chance of success is the mean of a beta distribution, with the chance of its plug
as the prior; durations are taken to be log-normal where their 95th percentile is estimated.
"""

import math
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

import anyio
import structlog

from guildry.errors import StoreError
from guildry.memory.usage import Tally, UsageRow, UsageStore
from guildry.tools.base import Json, Result, Tool

__all__ = ["Expectation", "Usage"]

log = structlog.get_logger()

_DAY_S: Final = 86_400
_HALF_LIFE_DAYS: Final = 14.0
_KEPT_DAYS: Final = 90
_LINGER_S: Final = 2.0
_NEUTRAL: Final = 0.5
_PLUG_STRENGTH: Final = 4.0
_TOOL_STRENGTH: Final = 2.0
_TRUST_IN_PLUG: Final = 0.5
_Z95: Final = 1.645
_PATIENCE_S: Final = 10.0
_READ_WORDS: Final = 400
_MISUSE: Final = re.compile(
    r"validation error|invalid (?:input|arguments?|param)|-32602|required (?:property|parameter)"
    r"|missing \d+ required|unexpected keyword argument",
    re.IGNORECASE,
)

_Key = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Expectation:
    """What to expect of a tool, or of all tools of a plug.

    Args:
        calls: how many it is known from, in the last 90 days; those that its caller got wrong are
            not among them.
        errors: how many of them failed.
        misused: how many more it refused for what the caller had written.
        success: chance that the next call succeeds; 0.5 where nothing is known.
        hits: calls that succeeded, weighed by age, the prior's share included.
        misses: calls that failed, in the same way.
        mean_s: how long a call takes, on average; None where nothing is known.
        p95_s: what 95 of 100 calls take at most, estimated.
        slowest_s: what the slowest took.
        size: bytes of an answer, on average.
    """

    calls: int = 0
    errors: int = 0
    misused: int = 0
    success: float = _NEUTRAL
    hits: float = _TOOL_STRENGTH * _NEUTRAL
    misses: float = _TOOL_STRENGTH * _NEUTRAL
    mean_s: float | None = None
    p95_s: float | None = None
    slowest_s: float | None = None
    size: float = 0.0

    @property
    def is_known(self) -> bool:
        """Whether there is a call to judge by."""
        return self.calls > 0

    def beside(self) -> dict[str, Json]:
        """Return what is told beside other words of a tool or a plug: nothing if never called."""
        return {"usage": self.as_json()} if self.calls or self.misused else {}

    def as_json(self) -> dict[str, Json]:
        """Return the figures in short, as tools answer them."""
        if not self.is_known and not self.misused:
            return {"calls": 0}
        told: dict[str, Json] = {"calls": self.calls, "errors": self.errors}
        if self.misused:
            told["misused"] = self.misused
        if self.mean_s is None or self.p95_s is None or self.slowest_s is None:
            return told
        return told | {
            "success": round(self.success, 2),
            "mean_s": _brief(self.mean_s),
            "p95_s": _brief(self.p95_s),
            "slowest_s": _brief(self.slowest_s),
            "answer_tokens": round(self.size / 4),
        }


class Usage:
    """Note how calls go, and say what to expect of a tool.

    What was noted is kept in the background, at most `_LINGER_S` later, and added to what other
    processes of the home have noted; a process that is killed loses no more than that.

    Args:
        store: where it is kept; None keeps it in this process.
        without: names of tools that only pass calls on, which are not judged.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        store: UsageStore | None = None,
        *,
        without: frozenset[str] = frozenset(),
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._without = without
        self._clock = clock
        self._day = self._today()
        self._tidied = -1
        self._past: dict[_Key, _Sums] = {}
        self._shared: dict[_Key, Tally] = {}
        self._fresh: dict[_Key, Tally] = {}
        self._plugs: dict[str, list[float]] = {}
        self._woken = anyio.Event()
        self._is_awake = False
        self._is_stale = False
        self.loaded = anyio.Event()
        """Set once `run` has read what is kept, or could not."""
        self.nudge: Callable[[], None] = _nothing
        """Called when something is kept, so that other processes can be told of it."""

    def note(self, tool: Tool, result: Result, duration_s: float) -> None:
        """Take note of a call that has reached its tool. Waits for nothing, raises nothing."""
        key = (tool.plug, tool.source_name or tool.name)
        is_error = result.is_error
        if is_error:
            if (
                tool.name in self._without
                or (blame := self._blame(key, result, duration_s)) is None
            ):
                return
            if blame == "misused":
                self._tally(key).misused += 1
                self._wake()
                return
        elif tool.name in self._without:
            return
        tally = self._fresh.get(key)
        if tally is None:
            tally = self._tally(key)
        tally.count(duration_s, result.size, is_error=is_error)
        counted = self._plugs.get(key[0])
        if counted is None:
            counted = self._plugs[key[0]] = [0.0, 0.0]
        counted[is_error] += 1
        if not self._is_awake:
            self._wake()

    def _blame(self, key: _Key, result: Result, duration_s: float) -> str | None:
        """Return whose fault an error is: `failed` or `misused`; None where it cannot be told."""
        if result.failure in ("refused", "denied"):
            return None
        if result.failure == "late":
            usual = self._expected(key).p95_s
            patience_s = _PATIENCE_S if usual is None else min(_PATIENCE_S, 2 * usual)
            return "failed" if duration_s >= patience_s else None
        if result.failure is None and _MISUSE.search(result.text[:_READ_WORDS]):
            return "misused"
        return result.failure or "failed"

    def of(self, tool: Tool) -> Expectation:
        """Return what to expect of a tool."""
        return self._expected((tool.plug, tool.source_name or tool.name))

    def of_plug(self, plug: str) -> Expectation:
        """Return what to expect of the tools of a plug, all together."""
        keys = {*self._past, *self._shared, *self._fresh}
        raw, weighed = Tally(), Tally()
        for key in keys:
            if key[0] == plug:
                mine = self._summed(key)
                raw.add(mine.raw)
                weighed.add(mine.weighed)
        return _expectation(_Sums(raw, weighed), _NEUTRAL, _PLUG_STRENGTH)

    def score(self, tool: Tool) -> float:
        """Return the chance that a call of `tool` succeeds, from 0 to 1; 0.5: nothing is known."""
        plug = tool.plug
        if plug not in self._plugs:
            return _NEUTRAL
        key = (plug, tool.source_name or tool.name)
        past = self._past.get(key)
        known = (None if past is None else past.weighed, self._shared.get(key))
        calls, hits = _TOOL_STRENGTH, _TOOL_STRENGTH * self._prior(plug)
        for each in (*known, self._fresh.get(key)):
            if each is not None:
                calls += each.calls
                hits += each.calls - each.errors
        return hits / calls

    def heard(self) -> None:
        """Read anew, in a moment, what other processes have kept."""
        self._is_stale = True
        self._wake()

    async def load(self) -> None:
        """Read what is kept, by this process and by others. What is too old is dropped.

        Raises:
            StoreError: the database cannot be read.
        """
        self.save()
        if self._store is None:
            return
        self._is_stale = False
        today = self._today()
        if self._tidied != today:
            self._tidied = today
            await self._store.forget(today - _KEPT_DAYS)
        rows = await self._store.since(today - _KEPT_DAYS)
        past: dict[_Key, _Sums] = {}
        shared: dict[_Key, Tally] = {}
        for row in rows:
            key = (row.plug, row.tool)
            if row.day >= today:
                shared.setdefault(key, Tally()).add(row.tally)
            else:
                sums = past.setdefault(key, _Sums(Tally(), Tally()))
                sums.raw.add(row.tally)
                sums.weighed.add(row.tally, 0.5 ** ((today - row.day) / _HALF_LIFE_DAYS))
        self._day, self._past, self._shared = today, past, shared
        self._count_plugs()

    def save(self) -> None:
        """Keep what was noted since the last time, without waiting for it to be written."""
        fresh, self._fresh = self._fresh, {}
        is_news = bool(fresh)
        for n, ((plug, tool), tally) in enumerate(tuple(fresh.items())):
            if self._store is not None:
                try:
                    self._store.add(UsageRow(plug, tool, self._day, tally))
                except StoreError as error:
                    log.warning("usage_not_kept", tools=len(fresh) - n, error=str(error))
                    self._fresh = fresh
                    return
            del fresh[plug, tool]
            self._shared.setdefault((plug, tool), Tally()).add(tally)
        if is_news:
            self.nudge()

    async def run(self) -> None:
        """Read what is kept, then keep what is noted, until cancelled."""
        self._is_stale = True
        try:
            while True:
                try:
                    if self._is_stale or self._today() != self._day:
                        await self.load()
                    elif self._fresh:
                        self.save()
                except StoreError as error:
                    log.warning("usage_not_read", error=str(error))
                self.loaded.set()
                self._is_awake = bool(self._fresh) or self._is_stale
                if not self._is_awake:
                    self._woken = anyio.Event()
                    await self._woken.wait()
                await anyio.sleep(_LINGER_S)
        finally:
            self.save()

    def _today(self) -> int:
        return int(self._clock() // _DAY_S)

    def _wake(self) -> None:
        self._is_awake = True
        self._woken.set()

    def _tally(self, key: _Key) -> Tally:
        return self._fresh.setdefault(key, Tally())

    def _count_plugs(self) -> None:
        self._plugs = {}
        for key in {*self._past, *self._shared, *self._fresh}:
            weighed = self._summed(key).weighed
            counted = self._plugs.setdefault(key[0], [0.0, 0.0])
            counted[0] += weighed.calls - weighed.errors
            counted[1] += weighed.errors

    def _summed(self, key: _Key) -> "_Sums":
        sums = _Sums(Tally(), Tally())
        past = self._past.get(key)
        if past is not None:
            sums.raw.add(past.raw)
            sums.weighed.add(past.weighed)
        for recent in (self._shared.get(key), self._fresh.get(key)):
            if recent is not None:
                sums.raw.add(recent)
                sums.weighed.add(recent)
        return sums

    def _prior(self, plug: str) -> float:
        hits, misses = self._plugs.get(plug, (0.0, 0.0))
        of_plug = (hits + _PLUG_STRENGTH * _NEUTRAL) / (hits + misses + _PLUG_STRENGTH)
        return _NEUTRAL + _TRUST_IN_PLUG * (of_plug - _NEUTRAL)

    def _expected(self, key: _Key) -> Expectation:
        return _expectation(self._summed(key), self._prior(key[0]), _TOOL_STRENGTH)


@dataclass(frozen=True, slots=True)
class _Sums:
    """What is known of a tool: as it was counted, and weighed by age."""

    raw: Tally
    weighed: Tally


def _expectation(sums: _Sums, prior: float, strength: float) -> Expectation:
    raw, weighed = sums.raw, sums.weighed
    hits = max(0.0, weighed.calls - weighed.errors) + strength * prior
    misses = weighed.errors + strength * (1 - prior)
    known = Expectation(
        calls=round(raw.calls),
        errors=round(raw.errors),
        misused=round(raw.misused),
        success=hits / (hits + misses),
        hits=hits,
        misses=misses,
    )
    n = weighed.calls
    if n <= 0:
        return known
    mean_log = weighed.logs / n
    spread = math.sqrt(max(0.0, weighed.squares / n - mean_log * mean_log))
    return replace(
        known,
        mean_s=weighed.duration_s / n,
        p95_s=min(raw.slowest_s, math.exp(mean_log + _Z95 * spread)),
        slowest_s=raw.slowest_s,
        size=weighed.bytes / n,
    )


def _brief(seconds: float) -> float:
    return float(f"{seconds:.3g}")


def _nothing() -> None:
    """Tell nobody."""

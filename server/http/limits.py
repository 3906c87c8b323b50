"""Token buckets: how often somebody may do something, with bursts. Knows no callers."""

import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

__all__ = ["Bucket", "Buckets"]

_NEARLY: Final = 1 - 1e-6  # whoever waits as long as was said must not be sent away again


class Bucket:
    """Let things happen `burst` at once, and `rate_per_s` a second in the long run."""

    __slots__ = ("_at", "_burst", "_clock", "_left", "_rate_per_s")

    def __init__(
        self, rate_per_s: float, burst: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._rate_per_s = rate_per_s
        self._burst = float(burst)
        self._clock = clock
        self._left = self._burst
        self._at = clock()

    def take(self) -> float:
        """Take one and return zero, or take none and return the seconds until there is one."""
        wait_s = self.wanting()
        if not wait_s:
            self._left -= 1
        return wait_s

    def wanting(self) -> float:
        """Return the seconds until there is one; zero where there is one now."""
        now = self._clock()
        if now > self._at:
            self._left = min(self._burst, self._left + (now - self._at) * self._rate_per_s)
            self._at = now
        return 0.0 if self._left > _NEARLY else (1 - self._left) / self._rate_per_s


class Buckets:
    """A bucket for each of many names. Those that were used longest ago are forgotten first."""

    def __init__(
        self,
        rate_per_s: float,
        burst: int,
        *,
        keep: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make: Callable[[], Bucket] = lambda: Bucket(rate_per_s, burst, clock)
        self._keep = keep
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def wanting(self, name: str) -> float:
        """Return the seconds until `name` may go on; zero where it may now."""
        bucket = self._buckets.get(name)
        return 0.0 if bucket is None else bucket.wanting()

    def take(self, name: str) -> float:
        """Take one for `name` and return zero, or return the seconds until there is one."""
        bucket = self._buckets.pop(name, None) or self._make()
        self._buckets[name] = bucket
        if len(self._buckets) > self._keep:
            self._buckets.popitem(last=False)
        return bucket.take()

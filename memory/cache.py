"""A cache that forgets what was used longest ago. Knows nothing of what it holds."""

from collections import OrderedDict
from typing import Generic, TypeVar

__all__ = ["Cache"]

K = TypeVar("K")
V = TypeVar("V")


class Cache(Generic[K, V]):
    """Hold values up to a total weight; what was used longest ago goes first.

    Args:
        max_weight: of everything held.
        max_each: of one value; a heavier one is not held at all.
    """

    def __init__(self, max_weight: int, max_each: int | None = None) -> None:
        self._max_weight = max_weight
        self._max_each = max_weight if max_each is None else max_each
        self._held: OrderedDict[K, tuple[V, int]] = OrderedDict()
        self._weight = 0

    def get(self, key: K) -> V | None:
        """Return a value, or None when it is not held."""
        found = self._held.get(key)
        if found is None:
            return None
        self._held.move_to_end(key)
        return found[0]

    def put(self, key: K, value: V, weight: int = 1) -> None:
        """Hold a value, in place of an earlier one of that key."""
        self.drop(key)
        if weight > self._max_each:
            return
        self._held[key] = (value, weight)
        self._weight += weight
        while self._weight > self._max_weight:
            _, (_, gone) = self._held.popitem(last=False)
            self._weight -= gone

    def drop(self, key: K) -> None:
        """Forget a value, if it is held."""
        found = self._held.pop(key, None)
        if found is not None:
            self._weight -= found[1]

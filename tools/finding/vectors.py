"""Vectors of rows in one matrix, and how near they are to a query's. Knows no texts.

What all rows have in common tells none of them from the others: half of it is taken out.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Array = NDArray[np.float32]

__all__ = ["Meaning", "Vectors"]

_FIRST_ROOM: Final = 256
_COMMON: Final = 0.5
_FEW: Final = 20
_SMALL: Final = 1e-6


class Vectors:
    """Hold one vector for each row. Used by one thread at a time."""

    def __init__(self) -> None:
        self._matrix: Array = np.zeros((0, 0), np.float32)
        self._slot: dict[int, int] = {}
        self._rows: list[int] = []
        self._lengths: Array | None = None

    def __len__(self) -> int:
        return len(self._rows)

    def __contains__(self, row: int) -> bool:
        return row in self._slot

    def put(self, row: int, vector: "Array") -> None:
        """Hold the vector of a row that has none."""
        slot = len(self._rows)
        if slot >= len(self._matrix):
            room = np.zeros((max(_FIRST_ROOM, 2 * slot), len(vector)), np.float32)
            room[:slot] = self._matrix[:slot] if slot else 0.0
            self._matrix = room
        length = float(np.sqrt(vector @ vector))
        self._matrix[slot] = vector / max(length, _SMALL)
        self._rows.append(row)
        self._slot[row] = slot
        self._lengths = None

    def drop(self, row: int) -> None:
        """Forget the vector of a row, if there is one."""
        slot = self._slot.pop(row, None)
        if slot is None:
            return
        last = self._rows.pop()
        if last != row:
            self._matrix[slot] = self._matrix[len(self._rows)]
            self._rows[slot] = last
            self._slot[last] = slot
        self._lengths = None

    def meaning(self, query: "Array") -> "Meaning":
        """Return how near every row is to a query."""
        held = self._matrix[: len(self._rows)]
        common = held.sum(axis=0) * np.float32(_COMMON / (len(held) + _FEW))
        if self._lengths is None:
            squares = 1.0 - 2.0 * (held @ common) + common @ common
            self._lengths = np.sqrt(np.maximum(squares, _SMALL))
        near = (held @ query - common @ query) / self._lengths
        return Meaning(near, self._rows, self._slot)


class Meaning:
    """How near every row is to one query."""

    def __init__(self, near: "Array", rows: list[int], slot: Mapping[int, int]) -> None:
        self._near = near
        self._rows = rows
        self._slot = slot

    def nearest(self, limit: int, accepts: Callable[[int], bool]) -> list[int]:
        """Return the `limit` nearest rows, the nearest first."""
        few = min(len(self._near), 4 * limit)
        if few == 0:
            return []
        best = np.argpartition(-self._near, few - 1)[:few]
        found = self._accepted(best, accepts)
        if len(found) < limit and few < len(self._near):
            found = self._accepted(np.arange(len(self._near)), accepts)
        return found[:limit]

    def _accepted(self, slots: "NDArray[np.intp]", accepts: Callable[[int], bool]) -> list[int]:
        ordered = slots[np.argsort(-self._near[slots], kind="stable")]
        return [row for slot in ordered if accepts(row := self._rows[int(slot)])]

    def of(self, rows: Iterable[int]) -> dict[int, float]:
        """Return how near rows are; those that have no vector are left out."""
        known = ((row, self._slot.get(row)) for row in rows)
        return {row: float(self._near[slot]) for row, slot in known if slot is not None}

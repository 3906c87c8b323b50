"""The pieces of the words of all tools, by which words that are only alike still meet.

`airqualityforecast` shares no word with "air quality", but many pieces. Knows no table; used by
one thread at a time.
"""

from array import array
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import nlargest
from math import log, sqrt
from typing import Final

from guildry.tools.finding.words import Document, grams, words

__all__ = ["Grams"]

_NAME_WEIGHT: Final = 3.0
_PARAMETER_WEIGHT: Final = 0.5
_COMMON_SHARE: Final = 0.01
_COMMON_LEAST: Final = 50
_LEAST_OF_NAME: Final = 0.1
_DRIFT: Final = 1.25


@dataclass(slots=True)
class _Row:
    """The grams of a tool, by number, with how often each occurs (weighted, dampened)."""

    grams: "array[int]"
    weights: "array[float]"
    name: "array[int]"
    length: float = 1.0
    whole: float = 0.0
    measured_at: int = 0


class Grams:
    """Tell how alike rows are to a query, and to each other, by the pieces of their words."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {}
        self._rows: dict[int, _Row] = {}
        self._gram: list[str] = []
        self._held_by: list[int] = []
        self._free: list[int] = []
        self._rarities: dict[int, float] = {}
        self._named: dict[int, set[int]] = {}

    def put(self, row: int, document: Document) -> None:
        """Add a row, with a number that no row has."""
        name = list(grams(document.name.split()))
        counts: dict[str, float] = dict.fromkeys(name, 0.0)
        for gram in name:
            counts[gram] += _NAME_WEIGHT
        for gram in grams(words(document.text)):
            counts[gram] = counts.get(gram, 0.0) + 1.0
        for gram in grams(document.parameters.split()):
            counts[gram] = counts.get(gram, 0.0) + _PARAMETER_WEIGHT
        numbers = array("I", map(self._numbered, counts))
        for number in numbers:
            self._held_by[number] += 1
        weights = array("f", (1.0 + log(n) if n >= 1.0 else n for n in counts.values()))
        named = array("I", (self._number[gram] for gram in dict.fromkeys(name)))
        for number in named:
            self._named.setdefault(number, set()).add(row)
        self._rows[row] = _Row(numbers, weights, named)
        self._rarities.clear()

    def drop(self, row: int) -> None:
        """Take a row out."""
        gone = self._rows.pop(row)
        self._rarities.clear()
        for number in gone.grams:
            self._held_by[number] -= 1
            if not self._held_by[number]:
                self._forget(number)
        for number in gone.name:
            self._named.get(number, set[int]()).discard(row)

    def query(self, words: Iterable[str]) -> dict[int, float]:
        """Return the grams of a query that some row has, with their weights."""
        found: dict[int, float] = {}
        for gram in grams(words):
            number = self._number.get(gram)
            if number is not None and self._held_by[number]:
                found[number] = self._rarity(number)
        return found

    def covered(
        self, words: Iterable[str], query: Mapping[int, float], rows: Iterable[int]
    ) -> dict[int, float]:
        """Return how much of a query each row has, from 0 to 1; strange grams count as well."""
        squares = {number: weight * weight for number, weight in query.items()}
        strange = {gram for gram in grams(words) if not self._has(gram)}
        whole = sum(squares.values()) + len(strange) * log(1.0 + len(self._rows)) ** 2
        return {
            row: sum(squares.get(number, 0.0) for number in self._rows[row].grams) / (whole or 1.0)
            for row in rows
        }

    def _has(self, gram: str) -> bool:
        number = self._number.get(gram)
        return number is not None and self._held_by[number] > 0

    def alike(
        self, query: Mapping[int, float], limit: int, accepts: Callable[[int], bool]
    ) -> list[int]:
        """Return the `limit` rows whose names share most with a query; common grams aside.

        A row is left out of whose name the query has little.
        """
        common = max(_COMMON_LEAST, int(len(self._rows) * _COMMON_SHARE))
        shared: dict[int, float] = {}
        for number, weight in query.items():
            held = self._named.get(number, ())
            if len(held) <= common:
                for row in held:
                    shared[row] = shared.get(row, 0.0) + weight
        best = nlargest(2 * limit, shared.items(), key=lambda item: (item[1], -item[0]))
        near = [row for row, _ in best if accepts(row)][:limit]
        shares = self.coverage(query, near)
        return [row for row in near if shares[row] >= _LEAST_OF_NAME]

    def likeness(self, query: Mapping[int, float], rows: Iterable[int]) -> dict[int, float]:
        """Return how alike rows are to a query: the cosine."""
        length = sqrt(sum(weight * weight for weight in query.values())) or 1.0
        pull = {number: w * self._rarity(number) / length for number, w in query.items()}
        return {row: self._pulled(row, pull) for row in rows}

    def coverage(self, query: Mapping[int, float], rows: Iterable[int]) -> dict[int, float]:
        """Return which share of each row's name a query has."""
        found: dict[int, float] = {}
        for row in rows:
            held = self._rows[row]
            self._length(held)
            shared = sum(query.get(number, 0.0) for number in held.name)
            found[row] = min(1.0, shared / held.whole) if held.whole else 0.0
        return found

    def nearness(self, to: Mapping[int, float], rows: Iterable[int]) -> dict[int, float]:
        """Return how alike each row is to the rows of `to`: cosines, weighted and summed."""
        pull: dict[int, float] = {}
        for each, strength in to.items():
            held = self._rows[each]
            share = strength / self._length(held)
            for number, weight in zip(held.grams, held.weights, strict=True):
                more = share * weight * self._rarity(number) ** 2
                pull[number] = pull.get(number, 0.0) + more
        return {row: self._pulled(row, pull) for row in rows}

    def _pulled(self, row: int, pull: Mapping[int, float]) -> float:
        held = self._rows[row]
        pulls = zip(map(pull.get, held.grams), held.weights, strict=True)
        shared = [each * weight for each, weight in pulls if each]  # a list sums faster
        return sum(shared) / self._length(held)

    def _length(self, held: _Row) -> float:
        """Return the length of a row's vector, measured anew when there are many more rows."""
        now = len(self._rows)
        if (
            not held.measured_at
            or not held.measured_at / _DRIFT <= now <= held.measured_at * _DRIFT
        ):
            rarity = self._rarity
            pairs = zip(held.grams, held.weights, strict=True)
            held.length = sqrt(sum((weight * rarity(n)) ** 2 for n, weight in pairs)) or 1.0
            held.whole = sum(map(rarity, held.name))
            held.measured_at = now
        return held.length

    def _rarity(self, number: int) -> float:
        """Return how much a gram tells: the more, the fewer rows have it."""
        held = self._held_by[number]
        found = self._rarities.get(held)
        if found is None:
            found = self._rarities[held] = log(1.0 + len(self._rows) / (held or 1))
        return found

    def _numbered(self, gram: str) -> int:
        number = self._number.get(gram)
        if number is None:
            number = self._free.pop() if self._free else len(self._held_by)
            self._number[gram] = number
            if number == len(self._held_by):
                self._held_by.append(0)
                self._gram.append(gram)
            self._gram[number] = gram
        return number

    def _forget(self, number: int) -> None:
        """Give the number of a gram that no row has any more to the next new one."""
        del self._number[self._gram[number]]
        self._named.pop(number, None)
        self._free.append(number)

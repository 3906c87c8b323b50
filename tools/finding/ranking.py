"""How well rows fit a query: words, pieces of words and meaning weighed together.

The weights are the same for every set of tools; `benchmarks/finding.py` shows how flat the ground
is around them. Knows rows by number; knows no tools.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from heapq import nlargest
from typing import TYPE_CHECKING, Final

from guildry.tools.finding.words import telling_words

if TYPE_CHECKING:
    from guildry.tools.finding.grams import Grams
    from guildry.tools.finding.lexicon import Lexicon
    from guildry.tools.finding.vectors import Meaning

__all__ = ["Fit", "fitting"]

_BY_WORDS: Final = 40
_BY_NAME: Final = 20
_BY_MEANING: Final = 40
_SETTLED: Final = 40
_JUDGED: Final = 10

_PIECES: Final = 0.4
_NAME: Final = 0.2
_MEANING: Final = 2.5
_LEADERS: Final = 3
_NEIGHBOURS: Final = 0.75


@dataclass(frozen=True, slots=True)
class Fit:
    """A row that fits: `score` is for ordering; `words` and `meaning` say how well it does.

    `words` is how much of the query the row has; it is looked at for the first few rows only.
    """

    row: int
    score: float
    words: float
    meaning: float | None


def fitting(
    query: str,
    lexicon: "Lexicon",
    grams: "Grams",
    accepts: Callable[[int], bool],
    meaning: "Meaning | None" = None,
) -> list[Fit]:
    """Return the rows that fit a query, the best first.

    Args:
        query: what is needed, in words.
        lexicon: the words of all rows.
        grams: the pieces of their words.
        accepts: tells whether a row may be chosen.
        meaning: how near each row is to the query in meaning, where that is known.
    """
    telling = telling_words(query)
    by_words = lexicon.matches(telling, _BY_WORDS, accepts)
    asked = grams.query(telling)
    rows = dict.fromkeys(by_words)
    rows.update(dict.fromkeys(grams.alike(asked, _BY_NAME, accepts)))
    if meaning is not None:
        rows.update(dict.fromkeys(meaning.nearest(_BY_MEANING, accepts)))
    if not rows:
        return []
    pieces = grams.likeness(asked, rows)
    named = grams.coverage(asked, rows)
    near = {} if meaning is None else _completed(meaning.of(rows), by_words, rows)
    parts = ((1.0, by_words), (_PIECES, pieces), (_MEANING, near))
    best = [(weight / top, part) for weight, part in parts if (top := _top(part)) > 0.0]
    scores = {
        row: _NAME * named[row] + sum(weight * part.get(row, 0.0) for weight, part in best)
        for row in rows
    }
    settled = _settled(scores, grams)
    covered = grams.covered(telling, asked, (row for row, _ in settled[:_JUDGED]))
    return [Fit(row, score, covered.get(row, 0.0), near.get(row)) for row, score in settled]


def _completed(
    near: dict[int, float], by_words: Mapping[int, float], rows: Iterable[int]
) -> dict[int, float]:
    """Return `near` with a guess, from their words, for rows whose vectors are not there yet."""
    ratio = _top(near) / (_top(by_words) or 1.0)
    return {row: near.get(row, ratio * by_words.get(row, 0.0)) for row in rows}


def _settled(scores: Mapping[int, float], grams: "Grams") -> list[tuple[int, float]]:
    """Return the best rows with scores in which those that are like the leaders have risen."""
    best = nlargest(_SETTLED, scores.items(), key=lambda item: (item[1], -item[0]))
    top = best[0][1] or 1.0
    leaders = {row: score / top * _NEIGHBOURS / _LEADERS for row, score in best[:_LEADERS]}
    lifts = grams.nearness(leaders, (row for row, _ in best))
    settled = [(row, score / top + lifts[row]) for row, score in best]
    return sorted(settled, key=lambda item: (-item[1], item[0]))


def _top(part: Mapping[int, float]) -> float:
    values: Iterable[float] = part.values()
    return max(values, default=0.0)

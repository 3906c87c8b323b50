"""Which of what was found is given: the best of each query in turn, no plug crowding out others.

Knows tools with their scores; searches nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from guildry.tools.base import Tool
    from guildry.tools.finding.ranking import Fit

__all__ = ["Hit", "anything_fits", "chosen", "spread"]

_LEAST_WORDS: Final = 0.02
_LEAST_MEANING: Final = 0.18
_CLEAR_WORDS: Final = 0.08
_PLUG_SHARE: Final = 0.5
_LEAST_SHARE: Final = 3
_CLOSE: Final = 0.9


@dataclass(frozen=True, slots=True)
class Hit:
    """A tool that fits, with its score: higher fits better, comparable within one query only."""

    tool: "Tool"
    score: float


def anything_fits(fits: "Sequence[Fit]") -> bool:
    """Tell whether any of what was found has to do with the query.

    The bounds lie below all but one in five hundred of the right tools of `benchmarks/finding.py`.
    """
    words = max((fit.words for fit in fits), default=0.0)
    meanings = [fit.meaning for fit in fits if fit.meaning is not None]
    if not meanings:
        return words >= _LEAST_WORDS
    return max(meanings) >= _LEAST_MEANING or words >= _CLEAR_WORDS


def spread(hits: Sequence[Hit], limit: int) -> list[Hit]:
    """Return the `limit` first hits; one plug gets no more than half where others come close.

    A hit is put off only for one of another plug whose score is at least nine tenths of its own,
    so that nothing gives way to what is clearly worse.
    """
    most = max(_LEAST_SHARE, int(limit * _PLUG_SHARE))
    taken: list[Hit] = []
    waiting = list(hits)
    held: dict[str, int] = {}
    while waiting and len(taken) < limit:
        first = waiting[0]
        hit = first
        if held.get(first.tool.plug, 0) >= most:
            others = (
                each
                for each in waiting
                if held.get(each.tool.plug, 0) < most and each.score >= _CLOSE * first.score
            )
            hit = next(others, first)
        waiting.remove(hit)
        taken.append(hit)
        held[hit.tool.plug] = held.get(hit.tool.plug, 0) + 1
    return taken


def chosen(found: Sequence[Sequence[Hit]], limit: int) -> list[Hit]:
    """Return `limit` tools of several lists, the best of each in turn."""
    picked: dict[str, Hit] = {}
    for place in range(max(map(len, found), default=0)):
        for hits in found:
            if place < len(hits) and len(picked) < limit:
                picked.setdefault(hits[place].tool.name, hits[place])
    return list(picked.values())

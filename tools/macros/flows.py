"""Flows: which arguments of a call were taken from the answers of calls before it, and how.

An argument that repeats a telling value of an answer, or names what was stored of it, may come
from there. Whether it does is for many occurrences to say, not for one.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from guildry.memory.references import parse_handle
from guildry.memory.traces import Step
from guildry.tools.base import Json
from guildry.tools.schema import as_list, as_object

__all__ = ["Flow", "Flows", "Path", "leaves", "value_at"]

Path = tuple[str | int, ...]
"""Where a value is in the arguments of a step."""

_MAX_LEAVES: Final = 400
_MAX_DEPTH: Final = 8
_PLACES: Final = 8
_LEAST_CHARACTERS: Final = 3
_LEAST_NUMBER: Final = 10
_STORED: Final = re.compile(r"\[stored as (ref:[A-Za-z0-9_.-]{1,128}): ")


@dataclass(frozen=True, slots=True)
class Flow:
    """A way from an answer to an argument, within one sequence of steps, counted from 0.

    Args:
        step: that takes the value.
        path: where in its arguments.
        source: the step that gave it.
        selector: which part of its answer; nothing for the whole.
    """

    step: int
    path: Path
    source: int
    selector: str


class Flows:
    """Find flows, and keep what was found: sequences overlap. The steps must outlive it."""

    def __init__(self) -> None:
        self._places: dict[int, dict[Json, list[str]]] = {}
        self._taken: dict[int, list[tuple[Path, Json, tuple[str, ...]]]] = {}
        self._between: dict[tuple[int, int], list[tuple[Path, str]]] = {}

    def within(self, steps: Sequence[Step]) -> set[Flow]:
        """Return every way from an answer to a later argument that the values allow."""
        return {
            Flow(n, path, m, selector)
            for n in range(1, len(steps))
            for m in range(n)
            for path, selector in self._ways(steps[m], steps[n])
        }

    def _ways(self, source: Step, step: Step) -> list[tuple[Path, str]]:
        pair = (id(source), id(step))
        found = self._between.get(pair)
        if found is None:
            taken = self._taken.get(id(step))
            if taken is None:
                values = leaves(dict(step.arguments))
                taken = [(path, value, _written(value)) for path, value in values]
                self._taken[id(step)] = taken
            found = self._between[pair] = [
                (path, selector)
                for path, value, written in taken
                for selector in self._selectors(value, written, source)
            ]
        return found

    def _selectors(self, value: Json, written: tuple[str, ...], source: Step) -> Sequence[str]:
        if isinstance(value, str) and (handle := parse_handle(value)) is not None:
            if source.reference is None:
                return ()
            stored = _STORED.match(source.text)
            is_named = stored is not None and stored[1] == f"ref:{handle.key}"
            is_it = handle.key == source.reference if handle.kind == "uri" else is_named
            return (handle.selector or "",) if is_it else ()
        if not _is_telling(value) or not any(each in source.text for each in written):
            return ()
        places = self._places.get(id(source))
        if places is None:
            places = self._places[id(source)] = _places(source)
        return places.get(_key(value), ())


def leaves(value: Json) -> Iterator[tuple[Path, Json]]:
    """Yield what is in `value`, containers that hold something excluded, with where it is."""
    waiting: list[tuple[Path, Json]] = [((), value)]
    count = 0
    while waiting and count < _MAX_LEAVES:
        path, node = waiting.pop()
        inside: list[tuple[str | int, Json]] = [*(as_object(node) or {}).items()]
        inside += enumerate(as_list(node))
        if inside and len(path) < _MAX_DEPTH:
            waiting += [((*path, key), each) for key, each in reversed(inside)]
        else:
            count += 1
            yield path, node


def value_at(value: Json, path: Path) -> Json:
    """Return what is at `path`, which is there."""
    for key in path:
        value = value[key]
    return value


def _written(value: Json) -> tuple[str, ...]:
    """Return how a text may spell a value: one without any of them need not be read for it."""
    if isinstance(value, str):
        spelled = (json.dumps(value, ensure_ascii=is_ascii)[1:-1] for is_ascii in (True, False))
        return tuple({value, *spelled})
    return (str(value),) if isinstance(value, int) else ("",)


def _places(step: Step) -> dict[Json, list[str]]:
    """Return where each telling value is in the answer of a step: its selectors, by the value."""
    found: dict[Json, list[str]] = {}
    if step.reference is not None:
        return found  # what was stored is passed by reference
    text = step.text.strip()
    if _is_telling(text):
        found.setdefault(_key(step.text), []).append("")
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return found
    for path, each in leaves(value):
        if path and _is_telling(each):
            there = found.setdefault(_key(each), [])
            if len(there) < _PLACES:
                there.append(_pointer(path))
    return found


def _is_telling(value: Json) -> bool:
    """Tell whether a value is so special that two of them are hardly the same by chance."""
    if isinstance(value, str):
        return len(value) >= _LEAST_CHARACTERS
    if isinstance(value, bool):
        return False
    return isinstance(value, int | float) and abs(value) >= _LEAST_NUMBER


def _key(value: Json) -> Json:
    return (type(value) is str, value)


def _pointer(path: Path) -> str:
    parts = (str(key).replace("~", "~0").replace("/", "~1") for key in path)
    return "#/" + "/".join(parts)

"""Look-alikes: which new tool may pass for another one, by its name or its description.

Knows names and descriptions, not where they are kept. Three questions, from strict to loose:
is it written to be misread for a tool of another plug; does it stand beside one of another plug
that was there before; is it a tool of its own plug under another name.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from typing import Final

from guildry.memory.pins import Pinned
from guildry.tools.base import Json
from guildry.tools.plugs.invisible import folded
from guildry.tools.plugs.wording import distinctive
from guildry.tools.schema import as_object

__all__ = ["Lookalikes", "renamed"]

_WORD: Final = re.compile(r"[^\W_]+")
_SHAPES: Final = str.maketrans({"0": "o", "1": "l", "i": "l", "5": "s", "|": "l"})
_SAME_WORDS: Final = 0.5
_COPIED_WORDS: Final = 0.8
_FEW_WORDS: Final = 8
_RENAMED: Final = 0.7
_MOST_COMPARED: Final = 200
_LEAST_LETTERS: Final = 8


class Lookalikes:
    """What is pinned of other plugs, so that a name can be looked up.

    Args:
        others: the tools of other plugs.
    """

    def __init__(self, others: Iterable[Pinned]) -> None:
        self._others = tuple(others)
        self._by_plain: dict[str, list[Pinned]] = {}
        self._by_shape: dict[str, list[Pinned]] = {}
        self._by_half: dict[str, list[Pinned]] = {}
        for each in self._others:
            plain = _plain(each.tool)
            self._by_plain.setdefault(plain, []).append(each)
            self._by_shape.setdefault(_shape(each.tool), []).append(each)
            for half in _halves(plain, (len(plain) - 1) // 2):
                self._by_half.setdefault(half, []).append(each)

    def misread(self, name: str, description: str) -> Pinned | None:
        """Return the tool for which `name` is written to be misread, or None.

        It is where the two look alike and are not, such as `read_fi1e`, or differ by one slip of
        the pen, such as `raed_file`, and are described in the same words.
        """
        plain = _plain(name)
        for each in self._by_shape.get(_shape(name), ()):
            if _plain(each.tool) != plain:
                return each
        if len(plain) < _LEAST_LETTERS:
            return None
        for each in self._near(plain):
            if _slipped(plain, _plain(each.tool)) and _alike(description, each.description):
                return each
        return None

    def shadowed(self, name: str, description: str) -> Pinned | None:
        """Return the tool beside which a later one of this name or description stands, or None."""
        for each in self._by_plain.get(_plain(name), ()):
            if distinctive(name) or _alike(description, each.description):
                return each
        words = _words(description)
        if len(words) < _FEW_WORDS:
            return None
        for each in self._others:
            if _share(words, _words(each.description)) >= _COPIED_WORDS:
                return each
        return None

    def _near(self, plain: str) -> "Iterable[Pinned]":
        """Yield the tools whose name shares a half with this one, as those one slip away do."""
        sizes = {(len(plain) - n) // 2 for n in (0, 1, 2)}
        for size in sizes:
            for half in _halves(plain, size):
                yield from self._by_half.get(half, ())[:_MOST_COMPARED]


def renamed(
    name: str, content: Mapping[str, Json], vanished: Mapping[str, Mapping[str, Json]]
) -> str | None:
    """Return which tool that its plug offers no more this one may be, under another name.

    Args:
        name: of the new tool.
        content: its definition.
        vanished: the definitions of those that are gone, by name.
    """
    words = _words(str(content.get("description", "")))
    schema = as_object(content.get("input_schema")) or {}
    has_properties = bool(schema.get("properties"))
    for other, old in list(vanished.items())[:_MOST_COMPARED]:
        if _shape(name) == _shape(other):
            return other
        matcher = difflib.SequenceMatcher(None, name[:100], other[:100], autojunk=False)
        if matcher.ratio() >= _RENAMED:
            return other
        if _share(words, _words(str(old.get("description", "")))) >= _SAME_WORDS and len(words) > 2:
            return other
        if has_properties and old.get("input_schema") == schema:
            return other
    return None


def _plain(name: str) -> str:
    """Return a name without what only its writer's habits make: `readFile` is `read_file`."""
    return re.sub(r"[^a-z0-9]", "", name.lower()) or name


def _shape(name: str) -> str:
    """Return how a name looks at a glance."""
    letters = re.sub(r"[^a-z0-9|]", "", folded(name)).translate(_SHAPES)
    return letters.replace("rn", "m").replace("vv", "w") or name


def _halves(plain: str, size: int) -> tuple[str, ...]:
    return (f"<{plain[:size]}", f"{plain[-size:]}>") if size > 2 else ()


def _slipped(one: str, other: str) -> bool:
    """Tell whether two names differ by one letter too many inside, or by two that changed places.

    Another letter at the same place, or at the end, makes another word as a rule: `get_host` and
    `get_post`, `get_user` and `get_users`.
    """
    if len(one) == len(other):
        at = next((n for n in range(len(one)) if one[n] != other[n]), None)
        if at is None or at + 1 >= len(one) or not one.isalpha():
            return False
        swapped = one[:at] + one[at + 1] + one[at] + one[at + 2 :]
        return swapped == other
    long, short = (one, other) if len(one) > len(other) else (other, one)
    if len(long) != len(short) + 1:
        return False
    at = next((n for n in range(len(short)) if long[n] != short[n]), len(short))
    return 0 < at < len(short) and long[at].isalpha() and long[at + 1 :] == short[at:]


def _words(text: str) -> frozenset[str]:
    return frozenset(_WORD.findall(text[:1_000].lower()))


def _alike(one: str, other: str) -> bool:
    return _share(_words(one), _words(other)) >= _SAME_WORDS


def _share(one: frozenset[str], other: frozenset[str]) -> float:
    """Return the share of words that two texts have in common."""
    return len(one & other) / len(one | other) if one and other else 0.0

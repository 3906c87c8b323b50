"""Wording: which texts of an offer are hidden, or speak to the model instead of describing.

Knows texts, not where they come from.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Final

from guildry.tools.plugs.invisible import folded, hidden_character, shown
from guildry.tools.plugs.phrases import PHRASES
from guildry.tools.plugs.sayings import Saying

__all__ = ["distinctive", "suspicion"]

_AROUND: Final = 40
_MAX_EXCERPT: Final = 160
_SPACE_RUN: Final = re.compile(r"\s{24,}")
_LONG_GAP: Final = 60
_MANY_LINES: Final = 12
_COMMENT: Final = re.compile(
    r"<!--(.{0,4000}?)-->|^\[[^\]\n]{1,40}\]:\s?(?:#|<>)\s?\((.{0,4000}?)\)", re.S | re.M
)
_STYLE: Final = re.compile(
    r"""style\s?=\s?.{0,80}?(?:display\s?:\s?none|visibility\s?:\s?hidden|opacity\s?:\s?0(?![.\d])"""
    r"""|font-size\s?:\s?0(?![.\d]))""",
    re.S | re.I,
)
_WORD: Final = re.compile(r"[^\W\d_]{2,}")
_IDENTIFIER: Final = re.compile(r"[A-Za-z][\w-]*")


def suspicion(sayings: Iterable[Saying], foreign: Mapping[str, str]) -> str | None:
    """Return what is suspicious in these texts, with where it stands and what it says, or None.

    Args:
        sayings: the texts of one offer.
        foreign: names of other plugs' tools that stand for nothing else, with their plugs.
    """
    every = tuple(sayings)
    names = {each.text for each in every if not each.is_prose}
    for each in every:
        if fault := _fault(each, foreign, names):
            return f"{each.where}: {fault}"
    return None


def distinctive(name: str) -> bool:
    """Tell whether a tool's name is one that stands in no text by chance: no plain word."""
    has_case = any(each.isupper() for each in name[1:]) and not name.isupper()
    return len(name) >= 6 and ("_" in name.strip("_") or name.count("-") > 1 or has_case)


def _fault(saying: Saying, foreign: Mapping[str, str], names: "set[str]") -> str | None:
    text = saying.text
    at = hidden_character(text)
    if at is not None:
        return f"it holds characters that nobody sees: {_excerpt(text, at, at + 1)}"
    if fault := _hidden_text(text):
        return fault
    plain = folded(text)
    for reason, pattern in PHRASES:
        if found := pattern.search(plain):
            return f"{reason}: {_excerpt(plain, *found.span())}"
    return _foreign_name(text, foreign, names) if saying.is_prose and foreign else None


def _hidden_text(text: str) -> str | None:
    """Return how a part of a text is kept from the eye of a person, or None."""
    for found in _SPACE_RUN.finditer(text):
        run = found.group()
        longest = max(len(each) for each in run.split("\n"))
        is_far = longest >= _LONG_GAP or run.count("\n") >= _MANY_LINES
        if is_far and 0 < found.start() and found.end() < len(text):
            return f"it goes on after a long empty space: {_excerpt(text, *found.span())}"
    if "<!--" in text or "]:" in text:
        for found in _COMMENT.finditer(text):
            said = found.group(1) or found.group(2) or ""
            if len(_WORD.findall(said)) > 2:
                return f"it holds a comment that is not shown: {_excerpt(text, *found.span())}"
    if "style" in text and (style := _STYLE.search(text)):
        return f"it hides a part of itself: {_excerpt(text, *style.span())}"
    return None


def _foreign_name(text: str, foreign: Mapping[str, str], names: "set[str]") -> str | None:
    for found in _IDENTIFIER.finditer(text):
        name = found.group()
        plug = foreign.get(name)
        if plug is not None and name not in names:
            where = _excerpt(text, *found.span())
            return f"it speaks of `{name}`, a tool of the plug `{plug}`: {where}"
    return None


def _excerpt(text: str, start: int, end: int) -> str:
    """Return the part of a text and a little around it, with what is not seen spelled out."""
    first, last = max(0, start - _AROUND), min(len(text), end + _AROUND, start + _MAX_EXCERPT)
    before = "…" if first else ""
    after = "…" if last < len(text) else ""
    return f"“{before}{shown(text[first:last])}{after}”"

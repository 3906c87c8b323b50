"""Characters that a person does not see, and how a text looks to one who reads it as written.

Knows no definitions and no words.
"""

import re
import unicodedata
from collections.abc import Mapping
from typing import Final

__all__ = ["folded", "hidden_character", "shown"]

_BIDI_FORCED: Final = frozenset("\u202d\u202e")
_BIDI: Final = frozenset("\u200e\u200f\u202a\u202b\u202c\u2066\u2067\u2068\u2069\u061c")
_JOINERS: Final = frozenset("\u200c\u200d")
_FILLERS: Final = frozenset("\u115f\u1160\u3164\uffa0\u034f\u180e\u17b4\u17b5\u2800")
_SPACES: Final = frozenset("\t\n\r")
_VARIATION: Final = re.compile("[\ufe00-\ufe0f\U000e0100-\U000e01ef]")
_FLAG: Final = re.compile("\U0001f3f4[\U000e0030-\U000e0039\U000e0061-\U000e007a]{3,6}\U000e007f")
_LONG_EXCERPT: Final = 200

# Letters of other scripts that look like Latin ones, from the confusables of Unicode TR39.
_LOOKALIKES: Final[Mapping[str, str]] = {
    "a": "\u0430\u03b1\u0251",
    "b": "\u044c\u042c",
    "c": "\u0441\u03f2",
    "d": "\u0501",
    "e": "\u0435\u0454",
    "g": "\u0261",
    "h": "\u04bb",
    "i": "\u0456\u03b9\u0131",
    "j": "\u0458",
    "k": "\u043a\u03ba",
    "l": "\u04cf",
    "m": "\u043c",
    "n": "\u0578",
    "o": "\u043e\u03bf\u0585",
    "p": "\u0440\u03c1",
    "q": "\u051b",
    "s": "\u0455",
    "t": "\u0442\u03c4",
    "u": "\u057d\u03c5",
    "v": "\u03bd\u0475",
    "w": "\u051d\u0461",
    "x": "\u0445\u03c7",
    "y": "\u0443",
    "z": "\u1d22",
    "A": "\u0410\u0391",
    "B": "\u0412\u0392",
    "C": "\u0421",
    "E": "\u0415\u0395",
    "H": "\u041d\u0397",
    "I": "\u0406\u0399",
    "J": "\u0408",
    "K": "\u041a\u039a",
    "M": "\u041c\u039c",
    "N": "\u039d",
    "O": "\u041e\u039f",
    "P": "\u0420\u03a1",
    "S": "\u0405",
    "T": "\u0422\u03a4",
    "X": "\u0425\u03a7",
    "Y": "\u0423\u03a5",
    "Z": "\u0396",
}
_AS_LATIN: Final = str.maketrans(
    {like: latin for latin, likes in _LOOKALIKES.items() for like in likes}
)


def hidden_character(text: str) -> int | None:
    """Return where the first character is that is there and not seen, or None.

    What scripts and pictures need is no such character: joiners between letters that join, marks
    of direction in a text with letters that run to the left, variants of pictures, flags.
    """
    if text.isascii() and text.isprintable():
        return None
    text_left = _FLAG.sub(lambda found: "x" * len(found.group()), text)
    runs_left = any(unicodedata.bidirectional(each) in ("R", "AL") for each in text_left)
    for at, each in enumerate(text_left):
        if each.isprintable() and not _is_mark(each):
            continue
        if not _belongs(text_left, at, runs_left=runs_left):
            return at
    return None


def shown(text: str) -> str:
    r"""Return `text` with everything that is not seen spelled out, as `\u200b`, and cut."""
    spelled = "".join(
        each if each == " " or (each.isprintable() and not _is_mark(each)) else _spelled(each)
        for each in text[:_LONG_EXCERPT]
    )
    return spelled[:_LONG_EXCERPT] + ("…" if len(text) > _LONG_EXCERPT else "")


def folded(text: str) -> str:
    """Return `text` as it reads: look-alike letters as Latin ones, what is unseen left out.

    In small letters, with one space between words.
    """
    if not text.isascii():
        text = unicodedata.normalize("NFKC", text).translate(_AS_LATIN)
        text = text.replace("\u2018", "'").replace("\u2019", "'")
        text = "".join(each for each in text if each.isspace() or each.isprintable())
    return " ".join(text.lower().split())


def _is_mark(each: str) -> bool:
    """Tell whether a character is printable by name only."""
    return each in _FILLERS or _VARIATION.match(each) is not None


def _spelled(each: str) -> str:
    code = ord(each)
    short = {"\n": "\\n", "\t": "\\t", "\r": "\\r"}.get(each)
    return short or (f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}")


def _belongs(text: str, at: int, *, runs_left: bool) -> bool:
    """Tell whether a character that is not seen has a reason to be where it is."""
    each = text[at]
    before, after = text[at - 1 : at], text[at + 1 : at + 2]
    category = unicodedata.category(each)
    if each in _SPACES or category in ("Zs", "Zl", "Zp", "Co", "Cn", "Cs"):
        return True
    if each in _BIDI_FORCED:
        return False
    if each in _BIDI:
        return runs_left
    if each in _JOINERS or each == "\u200b":
        return bool(before and after) and not (before.isascii() or after.isascii())
    if _VARIATION.match(each):
        return bool(before) and (not before.isascii() or before in "#*0123456789")
    if each == "\u00ad":
        return before.isalpha() and after.isalpha()
    return each == "\ufeff" and at == 0

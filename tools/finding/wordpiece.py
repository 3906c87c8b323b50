"""WordPiece: text as the numbers of a BERT vocabulary (uncased). Knows no model."""

import unicodedata
from collections.abc import Iterator, Sequence
from typing import Final

from guildry.tools.finding.words import STOP_WORDS

__all__ = ["WordPiece"]

_LONGEST_WORD: Final = 100
_IDEOGRAPHS: Final = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)
_ASCII_SIGNS: Final = frozenset("!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~")


class WordPiece:
    """Split text into the pieces of a vocabulary, the longest first.

    Args:
        vocabulary: the pieces in order; one that goes on a word begins with `##`.
        max_pieces: of one text, its two ends included; the rest is left out.
    """

    def __init__(self, vocabulary: Sequence[str], max_pieces: int = 256) -> None:
        self._number = {piece: number for number, piece in enumerate(vocabulary)}
        self._first = self._number["[CLS]"]
        self._last = self._number["[SEP]"]
        self._unknown = self._number["[UNK]"]
        self._max = max_pieces
        self._going_on = {n for n, piece in enumerate(vocabulary) if piece.startswith("##")}
        self._idle = {
            n
            for n, piece in enumerate(vocabulary)
            if piece in STOP_WORDS or not (piece.isalnum() or piece.startswith("##"))
        }

    def numbers(self, text: str) -> list[int]:
        """Return the numbers of the pieces of `text`, between those of its two ends."""
        found = [self._first]
        for word in _words(text):
            found += self._pieces(word)
            if len(found) >= self._max:
                break
        return [*found[: self._max - 1], self._last]

    def telling(self, numbers: Sequence[int]) -> list[bool]:
        """Tell of each piece whether it belongs to a word that says what a text is about."""
        found = [number not in self._idle for number in numbers]
        for at, number in enumerate(numbers[1:]):
            if number in self._going_on:  # a longer word than the idle one it begins with
                found[at] = found[at + 1] = True
        return found

    def _pieces(self, word: str) -> list[int]:
        whole = self._number.get(word)
        if whole is not None:
            return [whole]
        if len(word) > _LONGEST_WORD:
            return [self._unknown]
        found: list[int] = []
        start, end = 0, len(word)
        while start < end:
            piece = word[start:end] if start == 0 else f"##{word[start:end]}"
            number = self._number.get(piece)
            if number is None:
                end -= 1
                continue
            found.append(number)
            start, end = end, len(word)
        return found if start == len(word) else [self._unknown]


def _words(text: str) -> Iterator[str]:
    """Yield the words and the single signs of a text, in small letters without accents."""
    plain = text.lower() if text.isascii() else _plain(text)
    word: list[str] = []
    for character in plain:
        if character.isalnum() and not _stands_alone(character):
            word.append(character)
            continue
        if character.isspace() or _is_sign(character) or _stands_alone(character):
            if word:
                yield "".join(word)
                word = []
            if not character.isspace():
                yield character
        elif not _is_control(character):
            word.append(character)
    if word:
        yield "".join(word)


def _plain(text: str) -> str:
    decomposed = unicodedata.normalize("NFD", text)
    return "".join(each for each in decomposed if unicodedata.category(each) != "Mn").lower()


def _stands_alone(character: str) -> bool:
    code = ord(character)
    return code >= 0x3400 and any(low <= code <= high for low, high in _IDEOGRAPHS)


def _is_sign(character: str) -> bool:
    return character in _ASCII_SIGNS or (
        not character.isascii() and unicodedata.category(character).startswith("P")
    )


def _is_control(character: str) -> bool:
    return character in "\x00\ufffd" or unicodedata.category(character) in ("Cc", "Cf")

"""What a program prints, as far as it is kept."""

from collections.abc import Mapping
from typing import Literal

from guildry.tools.base import Json

__all__ = ["Printed"]


class Printed:
    """Keep the beginning and the end of what is printed.

    Args:
        max_bytes: how much is kept in all.
    """

    def __init__(self, max_bytes: int) -> None:
        self._half = max_bytes // 2
        self._head = ""
        self._tail = ""
        self._length = 0

    def take(self, stream: Literal["stdout", "stderr"], text: str) -> None:
        """Take what the program has printed. May be called in any thread."""
        self._length += len(text)
        room = self._half - len(self._head)
        if room > 0:
            self._head += text[:room]
            text = text[room:]
        if text:
            self._tail = (self._tail + text[-self._half :])[-self._half :]

    def restore(self, kept: Mapping[str, Json]) -> None:
        """Take over what was kept before the program went on here."""
        self._head, self._tail, self._length = kept["head"], kept["tail"], kept["length"]

    def as_json(self) -> dict[str, Json]:
        """Return what is to be kept while the program waits."""
        return {"head": self._head, "tail": self._tail, "length": self._length}

    @property
    def text(self) -> str:
        """What was printed, with a word where some of it is left out."""
        left_out = self._length - len(self._head) - len(self._tail)
        if left_out <= 0:
            return f"{self._head}{self._tail}"
        return f"{self._head}\n… {left_out:,} characters are left out …\n{self._tail}"

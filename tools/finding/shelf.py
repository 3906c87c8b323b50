"""All that is known of the tools that can be found, row by row, and how a search goes over it.

Used by one thread at a time.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING

from guildry.tools.finding.grams import Grams
from guildry.tools.finding.lexicon import Lexicon
from guildry.tools.finding.ranking import Fit, fitting
from guildry.tools.finding.words import Document, document

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from guildry.tools.base import Tool
    from guildry.tools.finding.vectors import Vectors

__all__ = ["Shelf"]

_MOSTLY = 0.9


class Shelf:
    """Hold the tools that can be found, by name."""

    def __init__(self) -> None:
        self._lexicon = Lexicon()
        self._grams = Grams()
        self._vectors: Vectors | None = None
        self._row: dict[str, int] = {}
        self._name: dict[int, str] = {}
        self._document: dict[int, Document] = {}
        self._next = 1

    def __len__(self) -> int:
        return len(self._row)

    @property
    def with_meaning(self) -> int:
        """How many tools have a vector."""
        return 0 if self._vectors is None else len(self._vectors)

    def update(self, names: Iterable[str], tools: "Mapping[str, Tool]") -> None:
        """Take up tools as they are now: new, changed or gone."""
        fresh: list[tuple[int, Document]] = []
        gone: list[int] = []
        for name in names:
            row = self._row.get(name)
            tool = tools.get(name)
            known = None if tool is None else document(tool)
            if row is not None and known == self._document[row]:
                continue
            if row is not None:
                gone.append(row)
                self._leave(name, row)
            if known is not None:
                fresh.append((self._enter(name, known), known))
        self._lexicon.drop(gone)
        self._lexicon.put(fresh)

    def _enter(self, name: str, known: Document) -> int:
        row = self._next
        self._next += 1
        self._row[name], self._name[row], self._document[row] = row, name, known
        self._grams.put(row, known)
        return row

    def _leave(self, name: str, row: int) -> None:
        del self._row[name], self._name[row], self._document[row]
        self._grams.drop(row)
        if self._vectors is not None:
            self._vectors.drop(row)

    def without_meaning(self) -> dict[int, Document]:
        """Return the tools that have no vector, by row."""
        held = self._vectors
        return {
            row: known for row, known in self._document.items() if held is None or row not in held
        }

    def learn(self, vectors: "Mapping[int, NDArray[np.float32]]") -> None:
        """Take up vectors of rows; those of rows that are gone are passed over."""
        if self._vectors is None:
            from guildry.tools.finding.vectors import Vectors

            self._vectors = Vectors()
        for row, vector in vectors.items():
            if row in self._name and row not in self._vectors:
                self._vectors.put(row, vector)

    def search(
        self,
        query: str,
        accepts: Callable[[str], bool],
        vector: "NDArray[np.float32] | None" = None,
    ) -> list[tuple[str, Fit]]:
        """Return the names of tools that fit a query, the best first, with how well they do."""
        held, meaning = self._vectors, None
        if vector is not None and held is not None and len(held) >= _MOSTLY * len(self._row):
            meaning = held.meaning(vector)
        name = self._name
        fits = fitting(query, self._lexicon, self._grams, lambda row: accepts(name[row]), meaning)
        return [(name[fit.row], fit) for fit in fits]

    def close(self) -> None:
        """Release the table of words."""
        self._lexicon.close()


def digest_of(known: Document) -> str:
    """Return what names the vector of a document."""
    return hashlib.sha256("\0".join(known.views()).encode("utf-8", "replace")).hexdigest()

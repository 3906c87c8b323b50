"""The words of all tools in SQLite FTS5, and which tools a query's words fit. Knows no meaning.

A table in memory with porter stemming, a column for each field, weighted. Used by one thread at a
time.
"""

import sqlite3
from collections.abc import Callable, Iterable, Sequence
from typing import Final

from guildry.tools.finding.words import Document

__all__ = ["Lexicon"]

_CREATE: Final = (
    "CREATE VIRTUAL TABLE tools USING fts5"
    "(name, plug, body, parameters, details, tokenize='porter unicode61')"
)
_MATCH: Final = (
    "SELECT rowid, bm25(tools, 3.0, 1.0, 1.5, 1.0, 0.7) FROM tools WHERE tools MATCH ? ORDER BY 2"
    " LIMIT ?"
)
_AMPLE: Final = 3


class Lexicon:
    """Find rows by their words."""

    def __init__(self) -> None:
        self._table = sqlite3.connect(":memory:", check_same_thread=False)
        self._table.execute(_CREATE)

    def put(self, documents: Iterable[tuple[int, Document]]) -> None:
        """Add rows, each with a number that no row has."""
        with self._table:
            self._table.executemany(
                "INSERT INTO tools (rowid, name, plug, body, parameters, details)"
                " VALUES (?, ?, ?, ?, ?, ?)",
                ((row, d.name, d.plug, d.text, d.parameters, d.details) for row, d in documents),
            )

    def drop(self, rows: Iterable[int]) -> None:
        """Take rows out."""
        with self._table:
            self._table.executemany("DELETE FROM tools WHERE rowid = ?", ((row,) for row in rows))

    def matches(
        self, words: Sequence[str], limit: int, accepts: Callable[[int], bool]
    ) -> dict[int, float]:
        """Return the `limit` best rows that have one of `words`, the best first, with BM25."""
        if not words:
            return {}
        wanted = " OR ".join(f'"{word}"' for word in words)
        found: dict[int, float] = {}
        for most in (_AMPLE * limit, -1):  # the best few are sorted faster than all
            seen = 0
            for row, score in self._table.execute(_MATCH, (wanted, most)):
                seen += 1
                if len(found) < limit and accepts(row):
                    found[row] = -score
            if len(found) == limit or seen < most:
                break
        return found

    def close(self) -> None:
        """Release the table."""
        self._table.close()

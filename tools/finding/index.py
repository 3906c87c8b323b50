"""Find tools by what they do: SQLite FTS5 over names, descriptions and parameters.

One text column of plug, split name, description and parameter text, with porter stemming and stop
words left out of the query; several queries are merged round-robin. Kept in step with the catalog
when a search comes, without a rebuild.
"""

import re
import sqlite3
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

import anyio
from anyio import to_thread

from guildry.tools.base import Json, Tool
from guildry.tools.registry import Catalog, Registry
from guildry.tools.schema import as_object

__all__ = ["Hit", "ToolIndex"]

_WORD: Final = re.compile(r"[A-Za-z][a-z]+|[A-Z]+(?![a-z])|[^\W_]+")
_MAX_QUERY_WORDS: Final = 64
_STOP_WORDS: Final = frozenset(
    """a about all also am an and any are as at be been but by can could did do does for from get
    give had has have help how i if in into is it its just know let like list me my need of on or
    our out please shall should show so some tell than that the their them then there these they
    this to up us use using want was we were what when where which who why will with would you
    your""".split()
)


@dataclass(frozen=True, slots=True)
class Hit:
    """A tool that fits, with its score: higher fits better, comparable within one query only."""

    tool: Tool
    score: float


class ToolIndex:
    """Search the tools of a catalog."""

    def __init__(self, catalog: Catalog) -> None:
        self._catalog = catalog
        self._lock = anyio.Lock()
        self._index: sqlite3.Connection | None = None
        self._indexed: dict[str, Tool] = {}

    async def search(
        self, queries: Sequence[str], limit: int = 10, allowed: Iterable[str] | None = None
    ) -> list[Hit]:
        """Return at most `limit` tools that fit any of `queries`, the best of each in turn.

        Args:
            queries: what is needed, one need each.
            limit: at most this many tools.
            allowed: names to choose from, or None for every plugged tool.
        """
        registry = self._catalog.current
        names = set(registry.tools) if allowed is None else set(allowed) & set(registry.tools)
        async with self._lock:
            ranked = await to_thread.run_sync(self._ranked, registry, tuple(queries), names)
        return _round_robin(ranked, limit)

    def _ranked(
        self, registry: Registry, queries: tuple[str, ...], names: set[str]
    ) -> list[list[Hit]]:
        index = self._updated(registry)
        return [
            [
                Hit(registry.tools[name], round(-score, 4))
                for name, score in _matches(index, query)
                if name in names
            ]
            for query in queries
        ]

    def _updated(self, registry: Registry) -> sqlite3.Connection:
        if self._index is None:
            self._index = sqlite3.connect(":memory:", check_same_thread=False)
            self._index.execute(
                "CREATE VIRTUAL TABLE tools USING fts5"
                "(name UNINDEXED, text, tokenize='porter unicode61')"
            )
        gone = [n for n, tool in self._indexed.items() if registry.tools.get(n) is not tool]
        new = [t for n, t in registry.tools.items() if self._indexed.get(n) is not t]
        with self._index:
            self._index.executemany("DELETE FROM tools WHERE name = ?", [(n,) for n in gone])
            self._index.executemany(
                "INSERT INTO tools VALUES (?, ?)", [(t.name, _document(t)) for t in new]
            )
        self._indexed = dict(registry.tools)
        return self._index

    async def aclose(self) -> None:
        """Release the index."""
        async with self._lock:
            if self._index is not None:
                await to_thread.run_sync(self._index.close)
                self._index = None
                self._indexed = {}


def _words(text: str) -> list[str]:
    return _WORD.findall(text)


def _document(tool: Tool) -> str:
    parts = [
        tool.plug,
        *_words(tool.name),
        *_words(tool.source_name),
        tool.title or "",
        tool.description,
    ]
    properties = as_object(tool.input_schema.get("properties")) or {}
    for name, schema in properties.items():
        parts += [*_words(name), str((as_object(schema) or {}).get("description", ""))]
    return " ".join(parts)


def _matches(index: sqlite3.Connection, query: str) -> list[tuple[str, float]]:
    words = [word.lower() for word in _words(query)]
    telling = [word for word in words if word not in _STOP_WORDS] or words
    if not telling:
        return []
    wanted = " OR ".join(f'"{word}"' for word in dict.fromkeys(telling[:_MAX_QUERY_WORDS]))
    rows: list[tuple[str, Json]] = index.execute(
        "SELECT name, bm25(tools) FROM tools WHERE tools MATCH ? ORDER BY 2, rowid LIMIT 200",
        (wanted,),
    ).fetchall()
    return [(name, float(score)) for name, score in rows]


def _round_robin(ranked: list[list[Hit]], limit: int) -> list[Hit]:
    chosen: dict[str, Hit] = {}
    for place in range(max(map(len, ranked), default=0)):
        for hits in ranked:
            if place < len(hits) and len(chosen) < limit:
                chosen.setdefault(hits[place].tool.name, hits[place])
    return list(chosen.values())

"""The sources that were plugged, so that they are plugged again at the next start."""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from guildry.memory.store import Store

__all__ = ["Source", "SourceStore"]


@dataclass(frozen=True, slots=True)
class Source:
    """A plugged source of tools, as it was given. `options` is JSON."""

    name: str
    source: str
    options: dict[str, Any] = field(default_factory=dict[str, Any])


class SourceStore:
    """Keep which sources are plugged, in the order in which they were first plugged."""

    def __init__(self, store: Store) -> None:
        self._store = store

    async def add(self, name: str, source: str, options: Mapping[str, Any] | None = None) -> None:
        """Enter a source, or change the one of that name, which keeps its place.

        Raises:
            StoreError: the database refuses.
        """
        row = (name, source, json.dumps(dict(options or {}), separators=(",", ":")))

        def upsert(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO sources (name, source, options) VALUES (?, ?, ?)"
                " ON CONFLICT (name) DO UPDATE SET source = excluded.source,"
                " options = excluded.options",
                row,
            )

        await self._store.write(upsert)

    async def remove(self, name: str) -> bool:
        """Remove a source; tells whether there was one.

        Raises:
            StoreError: the database refuses.
        """

        def delete(connection: sqlite3.Connection) -> bool:
            return connection.execute("DELETE FROM sources WHERE name = ?", (name,)).rowcount == 1

        return await self._store.write(delete)

    async def listing(self) -> list[Source]:
        """Return every source, in the order in which they were first plugged."""

        def select(connection: sqlite3.Connection) -> list[Source]:
            rows = connection.execute("SELECT name, source, options FROM sources ORDER BY position")
            return [Source(name, source, json.loads(options)) for name, source, options in rows]

        return await self._store.read(select)

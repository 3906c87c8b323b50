"""What servers offered when they were last listed. Knows rows, not what is in a manifest."""

import json
import sqlite3
import time
from collections.abc import Mapping
from typing import Any, Final

from guildry.memory.store import Store, storable

__all__ = ["ManifestStore"]

_FRESH_DAYS: Final = 30
_DAY_S: Final = 86_400.0


class ManifestStore:
    """Keep the last list of each server, by a key that says what the server is and how it is run.

    One that was not listed for 30 days is known no more.
    """

    def __init__(self, store: Store) -> None:
        self._store = store

    async def get(self, key: str) -> dict[str, Any] | None:
        """Return the manifest of that key, or None.

        Raises:
            StoreError: the database cannot be read.
        """

        def select(connection: sqlite3.Connection) -> dict[str, Any] | None:
            query = "SELECT manifest FROM manifests WHERE key = ? AND listed_at > ?"
            row = connection.execute(query, (key, _oldest())).fetchone()
            return None if row is None else json.loads(row[0])

        return await self._store.read(select)

    async def put(self, key: str, plug: str, manifest: Mapping[str, Any]) -> None:
        """Keep a manifest in the place of the last one of that key.

        Args:
            key: what the server is and how it is run.
            plug: what it was plugged as.
            manifest: a JSON object.

        Raises:
            StoreError: the database refuses.
        """
        text = storable(json.dumps(manifest, ensure_ascii=False, separators=(",", ":")))

        def upsert(connection: sqlite3.Connection) -> None:
            connection.execute(
                "INSERT INTO manifests (key, plug, manifest, listed_at) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (key) DO UPDATE SET plug = excluded.plug,"
                " manifest = excluded.manifest, listed_at = excluded.listed_at",
                (key, plug, text, time.time()),
            )
            connection.execute("DELETE FROM manifests WHERE listed_at <= ?", (_oldest(),))

        await self._store.write(upsert)


def _oldest() -> float:
    return time.time() - _FRESH_DAYS * _DAY_S

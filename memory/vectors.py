"""Vectors that were computed once, by the digest of what they stand for. Knows no texts."""

import sqlite3
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from guildry.memory.store import Store

__all__ = ["VectorStore"]

_AT_ONCE: Final = 500


class VectorStore:
    """Keep vectors of models.

    Args:
        store: the database.
        clock: seconds since the epoch.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    async def get(self, model: str, digests: Sequence[str]) -> dict[str, bytes]:
        """Return those vectors of a model that are kept, by digest.

        Raises:
            StoreError: the database refuses.
        """

        def select(connection: sqlite3.Connection) -> dict[str, bytes]:
            found: dict[str, bytes] = {}
            for first in range(0, len(digests), _AT_ONCE):
                some = digests[first : first + _AT_ONCE]
                marks = ", ".join("?" * len(some))
                found.update(
                    connection.execute(
                        f"SELECT digest, vector FROM vectors WHERE model = ?"
                        f" AND digest IN ({marks})",
                        (model, *some),
                    )
                )
            return found

        return await self._store.read(select)

    async def put(self, model: str, vectors: Mapping[str, bytes]) -> None:
        """Keep vectors of a model.

        Raises:
            StoreError: the database refuses.
        """
        now = self._clock()
        rows = [(model, digest, vector, now) for digest, vector in vectors.items()]

        def insert(connection: sqlite3.Connection) -> None:
            connection.executemany("INSERT OR REPLACE INTO vectors VALUES (?, ?, ?, ?)", rows)

        await self._store.write(insert)

    async def used(self, model: str, digests: Sequence[str]) -> None:
        """Say that vectors are in use, so that `forget` keeps them.

        Raises:
            StoreError: the database refuses.
        """
        now = self._clock()
        rows = [(now, model, digest) for digest in digests]

        def update(connection: sqlite3.Connection) -> None:
            connection.executemany(
                "UPDATE vectors SET used_at = ? WHERE model = ? AND digest = ?", rows
            )

        await self._store.write(update)

    async def forget(self, *, before: float) -> int:
        """Drop the vectors that were last used before a time; return how many these were.

        Raises:
            StoreError: the database refuses.
        """

        def delete(connection: sqlite3.Connection) -> int:
            return connection.execute("DELETE FROM vectors WHERE used_at < ?", (before,)).rowcount

        return await self._store.write(delete)

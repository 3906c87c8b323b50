"""Proposed tools, in all their versions. Knows rows; runs and serves nothing."""

import json
import sqlite3
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, Final, Literal

from guildry.memory.store import Store, storable

__all__ = ["Proposal", "ProposalStatus", "ProposalStore"]

ProposalStatus = Literal["failed", "waiting", "rejected", "served", "replaced"]
"""Its tests did not pass; a person has yet to decide; one said no; it is served; another version
of the tool is.
"""

_COLUMNS: Final = (
    "id, name, version, principal, run, description, source, tests, status, verdict,"
    " proposed_at, decided_at, decided_by"
)


@dataclass(frozen=True, slots=True)
class Proposal:
    """One version of a tool that somebody proposed.

    Args:
        id: names it, in all versions of all tools.
        name: of the tool.
        version: counted from 1 for each name.
        principal: for whom it was proposed.
        run: in which.
        description: what the tool is for.
        source: Python, with one public function of that name.
        tests: Python, with functions whose names begin with `test_`.
        status: what became of it.
        verdict: what its tests gave.
        proposed_at: seconds since the epoch.
        decided_at: seconds since the epoch, or None while nobody has decided.
        decided_by: a principal, or `tests` where they alone decide.
    """

    id: str
    name: str
    version: int
    principal: str
    run: str
    description: str
    source: str
    tests: str
    status: ProposalStatus
    proposed_at: float
    verdict: dict[str, Any] = field(default_factory=dict[str, Any])
    decided_at: float | None = None
    decided_by: str | None = None


class ProposalStore:
    """Keep proposals. Of each name at most one version is served.

    Args:
        store: where they are kept.
        clock: seconds since the epoch.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    async def add(
        self,
        *,
        name: str,
        principal: str,
        run: str,
        description: str,
        source: str,
        tests: str,
        status: Literal["failed", "waiting"],
        verdict: Mapping[str, Any],
    ) -> Proposal:
        """Enter a proposal as the next version of its name.

        Raises:
            StoreError: the database refuses.
        """
        id, now = token_hex(8), self._clock()
        row = (storable(description), source, tests, status, json.dumps(dict(verdict)), now)

        def insert(connection: sqlite3.Connection) -> Proposal:
            connection.execute(
                "INSERT INTO proposals (id, name, version, principal, run, description, source,"
                " tests, status, verdict, proposed_at) VALUES (?1, ?2, (SELECT"
                " coalesce(max(version), 0) + 1 FROM proposals WHERE name = ?2), ?3, ?4, ?5, ?6,"
                " ?7, ?8, ?9, ?10)",
                (id, name, principal, run, *row),
            )
            return _one(connection, "id = ?", (id,))

        return await self._store.write(insert)

    async def decide(
        self, proposal: Proposal, status: Literal["rejected", "waiting"], by: str
    ) -> None:
        """Enter what was decided about a proposal that is not to be served.

        Raises:
            StoreError: the database refuses.
        """
        now = self._clock()

        def update(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE proposals SET status = ?, decided_at = ?, decided_by = ? WHERE id = ?",
                (status, now, by, proposal.id),
            )

        await self._store.write(update)

    async def serve(self, proposal: Proposal, by: str) -> None:
        """Enter that this version is served, in the place of any other.

        Raises:
            StoreError: the database refuses.
        """
        now = self._clock()

        def update(connection: sqlite3.Connection) -> None:
            connection.execute(
                "UPDATE proposals SET status = 'replaced' WHERE name = ? AND status = 'served'",
                (proposal.name,),
            )
            connection.execute(
                "UPDATE proposals SET status = 'served', decided_at = ?, decided_by = ?"
                " WHERE id = ?",
                (now, by, proposal.id),
            )

        await self._store.write(update)

    async def get(self, name: str, version: int | None = None) -> Proposal | None:
        """Return one version of a tool, or the newest one.

        Raises:
            StoreError: the database cannot be read.
        """
        where, given = "name = ?", (name,)
        if version is not None:
            where, given = "name = ? AND version = ?", (name, version)  # type: ignore[assignment]

        def select(connection: sqlite3.Connection) -> Proposal | None:
            found = _some(connection, f"{where} ORDER BY version DESC LIMIT 1", given)
            return found[0] if found else None

        return await self._store.read(select)

    async def listing(
        self,
        *,
        principal: str | None = None,
        name: str | None = None,
        limit: int = 100,
    ) -> list[Proposal]:
        """Return the newest proposals, those of one principal or of one name only.

        Raises:
            StoreError: the database cannot be read.
        """

        def select(connection: sqlite3.Connection) -> list[Proposal]:
            return _some(
                connection,
                "(?1 IS NULL OR principal = ?1) AND (?2 IS NULL OR name = ?2)"
                " ORDER BY position DESC LIMIT ?3",
                (principal, name, limit),
            )

        return await self._store.read(select)


def _one(connection: sqlite3.Connection, where: str, given: tuple[object, ...]) -> Proposal:
    (found,) = _some(connection, where, given)
    return found


def _some(connection: sqlite3.Connection, where: str, given: tuple[object, ...]) -> list[Proposal]:
    rows = connection.execute(f"SELECT {_COLUMNS} FROM proposals WHERE {where}", given)
    return [_proposal(row) for row in rows]


def _proposal(row: tuple[Any, ...]) -> Proposal:
    id, name, version, principal, run, description, source, tests, status, verdict = row[:10]
    proposed_at, decided_at, decided_by = row[10:]
    return Proposal(
        id=id,
        name=name,
        version=version,
        principal=principal,
        run=run,
        description=description,
        source=source,
        tests=tests,
        status=status,
        proposed_at=proposed_at,
        verdict=json.loads(verdict or "{}"),
        decided_at=decided_at,
        decided_by=decided_by,
    )

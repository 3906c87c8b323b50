"""Pins: the definitions that may be served, and those that wait for a person. Judges nothing."""

import json
import sqlite3
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from guildry.memory.store import Store, storable

__all__ = ["FIRST_USE", "Held", "Pin", "PinStore", "Pinned"]

FIRST_USE: Final = "first use"
"""By whom a definition was approved that was there when its plug was first seen."""

_PIN: Final = "plug, tool, digest, definition, approved_at, approved_by"
_HELD: Final = "plug, tool, digest, definition, reason, resembles, held_at, rejected_by"
_MAX_DESCRIPTION: Final = 1_000


@dataclass(frozen=True, slots=True)
class Pin:
    """A definition that may be served.

    Args:
        plug: the name of the plug.
        tool: its name at the source; of a prompt and the like, with its kind before it.
        digest: of the definition and the server's identity.
        definition: as it was approved, as JSON.
        approved_at: seconds since 1970.
        approved_by: a principal, or `FIRST_USE`.
    """

    plug: str
    tool: str
    digest: str
    definition: Mapping[str, Any]
    approved_at: float
    approved_by: str = FIRST_USE


@dataclass(frozen=True, slots=True)
class Held:
    """A definition that is not served until a person approves it.

    Args:
        plug, tool, digest, definition: as in `Pin`.
        reason: why it is held.
        resembles: the plug and the tool that it may stand for, if that is why.
        held_at: seconds since 1970.
        rejected_by: the principal who decided that it is never served; None while it waits.
    """

    plug: str
    tool: str
    digest: str
    definition: Mapping[str, Any]
    reason: str
    resembles: tuple[str, str] | None = None
    held_at: float = field(default=0.0)
    rejected_by: str | None = None


class Pinned(NamedTuple):
    """As much of a pin as others are compared with."""

    plug: str
    tool: str
    description: str


class PinStore:
    """Keep what was approved and what is held, for all processes of a home.

    Args:
        store: the database.
        clock: tells the time, in seconds since 1970.
    """

    def __init__(self, store: Store, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    async def pins(self, plug: str) -> dict[str, Pin]:
        """Return the pins of a plug by the names of the tools.

        Raises:
            StoreError: the database cannot be read.
        """

        def select(connection: sqlite3.Connection) -> dict[str, Pin]:
            rows = connection.execute(f"SELECT {_PIN} FROM pins WHERE plug = ?", (plug,))
            return {row[1]: _pin(row) for row in rows}

        return await self._store.read(select)

    async def pin(self, plug: str, tool: str) -> Pin | None:
        """Return one pin, or None where there is none.

        Raises:
            StoreError: the database cannot be read.
        """

        def select(connection: sqlite3.Connection) -> Pin | None:
            row = connection.execute(
                f"SELECT {_PIN} FROM pins WHERE plug = ? AND tool = ?",
                (plug, tool),
            ).fetchone()
            return None if row is None else _pin(row)

        return await self._store.read(select)

    async def held(self, plug: str | None = None) -> list[Held]:
        """Return what is held or rejected, of one plug or of all, by plug and tool.

        Raises:
            StoreError: the database cannot be read.
        """

        def select(connection: sqlite3.Connection) -> list[Held]:
            rows = connection.execute(
                f"SELECT {_HELD} FROM held WHERE ?1 IS NULL OR plug = ?1 ORDER BY plug, tool",
                (plug,),
            )
            return [_held(row) for row in rows]

        return await self._store.read(select)

    async def others(self, plug: str) -> list[Pinned]:
        """Return what is pinned of all plugs but one.

        Raises:
            StoreError: the database cannot be read.
        """

        def select(connection: sqlite3.Connection) -> list[Pinned]:
            rows = connection.execute(
                "SELECT plug, tool, substr(json_extract(definition, '$.description'), 1, ?)"
                " FROM pins WHERE plug <> ?",
                (_MAX_DESCRIPTION, plug),
            )
            return [Pinned(plug, tool, description or "") for plug, tool, description in rows]

        return await self._store.read(select)

    async def enter(
        self,
        plug: str,
        *,
        first: Sequence[Pin] = (),
        moved: Sequence[Pin] = (),
        held: Sequence[Held] = (),
    ) -> bool:
        """Enter what came of looking at all that a plug offers now, in one step.

        What was held before and is not any more is dropped; who rejected a definition stays.

        Args:
            plug: the name of the plug.
            first: definitions seen for the first time.
            moved: definitions in the place of their earlier pins.
            held: everything that is held now.

        Returns:
            False where another process has meanwhile pinned another definition of one of `first`:
            nothing was entered then, and the plug is to be looked at again.

        Raises:
            StoreError: the database refuses.
        """
        now = self._clock()

        def change(connection: sqlite3.Connection) -> bool:
            for pin in first:
                row = connection.execute(
                    "SELECT digest FROM pins WHERE plug = ? AND tool = ?", (plug, pin.tool)
                ).fetchone()
                if row is not None and row[0] != pin.digest:
                    return False
            connection.executemany(_UPSERT_PIN, [_pin_row(pin, now) for pin in (*first, *moved)])
            before = {
                row[0]: row[1:]
                for row in connection.execute(
                    "SELECT tool, digest, held_at, rejected_by FROM held WHERE plug = ?", (plug,)
                )
            }
            connection.execute("DELETE FROM held WHERE plug = ?", (plug,))
            rows = [_held_row(each, before.get(each.tool), now) for each in held]
            connection.executemany(_INSERT_HELD, rows)
            return True

        return await self._store.write(change)

    async def approve(
        self,
        plug: str,
        tools: Collection[str] | None,
        by: str,
        digests: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Pin what is held of a plug. Returns the names of what was.

        Args:
            plug: the name of the plug.
            tools: which of it; all that nobody has rejected if None.
            by: the principal who approves.
            digests: how the digests of some begin; a definition that is another one by now stays
                held.

        Raises:
            StoreError: the database refuses.
        """
        now = self._clock()

        def change(connection: sqlite3.Connection) -> list[str]:
            chosen = _chosen(connection, plug, tools, digests or {})
            for each in chosen:
                pin = Pin(plug, each.tool, each.digest, each.definition, now, by)
                connection.execute(_UPSERT_PIN, _pin_row(pin, now))
                if each.resembles is not None and each.resembles[0] == plug:
                    gone = (plug, each.resembles[1])  # it goes by its new name from now on
                    connection.execute("DELETE FROM pins WHERE plug = ? AND tool = ?", gone)
                _drop_held(connection, each)
            return [each.tool for each in chosen]

        return await self._store.write(change)

    async def reject(
        self,
        plug: str,
        tools: Collection[str] | None,
        by: str,
        digests: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Decide that what is held of a plug is not served. Returns the names of what was.

        Args:
            plug, tools, by, digests: as for `approve`.

        Raises:
            StoreError: the database refuses.
        """

        def change(connection: sqlite3.Connection) -> list[str]:
            chosen = _chosen(connection, plug, tools, digests or {})
            for each in chosen:
                connection.execute(
                    "UPDATE held SET rejected_by = ? WHERE plug = ? AND tool = ?",
                    (by, plug, each.tool),
                )
            return [each.tool for each in chosen]

        return await self._store.write(change)

    async def forget(self, plug: str) -> int:
        """Drop all that is known of a plug: what it offers next counts as first seen.

        Returns:
            how many pins and held definitions there were.

        Raises:
            StoreError: the database refuses.
        """

        def change(connection: sqlite3.Connection) -> int:
            held = connection.execute("DELETE FROM held WHERE plug = ?", (plug,)).rowcount
            pins = connection.execute("DELETE FROM pins WHERE plug = ?", (plug,)).rowcount
            return held + pins

        return await self._store.write(change)


_UPSERT_PIN: Final = (
    f"INSERT INTO pins ({_PIN}) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (plug, tool) DO UPDATE SET digest = excluded.digest,"
    " definition = excluded.definition, approved_at = excluded.approved_at,"
    " approved_by = excluded.approved_by"
)
_INSERT_HELD: Final = f"INSERT INTO held ({_HELD}) VALUES (?, ?, ?, ?, ?, ?, ?, ?)"


def _chosen(
    connection: sqlite3.Connection,
    plug: str,
    tools: Collection[str] | None,
    digests: Mapping[str, str],
) -> list[Held]:
    rows = connection.execute(
        f"SELECT {_HELD} FROM held WHERE plug = ? ORDER BY tool",
        (plug,),
    )
    found = [_held(row) for row in rows]
    return [
        each
        for each in found
        if (each.tool in tools if tools is not None else each.rejected_by is None)
        and each.digest.startswith(digests.get(each.tool, ""))
    ]


def _drop_held(connection: sqlite3.Connection, held: Held) -> None:
    connection.execute("DELETE FROM held WHERE plug = ? AND tool = ?", (held.plug, held.tool))


def _pin(row: Sequence[Any]) -> Pin:
    plug, tool, digest, definition, approved_at, approved_by = row
    return Pin(plug, tool, digest, json.loads(definition), approved_at, approved_by)


def _held(row: Sequence[Any]) -> Held:
    plug, tool, digest, definition, reason, resembles, held_at, rejected_by = row
    pair = None if resembles is None else tuple(json.loads(resembles))
    return Held(plug, tool, digest, json.loads(definition), reason, pair, held_at, rejected_by)


def _pin_row(pin: Pin, now: float) -> tuple[object, ...]:
    definition = json.dumps(pin.definition, separators=(",", ":"))
    at = pin.approved_at or now
    return (pin.plug, storable(pin.tool), pin.digest, definition, at, pin.approved_by)


def _held_row(held: Held, before: Sequence[Any] | None, now: float) -> tuple[object, ...]:
    is_same = before is not None and before[0] == held.digest
    held_at, rejected_by = (before[1], before[2]) if is_same and before else (now, None)
    definition = json.dumps(held.definition, separators=(",", ":"))
    resembles = None if held.resembles is None else json.dumps(held.resembles)
    return (
        held.plug,
        storable(held.tool),
        held.digest,
        definition,
        storable(held.reason),
        resembles,
        held_at,
        rejected_by,
    )

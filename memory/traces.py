"""Traces: the tool calls of the newest journals, in order, read back within bounds."""

import json
import sqlite3
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from guildry.memory.selectors import is_object
from guildry.memory.store import Store

__all__ = ["Step", "Trace", "read_traces"]

_RUNS: Final = 500
_ENTRIES_OF_ONE: Final = 2_000
_ENTRIES: Final = 20_000
_PAUSE_S: Final = 1_800.0
_JOURNALS: Final = """
    SELECT id FROM (SELECT id, position FROM runs ORDER BY position DESC LIMIT ?)
    UNION
    SELECT principal FROM (SELECT principal FROM runs ORDER BY position DESC LIMIT ?)
    UNION
    SELECT run FROM (
        WITH RECURSIVE journals (run) AS (
            SELECT min(run) FROM entries
            UNION ALL
            SELECT (SELECT min(run) FROM entries WHERE run > journals.run)
                FROM journals WHERE run IS NOT NULL)
        SELECT run FROM journals WHERE run IS NOT NULL AND run NOT IN (SELECT id FROM runs)
        LIMIT 100)
"""
_CALLS: Final = """
    SELECT at, agent, data FROM (
        SELECT seq, at, kind, agent, data FROM entries WHERE run = ? ORDER BY seq DESC LIMIT ?)
    WHERE kind = 'tool' ORDER BY seq
"""


@dataclass(frozen=True, slots=True)
class Step:
    """A call that succeeded, as its journal tells of it: long values are cut there.

    Args:
        at: seconds since the epoch.
        tool: by the name that was called.
        arguments: as the caller wrote them.
        text: the answer, as the caller read it.
        reference: id of what was stored of the answer, or None.
    """

    at: float
    tool: str
    arguments: Mapping[str, Any]
    text: str
    reference: str | None = None


Trace = list[Step]
"""What one caller called, in order and without a long pause."""


async def read_traces(store: Store) -> list[Trace]:
    """Return what the callers of the newest runs called, and those outside any run.

    At most 20,000 entries are looked at.

    Raises:
        StoreError: the database cannot be read.
    """
    await store.flush()

    def select(connection: sqlite3.Connection) -> list[Trace]:
        found: list[Trace] = []
        room = _ENTRIES
        for (run,) in connection.execute(_JOURNALS, (_RUNS, _RUNS)).fetchall():
            rows = connection.execute(_CALLS, (run, min(room, _ENTRIES_OF_ONE))).fetchall()
            found += _parted(rows)
            room -= len(rows)
            if room <= 0:
                break
        return found

    return await store.read(select)


def _parted(rows: list[tuple[float, str, str]]) -> list[Trace]:
    """Return the calls of one journal: each agent's by itself, parted at long pauses."""
    found: list[Trace] = []
    open_traces: dict[str, Trace] = {}
    for at, agent, text in rows:
        step = _step(at, json.loads(text))
        if step is None:
            continue
        trace = open_traces.get(agent)
        if trace is None or at - trace[-1].at > _PAUSE_S:
            trace = open_traces[agent] = []
            found.append(trace)
        trace.append(step)
    return found


def _step(at: float, data: Any) -> Step | None:
    if not is_object(data) or data.get("status") != "ok" or not is_object(data["arguments"]):
        return None
    return Step(at, data["tool"], data["arguments"], data["text"], data["reference"])

"""The tool calls of a run made once more, one after another, to see what side by side is worth."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

from guildry.errors import RunError
from guildry.memory.events import Entry
from guildry.server.demo.shown import object_of

if TYPE_CHECKING:
    from mcp import Client

__all__ = ["Recorded", "recorded", "replay"]

_STORED: Final = re.compile(r"\[stored as (ref:[A-Za-z0-9_.-]+): ")
_HANDLE: Final = re.compile(r"(ref:[A-Za-z0-9_.-]+)([#?].*)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Recorded:
    """A call as the journal keeps it, with the reference that its answer became."""

    tool: str
    arguments: dict[str, Any]
    stored: str | None


def recorded(entries: Iterable[Entry]) -> list[Recorded]:
    """Return the calls of a run that went well, in order of their ends."""
    return [
        Recorded(
            entry.data["tool"],
            entry.data["arguments"],
            found[1] if (found := _STORED.match(str(entry.data["text"]))) else None,
        )
        for entry in entries
        if entry.kind == "tool" and entry.data["status"] == "ok"
    ]


async def replay(client: "Client", calls: Iterable[Recorded], limit_s: float) -> float:
    """Make the calls one after another through the endpoint; returns the seconds they took.

    Each reference of the run is replaced by that of the same call's answer now.

    Raises:
        RunError: a call that went well in the run fails now.
    """
    now: dict[str, str] = {}
    started = perf_counter()
    for call in calls:
        arguments = {key: _moved(value, now) for key, value in call.arguments.items()}
        answer = await client.call_tool(call.tool, arguments, read_timeout_seconds=limit_s)
        if answer.is_error:
            said = " ".join(getattr(block, "text", "") for block in answer.content)
            raise RunError(f"`{call.tool}` went well in the run and fails now: {said[:200]}")
        uri = object_of(answer.structured_content).get("uri")
        if call.stored is not None and isinstance(uri, str):
            now[call.stored] = uri
    return perf_counter() - started


def _moved(value: Any, now: dict[str, str]) -> Any:
    found = _HANDLE.fullmatch(value) if isinstance(value, str) else None
    if found is None or found[1] not in now:
        return value
    return now[found[1]] + (found[2] or "")

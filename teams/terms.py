"""The terms of a run: what it may do, from its caller's grant, its team and the defaults."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Final

import anyio

from guildry.memory.objects import ObjectStore
from guildry.memory.references import Reference
from guildry.teams.ask import ASK
from guildry.teams.messages import Task
from guildry.tools.base import Tool
from guildry.tools.caller import Caller
from guildry.tools.grants import Grant, Limits
from guildry.tools.registry import Registry

__all__ = ["SPAWN", "RunDefaults", "chosen_limits", "fits", "readable", "root_grant"]

SPAWN: Final = "spawn"
"""The name of the tool by which an agent gets a child of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDefaults:
    """How runs are kept within bounds where nobody says otherwise.

    Args:
        limits: what a run may spend where neither its caller nor its team says.
        model: name of the model for agents that name none; the only one there is, if None.
        durable: enter calls that must not be repeated in the effect ledger before they run.
        hand_back_s: seconds after a run's time is over in which its agents may still report.
        record_s: longest time that recording the end of a cancelled run may take.
    """

    limits: Limits = Limits(tokens=2_000_000, calls=5_000, agents=1_500, wall_s=3_600.0)
    model: str | None = None
    durable: bool = True
    hand_back_s: float = 5.0
    record_s: float = 5.0


def fits(tool: Tool, patterns: Sequence[str]) -> bool:
    """Tell whether a name or pattern is `tool`'s. Tools that start agents fit by name only."""
    if tool.name in patterns:
        return True
    return tool.scope == "tools" and any(fnmatchcase(tool.name, pattern) for pattern in patterns)


async def root_grant(
    run: str,
    task: Task,
    caller: Caller,
    *,
    tools: Sequence[str],
    limits: Limits,
    registry: Registry,
    objects: ObjectStore,
) -> Grant:
    """Return the grant of a run: what its team's patterns name of what its caller holds.

    Raises:
        GrantError: the caller holds less than is asked for.
    """
    grant = caller.grant
    names = [
        tool.name
        for tool in registry
        if (fits(tool, tools) or tool.name in (SPAWN, ASK))
        and tool.scope in grant.scopes
        and tool.scope != "admin"
        and grant.allows(tool.name)
    ]
    return grant.narrow(
        run,
        tools=names,
        references=[reference.id for reference in task.references],
        may_read=await readable(objects, grant, task.references),
        limits=limits,
        deadline=None if limits.wall_s is None else anyio.current_time() + limits.wall_s,
    )


def chosen_limits(caller: Caller, asked: Limits | None, usual: Sequence[Limits]) -> Limits:
    """Return what the caller asked for; where it did not, the first usual limit that it holds.

    Args:
        caller: whose grant and deadline hold in any case.
        asked: what the caller asked for.
        usual: what is usual for the team, then for the server.
    """
    held = caller.grant.limits.as_json()
    defaults = [each.as_json() for each in usual]
    chosen: dict[str, float | None] = {}
    for name, value in (asked or Limits()).as_json().items():
        default = next((each[name] for each in defaults if each[name] is not None), None)
        chosen[name] = _least(default, held[name]) if value is None else value
    if caller.grant.deadline is not None:
        left = max(0.0, caller.grant.deadline - anyio.current_time())
        chosen["wall_s"] = _least(chosen["wall_s"], left)
    return Limits(**chosen)  # type: ignore[arg-type]  # each value keeps its field's type


async def readable(
    objects: ObjectStore, grant: Grant, references: Iterable[Reference]
) -> tuple[str, ...]:
    """Return the ids of those references that the grant's holder may read."""
    found: list[str] = []
    for reference in references:
        if reference.id in grant.references or reference.readable_by(grant.holder):
            found.append(reference.id)
            continue
        fresh = await objects.by_id(reference.id)  # it may have been shared since
        if fresh is not None and fresh.readable_by(grant.holder):
            found.append(reference.id)
    return tuple(found)


def _least(one: float | None, other: float | None) -> float | None:
    if one is None or other is None:
        return other if one is None else one
    return min(one, other)

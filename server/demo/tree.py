"""The tree of a run as its journal tells it: who works on what, with which calls and references."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from guildry.memory.events import Entry

if TYPE_CHECKING:
    from rich.tree import Tree

__all__ = ["Agent", "agents_of", "draw"]

_STORED: Final = re.compile(r"\[stored as (ref:[A-Za-z0-9_.-]+): ")
_REFERENCE: Final = re.compile(r"ref:[A-Za-z0-9_.-]+")
_MARKS: Final = {
    "working": ("…", "yellow"),
    "done": ("✓", "green"),
    "partial": ("~", "yellow"),
    "failed": ("✗", "red"),
    "cancelled": ("✗", "red"),
}


@dataclass(slots=True)
class Called:
    """One tool call: what it read by reference, and the reference that its answer became."""

    tool: str
    status: str
    reads: tuple[str, ...]
    stored: str | None
    size: int


@dataclass(slots=True)
class Agent:
    """One agent of a run."""

    id: str
    name: str
    began: float
    tools: int
    state: str = "working"
    seconds: float = 0.0
    turns: int = 0
    calls: list[Called] = field(default_factory=list[Called])


def agents_of(entries: Iterable[Entry]) -> list[Agent]:
    """Return the agents of a run, in the order in which they began."""
    agents: dict[str, Agent] = {}
    for entry in entries:
        data = entry.data
        if entry.kind == "spawn" and data.get("parent") is not None:
            agents[entry.agent] = Agent(entry.agent, data["name"], entry.at, len(data["tools"]))
        agent = agents.get(entry.agent)
        if agent is None:
            continue
        if entry.kind == "model":
            agent.turns += 1
        elif entry.kind == "tool":
            agent.calls.append(_called(data))
        elif entry.kind == "return":
            agent.state, agent.seconds = data["status"], entry.at - agent.began
    return list(agents.values())


def _called(data: dict[str, Any]) -> Called:
    stored = _STORED.match(str(data["text"]))
    reads = dict.fromkeys(
        found[0]
        for value in data["arguments"].values()
        if isinstance(value, str) and (found := _REFERENCE.match(value))
    )
    return Called(
        data["tool"], data["status"], tuple(reads), stored[1] if stored else None, data["size"]
    )


def draw(title: str, agents: Iterable[Agent]) -> "Tree":
    """Return the tree as a terminal shows it."""
    from rich.text import Text
    from rich.tree import Tree

    tree = Tree(Text(title, style="bold"), guide_style="dim")
    for agent in agents:
        mark, style = _MARKS.get(agent.state, ("?", "yellow"))
        line = Text.assemble((f"{mark} ", style), (agent.name, "bold"))
        if agent.state != "working":
            replies = _counted(agent.turns, "reply", "replies")
            line.append(f"  {agent.seconds:.2f} s, {replies}", style="dim")
        if agent.tools:
            line.append(f", {_counted(agent.tools, 'tool', 'tools')}", style="dim")
        branch = tree.add(line)
        for call in agent.calls:
            branch.add(_call_line(call))
    return tree


def _counted(count: int, one: str, many: str) -> str:
    return f"{count} {one if count == 1 else many}"


def _call_line(call: Called) -> Any:
    from rich.text import Text

    line = Text(call.tool, style="" if call.status == "ok" else "red")
    if call.reads:
        line.append(" ← " + ", ".join(call.reads), style="cyan")
    if call.stored is not None:
        line.append(f" → {call.stored}", style="magenta")
        line.append(f" ({call.size:,} bytes)", style="dim")
    if call.status != "ok":
        line.append(f" {call.status}", style="red")
    return line

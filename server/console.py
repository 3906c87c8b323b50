"""A run as a tree in the terminal: folded from its journal, live or afterwards. Runs nothing."""

import json
from collections.abc import AsyncIterator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, cast

import anyio

from guildry.memory.events import Entry

if TYPE_CHECKING:
    from rich.console import Console
    from rich.tree import Tree

__all__ = ["AgentLine", "RunTree", "money", "plain", "show_report", "watch"]

_FRAME_S: Final = 0.1
_MAX_TOOLS: Final = 3
_MARKS: Final = {
    "running": ("●", "cyan"),
    "done": ("✔", "green"),
    "partial": ("◐", "yellow"),
    "failed": ("✘", "red"),
    "cancelled": ("■", "yellow"),
    "interrupted": ("■", "yellow"),
}


def plain(text: object, limit: int = 100) -> str:
    """Return `text` on one line and without control characters, cut to `limit`."""
    line = " ".join("".join(c if c.isprintable() else " " for c in str(text)).split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"


def money(usage: Mapping[str, Any]) -> str:
    """Return what a run cost, in a few words."""
    sent, written = usage.get("prompt_tokens", 0), usage.get("completion_tokens", 0)
    parts = [
        _count(usage.get("agents", 0), "agent"),
        _count(usage.get("tool_calls", 0), "tool call"),
        f"{sent:,} tokens sent ({usage.get('cached_tokens', 0):,} cached), {written:,} written",
    ]
    if saved := usage.get("saved_tokens", 0):
        parts.append(f"{saved:,} kept out by references")
    return " · ".join([*parts, f"{usage.get('wall_s', 0):.1f} s"])


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


@dataclass
class AgentLine:
    """What one agent has done until now."""

    id: str
    name: str
    parent: str | None
    began: float
    model: str = ""
    task: str = ""
    status: str = "running"
    summary: str = ""
    ended: float | None = None
    calls: int = 0
    errors: int = 0
    turns: int = 0
    tokens: int = 0
    tools: list[str] = field(default_factory=list[str])
    asks: dict[str, str] = field(default_factory=dict[str, str])

    def text(self, now: float) -> str:
        """Return the line without its mark."""
        took = (self.ended if self.ended is not None else now) - self.began
        parts = [_count(self.turns, "turn")] if self.turns else []
        if self.calls:
            failed = f" ({self.errors} failed)" if self.errors else ""
            parts.append(f"{_count(self.calls, 'call')}{failed}")
        if self.tokens:
            parts.append(_count(self.tokens, "token"))
        parts.append(f"{max(took, 0.0):.1f} s")
        doing = self.summary if self.ended is not None else ", ".join(self.tools[-_MAX_TOOLS:])
        if self.ended is None and self.asks:
            doing = next(iter(self.asks.values()))
        tail = f"  {plain(doing or self.task)}" if doing or self.task else ""
        return f"{plain(self.name, 40)}  {self.status}  {' · '.join(parts)}{tail}"


class RunTree:
    """Fold a journal into the tree of its agents."""

    def __init__(self) -> None:
        self.agents: dict[str, AgentLine] = {}
        self.usage: dict[str, Any] = {}
        self.now = 0.0

    def fold(self, entry: Entry) -> str | None:
        """Take one event in; return a line of text where it is worth one."""
        self.now = max(self.now, entry.at)
        data = entry.data
        if entry.kind == "spawn":
            return self._spawned(entry)
        line = self.agents.get(entry.agent)
        if line is None:
            return None
        if entry.kind == "delegate":
            if (to := self.agents.get(str(data.get("to")))) is not None:
                to.task = str(data.get("task", ""))
        elif entry.kind == "model":
            line.turns += 1
            line.tokens += int(data.get("prompt_tokens", 0)) + int(data.get("completion_tokens", 0))
        elif entry.kind == "tool":
            return self._called(line, data)
        elif entry.kind in ("ask", "answer"):
            return self._asked(line, entry)
        elif entry.kind == "return":
            return self._returned(line, entry)
        elif entry.kind == "stop" and line.ended is None:
            line.status, line.ended = str(data.get("reason", "done")), entry.at
        return None

    def _spawned(self, entry: Entry) -> str:
        data = entry.data
        line = AgentLine(
            id=entry.agent,
            name=str(data.get("name", entry.agent)),
            parent=cast("str | None", data.get("parent")),
            began=entry.at,
            model=str(data.get("model", "")),
        )
        self.agents[entry.agent] = line
        held = len(data.get("tools", ()))
        return f"{line.name} began with {_count(held, 'tool')}"

    def _called(self, line: AgentLine, data: Mapping[str, Any]) -> str:
        line.calls += 1
        tool, status = str(data.get("tool")), str(data.get("status"))
        line.errors += status != "ok"
        line.tools.append(tool)
        reference = data.get("reference")
        kept = f" → {reference}" if reference else ""
        return f"{line.name}: {tool} {status} in {float(data.get('duration_s', 0)):.2f} s{kept}"

    def _asked(self, line: AgentLine, entry: Entry) -> str:
        """Take a question in, with the command that answers it, or its answer."""
        data, id = entry.data, str(entry.data.get("question"))
        if entry.kind == "answer":
            line.asks.pop(id, None)
            return f"{line.name}: the answer is {data.get('action')} by {data.get('by')}"
        cure = f" (`guildry approve {id}`)" if data.get("can_be_answered", True) else ""
        line.asks[id] = f"asks{cure}: {data.get('message')}"
        return f"{line.name} {line.asks[id]}"

    def _returned(self, line: AgentLine, entry: Entry) -> str:
        line.status = str(entry.data.get("status", "done"))
        line.summary = str(entry.data.get("summary", ""))
        line.ended = entry.at
        if line.parent is None:
            self.usage = dict(entry.data.get("usage", {}))
        return f"{line.name} {line.status}: {line.summary}"

    def rows(self, now: float | None = None) -> list[tuple[int, AgentLine, str]]:
        """Return depth, agent and text of each line, parents before their children."""
        at = self.now if now is None else now
        below: dict[str | None, list[AgentLine]] = {}
        for line in self.agents.values():
            known = line.parent if line.parent in self.agents else None
            below.setdefault(known, []).append(line)
        found: list[tuple[int, AgentLine, str]] = []
        waiting = [(0, line) for line in reversed(below.get(None, []))]
        while waiting:
            depth, line = waiting.pop()
            found.append((depth, line, line.text(at)))
            waiting += [(depth + 1, child) for child in reversed(below.get(line.id, []))]
        return found

    def text(self) -> str:
        """Return the tree as plain lines."""
        return "\n".join(
            f"{'  ' * depth}{_mark(line.status)[0]} {text}" for depth, line, text in self.rows()
        )

    def as_json(self) -> list[dict[str, Any]]:
        """Return the agents by name, parents first."""
        return [
            {
                "agent": line.id,
                "name": line.name,
                "parent": line.parent,
                "status": line.status,
                "turns": line.turns,
                "calls": line.calls,
                "tokens": line.tokens,
                "wall_s": round((line.ended or self.now) - line.began, 3),
                "summary": line.summary,
            }
            for _, line, _ in self.rows()
        ]

    def render(self, now: float | None = None) -> "Tree":
        """Return the tree as rich draws it."""
        from rich.text import Text
        from rich.tree import Tree

        stack: list[Tree] = []
        top = Tree("", hide_root=True)
        for depth, line, text in self.rows(now):
            mark, colour = _mark(line.status)
            label = Text.assemble((f"{mark} ", colour), text)
            label.no_wrap, label.overflow = True, "ellipsis"
            del stack[depth:]
            stack.append((stack[-1] if stack else top).add(label))
        return top


def _mark(status: str) -> tuple[str, str]:
    return _MARKS.get(status, ("·", "white"))


async def watch(entries: AsyncIterator[Entry], console: "Console") -> RunTree:
    """Show a run as it goes, and return its tree: redrawn in a terminal, else line by line."""
    tree = RunTree()
    if not console.is_terminal:
        async for entry in entries:
            if (line := tree.fold(entry)) is not None:
                console.print(plain(line, 200), markup=False, highlight=False, soft_wrap=True)
        return tree
    await _draw(tree, entries, console)
    return tree


async def _draw(tree: RunTree, entries: AsyncIterator[Entry], console: "Console") -> None:
    import time

    from rich.live import Live

    with Live(tree.render(), console=console, auto_refresh=False) as live:

        async def redraw() -> None:
            while True:
                live.update(tree.render(time.time()), refresh=True)
                await anyio.sleep(_FRAME_S)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(redraw)
            async for entry in entries:
                tree.fold(entry)
            tasks.cancel_scope.cancel()
        live.update(tree.render(), refresh=True)


def show_report(console: "Console", report: Mapping[str, Any], usage: Mapping[str, Any]) -> None:
    """Write a report, where its references are, and what it cost."""

    def say(text: str) -> None:
        console.print(text, markup=False, highlight=False, soft_wrap=True)

    for line in str(report.get("report", "")).splitlines():
        say("".join(c if c.isprintable() else " " for c in line.expandtabs(4)))
    if (answer := report.get("answer")) is not None:
        say(json.dumps(answer, indent=2, ensure_ascii=False, default=str))
    for reference in cast("Iterable[Mapping[str, Any]]", report.get("references") or ()):
        named = f"{reference.get('reference')}  {reference.get('uri')}"
        say(f"  {named}  {plain(reference.get('sketch', ''))}")
    if usage:
        say(money(usage))

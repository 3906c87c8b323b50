"""What agents say to each other: typed messages, never text dumps."""

from dataclasses import dataclass, field
from typing import Any, Literal

from guildry.memory.references import Reference
from guildry.teams.model import Usage

__all__ = ["Report", "ReportStatus", "Spent", "Task"]

ReportStatus = Literal["done", "partial", "failed"]


@dataclass(frozen=True, slots=True)
class Task:
    """What an agent or a team is asked to do. Each reference given may be read by the worker."""

    text: str
    references: tuple[Reference, ...] = ()
    answer_schema: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Spent:
    """What a piece of work cost, its children's work included."""

    usage: Usage = field(default_factory=Usage)
    calls: int = 0
    agents: int = 0
    saved_tokens: int = 0
    wall_s: float = 0.0

    def __add__(self, other: "Spent") -> "Spent":
        return Spent(
            self.usage + other.usage,
            self.calls + other.calls,
            self.agents + other.agents,
            self.saved_tokens + other.saved_tokens,
            self.wall_s + other.wall_s,
        )

    def as_json(self) -> dict[str, float]:
        """Return the cost by name; times in seconds, all else in counts."""
        return {
            "prompt_tokens": self.usage.prompt_tokens,
            "completion_tokens": self.usage.completion_tokens,
            "cached_tokens": self.usage.cached_tokens,
            "saved_tokens": self.saved_tokens,
            "tool_calls": self.calls,
            "agents": self.agents,
            "wall_s": round(self.wall_s, 3),
        }


@dataclass(frozen=True, slots=True)
class Report:
    """What comes back from an agent or a team.

    Args:
        status: `done`; `partial` when a limit ended the work early; `failed`.
        summary: what a reader needs, short. Everything long is behind `references`.
        references: what was made, readable by whoever gets the report.
        answer: the value that `Task.answer_schema` asked for, else None.
        reason: why the work stopped, in one word or sentence.
        spent: what it cost.
    """

    status: ReportStatus
    summary: str
    references: tuple[Reference, ...] = ()
    answer: Any = None
    reason: str = "finished"
    spent: Spent = field(default_factory=Spent)

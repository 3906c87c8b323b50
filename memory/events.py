"""The events of a run, as its journal keeps them. Knows their shape; writes nothing.

The kinds are those of an orchestration trace: spawn, delegate, message, tool, return, aggregate
and stop, with `model` beside them so that a run can be replayed and its cost read back, and `ask`
and `answer` for what a person was asked.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar, Final, Literal, get_args

from guildry.memory.selectors import is_list

__all__ = [
    "Aggregated",
    "Answered",
    "Asked",
    "Completed",
    "Delegated",
    "Entry",
    "Event",
    "EventKind",
    "Messaged",
    "Returned",
    "Spawned",
    "Stopped",
    "ToolCalled",
    "event_of",
]

EventKind = Literal[
    "spawn",
    "delegate",
    "message",
    "model",
    "ask",
    "answer",
    "tool",
    "return",
    "aggregate",
    "stop",
]


@dataclass(frozen=True, slots=True)
class Spawned:
    """An agent began, under which grant."""

    kind: ClassVar[EventKind] = "spawn"
    agent: str
    name: str
    parent: str | None
    tools: tuple[str, ...]
    references: tuple[str, ...]
    limits: dict[str, float | None]
    model: str


@dataclass(frozen=True, slots=True)
class Delegated:
    """A task was handed from one agent to another."""

    kind: ClassVar[EventKind] = "delegate"
    agent: str
    to: str
    task: str
    references: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Messaged:
    """A typed message went between agents (plan, question, verdict), or the run said something."""

    kind: ClassVar[EventKind] = "message"
    agent: str
    to: str
    type: str
    body: Any


@dataclass(frozen=True, slots=True)
class Completed:
    """A model replied. Tokens are counted by the endpoint, or estimated where it says nothing."""

    kind: ClassVar[EventKind] = "model"
    agent: str
    turn: int
    text: str
    calls: tuple[tuple[str, str, str], ...]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    duration_s: float
    finish: str


@dataclass(frozen=True, slots=True)
class Asked:
    """A call put a question, which waits for its answer.

    `type` is what is asked: `approval`, `form`, `url`, `sampling` or `roots`. Only what can be
    answered is open to others than the client that waits for the call.
    """

    kind: ClassVar[EventKind] = "ask"
    agent: str
    question: str
    type: str
    tool: str
    message: str
    can_be_answered: bool = True


@dataclass(frozen=True, slots=True)
class Answered:
    """A question is no longer open: `accept`, `decline` or `cancel`, and by whom."""

    kind: ClassVar[EventKind] = "answer"
    agent: str
    question: str
    action: Literal["accept", "decline", "cancel"]
    by: str


@dataclass(frozen=True, slots=True)
class ToolCalled:
    """A tool call passed through dispatch, with what came of it.

    `saved_tokens` is what passing by reference kept out of the caller's context, estimated.
    """

    kind: ClassVar[EventKind] = "tool"
    agent: str
    tool: str
    arguments: dict[str, Any]
    status: Literal["ok", "error", "refused", "cancelled"]
    duration_s: float
    size: int = 0
    text: str = ""
    reference: str | None = None
    read: tuple[str, ...] = ()
    saved_tokens: int = 0


@dataclass(frozen=True, slots=True)
class Returned:
    """An agent handed its report back."""

    kind: ClassVar[EventKind] = "return"
    agent: str
    status: str
    summary: str
    references: tuple[str, ...]
    usage: dict[str, float]


@dataclass(frozen=True, slots=True)
class Aggregated:
    """Reports were joined into one."""

    kind: ClassVar[EventKind] = "aggregate"
    agent: str
    of: tuple[str, ...]
    summary: str


@dataclass(frozen=True, slots=True)
class Stopped:
    """An agent or the run ended, and why."""

    kind: ClassVar[EventKind] = "stop"
    agent: str
    reason: str
    detail: str = ""


Event = (
    Spawned
    | Delegated
    | Messaged
    | Completed
    | Asked
    | Answered
    | ToolCalled
    | Returned
    | Aggregated
    | Stopped
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of a journal as it is read back."""

    run: str
    seq: int
    at: float
    kind: EventKind
    agent: str
    data: dict[str, Any] = field(default_factory=dict[str, Any])


_KINDS: Final[dict[str, type[Event]]] = {kind.kind: kind for kind in get_args(Event)}


def event_of(entry: Entry) -> Event:
    """Return the event that an entry was made of.

    Raises:
        ValueError: the entry does not hold a whole event, as one that could not be written as JSON.
    """
    try:
        kind = _KINDS[entry.kind]
        said = {key: _frozen(kind, key, value) for key, value in entry.data.items()}
        return kind(agent=entry.agent, **said)
    except (KeyError, TypeError) as error:
        raise ValueError(f"entry {entry.seq} of `{entry.run}` holds no whole event") from error


def _frozen(kind: type[Event], key: str, value: Any) -> Any:
    """Return what JSON made a list of as the tuple that the event has there."""
    if not str(kind.__annotations__[key]).startswith("tuple"):
        return value
    items: list[Any] = value
    return tuple(tuple(each) if is_list(each) else each for each in items)

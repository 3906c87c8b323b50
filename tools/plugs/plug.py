"""What a plug is: a source of tools that can come and go, and how it is told of.

Knows no kind of plug and no board.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol, runtime_checkable

from guildry.tools.base import Json, Tool
from guildry.tools.offers import NO_OFFERS, Offers
from guildry.tools.plugs.options import NOTHING_SAID, PlugOptions

__all__ = [
    "LIMITS",
    "Loaded",
    "Opener",
    "Plug",
    "PlugLimits",
    "PlugReport",
    "PlugState",
    "PlugStatus",
    "Quarantined",
    "Review",
    "Touching",
    "Wanted",
    "Watched",
]

PlugState = Literal["starting", "ready", "restarting", "failed", "closing"]


@dataclass(frozen=True, slots=True)
class Watched:
    """A file, or a folder whose files with `suffix` count, that a plug was loaded from."""

    path: Path
    suffix: str = ".py"


@dataclass(frozen=True, slots=True)
class Quarantined:
    """One tool (or one file of tools) that is left out alone, and why."""

    tool: str
    reason: str

    def as_json(self) -> dict[str, str]:
        """Return the two by name."""
        return {"tool": self.tool, "reason": self.reason}


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a plug offers: tools by their names there, what it had to leave out, and all else."""

    tools: tuple[Tool, ...]
    quarantined: tuple[Quarantined, ...] = ()
    offers: Offers = NO_OFFERS


class Plug(Protocol):
    """A source of tools.

    The board calls `open` once, `reload` any number of times after it, and `close` once, never two
    of them at a time. After a failed `open` it calls `close`, and may call `open` again.
    """

    @property
    def name(self) -> str:
        """The name on the board."""
        ...

    @property
    def kind(self) -> str:
        """What it is, in a word: `python`, `mcp`."""
        ...

    @property
    def source(self) -> str:
        """What it was plugged from, as the caller wrote it."""
        ...

    @property
    def watched(self) -> tuple[Watched, ...]:
        """Files and folders whose saved changes reload it."""
        ...

    @property
    def fault(self) -> str | None:
        """Why its tools cannot be served at this moment, or None while they can."""
        ...

    async def open(self, changed: Callable[[], None]) -> Loaded:
        """Start, and return what is offered. Call `changed` whenever that is no longer true.

        Raises:
            PlugError: it cannot start; names the source and the cure.
        """
        ...

    async def reload(self) -> Loaded:
        """Return what is offered now.

        Raises:
            PlugError: it cannot tell; the tools offered before go on serving.
        """
        ...

    async def close(self) -> None:
        """Stop, within a stated time. Leaves no process and no task."""
        ...


@runtime_checkable
class Touching(Protocol):
    """A plug that learns when one of its resources changes.

    Args:
        touched: called with the URI of each that did, in the event loop; set before `open`.
    """

    touched: Callable[[str], None]


Opener = Callable[[str, str], Plug | None]
"""Return a plug for a source and a name, not yet opened, or None when the source is not its kind.

Raises `PlugError` when the source is its kind and cannot be right.
"""

Review = Callable[[Plug, PlugOptions, Loaded], Awaitable[Loaded]]
"""Look at what a plug offers before it is served; what must not be served yet is left out of the
answer, with its reason among the quarantined.
"""


@dataclass(frozen=True, slots=True)
class PlugLimits:
    """How long the steps of a plug may take, in seconds.

    Args:
        start_s: to start a server or import a file, up to its list of tools.
        call_s: one call of an MCP tool that names no limit of its own. Progress starts it anew.
        ask_s: one question that an MCP server asks during a call, which does not count as its time.
        drain_s: calls in flight while a plug is withdrawn.
        close_s: a server that was asked to end, before it is killed.
        backoff_s: the first wait before a crashed server is started again; doubles each time.
        backoff_max_s: the longest such wait.
        restarts: how often in a row it is started again before it waits for the next call.
    """

    start_s: float = 20.0
    call_s: float = 60.0
    ask_s: float = 86_400.0
    drain_s: float = 10.0
    close_s: float = 2.0
    backoff_s: float = 0.25
    backoff_max_s: float = 15.0
    restarts: int = 5


LIMITS: Final = PlugLimits()
"""The limits where none are given."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """A source to plug, with its name (derived from the source if None) and what is said of it."""

    source: str
    name: str | None = None
    options: PlugOptions = NOTHING_SAID


@dataclass(frozen=True, slots=True)
class PlugReport:
    """What came of plugging a source: the names that callers say, and what was left out.

    Of resources and templates there may be thousands: only how many there are is told.
    """

    plug: str
    tools: tuple[str, ...]
    quarantined: tuple[Quarantined, ...] = ()
    skills: tuple[str, ...] = ()
    prompts: tuple[str, ...] = ()
    resources: int = 0

    def as_json(self) -> dict[str, Json]:
        """Return the report as `plug` answers it; of prompts and the like, what there is."""
        others = {
            "skills": list(self.skills),
            "prompts": list(self.prompts),
            "resources": self.resources,
        }
        return {
            "plug": self.plug,
            "tools": list(self.tools),
            **{key: value for key, value in others.items() if value},
            "quarantined": [each.as_json() for each in self.quarantined],
        }


@dataclass(frozen=True, slots=True)
class PlugStatus:
    """How a plug is."""

    name: str
    kind: str
    source: str
    state: PlugState
    tools: tuple[str, ...]
    quarantined: tuple[Quarantined, ...] = ()
    error: str | None = None

    def as_json(self) -> dict[str, Json]:
        """Return the status as `list_plugs` answers it."""
        return {
            "name": self.name,
            "kind": self.kind,
            "source": self.source,
            "state": self.state,
            "tools": list(self.tools),
            "quarantined": [each.as_json() for each in self.quarantined],
            "error": self.error,
        }

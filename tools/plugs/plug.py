"""What a plug is: a source of tools that can come and go, and how it is told of.

Knows no kind of plug and no board.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, Protocol, runtime_checkable

from guildry.tools.base import Json, Tool
from guildry.tools.offers import NO_OFFERS, Offers
from guildry.tools.plugs.options import NOTHING_SAID, PlugOptions, SandboxPolicy

__all__ = [
    "LIMITS",
    "Gathering",
    "Confining",
    "Loaded",
    "Opener",
    "Plug",
    "PlugLimits",
    "PlugReport",
    "PlugState",
    "PlugStatus",
    "Quarantined",
    "Review",
    "Standing",
    "Touching",
    "Wanted",
    "Watched",
]

PlugState = Literal["idle", "starting", "ready", "restarting", "failed", "closing"]
"""How a plug is; `idle`: its tools are served, and its server starts at the first call."""


@dataclass(frozen=True, slots=True)
class Watched:
    """A file, or a folder whose files with `suffix` count, that a plug was loaded from."""

    path: Path
    suffix: str = ".py"


@dataclass(frozen=True, slots=True)
class Quarantined:
    """One tool (or one file of tools) that is left out alone, and why.

    Args:
        tool: its name at the source.
        reason: why it is left out.
        held: it is served once a person approves it.
        diff: what of its definition differs from the one that was approved, line by line.
    """

    tool: str
    reason: str
    held: bool = False
    diff: str = ""

    def as_json(self) -> dict[str, Json]:
        """Return the parts that are set, by name."""
        told: dict[str, Json] = {"tool": self.tool, "reason": self.reason}
        if self.held:
            told["held"] = True
        if self.diff:
            told["diff"] = self.diff
        return told


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a plug offers.

    Args:
        tools: by their names there.
        quarantined: what it had to leave out.
        offers: all else.
        server: what the source calls itself, where it says so.
    """

    tools: tuple[Tool, ...]
    quarantined: tuple[Quarantined, ...] = ()
    offers: Offers = NO_OFFERS
    server: str = ""


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
class Confining(Protocol):
    """A plug that runs a process, which may be confined."""

    @property
    def confinement(self) -> tuple[bool, str] | None:
        """Whether its process is confined and why (in a few words), or None where it has none."""
        ...


@runtime_checkable
class Touching(Protocol):
    """A plug that learns when one of its resources changes.

    Args:
        touched: called with the URI of each that did, in the event loop; set before `open`.
    """

    touched: Callable[[str], None]


@runtime_checkable
class Standing(Protocol):
    """A plug that has a server of its own, which comes and goes while its tools are served."""

    @property
    def standing(self) -> PlugState:
        """How the server is at this moment."""
        ...


@runtime_checkable
class Gathering(Protocol):
    """A plug that stands for others, which are plugs of their own on the same board."""

    @property
    def members(self) -> tuple[str, ...]:
        """The names of those plugs."""
        ...


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
        retire_s: calls in flight on a version of a plug that was replaced.
        close_s: a server that was asked to end, before it is killed.
        backoff_s: the first wait before a crashed server is started again; doubles each time.
        backoff_max_s: the longest such wait.
        restarts: how often in a row it is started again before it waits for the next call.
        sandbox: whether processes are confined, and whether they may run where they cannot be.
    """

    start_s: float = 20.0
    call_s: float = 60.0
    ask_s: float = 86_400.0
    drain_s: float = 10.0
    retire_s: float = 3_600.0
    close_s: float = 2.0
    backoff_s: float = 0.25
    backoff_max_s: float = 15.0
    restarts: int = 5
    sandbox: SandboxPolicy = "auto"


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
    members: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Json]:
        """Return the report as `plug` answers it; of prompts and the like, what there is."""
        others = {
            "skills": list(self.skills),
            "prompts": list(self.prompts),
            "resources": self.resources,
            "members": list(self.members),
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
    members: tuple[str, ...] = ()
    confinement: tuple[bool, str] | None = None

    @property
    def held(self) -> int:
        """How many definitions wait for a person."""
        return sum(each.held for each in self.quarantined)

    def as_json(self) -> dict[str, Json]:
        """Return the status as `list_plugs` answers it."""
        held = {"held": self.held} if self.held else {}
        return {
            **held,
            "name": self.name,
            "kind": self.kind,
            "source": self.source,
            "state": self.state,
            "tools": list(self.tools),
            "quarantined": [each.as_json() for each in self.quarantined],
            "error": self.error,
            **({"members": list(self.members)} if self.members else {}),
            **self._confined(),
        }

    def _confined(self) -> dict[str, Json]:
        """Say whether its process is confined; why, where that was asked for."""
        if self.confinement is None:
            return {}
        confined, why = self.confinement
        return {"confined": confined, **({"why": why} if why else {})}

"""What the board knows of one plug. Does nothing by itself."""

from collections.abc import Callable
from dataclasses import dataclass, field

import anyio

from guildry.tools.plugs.gate import Gate
from guildry.tools.plugs.options import PlugOptions
from guildry.tools.plugs.plug import Plug, PlugState, Quarantined

__all__ = ["Entry"]


@dataclass(eq=False)
class Entry:
    """A plug on the board, with the state of the step that is being taken with it."""

    name: str
    plug: Plug
    options: PlugOptions
    gate: Gate
    state: PlugState = "starting"
    quarantined: tuple[Quarantined, ...] = ()
    error: str | None = None
    is_open: bool = False
    stale: bool = False
    reloading: bool = False
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    working: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    unwatch: Callable[[], None] | None = None

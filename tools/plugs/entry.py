"""What the board knows of one plug, and how it is told of and closed. Takes no step by itself."""

from collections.abc import Callable
from dataclasses import dataclass, field

import anyio
import structlog

from guildry.tools.offers import NO_OFFERS
from guildry.tools.plugs.gate import Gate
from guildry.tools.plugs.options import PlugOptions
from guildry.tools.plugs.plug import (
    Confining,
    Gathering,
    Loaded,
    Plug,
    PlugReport,
    PlugState,
    PlugStatus,
    Quarantined,
    Standing,
)
from guildry.tools.registry import Registry

__all__ = ["Entry"]

log = structlog.get_logger()


@dataclass(eq=False)
class Entry:
    """A plug on the board, with the state of the step that is being taken with it.

    Args:
        admitted: what it offered last, before the review.
        is_gone: it was closed for good.
    """

    name: str
    plug: Plug
    options: PlugOptions
    gate: Gate
    state: PlugState = "starting"
    quarantined: tuple[Quarantined, ...] = ()
    error: str | None = None
    admitted: Loaded | None = None
    is_gone: bool = False
    is_open: bool = False
    stale: bool = False
    reloading: bool = False
    lock: anyio.Lock = field(default_factory=anyio.Lock)
    working: anyio.CancelScope = field(default_factory=anyio.CancelScope)
    unwatch: Callable[[], None] | None = None

    @property
    def told_state(self) -> PlugState:
        """How the plug is: while its tools are served, that of the server behind them."""
        if self.state != "ready":
            return self.state
        if isinstance(self.plug, Standing):
            return self.plug.standing
        return "restarting" if self.plug.fault else "ready"

    @property
    def members(self) -> tuple[str, ...]:
        """The plugs that it stands for, if it stands for others."""
        return self.plug.members if isinstance(self.plug, Gathering) else ()

    def report(self, registry: Registry) -> PlugReport:
        """Say what came of plugging it, as `registry` serves it."""
        names = tuple(tool.name for tool in registry.of(self.name))
        offers = registry.offers.get(self.name, NO_OFFERS)
        skills = tuple(each.uri for each in offers.skills)
        prompts = tuple(key for key, each in registry.prompts.items() if each.plug == self.name)
        count = len(offers.resources) + len(offers.templates)
        members = self.members
        return PlugReport(self.name, names, self.quarantined, skills, prompts, count, members)

    def status(self, registry: Registry) -> PlugStatus:
        """Say how it is."""
        return PlugStatus(
            name=self.name,
            kind=self.plug.kind,
            source=self.plug.source,
            state=self.told_state,
            tools=self.report(registry).tools,
            quarantined=self.quarantined,
            error=self.error or self.plug.fault,
            members=self.members,
            confinement=self.plug.confinement if isinstance(self.plug, Confining) else None,
        )

    async def close(self, limit_s: float) -> None:
        """Close the plug, if it is open. Ends within `limit_s` seconds, whatever the plug does."""
        if not self.is_open:
            return
        self.is_open = False
        with anyio.move_on_after(limit_s, shield=True) as scope:
            try:
                await self.plug.close()
            except Exception:
                log.exception("plug_close_failed", plug=self.name)
        if scope.cancelled_caught:
            log.error("plug_close_timed_out", plug=self.name, limit_s=limit_s)

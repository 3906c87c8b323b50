"""The parts of a running server, as its tools and its surface find them. Opens none of them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio

from guildry.teams.team import team_tool

if TYPE_CHECKING:
    from collections.abc import Mapping

    from guildry.memory.journal import Journal
    from guildry.memory.ledger import EffectLedger
    from guildry.memory.objects import ObjectStore
    from guildry.memory.runs import RunStore
    from guildry.memory.sources import SourceStore
    from guildry.memory.store import Store
    from guildry.server.announce import Announcer
    from guildry.server.config import Settings
    from guildry.teams.model import Model
    from guildry.teams.orchestrator import Orchestrator
    from guildry.teams.run import Team
    from guildry.tools.dispatch import Dispatch
    from guildry.tools.plugs import PlugBoard
    from guildry.tools.registry import Catalog
    from guildry.tools.search import ToolIndex

__all__ = ["BUILTIN", "LOCAL", "App"]

BUILTIN: Final = "guildry"
"""The plug of the built-in tools and the teams."""


LOCAL: Final = "local"
"""The principal of whoever runs the process, and of every loopback client."""


@dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """Everything that one server process has. `ready` is set once every plug is open or failed."""

    settings: "Settings"
    store: "Store"
    objects: "ObjectStore"
    journal: "Journal"
    runs: "RunStore"
    ledger: "EffectLedger"
    sources: "SourceStore"
    catalog: "Catalog"
    plugs: "PlugBoard"
    index: "ToolIndex"
    dispatch: "Dispatch"
    orchestrator: "Orchestrator"
    models: "Mapping[str, Model]"
    announcer: "Announcer"
    ready: anyio.Event
    patient_until: float

    async def settled(self) -> None:
        """Wait until the plugs are open, but no longer than `startup_wait_s` from the start."""
        if self.ready.is_set():
            return
        with anyio.CancelScope(deadline=self.patient_until):
            await self.ready.wait()

    def add_team(self, team: "Team") -> str:
        """Publish a team as the tool `team_<name>`, whose name is returned; replaces a namesake."""
        tool = team_tool(team, self.orchestrator)
        others = [each for each in self.catalog.current.of(BUILTIN) if each.name != tool.name]
        self.catalog.replace(BUILTIN, [*others, tool])
        return tool.name

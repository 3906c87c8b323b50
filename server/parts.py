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
    from guildry.memory.suspended import SuspendedStore
    from guildry.server.announce import Announcer
    from guildry.server.asking.exchange import Exchanges
    from guildry.server.by_hand import ByHand
    from guildry.server.config import Settings
    from guildry.server.offers.following import Following
    from guildry.server.peers import Peers
    from guildry.server.tasks.tasks import Tasks
    from guildry.teams.model import Model
    from guildry.teams.orchestrator import Orchestrator
    from guildry.teams.run import Team
    from guildry.tools.asking.approval import Approval
    from guildry.tools.asking.board import QuestionBoard
    from guildry.tools.code.interpreter import Interpreter
    from guildry.tools.dispatch import Dispatch
    from guildry.tools.finding.index import ToolIndex
    from guildry.tools.plugs.board import PlugBoard
    from guildry.tools.plugs.review import Reviewer
    from guildry.tools.registry import Catalog
    from guildry.tools.usage import Usage

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
    reviewer: "Reviewer"
    index: "ToolIndex"
    dispatch: "Dispatch"
    usage: "Usage"
    board: "QuestionBoard"
    approval: "Approval"
    orchestrator: "Orchestrator"
    models: "Mapping[str, Model]"
    announcer: "Announcer"
    following: "Following"
    peers: "Peers"
    by_hand: "ByHand"
    exchanges: "Exchanges"
    tasks: "Tasks"
    suspended: "SuspendedStore"
    interpreter: "Interpreter"
    ready: anyio.Event
    patient_until: float

    async def settled(self) -> None:
        """Wait until the plugs are open, but no longer than `startup_wait_s` from the start."""
        if self.ready.is_set():
            return
        with anyio.CancelScope(deadline=self.patient_until):
            await self.ready.wait()

    def patience_s(self, *, asks: bool) -> float:
        """Return how long a plug may take for one request, in which it may ask its client."""
        settings = self.settings
        return settings.call_timeout_s + (settings.ask_wait_s if asks else 0.0)

    def resources_changed(self, holder: str) -> None:
        """Say, also in other processes of this home, that a principal has other resources now."""
        self.announcer.resources_changed(holder)
        self.peers.tell("resources", holder)

    def add_team(self, team: "Team") -> str:
        """Publish a team as the tool `team_<name>`, whose name is returned; replaces a namesake."""
        tool = team_tool(team, self.orchestrator)
        others = [each for each in self.catalog.current.of(BUILTIN) if each.name != tool.name]
        self.catalog.replace(BUILTIN, [*others, tool])
        return tool.name

"""How sources are opened under these settings: which lists are known, when servers start."""

from functools import partial
from typing import TYPE_CHECKING

from guildry.memory.manifests import ManifestStore
from guildry.tools.mcp.servers import Servers
from guildry.tools.plugs.sources import open_source

if TYPE_CHECKING:
    from guildry.memory.store import Store
    from guildry.server.config import Settings
    from guildry.tools.plugs.sources import Opening

__all__ = ["opening_of"]


def opening_of(settings: "Settings", store: "Store | None") -> "Opening":
    """Return what opens sources for a board.

    Args:
        settings: what was configured.
        store: where it is kept what servers offer, or None: then each is started.
    """
    servers = Servers(
        None if store is None else ManifestStore(store),
        is_lazy=settings.lazy_plugs,
        idle_s=settings.plug_idle_s,
        starts_at_once=settings.starts_at_once,
    )
    return partial(open_source, servers=servers)

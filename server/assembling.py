"""Sources that stand for several plugs, under these settings: who reads them, with which values."""

from typing import TYPE_CHECKING

from guildry.server.config import variables
from guildry.server.opening import opening_of
from guildry.tools.plugs.assembler import Assembler

if TYPE_CHECKING:
    from guildry.memory.store import Store
    from guildry.server.config import Settings

__all__ = ["assembler_of"]


def assembler_of(settings: "Settings", store: "Store | None") -> Assembler:
    """Return what opens sources for a board, which it is told of later.

    Args:
        settings: what was configured.
        store: where it is kept what servers offer, or None: then each is started.
    """
    others = opening_of(settings, store)
    return Assembler(others, lookup=_variable, own_port=settings.port or None)


def _variable(name: str) -> str | None:
    return variables(name).get(name)

"""What was plugged by hand: kept for later starts, and the same in every process of the home."""

from typing import TYPE_CHECKING, Final

import anyio
import structlog

from guildry.errors import GuildryError, PlugError
from guildry.tools.plugs.plug import Wanted

if TYPE_CHECKING:
    from collections.abc import Collection

    from guildry.memory.sources import SourceStore
    from guildry.server.peers import Peers
    from guildry.tools.plugs.board import PlugBoard

__all__ = ["ByHand"]

log = structlog.get_logger()

_TOPIC: Final = "plugs"


class ByHand:
    """Keep what is plugged by hand, tell other processes, and do as they did.

    Args:
        sources: where it is kept.
        board: the plugs of this process.
        peers: the other processes.
        configured: names of plugs that the configuration has, which nobody else may change.
    """

    def __init__(
        self,
        sources: "SourceStore",
        board: "PlugBoard",
        peers: "Peers",
        configured: "Collection[str]",
    ) -> None:
        self._sources = sources
        self._board = board
        self._peers = peers
        self._configured = configured
        self._known: dict[str, str] = {}
        self._told = anyio.Event()
        peers.listen(_TOPIC, lambda _: self._told.set())

    async def wanted(self) -> list[Wanted]:
        """Return what is to be plugged at the start, which is known from then on.

        Raises:
            StoreError: the database cannot be read.
        """
        self._known = await self._kept()
        return [Wanted(source, name) for name, source in self._known.items()]

    async def add(self, name: str, source: str) -> None:
        """Keep a plug of this process for later, and have the other processes plug it too.

        Raises:
            StoreError: the database refuses.
        """
        await self._sources.add(name, source)
        self._known[name] = source
        self._peers.tell(_TOPIC)

    async def remove(self, name: str) -> None:
        """Keep a plug no longer, and have the other processes unplug it too.

        Raises:
            StoreError: the database refuses.
        """
        await self._sources.remove(name)
        self._known.pop(name, None)
        self._peers.tell(_TOPIC)

    async def run(self) -> None:
        """Do as the other processes do, until cancelled. Begin once this one's plugs are open."""
        while True:
            await self._told.wait()
            self._told = anyio.Event()
            try:
                await self._follow()
            except GuildryError as error:
                log.warning("plugs_not_followed", error=str(error))

    async def _follow(self) -> None:
        kept, known = await self._kept(), self._known
        self._known = dict(kept)
        here = {status.name for status in self._board.listing()}
        async with anyio.create_task_group() as tasks:
            for name, source in known.items():
                if kept.get(name) != source and name in here:
                    tasks.start_soon(self._replace, name, kept.get(name))
            for name, source in kept.items():
                if name not in known and name not in here:
                    tasks.start_soon(self._plug, name, source)

    async def _replace(self, name: str, source: str | None) -> None:
        try:
            await self._board.unplug(name)
        except PlugError:  # it is closing already
            return
        if source is not None:
            await self._plug(name, source)

    async def _plug(self, name: str, source: str) -> None:
        try:
            await self._board.plug(source, name, keep=True)
        except PlugError as error:
            log.warning("plug_not_followed", plug=name, error=str(error))

    async def _kept(self) -> dict[str, str]:
        kept = await self._sources.listing()
        return {each.name: each.source for each in kept if each.name not in self._configured}

"""What was plugged by hand: kept for later starts, and the same in every process of the home."""

from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import structlog

from guildry.errors import ConfigError, GuildryError, PlugError
from guildry.memory.sources import Source
from guildry.server.plug_settings import setting_of
from guildry.tools.plugs.plug import PlugReport, Wanted

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from guildry.memory.sources import SourceStore
    from guildry.server.peers import Peers
    from guildry.tools.plugs.board import PlugBoard
    from guildry.tools.plugs.options import PlugOptions

__all__ = ["ByHand", "all_wanted", "plug_started"]

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
        self._known: dict[str, Source] = {}
        self._told = anyio.Event()
        peers.listen(_TOPIC, lambda _: self._told.set())

    async def wanted(self) -> list[Wanted]:
        """Return what is to be plugged at the start, which is known from then on.

        Raises:
            StoreError: the database cannot be read.
        """
        self._known = await self._kept()
        return all_wanted(self._known.values())

    async def add(self, name: str, source: str, said: "Mapping[str, Any] | None" = None) -> None:
        """Keep a plug of this process for later, and have the other processes plug it too.

        Args:
            name: on the board.
            source: what it was plugged from.
            said: what was said of it besides, with `$NAME` for values of the environment.

        Raises:
            StoreError: the database refuses.
        """
        await self._sources.add(name, source, said)
        self._known[name] = Source(name, source, dict(said or {}))
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
                    tasks.start_soon(self._plug, source)

    async def _replace(self, name: str, source: "Source | None") -> None:
        try:
            if source is None:
                await self._board.unplug(name)
            for wanted in all_wanted([source] if source else ()):
                await self._board.replace(name, wanted.source, wanted.options)
        except PlugError as error:  # it is closing already, or goes on as it was
            log.warning("plug_not_followed", plug=name, error=str(error))

    async def _plug(self, source: "Source") -> None:
        for wanted in all_wanted([source]):
            try:
                await self._board.plug(
                    wanted.source, wanted.name, options=wanted.options, keep=True
                )
            except PlugError as error:
                log.warning("plug_not_followed", plug=wanted.name, error=str(error))

    async def _kept(self) -> "dict[str, Source]":
        kept = await self._sources.listing()
        return {each.name: each for each in kept if each.name not in self._configured}


def all_wanted(sources: "Iterable[Source]") -> list[Wanted]:
    """Return kept sources as a board takes them, with the values of this process's environment.

    One whose options are wrong, or need a variable that is not set, is left out, with a word.
    """
    wanted: list[Wanted] = []
    for each in sources:
        try:
            setting = setting_of(each.name, each.source, each.options).expanded(each.name)
        except ConfigError as error:
            log.warning("plug_failed", plug=each.name, error=str(error))
        else:
            wanted.append(Wanted(each.source, each.name, setting.options()))
    return wanted


async def plug_started(
    board: "PlugBoard",
    source: str,
    name: str | None,
    options: "PlugOptions",
    *,
    replace: bool = False,
) -> PlugReport:
    """Plug a source, and see that its server starts, though it be known what it offers.

    Args:
        board: where it is plugged.
        source: a path, a URL or a command line.
        name: on the board; derived from the source if None.
        options: what is said of it besides.
        replace: it takes the place of the plug of that name, if there is one, without a gap.

    Raises:
        PlugError: the source cannot be plugged; then what was there before goes on.
    """
    if replace and any(each.name == name for each in board.listing()):
        report = await board.replace(cast("str", name), source, options)
    else:
        report = await board.plug(source, name, options=options)
    if not any(each.name == report.plug and each.state == "idle" for each in board.listing()):
        return report
    try:
        return await board.reload(report.plug)
    except PlugError:
        await board.unplug(report.plug)
        raise

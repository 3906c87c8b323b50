"""Opens sources that stand for several plugs, and leaves all others to who opens those."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from guildry.errors import PlugError
from guildry.tools.plugs.assemblies import Assembly, Board
from guildry.tools.plugs.plug import Plug, PlugLimits, Wanted, Watched
from guildry.tools.plugs.special import Special, special_of

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from guildry.tools.plugs.client_configs import Lookup
    from guildry.tools.plugs.sources import Opening

__all__ = ["Assembler"]


class Assembler:
    """Give the plug for a source; assemblies put their members on `board`, which is set later.

    Args:
        others: gives the plugs of all other sources.
        lookup: gives environment variables, for the files of clients.
        own_port: where this server listens itself, so that it is not plugged into itself.
    """

    def __init__(self, others: "Opening", *, lookup: "Lookup", own_port: int | None = None) -> None:
        self.board: Board | None = None
        self._others = others
        self._lookup = lookup
        self._own_port = own_port

    def __call__(
        self, wanted: Wanted, name: str, folder: Path, limits: PlugLimits, tasks: "TaskGroup", /
    ) -> Plug:
        """Return the plug, not yet opened.

        Raises:
            PlugError: the source is none.
        """
        special = special_of(wanted.source, folder)
        if special is None or special.kind not in ("client", "folder"):
            return self._others(wanted, name, folder, limits, tasks)
        if self.board is None:
            raise PlugError(wanted.source, "it stands for several plugs", "Plug each by itself")
        return self._assembly(wanted, name, special, self.board, folder)

    def _assembly(
        self, wanted: Wanted, name: str, special: Special, board: Board, folder: Path
    ) -> Assembly:
        path, source, options = Path(special.where), wanted.source, wanted.options
        if special.kind == "folder":
            from guildry.tools.plugs.folders import read_folder

            expand = partial(read_folder, path, source=source, options=options)
        else:
            from guildry.tools.plugs.client_configs import read_config

            expand = partial(
                read_config,
                path,
                source=source,
                options=options,
                lookup=self._lookup,
                own_port=self._own_port,
            )
        return Assembly(
            source,
            name,
            special.kind,
            watched=(Watched(path, ""),),
            expand=expand,
            board=board,
            folder=folder,
        )

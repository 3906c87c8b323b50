"""The board of plugs of a server, with every kind of source that it takes."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

from guildry.server.assembling import assembler_of
from guildry.server.wanted import TEAM_SUFFIX
from guildry.tools.plugs.board import PlugBoard
from guildry.tools.plugs.plug import PlugLimits
from guildry.tools.plugs.special import special_of

if TYPE_CHECKING:
    from guildry.memory.store import Store
    from guildry.server.config import Settings
    from guildry.teams.orchestrator import Orchestrator
    from guildry.tools.dispatch import Dispatch
    from guildry.tools.plugs.plug import Opener, Plug, Review
    from guildry.tools.registry import Catalog

__all__ = ["open_board"]


def open_board(
    settings: "Settings",
    store: "Store",
    catalog: "Catalog",
    orchestrator: "Orchestrator",
    review: "Review",
    dispatch: "Dispatch",
) -> PlugBoard:
    """Return the board of a server. It is entered by its owner."""
    limits = PlugLimits(
        call_s=settings.call_timeout_s, drain_s=settings.drain_s, sandbox=settings.sandbox
    )
    board = PlugBoard(
        catalog,
        openers=(
            _macros(settings, dispatch, catalog),
            _team_files(orchestrator, settings.folder),
            _skill_folders(settings, limits),
        ),
        folder=settings.folder,
        limits=limits,
        opening=(assembler := assembler_of(settings, store)),
        review=review,
    )
    assembler.board = board
    return board


def _macros(settings: "Settings", dispatch: "Dispatch", catalog: "Catalog") -> "Opener":
    """Return the opener of macros. Its module is imported when the first one comes."""

    def opened(source: str, name: str) -> "Plug | None":
        if not source.startswith("macro:"):
            return None
        from guildry.tools.macros.plug import macros
        from guildry.tools.macros.shelf import MacroShelf

        shelf = MacroShelf(settings.home / "macros")
        return macros(shelf, dispatch, catalog)(source, name)

    return opened


def _team_files(orchestrator: "Orchestrator", folder: Path) -> "Opener":
    """Return the opener of team files. Its module is imported when the first one comes."""

    def opened(source: str, name: str) -> "Plug | None":
        if not source.endswith(TEAM_SUFFIX) or special_of(source, folder) is not None:
            return None
        from guildry.teams.team_file import team_files

        return team_files(orchestrator)(source, name)

    return opened


def _skill_folders(settings: "Settings", limits: PlugLimits) -> "Opener":
    """Return the opener of skill folders. Its module is imported when the first folder comes."""
    openers: list[Opener] = []
    known = {str(path) for path in settings.skills}

    def opened(source: str, name: str) -> "Plug | None":
        is_folder = os.path.isdir(settings.folder / os.path.expanduser(source))
        if not is_folder and source not in known:
            return None
        if not openers:
            from guildry.tools.skills.plug import skill_folders

            openers.append(skill_folders(settings.folder, known=known, limits=limits))
        return openers[0](source, name)

    return opened

"""What is to be plugged at the start: what is configured, then what was plugged by hand."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import anyio

from guildry.tools.plugs.plug import Wanted

if TYPE_CHECKING:
    from pathlib import Path

    from guildry.server.parts import App

__all__ = ["TEAM_SUFFIX", "wanted_plugs"]

TEAM_SUFFIX: Final = ".toml"
"""How the names of team files end."""


async def wanted_plugs(app: "App") -> Sequence[Wanted]:
    """Return the sources, in the order in which they are served."""
    settings = app.settings
    plugs = settings.plugs.items()
    configured = [Wanted(plug.source, name, plug.options()) for name, plug in plugs]
    teams = [Wanted(str(file), file.stem) for path in settings.teams for file in await _files(path)]
    skills: list[Wanted] = []
    if settings.skills:
        from guildry.tools.skills.plug import skill_sources

        skills = skill_sources(settings.skills)
    dropped = (
        []
        if settings.plugs_folder is None
        else [Wanted(f"folder:{settings.plugs_folder}", "plugs")]
    )
    return [*configured, *teams, *skills, *dropped, *await app.by_hand.wanted()]


async def _files(path: "Path") -> "list[Path]":
    """Return the team files of a folder, or the file itself; if it is not there, the board says."""
    folder = anyio.Path(path)
    if not await folder.is_dir():
        return [path]
    return sorted([path / each.name async for each in folder.glob(f"*{TEAM_SUFFIX}")])

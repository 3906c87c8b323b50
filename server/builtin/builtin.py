"""Every built-in tool of an app."""

from typing import TYPE_CHECKING

from guildry.server.builtin.calling import Calling
from guildry.server.builtin.code import Coding
from guildry.server.builtin.finding import Finding
from guildry.server.builtin.habits import Habits
from guildry.server.builtin.plugging import Plugging
from guildry.server.builtin.reading import Reading
from guildry.server.builtin.reviewing import Reviewing

if TYPE_CHECKING:
    from guildry.server.parts import App
    from guildry.tools.base import Tool

__all__ = ["builtin_tools"]


def builtin_tools(app: "App") -> "tuple[Tool, ...]":
    """Return the built-in tools, in the order in which they are listed."""
    makers = (
        Finding(app),
        Calling(app),
        Reading(app),
        Plugging(app),
        Reviewing(app),
        Habits(app),
        Coding(app),
    )
    return (*(tool for maker in makers for tool in maker.tools()), *_shell(app), *_making(app))


def _making(app: "App") -> "tuple[Tool, ...]":
    if not app.settings.making:
        return ()
    from guildry.server.builtin.making import Making

    return Making(app).tools()


def _shell(app: "App") -> "tuple[Tool, ...]":
    if not app.settings.shell:
        return ()
    from guildry.server.builtin.shell import Shell

    return Shell(app).tools()

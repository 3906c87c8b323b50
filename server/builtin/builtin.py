"""Every built-in tool of an app."""

from typing import TYPE_CHECKING

from guildry.server.builtin.calling import Calling
from guildry.server.builtin.finding import Finding
from guildry.server.builtin.plugging import Plugging
from guildry.server.builtin.reading import Reading

if TYPE_CHECKING:
    from guildry.server.parts import App
    from guildry.tools.base import Tool

__all__ = ["builtin_tools"]


def builtin_tools(app: "App") -> "tuple[Tool, ...]":
    """Return the built-in tools, in the order in which they are listed."""
    makers = (Finding(app), Calling(app), Reading(app), Plugging(app))
    return tuple(tool for maker in makers for tool in maker.tools())

"""Tags: words by which tools can be chosen besides what they do."""

from collections.abc import Iterable
from typing import Final

from guildry.tools.base import Tool

__all__ = ["EFFECT_WORDS", "tags_of"]

EFFECT_WORDS: Final = ("reads", "writes", "local", "egress", "destructive", "idempotent")
"""The tags that come from what a tool does to the world."""


def tags_of(tool: Tool, given: Iterable[str] = ()) -> frozenset[str]:
    """Return the tags of a tool, in small letters: its plug, those given, and its effects.

    Args:
        tool: the tool.
        given: those that its plug was given.
    """
    effects = tool.effects
    words = [
        "writes" if effects.writes else "reads",
        "egress" if effects.egress else "local",
        *(["destructive"] if effects.destructive and effects.writes else ()),
        *(["idempotent"] if effects.repeatable else ()),
    ]
    return frozenset(each.casefold() for each in (tool.plug, *given, *words))

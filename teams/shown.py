"""What an agent with very many tools is shown: those that find others, then what it found.

The grant is left as it is: this only says which definitions a model reads. New ones are appended,
so that what came before stays the same.
"""

import json
from collections.abc import Iterable, Sequence
from typing import Any, Final, cast

from guildry.teams.ask import ASK
from guildry.teams.model import Message, ToolSpec

__all__ = ["ABOUT_FINDING", "FIND", "ShownTools"]

FIND: Final = "find_tools"
"""The tool that finds others."""

ABOUT_FINDING: Final = (
    "\n\nYou may call many more tools than you are shown. Say what you need to `find_tools`: what"
    " it finds is shown to you from then on, and you call it by its name."
)
"""What such an agent is told."""

_MANY: Final = 40
_AT_FIRST: Final = frozenset({FIND, "describe_tools", "read_reference", ASK})


class ShownTools:
    """Keep which tools a model is shown.

    Args:
        granted: the definitions of all tools that the agent may call, in their order.
    """

    __slots__ = ("_hidden", "now")

    def __init__(self, granted: Sequence[ToolSpec]) -> None:
        self.now: tuple[ToolSpec, ...] = tuple(granted)
        self._hidden: dict[str, ToolSpec] = {}
        if len(granted) > _MANY and any(each.name == FIND for each in granted):
            self.now = tuple(each for each in granted if each.name in _AT_FIRST)
            self._hidden = {each.name: each for each in granted if each.name not in _AT_FIRST}

    @property
    def is_partial(self) -> bool:
        """Whether there are tools that the model is not shown."""
        return bool(self._hidden)

    def found(self, messages: Iterable[Message]) -> tuple[ToolSpec, ...]:
        """Show what the searches among `messages` found; return what is new."""
        if not self._hidden:
            return ()
        names: list[str] = []
        searches: set[str] = set()
        for message in messages:
            searches |= {call.id for call in message.calls if call.name == FIND}
            if message.role == "tool" and message.call_id in searches:
                names += _names(message.content)
        new = tuple(self._hidden.pop(name) for name in dict.fromkeys(names) if name in self._hidden)
        self.now += new
        return new


def _names(answer: str) -> list[str]:
    """Return the names of the tools in an answer of `find_tools`."""
    try:
        value: Any = json.loads(answer)
    except ValueError:
        return []
    listed = cast("dict[str, Any]", value).get("tools") if isinstance(value, dict) else None
    if not isinstance(listed, list):
        return []
    items: list[object] = [*listed]  # pyright: ignore[reportUnknownVariableType]  # foreign
    return [
        str(cast("dict[str, object]", each).get("name")) for each in items if isinstance(each, dict)
    ]

"""What a model has been shown so far: its task, its tools, and what each call answered."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, cast

from guildry.teams.model import Request

__all__ = ["Shown", "list_of", "object_of", "objects_in", "read_shown"]

_STORED: Final = re.compile(r"\[stored as (ref:[A-Za-z0-9_.-]+): ")
_REFERENCE: Final = re.compile(r"\bref:([A-Za-z0-9_.-]+)")


@dataclass(frozen=True, slots=True)
class Shown:
    """A conversation, read.

    Args:
        task: what users and colleagues wrote.
        system: the instructions.
        tools: the names of the arguments of each tool, by the tool's name.
        called: the tools that were called.
        handles: the reference that a tool's long answer was stored under.
        values: a tool's short answer: its JSON value, or its text where it is none.
        refused: what was said of a call that failed.
    """

    task: str
    system: str
    tools: dict[str, frozenset[str]]
    called: set[str] = field(default_factory=set[str])
    handles: dict[str, str] = field(default_factory=dict[str, str])
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    refused: dict[str, str] = field(default_factory=dict[str, str])

    def passed(self, tool: str) -> Any:
        """Return what to pass on of a tool's answer: a reference if there is one, else its value.

        A reference that somebody else made with the tool and named in the task counts as well.
        """
        if tool in self.handles:
            return self.handles[tool]
        if tool in self.values:
            return self.values[tool]
        given = (f"ref:{name}" for name in _REFERENCE.findall(self.task))
        return next((each for each in given if _made_by(each, tool)), None)

    def value(self, tool: str) -> dict[str, Any]:
        """Return a tool's answer where it is an object that was shown whole, else nothing."""
        return object_of(self.values.get(tool))


def _made_by(handle: str, tool: str) -> bool:
    return re.fullmatch(rf"ref:{re.escape(tool)}(?:_\d+)?", handle) is not None


def read_shown(request: Request) -> Shown:
    """Read a request as the model that answers it would."""
    by_role: dict[str, list[str]] = {"system": [], "user": []}
    for message in request.messages:
        if message.role in by_role:
            by_role[message.role].append(message.content)
    tools = {
        tool.name: frozenset(tool.parameters.get("properties") or {}) for tool in request.tools
    }
    shown = Shown("\n".join(by_role["user"]), "\n".join(by_role["system"]), tools)
    names = {call.id: call.name for message in request.messages for call in message.calls}
    shown.called.update(names.values())
    for message in request.messages:
        if message.role == "tool" and message.call_id in names:
            _take(shown, names[message.call_id], message.content)
    return shown


def _take(shown: Shown, tool: str, content: str) -> None:
    stored = _STORED.match(content)
    if stored is not None:
        shown.handles[tool] = stored[1]
        return
    try:
        shown.values[tool] = json.loads(content)
    except ValueError:
        shown.values[tool] = content


def object_of(value: object) -> dict[str, Any]:
    """Return a JSON value that is an object, or an empty one."""
    return cast("dict[str, Any]", value) if isinstance(value, dict) else {}


def list_of(value: object) -> list[Any]:
    """Return a JSON value that is a list, or an empty one."""
    return cast("list[Any]", value) if isinstance(value, list) else []  # type: ignore[redundant-cast]  # pyright needs it


def objects_in(text: str) -> Iterator[dict[str, Any]]:
    """Yield every JSON object that stands in `text`, outermost ones only, in order."""
    decoder = json.JSONDecoder()
    at = text.find("{")
    while at != -1:
        try:
            value, end = decoder.raw_decode(text, at)
        except ValueError:
            end = at + 1
        else:
            yield object_of(value)
        at = text.find("{", end)

"""The tools that are plugged: immutable snapshots, and the one place that replaces them."""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

from guildry.errors import ToolRetry
from guildry.tools.base import Tool

__all__ = ["Catalog", "Change", "Registry", "UnknownTool", "nearest", "tool_name"]

_MAX_NAME: Final = 64
_OUTSIDE_NAME: Final = re.compile(r"[^A-Za-z0-9_-]+")


class UnknownTool(ToolRetry):
    """Refuse a tool that is not plugged, or that the caller was not granted: both the same way."""

    def __init__(self, name: str, known: Sequence[str] = ()) -> None:
        near = nearest(name, known)
        cure = f"did you mean `{near}`?" if near else "use a tool that you were shown"
        super().__init__(f"there is no tool {name!r} here: {cure}")
        self.name = name


def nearest(name: str, known: Sequence[str]) -> str | None:
    """Return the name in `known` that `name` most likely meant, or None."""
    found = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    return found[0] if found else None


def tool_name(text: str) -> str:
    """Return `text` as a name that every client and model takes: 1 to 64 of `[A-Za-z0-9_-]`."""
    return _OUTSIDE_NAME.sub("_", text).strip("_")[:_MAX_NAME] or "tool"


@dataclass(frozen=True, slots=True)
class Registry:
    """The tools as they are at one version, in the order in which they were plugged."""

    version: int = 0
    tools: Mapping[str, Tool] = field(default_factory=lambda: MappingProxyType({}))

    def get(self, name: str) -> Tool:
        """Return the tool of that name.

        Raises:
            UnknownTool: nothing of that name is plugged; names the nearest that is.
        """
        tool = self.tools.get(name)
        if tool is None:
            raise UnknownTool(name, tuple(self.tools))
        return tool

    def of(self, plug: str) -> tuple[Tool, ...]:
        """Return the tools of one plug, in order."""
        return tuple(tool for tool in self.tools.values() if tool.plug == plug)

    def __iter__(self) -> Iterator[Tool]:
        return iter(self.tools.values())

    def __len__(self) -> int:
        return len(self.tools)


@dataclass(frozen=True, slots=True)
class Change:
    """What a new version of the registry changed, by tool name."""

    version: int
    plug: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()


class Catalog:
    """Hold the current registry and replace it whole; a call in flight keeps the one it has."""

    def __init__(self) -> None:
        self._current = Registry()
        self._listeners: list[Callable[[Change], None]] = []

    @property
    def current(self) -> Registry:
        """The registry as it is now."""
        return self._current

    def replace(self, plug: str, tools: Sequence[Tool]) -> Change:
        """Make `tools` the tools of `plug`, in one step.

        A tool keeps its name and its place while its plug keeps offering it under the same source
        name; new ones are appended. A name that another plug holds becomes `<plug>_<name>`.
        """
        before = {tool.source_name: tool for tool in self._current.of(plug)}
        offered = {tool.source_name or tool.name: tool for tool in tools}
        kept = {
            name: replace(offered[tool.source_name], name=name, source_name=tool.source_name)
            if tool.plug == plug
            else tool
            for name, tool in self._current.tools.items()
            if tool.plug != plug or tool.source_name in offered
        }
        added: list[str] = []
        for source_name, tool in offered.items():
            if source_name not in before:
                name = _free_name(plug, tool_name(tool.name), kept)
                kept[name] = replace(tool, name=name, source_name=source_name, plug=plug)
                added.append(name)
        gone = tuple(tool.name for key, tool in before.items() if key not in offered)
        changed = tuple(
            tool.name
            for key, tool in before.items()
            if key in offered and _definition(tool) != _definition(kept[tool.name])
        )
        return self._publish(kept, Change(0, plug, tuple(added), gone, changed))

    def withdraw(self, plug: str) -> Change:
        """Take all tools of `plug` out, in one step."""
        return self.replace(plug, ())

    def subscribe(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Call `listener` after every change that a caller can see. Returns the way to stop it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _publish(self, tools: dict[str, Tool], change: Change) -> Change:
        version = self._current.version + 1
        self._current = Registry(version, MappingProxyType(tools))
        change = replace(change, version=version)
        if change.added or change.removed or change.changed:
            for listener in tuple(self._listeners):
                listener(change)
        return change


def _free_name(plug: str, name: str, taken: Mapping[str, Tool]) -> str:
    if name not in taken:
        return name
    base = tool_name(f"{plug}_{name}")
    free, n = base, 2
    while free in taken:
        suffix = f"_{n}"
        free, n = base[: _MAX_NAME - len(suffix)] + suffix, n + 1
    return free


def _definition(tool: Tool) -> tuple[object, ...]:
    return (
        tool.title,
        tool.description,
        tool.input_schema,
        tool.output_schema,
        tool.effects,
        tool.annotations,
    )

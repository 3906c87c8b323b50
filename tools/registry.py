"""What is plugged: immutable snapshots, and the one place that replaces them."""

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from types import MappingProxyType
from typing import Final

from guildry.errors import ToolRetry
from guildry.tools.base import Tool
from guildry.tools.offers import NO_OFFERS, Offers, Prompt, Resource, Template

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
    """What is plugged at one version, in the order in which it was plugged.

    Args:
        version: rises with every change.
        tools: by the names that callers say.
        offers: what each plug offers besides tools, by the plug's name.
        prompts: all prompts, by the names that callers say.
        resources: all resources, by URI; of two plugs that offer one URI, the first serves it.
        templates: all templates.
    """

    version: int = 0
    tools: Mapping[str, Tool] = field(default_factory=lambda: MappingProxyType({}))
    offers: Mapping[str, Offers] = field(default_factory=lambda: MappingProxyType({}))
    prompts: Mapping[str, Prompt] = field(default_factory=lambda: MappingProxyType({}))
    resources: Mapping[str, Resource] = field(default_factory=lambda: MappingProxyType({}))
    templates: tuple[Template, ...] = ()

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
    """What a new version of the registry changed: tools by name, and which other lists."""

    version: int
    plug: str
    added: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    prompts: bool = False
    resources: bool = False

    @property
    def tools(self) -> bool:
        """Whether the list of tools is another one now."""
        return bool(self.added or self.removed or self.changed)


class Catalog:
    """Hold the current registry and replace it whole; a call in flight keeps the one it has."""

    def __init__(self) -> None:
        self._current = Registry()
        self._listeners: list[Callable[[Change], None]] = []
        self._watchers: list[Callable[[str], None]] = []

    @property
    def current(self) -> Registry:
        """The registry as it is now."""
        return self._current

    def replace(self, plug: str, tools: Sequence[Tool], offers: Offers | None = None) -> Change:
        """Make `tools` the tools of `plug`, and `offers` all else that it offers, in one step.

        A tool keeps its name and its place while its plug keeps offering it under the same source
        name; new ones are appended. A name that another plug holds becomes `<plug>_<name>`. Offers
        stay as they are where None are given.
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
        change = Change(0, plug, tuple(added), gone, changed)
        held = self._current.offers.get(plug, NO_OFFERS)
        return self._publish(kept, plug, held if offers is None else offers, change)

    def withdraw(self, plug: str) -> Change:
        """Take everything of `plug` out, in one step."""
        return self.replace(plug, (), NO_OFFERS)

    def touch(self, uri: str) -> None:
        """Say that the resource at `uri` is another one now."""
        for watcher in tuple(self._watchers):
            watcher(uri)

    def watch(self, watcher: Callable[[str], None]) -> Callable[[], None]:
        """Call `watcher` with the URI of each resource that changes. Returns the way to stop it."""
        self._watchers.append(watcher)
        return lambda: self._watchers.remove(watcher)

    def subscribe(self, listener: Callable[[Change], None]) -> Callable[[], None]:
        """Call `listener` after every change that a caller can see. Returns the way to stop it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    def _publish(self, tools: dict[str, Tool], plug: str, offers: Offers, change: Change) -> Change:
        before = self._current
        held = {**before.offers, plug: offers}
        if offers == NO_OFFERS:
            del held[plug]
        now = _registry(before.version + 1, tools, held)
        self._current = now
        change = replace(
            change,
            version=now.version,
            prompts=_told(before.prompts.values()) != _told(now.prompts.values()),
            resources=_told(before.resources.values()) != _told(now.resources.values())
            or _told(before.templates) != _told(now.templates),
        )
        if change.tools or change.prompts or change.resources:
            for listener in tuple(self._listeners):
                listener(change)
        return change


def _registry(version: int, tools: dict[str, Tool], offers: dict[str, Offers]) -> Registry:
    prompts: dict[str, Prompt] = {}
    resources: dict[str, Resource] = {}
    for plug, each in offers.items():
        for prompt in each.prompts:
            name = _free_name(plug, prompt.name, prompts)
            source_name = prompt.source_name or prompt.name
            prompts[name] = replace(prompt, name=name, source_name=source_name, plug=plug)
        for resource in each.resources:
            resources.setdefault(resource.uri, resource)
    return Registry(
        version,
        MappingProxyType(tools),
        MappingProxyType(offers),
        MappingProxyType(prompts),
        MappingProxyType(resources),
        tuple(template for each in offers.values() for template in each.templates),
    )


def _told(offered: Iterable[Prompt | Resource | Template]) -> list[tuple[object, ...]]:
    """Return what a client sees of offers, so that two lists can be compared."""
    return [
        tuple(value for each in fields(one) if not callable(value := getattr(one, each.name)))
        for one in offered
    ]


def _free_name(plug: str, name: str, taken: Mapping[str, object]) -> str:
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
        tool.icons,
        tool.task,
    )

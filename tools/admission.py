"""Which offered tools are fit to be served. One that is not is left out alone, with its reason."""

from dataclasses import replace

from guildry.tools.base import Tool
from guildry.tools.plug import Loaded, Quarantined
from guildry.tools.registry import tool_name
from guildry.tools.schema import schema_fault

__all__ = ["admit"]


def admit(loaded: Loaded) -> Loaded:
    """Return what of `loaded` can be served, under names that every client and model takes."""
    tools: dict[str, Tool] = {}
    sources: set[str] = set()
    left_out = list(loaded.quarantined)
    for tool in loaded.tools:
        source = tool.source_name or tool.name
        if reason := _fault(tool, source in sources):
            left_out.append(Quarantined(source, reason))
            continue
        sources.add(source)
        name = _free(tool_name(tool.name), tools)
        tools[name] = replace(tool, name=name, source_name=source)
    return Loaded(tuple(tools.values()), tuple(left_out), loaded.offers)


def _fault(tool: Tool, is_repeated: bool) -> str | None:
    if is_repeated:
        return "the source offers two tools of this name: the first one is served, rename this one"
    if fault := schema_fault(tool.input_schema):
        return fault
    if tool.output_schema is None:
        return None
    fault = schema_fault({"type": "object", "properties": {"value": tool.output_schema}})
    return fault.replace("input", "output", 1) if fault else None


def _free(name: str, taken: dict[str, Tool]) -> str:
    free, n = name, 2
    while free in taken:
        suffix = f"_{n}"
        free, n = name[: 64 - len(suffix)] + suffix, n + 1
    return free

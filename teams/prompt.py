"""What an agent is shown first: its system text, its tools and its task, byte for byte the same.

Siblings with the same instructions and tools share the prefix, so an endpoint computes it once.
"""

import json
from collections.abc import Iterable
from functools import lru_cache
from typing import Final

from guildry.memory.references import Reference
from guildry.teams.messages import Task
from guildry.teams.model import Message, ToolSpec
from guildry.tools.base import Tool
from guildry.tools.grants import Grant
from guildry.tools.registry import Registry

__all__ = ["opening", "shown", "shown_tools"]

_ABOUT_REFERENCES: Final = (
    "Long results are stored and shown as ref:name. Give ref:name as an argument to pass a whole "
    "value to a tool; name it in your answer to hand it on."
)
_SHARED_SPECS: Final = 1_024


class _Same:
    """A tool compared by identity: one definition gives one spec, encoded once for everybody."""

    __slots__ = ("tool",)

    def __init__(self, tool: Tool) -> None:
        self.tool = tool

    def __hash__(self) -> int:
        return id(self.tool)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and other.tool is self.tool


def shown_tools(names: Iterable[str], grant: Grant, registry: Registry) -> tuple[ToolSpec, ...]:
    """Return those of `names` that are plugged and granted, in an order that never changes."""
    tools = registry.tools
    return tuple(
        _spec(_Same(tools[name]))
        for name in sorted(set(names))
        if name in tools and grant.allows(name) and tools[name].scope in grant.scopes
    )


def shown(reference: Reference, namespace: str) -> str:
    """Return the form of `reference` that is understood in `namespace`."""
    return reference.short if reference.namespace == namespace else reference.uri


def opening(instructions: str, task: Task, namespace: str, *, tools: bool) -> list[Message]:
    """Return the first messages of a conversation.

    Args:
        instructions: who the agent is and how it works.
        task: what it is asked to do.
        namespace: where the short names of references are understood.
        tools: whether it has any, and so needs to know of references.
    """
    system = f"{instructions}\n\n{_ABOUT_REFERENCES}" if tools else instructions
    lines = [task.text]
    if task.references:
        lines.append("\nReferences:")
        lines += [f"- {shown(each, namespace)} {each.sketch}" for each in task.references]
    if task.answer_schema is not None:
        schema = json.dumps(task.answer_schema, ensure_ascii=False, separators=(",", ":"))
        lines.append(f"\nAnswer with JSON alone, meeting this schema: {schema}")
    messages = [Message("system", system)] if system else []
    return [*messages, Message("user", "\n".join(lines))]


@lru_cache(maxsize=_SHARED_SPECS)
def _spec(same: _Same) -> ToolSpec:
    tool = same.tool
    return ToolSpec(tool.name, tool.description, tool.input_schema)

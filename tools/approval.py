"""Approval: which calls a person must make themselves. A guard of dispatch."""

from collections.abc import Sequence
from fnmatch import fnmatchcase

from guildry.errors import ToolFailed
from guildry.tools.base import Json, Tool
from guildry.tools.caller import Caller

__all__ = ["OnlyInPerson"]


class OnlyInPerson:
    """Refuse agents the tools that match a pattern; whoever holds a root grant may call them.

    Args:
        patterns: names of tools, with `*` and `?`, such as `git_*`.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self._patterns = tuple(patterns)

    async def __call__(self, caller: Caller, tool: Tool, arguments: dict[str, Json]) -> None:
        """Refuse the call where an agent makes it.

        Raises:
            ToolFailed: names the chain of who asked whom.
        """
        if len(caller.grant.chain) > 1 and self._names(tool):
            chain = " → ".join(caller.grant.chain)
            raise ToolFailed(
                f"`{tool.name}` needs a person's approval and was not called (asked by {chain}):"
                " go on without it and say in your report that it is needed"
            )

    def _names(self, tool: Tool) -> bool:
        return any(fnmatchcase(tool.name, pattern) for pattern in self._patterns)

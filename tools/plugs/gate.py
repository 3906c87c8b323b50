"""The gate of a plug: its calls in flight are counted, and new ones refused once it is shut."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Self

import anyio

from guildry.errors import ToolFailed, ToolRetry
from guildry.tools.base import Call, Json, Outcome, Tool

__all__ = ["Gate"]


class Gate:
    """Count the calls in flight of one plug, and refuse new ones once it is shut.

    A call that was let in is not cut off by the shutting. One that comes later, because it had to
    wait for something on its way here, goes to the plug's new version where there is one.
    """

    def __init__(self, plug: str) -> None:
        self._plug = plug
        self._calls = 0
        self._idle = anyio.Event()
        self._shut = False
        self._serves: dict[str, Tool] = {}
        self._heir: Self | None = None

    def guards(self, tools: Sequence[Tool]) -> list[Tool]:
        """Return `tools`, which are all that are served from now on, with their calls counted."""
        guarded = [self._guard(tool) for tool in tools]
        self._serves = {tool.source_name or tool.name: tool for tool in guarded}
        return guarded

    def hand_over(self, heir: Self) -> None:
        """Send to the gate of a new version what comes once this one is shut."""
        self._heir = heir

    def _guard(self, tool: Tool) -> Tool:
        inner = tool.invoke

        async def invoke(arguments: dict[str, Json], call: Call) -> Outcome:
            if self._shut:
                successor = self._successor(call.tool)
                return await successor.invoke(arguments, replace(call, tool=successor))
            self._calls += 1
            try:
                return await inner(arguments, call)
            finally:
                self._calls -= 1
                if not self._calls:
                    self._idle.set()

        return replace(tool, invoke=invoke)

    def _successor(self, tool: Tool) -> Tool:
        """Return the tool of the new version that takes the same arguments.

        Raises:
            ToolFailed: there is none.
            ToolRetry: it takes other arguments, so that the call has to be made anew.
        """
        heir = self._heir
        found = None if heir is None else heir._serves.get(tool.source_name or tool.name)
        if found is None:
            raise ToolFailed(f"`{tool.name}` is gone: `{self._plug}` was unplugged")
        if found.input_schema != tool.input_schema:
            raise ToolRetry(
                f"`{tool.name}` was not called: `{self._plug}` has a new version of it, which"
                " takes other arguments: see its schema, and call it again"
            )
        return found

    async def drain(self, limit_s: float) -> int:
        """Wait until no call is in flight, then shut. Returns how many the limit cut off."""
        with anyio.move_on_after(limit_s):
            while self._calls:
                if self._idle.is_set():
                    self._idle = anyio.Event()
                await self._idle.wait()
        self._shut = True
        return self._calls

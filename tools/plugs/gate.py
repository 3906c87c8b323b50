"""The gate of a plug: its calls in flight are counted, and new ones refused once it is shut."""

from dataclasses import replace

import anyio

from guildry.errors import ToolFailed
from guildry.tools.base import Call, Json, Outcome, Tool

__all__ = ["Gate"]


class Gate:
    """Count the calls in flight of one plug, and refuse new ones once it is shut."""

    def __init__(self, plug: str) -> None:
        self._plug = plug
        self._calls = 0
        self._idle = anyio.Event()
        self._shut = False

    def guard(self, tool: Tool) -> Tool:
        """Return `tool` with its calls counted."""
        inner = tool.invoke

        async def invoke(arguments: dict[str, Json], call: Call) -> Outcome:
            if self._shut:
                raise ToolFailed(f"`{call.tool.name}` is gone: `{self._plug}` was unplugged")
            self._calls += 1
            try:
                return await inner(arguments, call)
            finally:
                self._calls -= 1
                if not self._calls:
                    self._idle.set()

        return replace(tool, invoke=invoke)

    async def drain(self, limit_s: float) -> int:
        """Wait until no call is in flight, then shut. Returns how many the limit cut off."""
        with anyio.move_on_after(limit_s):
            while self._calls:
                self._idle = anyio.Event()
                await self._idle.wait()
        self._shut = True
        return self._calls

"""Python plugs in a sandbox: the file or folder is served by a confined process of its own.

That process is an MCP server of ours. A saved change starts a new one beside the old, which ends
once its calls had time to.
"""

import json
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, cast

import anyio
import anyio.abc

import guildry
from guildry.tools.base import Json, Tool
from guildry.tools.mcp.manifest import Endpoint
from guildry.tools.mcp.plug import McpPlug
from guildry.tools.plugs.options import PlugOptions, SandboxOptions
from guildry.tools.plugs.plug import Loaded, PlugLimits, PlugState, Watched
from guildry.tools.sandbox.confinement import told_confinement

if TYPE_CHECKING:
    from guildry.tools.mcp.servers import Servers

__all__ = ["SandboxedPython"]

_MODULE: Final = "guildry.tools.sandbox.python_server"
_META: Final = "guildry"


class SandboxedPython:
    """A Python file or folder whose functions run in a confined process.

    Args:
        source: what it was plugged from.
        name: on the board.
        path: the file or folder.
        sandbox: what its process may do.
        folder: where it runs.
        options: what is said of it besides.
        tasks: where its process is watched over.
        limits: how long each step may take.
        servers: what it shares with the other servers of the board.
    """

    def __init__(
        self,
        source: str,
        name: str,
        *,
        path: Path,
        sandbox: SandboxOptions,
        folder: Path,
        options: PlugOptions,
        tasks: anyio.abc.TaskGroup,
        limits: PlugLimits,
        servers: "Servers | None" = None,
    ) -> None:
        self.kind = "python"
        self.source = source
        self.name = name
        self.watched = (Watched(path),)
        self.touched: Callable[[str], None] = lambda uri: None
        what = json.dumps({"name": name, "path": str(path)})  # no path that is looked at for itself
        self._endpoint = Endpoint(
            command=(sys.executable, "-m", _MODULE, what),
            env=options.env,
            folder=folder,
            sandbox=replace(sandbox, read=(*sandbox.read, str(path), *_own_code())),
        )
        self._options = replace(options, lazy=False)
        self._tasks = tasks
        self._limits = limits
        self._servers = servers
        self._changed: Callable[[], None] = lambda: None
        self._server: McpPlug | None = None
        self._old: dict[McpPlug, anyio.CancelScope] = {}

    @property
    def fault(self) -> str | None:
        """Why its process is not there at this moment, or None while it is."""
        return None if self._server is None else self._server.fault

    @property
    def confinement(self) -> tuple[bool, str] | None:
        """Whether its process is confined, and why."""
        return told_confinement(self._endpoint.sandbox, self._limits.sandbox)

    @property
    def standing(self) -> PlugState:
        """How its process is at this moment."""
        return "starting" if self._server is None else self._server.standing

    async def open(self, changed: Callable[[], None]) -> Loaded:
        """Start the process, and return what the file or folder offers.

        Raises:
            PlugError: it cannot be started, or does not import.
        """
        self._changed = changed
        self._server = self._made()
        return _own(await self._server.open(changed))

    async def reload(self) -> Loaded:
        """Start a process anew, with what is saved now.

        Raises:
            PlugError: that cannot be started; the one before goes on serving.
        """
        fresh = self._made()
        try:
            loaded = await fresh.open(self._changed)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await fresh.close()
            raise
        old, self._server = self._server, fresh
        if old is not None:
            self._tasks.start_soon(self._retire, old)
        return _own(loaded)

    async def close(self) -> None:
        """End every process of it."""
        for patience in self._old.values():
            patience.cancel()
        if self._server is not None:
            await self._server.close()

    async def _retire(self, old: McpPlug) -> None:
        """End a process that is no longer called, once the calls in flight had time to end."""
        with anyio.CancelScope(shield=True):
            with anyio.CancelScope() as patience:
                self._old[old] = patience
                await anyio.sleep(self._limits.drain_s)
            del self._old[old]
            await old.close()

    def _made(self) -> McpPlug:
        made = McpPlug(
            self.source,
            self.name,
            self._endpoint,
            tasks=self._tasks,
            limits=self._limits,
            options=self._options,
            servers=self._servers,
        )
        made.touched = self.touched
        return made


def _own_code() -> tuple[str, ...]:
    """Return the folders of Guildry that the process imports, where they are not in one."""
    package = Path(guildry.__file__).parent
    parts = [package / name for name in ("tools", "memory")]
    return tuple(str(each) for each in {package, *(part.resolve() for part in parts)})


def _own(loaded: Loaded) -> Loaded:
    """Return what was loaded with what the wire has no field for."""
    return replace(loaded, tools=tuple(_own_tool(each) for each in loaded.tools))


def _own_tool(tool: Tool) -> Tool:
    meta = cast("Mapping[str, Json]", tool.annotations.get("_meta") or {})
    told = cast("Mapping[str, Json]", meta.get(_META) or {})
    return replace(
        tool,
        timeout_s=tool.timeout_s if told.get("timeout_s") is None else float(told["timeout_s"]),
        task=told.get("task", "never"),
        effects=replace(tool.effects, admits=told.get("admits") is True),
        asks=False,
        annotations={key: value for key, value in tool.annotations.items() if key != "_meta"},
    )

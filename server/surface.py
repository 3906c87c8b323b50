"""The MCP surface: what one principal is shown and may call, for clients of both protocol eras.

Knows the app and no transport. The methods themselves are in `methods/`; tool calls go to dispatch.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from mcp.server.lowlevel.server import NotificationOptions, Server

import guildry
from guildry.server.builtin import CALL_TOOL
from guildry.server.methods import completion, resources, subscriptions, tools
from guildry.server.parts import LOCAL
from guildry.server.resources import Resources
from guildry.server.wire import result_to_wire
from guildry.tools.base import Json, Progress, Tool
from guildry.tools.caller import Caller
from guildry.tools.grants import Grant

if TYPE_CHECKING:
    from mcp.server.models import InitializationOptions

    from guildry.server.parts import App

__all__ = ["ADMIN_SCOPES", "LOCAL", "USER_SCOPES", "Surface", "build_server"]

USER_SCOPES: Final = ("tools", "teams")
"""What a client over the network may do."""

ADMIN_SCOPES: Final = (*USER_SCOPES, "admin")
"""What the local user may do, on stdio and on the control socket."""

_INSTRUCTIONS: Final = (
    "Tools of many sources behind one endpoint. A long result comes back as a reference"
    " (`ref:name`, with its shape and beginning): read parts with `read_reference`, or give the"
    " reference as an argument of any tool and its value is passed on. Tools that are not listed"
    " are found with `find_tools` and called with `call_tool`. `team_*` and `delegate` have agents"
    " do a task."
)

_AREAS: Final = (tools, resources, completion, subscriptions)
_FOR_AGENTS: Final = frozenset({"spawn"})


def build_server(
    app: "App", *, holder: str = LOCAL, scopes: Iterable[str] = ADMIN_SCOPES
) -> "Server[Any]":
    """Return an MCP server that shows `app` to one principal."""
    return Surface(app, holder=holder, scopes=scopes).server


class Surface:
    """What one principal meets.

    Args:
        app: what is served.
        holder: the principal, under whose grant all calls are made.
        scopes: what the principal may do: `tools`, `teams`, `admin`.
    """

    def __init__(
        self, app: "App", *, holder: str = LOCAL, scopes: Iterable[str] = ADMIN_SCOPES
    ) -> None:
        grant = Grant.root(holder, depth=app.settings.run_depth + 1, scopes=scopes)
        self.app: Final = app
        self.caller: Final = Caller(grant=grant, run=holder, for_model=False)
        self.resources: Final = Resources(app, self.caller)
        self.server: Final[Server[Any]] = self._build()

    def _build(self) -> "Server[Any]":
        server = _Server(
            "guildry",
            version=guildry.__version__,
            title="Guildry",
            instructions=_INSTRUCTIONS,
            get_tool_input_schema=self._input_schema,
            on_subscriptions_listen=self.app.announcer.listen,
        )
        for area in _AREAS:
            area.register(server, self)
        return server

    async def call(
        self,
        name: str,
        arguments: dict[str, Json],
        version: str,
        progress: Progress | None = None,
    ) -> dict[str, Any]:
        """Call a tool and return its answer as a client that speaks `version` gets it.

        Raises:
            UnknownTool: there is no such tool, or the principal may not call it.
        """
        if name not in self.app.catalog.current.tools:
            await self.app.settled()
        if name == CALL_TOOL:
            name, arguments = self._meant(arguments)
        caller = self.caller if progress is None else replace(self.caller, progress=progress)
        result = await self.app.dispatch.call(caller, name, arguments)
        if result.references:
            self.app.announcer.resources_changed()
        return result_to_wire(result, version)

    def _meant(self, arguments: dict[str, Json]) -> tuple[str, dict[str, Json]]:
        """Return the call that `call_tool` stands for, so that its answer comes back as it is.

        What it cannot stand for is left to the tool itself, which says what is wrong.
        """
        name, inner = arguments.get("name"), arguments.get("arguments", {})
        usual = isinstance(inner, dict) and arguments.keys() <= {"name", "arguments"}
        tool = self.app.catalog.current.tools.get(name) if isinstance(name, str) else None
        if not usual or tool is None or tool.scope not in self.caller.grant.scopes:
            return CALL_TOOL, arguments
        return tool.name, cast("dict[str, Json]", inner)

    def shown(self) -> list[Tool]:
        """Return the tools that are listed: all while they are few, else the pinned ones."""
        settings, grant = self.app.settings, self.caller.grant
        may_call = [
            tool
            for tool in self.app.catalog.current
            if tool.scope in grant.scopes and tool.name not in _FOR_AGENTS
        ]
        plugged = [tool for tool in may_call if _is_plugged(tool)]
        if len(plugged) <= settings.listed_tools:
            return may_call
        pinned = {name for name, plug in settings.plugs.items() if plug.pinned}
        return [
            tool
            for tool in may_call
            if not _is_plugged(tool) or tool.plug in pinned or tool.name in settings.pinned
        ]

    def _input_schema(self, name: str) -> Any:
        """Return what the SDK checks headers against; None where there is nothing to check."""
        tool = self.app.catalog.current.tools.get(name)
        return None if tool is None else tool.input_schema


class _Server(Server[Any]):
    """The SDK's server, which tells clients of the handshake era that lists change as well."""

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> "InitializationOptions":
        """Return the answer to `initialize`."""
        options = notification_options or NotificationOptions(
            tools_changed=True, resources_changed=True
        )
        return super().create_initialization_options(options, experimental_capabilities, extensions)


def _is_plugged(tool: Tool) -> bool:
    """Tell whether a tool came from a plug; the built-in ones and the teams are always listed."""
    return tool.plug != "guildry" and tool.scope == "tools"

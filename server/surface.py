"""The MCP surface: what one principal is shown and may call, for clients of both protocol eras.

Knows the app and no transport. The methods themselves are in `methods/`; tool calls go to dispatch.
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, cast

from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp_types import Icon

import guildry
from guildry.server.builtin.calling import CALL_TOOL
from guildry.server.instructions import DESCRIPTION, ICON, instructions
from guildry.server.methods import (
    completion,
    discovery,
    logging,
    prompts,
    resources,
    skills,
    subscriptions,
    task_news,
    tasks,
    tools,
)
from guildry.server.offers.prompts import Prompts
from guildry.server.offers.resources import Resources
from guildry.server.offers.suggest import Suggestions
from guildry.server.parts import LOCAL
from guildry.server.wire import StructuredForm, result_to_wire
from guildry.tools.asking.questions import Channel
from guildry.tools.base import Json, Log, Progress, Tool
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

_AREAS: Final = (
    discovery,
    tools,
    resources,
    prompts,
    completion,
    subscriptions,
    logging,
    skills,
    tasks,
    task_news,
)
_FOR_AGENTS: Final = frozenset({"ask", "spawn"})


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
        self.view: Final = app.announcer.view(holder, sees_all="admin" in grant.scopes)
        self.suggestions: Final = Suggestions(app, self.caller)
        self.resources: Final = Resources(app, self.caller)
        self.prompts: Final = Prompts(app, self.caller, self.suggestions)
        self.server: Final[Server[Any]] = self._build()

    def _build(self) -> "Server[Any]":
        server = _Server(
            "guildry",
            version=guildry.__version__,
            title="Guildry",
            description=DESCRIPTION,
            instructions=instructions(self.caller.grant.scopes),
            icons=[Icon(src=ICON, mime_type="image/svg+xml", sizes=["any"])],
            get_tool_input_schema=self._input_schema,
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
        channel: Channel | None = None,
        begins: str | None = None,
        log: Log | None = None,
    ) -> dict[str, Any]:
        """Call a tool and return its answer as a client that speaks `version` gets it.

        A run that the call begins has the id `begins`, where it is given.

        Raises:
            UnknownTool: there is no such tool, or the principal may not call it.
        """
        called = name
        name, arguments = await self.meant(name, arguments)
        caller = self.caller
        if progress is not None or channel is not None:
            caller = replace(caller, progress=progress, channel=channel, begins=begins, log=log)
        result = await self.app.dispatch.call(caller, name, arguments)
        if result.references:
            self.app.resources_changed(caller.grant.holder)
        form = self._form(called) if result.has_structured else "both"
        return result_to_wire(result, version, form)

    def _form(self, name: str) -> StructuredForm:
        """Return how the structured answer of a tool goes out: as text alone where none was told.

        What a tool answers without having promised it is read as text by every client.
        """
        tool = self.app.catalog.current.tools.get(name)
        schema = None if tool is None else tool.output_schema
        told = schema is not None and schema.get("type") == "object"
        return self.app.settings.structured_content if told else "text"

    async def meant(self, name: str, arguments: dict[str, Json]) -> tuple[str, dict[str, Json]]:
        """Return the tool that a call means, and its arguments: `call_tool` stands for another.

        Waits for the plugs where the tool is not there yet.
        """
        if name not in self.app.catalog.current.tools:
            await self.app.settled()
        return self._meant(arguments) if name == CALL_TOOL else (name, arguments)

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
    """The SDK's server, which tells clients of the handshake era that lists change as well.

    What names it in every answer of the modern era is short: the rest is told when asked for.
    """

    @property
    def server_info_stamp(self) -> dict[str, Any]:
        """What names the server in an answer."""
        return {"name": self.name, "title": self.title, "version": self.version}

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> "InitializationOptions":
        """Return the answer to `initialize`."""
        options = notification_options or NotificationOptions(
            prompts_changed=True, resources_changed=True, tools_changed=True
        )
        return super().create_initialization_options(options, experimental_capabilities, extensions)


def _is_plugged(tool: Tool) -> bool:
    """Tell whether a tool came from a plug; the built-in ones and the teams are always listed."""
    return tool.plug != "guildry" and tool.scope == "tools"

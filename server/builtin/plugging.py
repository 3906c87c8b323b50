"""The tools that plug and unplug sources of tools, and say how they are."""

from typing import Final, cast

import anyio

from guildry.errors import PlugError, ToolRetry
from guildry.server.builtin.schemas import parameters, structured
from guildry.server.parts import BUILTIN, App
from guildry.tools.base import READS, SOME_OBJECT, Call, Effects, Json, Outcome, Tool

__all__ = ["Plugging"]

_PLUGS: Final = Effects(writes=True, egress=True, destructive=False, idempotent=False)


class Plugging:
    """Make the tools for those who may administer the server."""

    def __init__(self, app: App) -> None:
        self._app = app

    def tools(self) -> tuple[Tool, ...]:
        """Return the tools, in the order in which they are listed."""
        return (
            Tool(
                name="plug",
                plug=BUILTIN,
                description=(
                    "Add a source of tools: a Python file or folder, the URL of an MCP server, or"
                    " the command line of one (`npx -y …`)."
                ),
                input_schema=parameters(
                    ["source"],
                    source={"type": "string", "minLength": 1},
                    name={"type": "string", "description": "Made from the source if not given."},
                ),
                output_schema=SOME_OBJECT,
                invoke=self._plug,
                effects=_PLUGS,
                timeout_s=120.0,
                scope="admin",
            ),
            Tool(
                name="unplug",
                plug=BUILTIN,
                description="Remove a source of tools; calls in flight may end first.",
                input_schema=parameters(["name"], name={"type": "string"}),
                output_schema=SOME_OBJECT,
                invoke=self._unplug,
                effects=_PLUGS,
                scope="admin",
            ),
            Tool(
                name="list_plugs",
                plug=BUILTIN,
                description="Say which sources of tools there are, and how each is.",
                input_schema=parameters([]),
                output_schema=SOME_OBJECT,
                invoke=self._list_plugs,
                effects=READS,
                scope="admin",
            ),
        )

    async def _plug(self, arguments: dict[str, Json], call: Call) -> Outcome:
        source = cast("str", arguments["source"])
        try:
            report = await self._app.plugs.plug(source, arguments.get("name"))
        except PlugError as error:
            raise ToolRetry(str(error)) from error
        await self._app.by_hand.add(report.plug, await _lasting(source))
        return structured(report.as_json())

    async def _unplug(self, arguments: dict[str, Json], call: Call) -> Outcome:
        name = cast("str", arguments["name"])
        try:
            await self._app.plugs.unplug(name)
        except PlugError as error:
            raise ToolRetry(str(error)) from error
        await self._app.by_hand.remove(name)
        return structured({"plug": name})

    async def _list_plugs(self, arguments: dict[str, Json], call: Call) -> Outcome:
        return structured({"plugs": [each.as_json() for each in self._app.plugs.listing()]})


async def _lasting(source: str) -> str:
    """Return `source` as it still means the same when the server starts in another folder."""
    path = await anyio.Path(source).expanduser()
    return str(await path.absolute()) if await path.exists() else source

"""The tools that plug and unplug sources of tools, and say how they are."""

from typing import Final, cast

import anyio

from guildry.errors import ConfigError, PlugError, ToolRetry
from guildry.server.builtin.habits import macro_shelf
from guildry.server.builtin.schemas import parameters, structured
from guildry.server.by_hand import plug_started
from guildry.server.parts import BUILTIN, App
from guildry.server.plug_settings import setting_of
from guildry.tools.base import READS, SOME_OBJECT, Call, Effects, Json, Outcome, Tool

__all__ = ["Plugging"]

_PLUGS: Final = Effects(writes=True, egress=True, destructive=False, idempotent=False)
_OPTIONS: Final = (
    "As under `[plugs.NAME]` of guildry.toml: `env` and `headers` (values `$NAME` are taken from"
    " Guildry's environment at each start), `lazy`, `idle_s`, `calls_at_once`, `call_timeout_s`,"
    " `trust`, `labels`, `tags`, `sandbox`."
)


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
                    options={"type": "object", "description": _OPTIONS},
                    replace={
                        "type": "boolean",
                        "description": "Take the place of the plug `name`, without a gap.",
                    },
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
        source, name = cast("str", arguments["source"]), arguments.get("name")
        try:
            setting = setting_of(name or source, source, arguments.get("options") or {})
            options = setting.expanded(name or source).options()
            replace = self._may_replace(name) if arguments.get("replace") else False
            report = await plug_started(self._app.plugs, source, name, options, replace=replace)
        except (PlugError, ConfigError) as error:
            raise ToolRetry(str(error)) from error
        await self._app.by_hand.add(report.plug, await _lasting(source), setting.said())
        return structured(report.as_json())

    def _may_replace(self, name: str | None) -> bool:
        if name is None:
            raise ToolRetry("`replace` needs the `name` of the plug whose place is taken: give it")
        if name in self._app.settings.plugs:
            raise ToolRetry(f"`{name}` is configured: change `[plugs.{name}]` of guildry.toml")
        return True

    async def _unplug(self, arguments: dict[str, Json], call: Call) -> Outcome:
        name = cast("str", arguments["name"])
        said = self._app.plugs.said_of(name)
        try:
            await self._app.plugs.unplug(name)
        except PlugError as error:
            raise ToolRetry(str(error)) from error
        if said is not None and said[0] == "macro":
            await anyio.to_thread.run_sync(macro_shelf(self._app).drop, said[1])
        await self._app.by_hand.remove(name)
        return structured({"plug": name})

    async def _list_plugs(self, arguments: dict[str, Json], call: Call) -> Outcome:
        plugs, usage = self._app.plugs.listing(), self._app.usage
        told = [each.as_json() | usage.of_plug(each.name).beside() for each in plugs]
        return structured({"plugs": told})


async def _lasting(source: str) -> str:
    """Return `source` as it still means the same when the server starts in another folder."""
    path = await anyio.Path(source).expanduser()
    return str(await path.absolute()) if await path.exists() else source

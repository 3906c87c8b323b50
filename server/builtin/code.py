"""The tools that run programs which a model wrote, and say which functions there are."""

from typing import TYPE_CHECKING, Final, cast

from guildry.errors import ToolRetry
from guildry.server.builtin.schemas import parameters
from guildry.server.extras import is_installed
from guildry.server.parts import BUILTIN, App
from guildry.tools.base import (
    READS,
    REFERENCE_FORMAT,
    SOME_OBJECT,
    Call,
    Effects,
    Json,
    Outcome,
    Text,
    Tool,
)
from guildry.tools.registry import UnknownTool
from guildry.tools.results import BYTES_PER_TOKEN, size_of

if TYPE_CHECKING:
    from guildry.tools.caller import Caller
    from guildry.tools.code.limits import CodeLimits
    from guildry.tools.code.mode import CodeMode

__all__ = ["PACKAGE", "Coding", "code_is_on"]

PACKAGE: Final = "pydantic_monty"
"""The package that runs programs."""

_RUN: Final = "run_code"
_SIGNATURES: Final = "code_signatures"
_HIDDEN: Final = frozenset({_RUN, _SIGNATURES})
_RUNS: Final = Effects(writes=True, egress=True, destructive=False, idempotent=False)
_ROOM: Final = 0.9
_STUBS: Final = 0.7
_TAIL: Final = 60
_ABOUT: Final = (
    "Run a Python program that calls your tools as functions: `rows = search(query='a')`, or"
    " `await asyncio.gather(...)` for several at once. Ask `code_signatures` for the functions. A"
    " long answer is a `Ref`: `.value()` reads it, `.value('#/rows/0')` a part (JSON Pointer or"
    " JMESPath), and it can be given to a tool as it is; `ref('ref:name')` opens any other. A"
    " tool's error is a RuntimeError. The value of the last line is returned. No files, network,"
    " classes with bases, `yield` or `del`."
)


def code_is_on(app: App) -> bool:
    """Tell whether programs can be run here."""
    return app.settings.code and is_installed(PACKAGE)


class Coding:
    """Make the tools for programs."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._mode: CodeMode | None = None

    def tools(self) -> tuple[Tool, ...]:
        """Return the tools, in the order in which they are listed; none without the package."""
        if not code_is_on(self._app):
            return ()
        return (self._run_tool(), self._signatures_tool())

    def _run_tool(self) -> Tool:
        return Tool(
            name=_RUN,
            plug=BUILTIN,
            description=_ABOUT,
            input_schema=parameters(
                [],
                code={"type": "string", "description": "The program."},
                references={
                    "type": "object",
                    "additionalProperties": {"type": "string", "format": REFERENCE_FORMAT},
                    "description": "Stored values that it has under names: `{name: 'ref:name'}`.",
                },
                resume={
                    "type": "string",
                    "description": "Instead of `code`: the id of a program that was cut off, or"
                    " `last`. It goes on where it was; what is done is not done again.",
                },
            ),
            output_schema=SOME_OBJECT,
            invoke=self._run,
            effects=_RUNS,
            timeout_s=float("inf"),
            asks=True,
        )

    def _signatures_tool(self) -> Tool:
        return Tool(
            name=_SIGNATURES,
            plug=BUILTIN,
            description=f"Show tools as the Python functions that they are in `{_RUN}`.",
            input_schema=parameters(
                [],
                names={
                    "type": "array",
                    "items": {"type": "string"},
                    "description": "Names of tools or functions; all if not given.",
                },
            ),
            invoke=self._signatures,
            effects=READS,
        )

    async def _run(self, arguments: dict[str, Json], call: Call) -> Outcome:
        await self._app.settled()
        code, id = arguments.get("code"), arguments.get("resume")
        if (code is None) == (id is None):
            raise ToolRetry("give `code` to run a program, or `resume` to go on with one")
        if id is not None:
            return await self._opened().go_on(call, cast("str", id))
        references = cast("dict[str, str]", arguments.get("references", {}))
        return await self._opened().run(call, cast("str", code), references)

    async def _signatures(self, arguments: dict[str, Json], call: Call) -> Outcome:
        await self._app.settled()
        from guildry.tools.code.names import function_names
        from guildry.tools.code.signatures import signature_of

        caller: Caller = call.caller
        tools = {
            tool.name: tool
            for tool in self._app.catalog.current
            if tool.scope in caller.grant.scopes
            and caller.grant.allows(tool.name)
            and tool.name not in _HIDDEN
        }
        functions = function_names(tools)
        by_name = {name: function for function, name in functions.items()}
        asked = cast("list[str] | None", arguments.get("names"))
        wanted = list(functions) if asked is None else []
        for name in asked or []:
            if name not in by_name and name not in functions:
                raise UnknownTool(name, tuple(by_name))
            wanted.append(by_name.get(name, name))
        stubs = [signature_of(tools[functions[each]], each) for each in dict.fromkeys(wanted)]
        return Outcome((Text(self._fitting(stubs, wanted)),))

    def _fitting(self, stubs: list[str], names: list[str]) -> str:
        """Return as many stubs as can be given inline, then the names of others."""
        room = int(self._app.settings.inline_tokens * BYTES_PER_TOKEN * _ROOM)
        whole = "\n".join(stubs)
        if size_of(whole) <= room:
            return whole
        shown = _within(stubs, int(room * _STUBS))
        others = names[len(shown) :]
        named = _within(others, room - sum(size_of(each) + 1 for each in shown) - _TAIL)
        more = f" and {len(others) - len(named)} more" if len(named) < len(others) else ""
        return "\n".join([*shown, f"# to be asked for by name: {', '.join(named)}{more}"])

    def _opened(self) -> "CodeMode":
        if self._mode is None:
            from guildry.tools.code.calls import CodeParts
            from guildry.tools.code.mode import CodeMode

            app = self._app
            parts = CodeParts(
                app.dispatch, app.catalog, app.objects, app.ledger, app.suspended, _HIDDEN
            )
            self._mode = CodeMode(parts, app.interpreter, _limits(app))
        return self._mode


def _within(texts: list[str], room: int) -> list[str]:
    """Return the first of `texts` that fit in `room` bytes together, with two bytes after each."""
    kept: list[str] = []
    for text in texts:
        room -= size_of(text) + 2
        if room < 0:
            break
        kept.append(text)
    return kept


def _limits(app: App) -> "CodeLimits":
    from guildry.tools.code.limits import CodeLimits

    settings = app.settings
    return CodeLimits(
        cpu_s=settings.code_cpu_s,
        wall_s=settings.code_wall_s,
        memory_mb=settings.code_memory_mb,
        calls=settings.code_calls,
    )

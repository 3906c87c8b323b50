"""The tools that watch and steer runs, for clients that have no tasks. Passed by dispatch."""

from typing import TYPE_CHECKING, Any, Final, cast

from guildry.errors import RunNotFound, ToolRetry
from guildry.server.builtin import parameters, structured
from guildry.server.parts import BUILTIN, App
from guildry.server.resources import may_see
from guildry.tools.base import READS, Call, Effects, Invoke, Json, Outcome, Tool

if TYPE_CHECKING:
    from guildry.memory.runs import RunRecord

__all__ = ["RunTools"]

_RUN: Final[dict[str, Json]] = {"type": "string", "description": "The run's id."}
_STEERS: Final = Effects(writes=True, egress=False, destructive=False, idempotent=False)
_STOPS: Final = Effects(writes=True, egress=False, destructive=True, idempotent=True)


class RunTools:
    """Make the tools about runs of an app."""

    def __init__(self, app: App) -> None:
        self._app = app

    def tools(self) -> tuple[Tool, ...]:
        """Return the tools, in the order in which they are listed."""
        text: dict[str, Json] = {"type": "string", "minLength": 1}
        return (
            _tool("run_status", "Say how far a run is.", self._status),
            _tool("run_result", "Return the report of a run that has ended.", self._result),
            _tool(
                "run_steer",
                "Tell a run's agents something before their next turn.",
                self._steer,
                _STEERS,
                message=text,
            ),
            _tool(
                "run_answer",
                "Answer what a run's agents asked.",
                self._answer,
                _STEERS,
                answer=text,
            ),
            _tool("run_cancel", "Stop a run and all its agents.", self._cancel, _STOPS),
        )

    async def _status(self, arguments: dict[str, Json], call: Call) -> Outcome:
        record = await self._record(arguments, call)
        about: dict[str, Any] = {
            "run": record.id,
            "status": record.status,
            "team": record.team,
            "task": record.task[:500],
            "started_at": record.started_at,
            "ended_at": record.ended_at,
            "usage": record.usage,
        }
        live = self._app.orchestrator.live.get(record.id)
        if live is not None:
            about["usage"] = live.spent.as_json()
            about["agents"] = [
                {"agent": agent, "name": each.spec.name} for agent, each in live.live.items()
            ][:50]
        return structured(about)

    async def _result(self, arguments: dict[str, Json], call: Call) -> Outcome:
        record = await self._record(arguments, call)
        report = record.report or {}
        about: dict[str, Any] = {
            "run": record.id,
            "status": record.status,
            "report": report.get("report", ""),
            "references": report.get("references", []),
            "usage": record.usage,
        }
        about |= {key: report[key] for key in ("answer", "reason") if report.get(key) is not None}
        return structured(about)

    async def _steer(self, arguments: dict[str, Json], call: Call) -> Outcome:
        return await self._tell(arguments, call, cast("str", arguments["message"]))

    async def _answer(self, arguments: dict[str, Json], call: Call) -> Outcome:
        return await self._tell(arguments, call, f"Answer: {arguments['answer']}")

    async def _tell(self, arguments: dict[str, Json], call: Call, text: str) -> Outcome:
        record = await self._record(arguments, call)
        try:
            self._app.orchestrator.steer(record.id, text)
        except RunNotFound as error:
            raise _ended(record) from error
        return structured({"run": record.id, "status": "running"})

    async def _cancel(self, arguments: dict[str, Json], call: Call) -> Outcome:
        record = await self._record(arguments, call)
        try:
            await self._app.orchestrator.cancel(record.id)
        except RunNotFound as error:
            raise _ended(record) from error
        return await self._result(arguments, call)

    async def _record(self, arguments: dict[str, Json], call: Call) -> "RunRecord":
        id = cast("str", arguments["run"])
        record = await self._app.runs.get(id)
        if record is None or not may_see(call.caller, record):
            raise ToolRetry(f"there is no run {id!r} here: use the id that the run began with")
        return record


def _ended(record: "RunRecord") -> ToolRetry:
    return ToolRetry(
        f"run `{record.id}` is not at work in this process ({record.status}): ask `run_result`"
    )


def _tool(
    name: str, description: str, invoke: Invoke, effects: Effects = READS, **properties: Json
) -> Tool:
    return Tool(
        name=name,
        plug=BUILTIN,
        description=description,
        input_schema=parameters(["run", *properties], run=_RUN, **properties),
        invoke=invoke,
        effects=effects,
        scope="teams",
    )

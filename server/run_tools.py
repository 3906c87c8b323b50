"""The tools about runs and what they ask, for clients without tasks. Passed by dispatch."""

from typing import TYPE_CHECKING, Any, Final, cast

from guildry.errors import QuestionNotFound, RunNotFound, ToolRetry
from guildry.server.builtin.schemas import parameters, structured
from guildry.server.offers.resources import may_see
from guildry.server.parts import BUILTIN, App
from guildry.tools.asking.questions import Answer
from guildry.tools.asking.replies import reply_to
from guildry.tools.base import READS, SOME_OBJECT, Call, Effects, Invoke, Json, Outcome, Tool
from guildry.tools.flow import join

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from guildry.memory.runs import RunRecord
    from guildry.tools.asking.board import OpenQuestion
    from guildry.tools.caller import Caller

__all__ = ["RunTools"]

_RUN: Final[dict[str, Json]] = {"type": "string", "description": "The run's id."}
_QUESTION: Final[dict[str, Json]] = {"type": "string", "description": "The question's id."}
_REPLY: Final[dict[str, Json]] = {
    "answer": {
        "anyOf": [{"type": each} for each in ("string", "number", "boolean", "object", "array")],
        "description": "A text, or an object as the question's schema wants; for an approval true"
        " or false.",
    },
    "decline": {"type": "boolean", "description": "Refuse to answer."},
}
_STEERS: Final = Effects(writes=True, egress=False, destructive=False, idempotent=False)
_STOPS: Final = Effects(writes=True, egress=False, destructive=True, idempotent=True)


class RunTools:
    """Make the tools about runs of an app."""

    def __init__(self, app: App) -> None:
        self._app = app

    def tools(self) -> tuple[Tool, ...]:
        """Return the tools, in the order in which they are listed."""
        return (*self._run_tools(), *self._question_tools())

    def _run_tools(self) -> tuple[Tool, ...]:
        return (
            _tool("run_status", "Say how far a run is.", self._status),
            _tool("run_result", "Return the report of a run that has ended.", self._result),
            _tool(
                "run_steer",
                "Tell a run's agents something before their next turn.",
                self._steer,
                _STEERS,
                message={"type": "string", "minLength": 1},
            ),
            Tool(
                name="run_answer",
                plug=BUILTIN,
                description="Answer what a run's agents asked; `run_status` shows what is open.",
                input_schema=parameters(["run"], run=_RUN, question=_QUESTION, **_REPLY),
                output_schema=SOME_OBJECT,
                invoke=self._answer,
                effects=_STEERS,
                scope="teams",
            ),
            _tool("run_cancel", "Stop a run and all its agents.", self._cancel, _STOPS),
        )

    def _question_tools(self) -> tuple[Tool, ...]:
        return (
            Tool(
                name="list_questions",
                plug=BUILTIN,
                description="Say which questions and approvals wait for an answer.",
                input_schema=parameters([]),
                output_schema=SOME_OBJECT,
                invoke=self._list_questions,
                effects=READS,
                scope="admin",
            ),
            Tool(
                name="answer_question",
                plug=BUILTIN,
                description="Answer a question of any call, or allow a call that waits for it.",
                input_schema=parameters(["question"], question=_QUESTION, **_REPLY),
                output_schema=SOME_OBJECT,
                invoke=self._answer_question,
                effects=_STEERS,
                scope="admin",
            ),
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
        if record.status == "running":
            asked = await self._app.board.open(principal=record.principal, run=record.id)
            about["questions"] = [each.as_json() for each in asked]
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
        record = await self._record(arguments, call)
        try:
            self._app.orchestrator.steer(record.id, cast("str", arguments["message"]))
        except RunNotFound as error:
            raise _ended(record) from error
        return structured({"run": record.id, "status": "running"})

    async def _answer(self, arguments: dict[str, Json], call: Call) -> Outcome:
        record = await self._record(arguments, call)
        board = self._app.board
        asked = await board.open(principal=record.principal, run=record.id)
        return await self._reply(_meant(record, asked, arguments.get("question")), arguments, call)

    async def _list_questions(self, arguments: dict[str, Json], call: Call) -> Outcome:
        asked = await self._app.board.open()
        return structured({"questions": [each.as_json() for each in asked]})

    async def _answer_question(self, arguments: dict[str, Json], call: Call) -> Outcome:
        id = cast("str", arguments["question"])
        asked = {each.id: each for each in await self._app.board.open()}
        if id not in asked:
            raise ToolRetry(f"there is no open question {id!r}: see `list_questions`")
        return await self._reply(asked[id], arguments, call)

    async def _reply(
        self, asked: "OpenQuestion", arguments: "Mapping[str, Json]", call: Call
    ) -> Outcome:
        holder = cast("Caller", call.caller).grant.holder
        if arguments.get("decline", False):
            answer = Answer("decline", by=holder)
        elif "answer" in arguments:
            answer = reply_to(asked.question, arguments["answer"], holder)
        else:
            raise ToolRetry("`answer` is missing: give it, or `decline` as true")
        try:
            await self._app.board.answer(asked.id, answer, principal=asked.principal)
        except QuestionNotFound as error:
            raise ToolRetry(str(error)) from error
        return structured({"question": asked.id, "run": asked.run, "action": answer.action})

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
        join(self._app.dispatch.flow.seen(record.id))
        return record


def _meant(record: "RunRecord", asked: "Sequence[OpenQuestion]", id: Json) -> "OpenQuestion":
    """Return the question that is answered: the one of that id, else the only one."""
    found = [each for each in asked if id in (None, each.id)]
    if len(found) == 1:
        return found[0]
    if not asked:
        raise ToolRetry(
            f"run `{record.id}` asks nothing now: `run_steer` tells its agents something"
        )
    named = "; ".join(f"`{each.id}`: {each.question.message[:200]}" for each in asked)
    raise ToolRetry(f"run `{record.id}` asks this; give the id of one as `question`: {named}")


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
        output_schema=SOME_OBJECT,
        invoke=invoke,
        effects=effects,
        scope="teams",
    )

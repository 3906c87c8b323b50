"""Teams as tools: one agent alone, and the tools by which runs and agents are started."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from math import inf
from typing import Any, Final, Protocol, cast

from guildry.errors import GrantError, RunError, ToolRetry
from guildry.memory.objects import ObjectStore
from guildry.memory.references import Reference, parse_handle
from guildry.memory.runs import RunKind, RunStatus
from guildry.teams.agent import AgentSpec
from guildry.teams.messages import Report, Spent, Task
from guildry.teams.model import Model
from guildry.teams.reports import finished_json, reference_json
from guildry.teams.run import Live, Run, Team
from guildry.teams.terms import SPAWN
from guildry.tools.base import (
    REFERENCE_FORMAT,
    SOME_OBJECT,
    Call,
    Effects,
    Json,
    Outcome,
    Tool,
)
from guildry.tools.caller import Caller
from guildry.tools.grants import Limits
from guildry.tools.passing import open_reference
from guildry.tools.registry import Catalog, nearest

__all__ = [
    "DELEGATE",
    "Conductor",
    "Finished",
    "Solo",
    "Team",
    "delegate_tool",
    "spawn_tool",
    "team_tool",
]

DELEGATE: Final = "delegate"
"""The name of the tool that starts an ad-hoc run."""

_PLUG: Final = "guildry"
_ALONE: Final = (
    "Do the task with your tools. Answer with what you found, in short; name the references that"
    " hold the rest."
)
_REFERENCES: Final[dict[str, Json]] = {
    "type": "array",
    "items": {"type": "string", "format": REFERENCE_FORMAT},
    "description": "What the worker may read, as ref:name or ref://id.",
}
_BUDGET: Final[dict[str, Json]] = {
    "type": "object",
    "description": "What may be spent at most. Zero is zero.",
    "properties": {
        "tokens": {"type": "integer", "minimum": 0},
        "calls": {"type": "integer", "minimum": 0},
        "agents": {"type": "integer", "minimum": 0},
        "wall_s": {"type": "number", "minimum": 0},
    },
    "additionalProperties": False,
}
_BACKGROUND: Final[dict[str, Json]] = {
    "type": "boolean",
    "description": "Return the run's id at once; ask `run_status` and `run_result` for the rest.",
}
_RUN_OPTIONS: Final[dict[str, Json]] = {"budget": _BUDGET, "background": _BACKGROUND}
_SPAWNS: Final = Effects(writes=False, egress=False, destructive=False)
"""What the children do is checked call by call, so several may be spawned side by side."""


@dataclass(frozen=True, slots=True)
class Finished:
    """What came of a run. The references are readable, by name too, for whoever called."""

    run: str
    status: RunStatus
    report: Report
    spent: Spent


class Conductor(Protocol):
    """Begin runs and keep hold of the live ones: what tools need of an orchestrator."""

    @property
    def catalog(self) -> Catalog:
        """The tools there are."""
        ...

    @property
    def objects(self) -> ObjectStore:
        """Where references lead."""
        ...

    @property
    def live(self) -> Mapping[str, Run]:
        """The runs at work, by id."""
        ...

    async def execute(
        self,
        team: Team,
        task: Task,
        caller: Caller,
        *,
        run_id: str | None = None,
        limits: Limits | None = None,
        kind: RunKind = "team",
    ) -> Finished:
        """Run a team and wait for its report."""
        ...

    async def start(
        self,
        team: Team,
        task: Task,
        caller: Caller,
        *,
        run_id: str | None = None,
        limits: Limits | None = None,
        kind: RunKind = "team",
    ) -> str:
        """Run a team in the background, and return the run's id."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Solo:
    """A team of one agent.

    Args:
        name: what its tool is called, after `team_`.
        description: what a caller reads before choosing it.
        instructions: what the agent is told beside its task.
        model: a model, or the name of one; the default one if None.
        tools: names or patterns of what the agent may call.
        default_limits: what a run may spend where its caller does not say.
        max_turns: replies it may give.
        may_spawn: it may have children of its own, as deep as its caller's grant allows.
        asks: it may ask the person who gave the task.
    """

    name: str
    description: str
    instructions: str = _ALONE
    model: Model | str | None = None
    tools: tuple[str, ...] = ("*",)
    default_limits: Limits = Limits()
    max_turns: int = 40
    may_spawn: bool = False
    asks: bool = False

    async def work(self, run: Run, task: Task) -> Report:
        """Do the task with one agent."""
        tools = run.tools(self.tools)
        if self.may_spawn and run.grant.depth > 1 and run.grant.allows(SPAWN):
            tools = tuple(dict.fromkeys((*tools, SPAWN)))
        spec = AgentSpec(
            name=self.name,
            instructions=self.instructions,
            model=run.model(self.model),
            tools=tools,
            asks=self.asks,
            max_turns=self.max_turns,
        )
        return await run.spawn(spec, task)


def team_tool(team: Team, orchestrator: Conductor) -> Tool:
    """Return the tool `team_<name>` by which a caller runs `team`."""

    async def invoke(arguments: dict[str, Json], call: Call) -> Outcome:
        return await _run(orchestrator, team, arguments, call, "team")

    return Tool(
        name=f"team_{team.name}",
        plug=_PLUG,
        description=team.description,
        input_schema=_schema("What is to be done, with all that is needed to know."),
        output_schema=SOME_OBJECT,
        invoke=invoke,
        timeout_s=inf,
        scope="teams",
        task="optional",
    )


def delegate_tool(orchestrator: Conductor) -> Tool:
    """Return the tool `delegate`: an agent, with children if it wants, on tools named ad hoc."""

    async def invoke(arguments: dict[str, Json], call: Call) -> Outcome:
        named = tuple(dict.fromkeys(cast("list[str]", arguments["tools"])))
        caller = cast("Caller", call.caller)
        held = [
            tool.name
            for tool in orchestrator.catalog.current
            if caller.grant.allows(tool.name) and tool.scope in caller.grant.scopes
        ]
        _check_names(named, held)
        team = Solo(name=DELEGATE, description="Works on one task.", tools=named, may_spawn=True)
        return await _run(orchestrator, team, arguments, call, "delegate")

    return Tool(
        name=DELEGATE,
        plug=_PLUG,
        description=(
            "Have an agent do a task with the tools named, and return its report. It may split"
            " the work among children, who hold no more than it does."
        ),
        input_schema=_schema(
            "What is to be done, with all that is needed to know.",
            tools="Names of the tools it may call, or patterns such as `git_*`.",
        ),
        output_schema=SOME_OBJECT,
        invoke=invoke,
        timeout_s=inf,
        scope="teams",
        task="optional",
    )


def spawn_tool(orchestrator: Conductor) -> Tool:
    """Return the tool `spawn`, by which an agent at work gets a child of its own."""

    async def invoke(arguments: dict[str, Json], call: Call) -> Outcome:
        caller = cast("Caller", call.caller)
        run = orchestrator.live.get(caller.run)
        parent = None if run is None else run.live.get(caller.grant.holder)
        if run is None or parent is None:
            raise ToolRetry(f"`{SPAWN}` is for agents at work: call `{DELEGATE}`")
        tools = tuple(dict.fromkeys(cast("list[str]", arguments["tools"])))
        _check_names(tools, parent.spec.tools)
        task = await _task(orchestrator, caller, arguments)
        return await _spawned(run, parent, tools, task)

    return Tool(
        name=SPAWN,
        plug=_PLUG,
        description=(
            "Have a child do a part of your work, and return its report. Spawn several in one"
            " reply and they work side by side."
        ),
        input_schema=_schema(
            "The child's task, complete in itself: it knows nothing else.",
            tools="Which of your tools it gets.",
            options={},
        ),
        invoke=invoke,
        effects=_SPAWNS,
        timeout_s=inf,
        scope="teams",
    )


async def _run(
    orchestrator: Conductor,
    team: Team,
    arguments: Mapping[str, Json],
    call: Call,
    kind: RunKind,
) -> Outcome:
    caller = replace(cast("Caller", call.caller), progress=call.progress)
    task = await _task(orchestrator, caller, arguments)
    limits = Limits(**arguments.get("budget", {}))
    try:
        # A task goes on in the background by itself, and its client asks for it as a task.
        if arguments.get("background", False) and caller.begins is None:
            run = await orchestrator.start(team, task, caller, limits=limits, kind=kind)
            return _structured(
                {"run": run, "status": "running", "report": "", "references": [], "usage": {}}
            )
        finished = await orchestrator.execute(
            team, task, caller, run_id=caller.begins, limits=limits, kind=kind
        )
    except (GrantError, RunError) as error:
        raise ToolRetry(f"`{call.tool.name}` cannot begin: {error}") from error
    answer = await finished_json(
        finished.run,
        finished.status,
        finished.report,
        finished.spent,
        orchestrator.objects,
        caller.grant.holder,
        caller.run,
    )
    return _structured(answer, is_error=finished.status == "failed")


async def _spawned(run: Run, parent: Live, tools: tuple[str, ...], task: Task) -> Outcome:
    spec = replace(parent.spec, name="helper", instructions=_ALONE, tools=tools, asks=False)
    report = await run.spawn(spec, task, parent=parent.desk)
    answer: dict[str, Any] = {
        "status": report.status,
        "report": report.summary,
        "references": [reference_json(reference) for reference in report.references],
    }
    if report.status != "done":
        answer["reason"] = report.reason
    return _structured(answer, is_error=report.status == "failed")


async def _task(orchestrator: Conductor, caller: Caller, arguments: Mapping[str, Json]) -> Task:
    """Return the task that a call describes, with its references opened for this caller."""
    references: list[Reference] = []
    for text in cast("list[str]", arguments.get("references", [])):
        handle = parse_handle(text)
        if handle is None or handle.selector is not None:
            raise ToolRetry(
                f"{text!r} is not a whole reference: give `ref:name` or `ref://id`, and say in"
                " the task which part of it is meant"
            )
        references.append(await open_reference(orchestrator.objects, caller, handle))
    return Task(arguments["task"], tuple(references))


def _check_names(asked: Iterable[str], held: Iterable[str]) -> None:
    names = tuple(held)
    for name in asked:
        if any(fnmatchcase(each, name) for each in names):
            continue
        near = nearest(name, names)
        cure = f"did you mean `{near}`?" if near else "name tools that you were shown"
        raise ToolRetry(f"`tools` names {name!r}, which you do not hold: {cure}")


def _schema(
    task: str, *, tools: str | None = None, options: Mapping[str, Json] = _RUN_OPTIONS
) -> dict[str, Json]:
    properties: dict[str, Json] = {"task": {"type": "string", "minLength": 1, "description": task}}
    if tools is not None:
        properties["tools"] = {
            "type": "array",
            "items": {"type": "string"},
            "minItems": 1,
            "description": tools,
        }
    properties |= {"references": _REFERENCES, **options}
    return {
        "type": "object",
        "properties": properties,
        "required": ["task", "tools"] if tools is not None else ["task"],
        "additionalProperties": False,
    }


def _structured(value: dict[str, Json], *, is_error: bool = False) -> Outcome:
    return Outcome(structured=value, has_structured=True, is_error=is_error)

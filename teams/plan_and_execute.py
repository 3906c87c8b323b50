"""Plan and execute: a planner splits the task, agents do the ready parts, one joins the results.

Two loops, kept apart: a node that failed is repaired by its own agent a bounded number of times;
what is still missing then is planned anew from the nodes that are finished. No finished node is
ever done again.
"""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

from guildry.errors import PlanError
from guildry.memory.events import Aggregated
from guildry.memory.references import Reference
from guildry.teams.agent import AgentSpec
from guildry.teams.messages import Report, ReportStatus, Task
from guildry.teams.model import Model
from guildry.teams.plan import Bounds, Node, Plan, check_plan, parse_plan, plan_schema, run_ready
from guildry.teams.reports import brief, digest, merged
from guildry.teams.run import Run
from guildry.tools.grants import Limits

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["PlanAndExecute", "Worker"]

_PLANNER: Final = (
    "You split a task into sub-tasks for workers. A worker sees only its own sub-task, the results"
    " of the nodes that it needs, and the tools that it names. Write each `task` so that it can be"
    " done with that alone. `tools`: only names from the list, and only those that the node uses."
    " `needs`: ids of the nodes whose results it builds on; nodes that do not need each other run"
    " side by side. No two nodes do the same. Answer with the plan as JSON."
)
_WORKER: Final = (
    "Do your sub-task with your tools. Answer with what you found, in short; name the references"
    " that hold the rest."
)
_AGGREGATOR: Final = (
    "Write the answer to the task from the reports of the workers. Every figure and fact comes from"
    " a report or from what a reference holds. Say what is missing."
)
_BRIEFED: Final = 8_000
_JOINED: Final = 24_000
_LISTED_TOOLS: Final = 60
_TOOL_WORDS: Final = 90
_NODES_SHARE: Final = 0.9
_LEAST_CHOSEN: Final = 3
_MOST_CHOSEN: Final = 5
_MORE_TOOLS: Final = (
    "There are {count} tools; these fit the task best. A worker also gets those that fit its"
    " sub-task: where none of these does, leave `tools` empty and say in `task` what is to be done."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A role that nodes of a plan are given to.

    Args:
        name: what the planner calls it.
        instructions: what its agents are told beside their sub-task.
        tools: names or patterns of what its agents may be given.
        model: a model, or the name of one; the team's if None.
        asks: its agents may ask the person who gave the task; as the team has it if None.
    """

    name: str
    instructions: str = _WORKER
    tools: tuple[str, ...] = ("*",)
    model: Model | str | None = None
    asks: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanAndExecute:
    """A team that plans, works side by side, and joins what was found.

    Args:
        name: what its tool is called, after `team_`.
        description: what a caller reads before choosing it.
        model: a model, or the name of one; the default one if None.
        tools: names or patterns of what its agents may be given.
        planner: what the planner is told beside the rules of a plan.
        workers: roles; without any, all nodes are done by the same kind of agent.
        aggregator: what the agent is told that joins the reports; None for no such agent, so
            that one node of each plan must gather what all others made.
        aggregator_tools: what that agent may call, where the run holds it.
        default_limits: what a run may spend where its caller does not say.
        plan_tries: plans that may be asked for until one passes its checks.
        repairs: new attempts at a node that failed.
        replans: new plans for what is missing after that.
        max_turns: replies that an agent may give.
        asks: the planner and the workers may ask the person who gave the task.
    """

    name: str
    description: str
    model: Model | str | None = None
    tools: tuple[str, ...] = ("*",)
    planner: str = ""
    workers: tuple[Worker, ...] = ()
    aggregator: str | None = _AGGREGATOR
    aggregator_tools: tuple[str, ...] = ("read_reference",)
    default_limits: Limits = Limits()
    plan_tries: int = 3
    repairs: int = 1
    replans: int = 2
    max_turns: int = 40
    asks: bool = False

    async def work(self, run: Run, task: Task) -> Report:
        """Do the task: plan, run what is ready, repair, replan, join."""
        return await _Execution(self, run, task).done()


class _Execution:
    """One task on its way through the pattern."""

    def __init__(self, team: PlanAndExecute, run: Run, task: Task) -> None:
        self._team = team
        self._run = run
        self._task = task
        self._model = run.model(team.model)
        self._tools = run.tools(team.tools)
        self._roles = {
            role.name: (role, frozenset(run.tools(role.tools)) & frozenset(self._tools))
            for role in team.workers
        }
        self._finished: dict[str, tuple[Node, Report]] = {}
        self._failed: dict[str, tuple[Node, Report]] = {}
        self._fault = ""

    async def done(self) -> Report:
        """Return the team's report."""
        for _ in range(1 + self._team.replans):
            plan = await self._plan()
            if plan is None:
                break
            self._failed.clear()
            await run_ready(plan, self._node, self._finished)
            if not self._failed or self._out_of_budget():
                break
        if not self._finished:
            return self._nothing()
        return await self._joined()

    # Planning -----------------------------------------------------------------------------------

    async def _plan(self) -> Plan | None:
        """Return a plan that passes its checks, or None: then `_fault` says why there is none."""
        spec = AgentSpec(
            name="planner",
            instructions=f"{_PLANNER}\n{self._team.planner}".strip(),
            model=self._model,
            asks=self._team.asks,
            max_turns=self._team.max_turns,
        )
        asked = await self._assignment()
        text = asked
        for _ in range(self._team.plan_tries):
            task = Task(text, self._task.references, plan_schema(self._roles))
            report = await self._run.spawn(spec, task)
            try:
                return self._checked(report)
            except PlanError as error:
                self._fault = str(error)
                self._run.note("plan_refused", list(error.faults))
                faults = "\n".join(f"- {fault}" for fault in error.faults)
                written = "" if report.answer is None else f"\nYour plan:\n{report.answer}"
                text = f"{asked}{written}\nYour plan cannot be used:\n{faults}\nWrite it anew."
            if self._out_of_budget():
                break
        return None

    def _checked(self, report: Report) -> Plan | None:
        if report.answer is None:
            raise PlanError((f"there is no plan: {report.reason}",))
        plan = parse_plan(report.answer)
        if not plan.nodes and self._finished:
            return None  # the planner holds what is finished to be enough
        check_plan(plan, self._bounds())
        self._fault = ""
        self._run.note("plan", plan.as_json())
        return plan

    def _bounds(self) -> Bounds:
        agents = self._run.budget.remaining().agents
        if agents is not None and self._team.aggregator is not None:
            agents = max(0, agents - 1)
        return Bounds(
            tools=frozenset(self._tools),
            agents=agents,
            finished={id: node for id, (node, _) in self._finished.items()},
            one_end=self._team.aggregator is None,
            workers={name: tools for name, (_, tools) in self._roles.items()},
        )

    async def _assignment(self) -> str:
        """Return what a planner is asked: the task, the tools, and how far the work is."""
        parts = [f"Task: {self._task.text}", "Tools:", *await self._tool_lines()]
        if self._has_many_tools:
            parts.append(_MORE_TOOLS.format(count=len(self._tools)))
        if self._roles:
            parts += ["Workers (give each node one):", *self._role_lines()]
        if self._team.aggregator is None:
            parts.append("One last node gathers the results of all others and gives the answer.")
        if self._finished or self._failed:
            parts += ["Finished (never plan these again; name them in `needs`):"]
            parts.append(digest(list(_named(self._finished)), _BRIEFED) or "- nothing")
            parts += ["Failed:", digest(list(_named(self._failed)), _BRIEFED) or "- nothing"]
            parts.append("Plan only what is missing, in another way than what failed.")
        return "\n".join(parts)

    async def _tool_lines(self) -> list[str]:
        tools = self._run.desk.catalog.current.tools
        names: Sequence[str] = self._tools
        if self._has_many_tools:
            names = await self._run.fitting(self._task.text, names, _LISTED_TOOLS)
        return [
            f"- {name}: {_sentence(tools[name].description)}" for name in names if name in tools
        ]

    @property
    def _has_many_tools(self) -> bool:
        """Whether there are more tools than a planner can be shown."""
        return len(self._tools) > _LISTED_TOOLS

    def _role_lines(self) -> list[str]:
        return [
            f"- {name}: {_sentence(role.instructions)}; holds {', '.join(sorted(tools))}"
            for name, (role, tools) in self._roles.items()
        ]

    # Working ------------------------------------------------------------------------------------

    async def _node(self, node: Node) -> bool:
        """Do one node, with as many repairs as there may be. Tell whether it is finished."""
        spec = self._spec(node, await self._chosen(node))
        needs = [(id, self._finished[id][1]) for id in dict.fromkeys(node.needs)]
        text = node.task
        if needs:
            text = f"{node.task}\n\nResults that this builds on:\n{digest(needs, _BRIEFED)}"
        references = merged(self._inputs(node), *(report.references for _, report in needs))
        task = Task(text, references, node.answer_schema)
        report = await self._run.spawn(spec, task, limits=self._share())
        for _ in range(self._team.repairs):
            if report.status != "failed" or self._out_of_budget():
                break
            again = f"{text}\n\nAn earlier attempt failed. Do it in another way.\n"
            task = replace(task, text=again + brief(node.id, report))
            report = await self._run.spawn(spec, task, limits=self._share())
        is_finished = report.status != "failed"
        (self._finished if is_finished else self._failed)[node.id] = (node, report)
        return is_finished

    async def _chosen(self, node: Node) -> tuple[str, ...]:
        """Return the tools of a node: those planned, and where these are few of many, the fitting.

        Nothing is handed out that the planner could not have named: the tools are those of the
        node's role.
        """
        if not self._has_many_tools or len(node.tools) >= _LEAST_CHOSEN:
            return node.tools
        allowed = self._roles[node.worker][1] if node.worker in self._roles else self._tools
        names = [name for name in self._tools if name in allowed and name not in node.tools]
        fitting = await self._run.fitting(node.task, names, _MOST_CHOSEN - len(node.tools))
        return (*node.tools, *fitting)

    def _spec(self, node: Node, tools: tuple[str, ...]) -> AgentSpec:
        role = self._roles[node.worker][0] if node.worker in self._roles else None
        model = self._model if role is None or role.model is None else self._run.model(role.model)
        asks = self._team.asks if role is None or role.asks is None else role.asks
        return AgentSpec(
            name=node.id,
            instructions=_WORKER if role is None else role.instructions,
            model=model,
            tools=tools,
            asks=asks,
            max_turns=self._team.max_turns,
        )

    def _inputs(self, node: Node) -> tuple[Reference, ...]:
        """Return the caller's references that a node gets: those it names, all if it begins."""
        given = self._task.references
        named = tuple(reference for reference in given if reference.short in node.task)
        return named if named or node.needs else given

    def _share(self) -> Limits:
        """Return what a node may take, so that time is left to join what was found."""
        left_s = self._run.budget.remaining().wall_s
        return Limits(wall_s=None if left_s is None else left_s * _NODES_SHARE)

    def _out_of_budget(self) -> bool:
        left = self._run.budget.remaining()
        return any(
            each is not None and each <= 0 for each in (left.tokens, left.agents, left.wall_s)
        )

    # Joining ------------------------------------------------------------------------------------

    async def _joined(self) -> Report:
        """Return one report from those of the finished nodes."""
        reports = list(_named(self._finished))
        missing = list(_named(self._failed))
        made = merged(*(report.references for _, report in reports))
        status: ReportStatus = "done"
        if missing or any(report.status == "partial" for _, report in reports):
            status = "partial"
        reason = "finished" if status == "done" else self._shortfall(missing)
        report = await self._last_word(reports, missing, made)
        if report.status == "failed":
            status, reason = "partial", f"the reports could not be joined: {report.reason}"
            report = replace(report, summary=digest(reports, _BRIEFED))
        elif report.status == "partial" and status == "done":
            status, reason = "partial", report.reason
        names = tuple(name for name, _ in reports)
        self._run.desk.journal.append(self._run.id, Aggregated(self._run.id, names, report.summary))
        references = merged(report.references, made)
        return replace(report, status=status, reason=reason, references=references)

    async def _last_word(
        self,
        reports: list[tuple[str, Report]],
        missing: list[tuple[str, Report]],
        made: tuple[Reference, ...],
    ) -> Report:
        if self._team.aggregator is None:
            if missing:
                return Report("failed", "", reason="the last node was not reached")
            return reports[-1][1]
        spec = AgentSpec(
            name="aggregator",
            instructions=self._team.aggregator,
            model=self._model,
            tools=self._run.tools(self._team.aggregator_tools),
            max_turns=self._team.max_turns,
        )
        text = f"Task: {self._task.text}\n\nReports:\n{digest([*reports, *missing], _JOINED)}"
        return await self._run.spawn(spec, Task(text, made, self._task.answer_schema))

    def _shortfall(self, missing: list[tuple[str, Report]]) -> str:
        parts = [f"`{name}` failed ({report.reason})" for name, report in missing]
        if self._fault:
            parts.append(f"no further plan passed its checks ({self._fault})")
        return "; ".join(parts) or "a limit ended some of the work early"

    def _nothing(self) -> Report:
        missing = list(_named(self._failed))
        reason = self._shortfall(missing)
        made = merged(*(report.references for _, report in missing))
        return Report("failed", digest(missing, _BRIEFED) or reason, made, reason=reason)


def _named(nodes: dict[str, tuple[Node, Report]]) -> list[tuple[str, Report]]:
    return [(id, report) for id, (_, report) in nodes.items()]


def _sentence(text: str) -> str:
    """Return the first sentence of a description, short."""
    first = text.strip().split("\n", 1)[0].split(". ", 1)[0].rstrip(".")
    return first if len(first) <= _TOOL_WORDS else f"{first[: _TOOL_WORDS - 1]}…"

"""Plans: graphs of sub-tasks, checked before anything runs. Knows no model and no agent.

A plan is checked for what can be said about it without running it: it is a graph, each node is
solvable with the tools it names, the whole is complete (no result is lost on the way to the end)
and without repeats, and there are enough agents for it.
"""

import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from typing import Any, Final

import anyio
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from guildry.errors import PlanError
from guildry.tools.registry import nearest

__all__ = ["Bounds", "Node", "Plan", "check_plan", "parse_plan", "plan_schema", "run_ready"]

_ID: Final = re.compile(r"[A-Za-z0-9_-]{1,40}")
_LISTED: Final = 8


@dataclass(frozen=True, slots=True)
class Node:
    """One sub-task of a plan.

    Args:
        id: names the node inside its plan.
        task: what its agent is asked to do.
        tools: names of the tools that its agent gets, and no others.
        needs: ids of the nodes whose results it builds on.
        worker: the role that does it, in teams that have roles.
        answer_schema: JSON Schema that its answer must meet, if it must be a value.
    """

    id: str
    task: str
    tools: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    worker: str | None = None
    answer_schema: dict[str, Any] | None = None

    @property
    def sense(self) -> tuple[object, ...]:
        """What it asks for: nodes of one sense repeat each other, whatever their letters."""
        words = re.sub(r"\W+", " ", self.task).strip().casefold()
        return words, frozenset(self.tools), frozenset(self.needs)


@dataclass(frozen=True, slots=True)
class Plan:
    """A graph of sub-tasks, in the order in which its planner wrote them."""

    nodes: tuple[Node, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the plan in the form that `parse_plan` reads."""
        return {"nodes": [_node_json(node) for node in self.nodes]}


@dataclass(frozen=True, slots=True)
class Bounds:
    """What a plan must keep to.

    Args:
        tools: the tools that can be granted to its agents.
        agents: how many agents it may take, or None for any number.
        finished: nodes of earlier plans that are done; a new plan may need them, not redo them.
        one_end: nobody joins the reports, so one node must gather what all others made.
        workers: the tools of each role, in teams that have roles.
    """

    tools: frozenset[str]
    agents: int | None = None
    finished: Mapping[str, Node] = field(default_factory=dict[str, Node])
    one_end: bool = False
    workers: Mapping[str, frozenset[str]] = field(default_factory=dict[str, frozenset[str]])


class _NodeForm(BaseModel):
    model_config = ConfigDict(extra="forbid")

    id: str
    task: str = Field(min_length=1)
    tools: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    worker: str | None = None
    answer_schema: dict[str, Any] | None = None


class _PlanForm(BaseModel):
    model_config = ConfigDict(extra="forbid")

    nodes: tuple[_NodeForm, ...]


def plan_schema(workers: Iterable[str] = ()) -> dict[str, Any]:
    """Return the JSON Schema that a planner's answer must meet: small, it is sent as a prompt."""
    names: dict[str, Any] = {"type": "array", "items": {"type": "string"}}
    text = {"type": "string"}
    properties: dict[str, Any] = {"id": text, "task": text, "tools": names, "needs": names}
    roles = list(workers)
    if roles:
        properties["worker"] = {"enum": roles}
    node = {"type": "object", "properties": properties, "required": list(properties)}
    nodes = {"type": "array", "items": node}
    return {"type": "object", "properties": {"nodes": nodes}, "required": ["nodes"]}


def parse_plan(value: object) -> Plan:
    """Return the plan that a planner's answer describes.

    Raises:
        PlanError: the answer has another form; says where, and what belongs there.
    """
    try:
        form = _PlanForm.model_validate(value)
    except ValidationError as error:
        raise PlanError(tuple(_form_fault(each, value) for each in error.errors())) from None
    return Plan(tuple(Node(**node.model_dump()) for node in form.nodes))


def check_plan(plan: Plan, bounds: Bounds) -> None:
    """Check a plan before anything of it runs.

    Raises:
        PlanError: with every fault there is, one sentence each, naming the node and the cure.
    """
    if not plan.nodes:
        raise PlanError(("the plan is empty: give at least one node",))
    checks = (_count_faults, _id_faults, _need_faults, _tool_faults, _repeat_faults, _end_faults)
    faults = tuple(fault for check in checks for fault in check(plan, bounds))
    if faults:
        raise PlanError(faults)


async def run_ready(
    plan: Plan, work: Callable[[Node], Awaitable[bool]], finished: Iterable[str] = ()
) -> None:
    """Run each node of a checked plan as soon as all its needs are finished, side by side.

    Args:
        plan: what to run.
        work: does one node and tells whether it is finished; what needs an unfinished one is
            left alone.
        finished: ids that are done already and are not run again.
    """
    done = frozenset(finished)
    waiting = {node.id: node for node in plan.nodes if node.id not in done}
    order = TopologicalSorter(
        {id: [need for need in node.needs if need in waiting] for id, node in waiting.items()}
    )
    order.prepare()

    async def run(node: Node) -> None:
        if await work(node):
            order.done(node.id)
            start()

    def start() -> None:
        for id in order.get_ready():
            tasks.start_soon(run, waiting[id], name=id)

    async with anyio.create_task_group() as tasks:
        start()


def _node_json(node: Node) -> dict[str, Any]:
    form: dict[str, Any] = {
        "id": node.id,
        "task": node.task,
        "tools": list(node.tools),
        "needs": list(node.needs),
    }
    if node.worker is not None:
        form["worker"] = node.worker
    if node.answer_schema is not None:
        form["answer_schema"] = node.answer_schema
    return form


def _form_fault(error: Any, value: object) -> str:
    where, kind = error["loc"], error["type"]
    if len(where) < 2 or not isinstance(where[1], int):
        return 'the plan has another form: give {"nodes": [{"id", "task", "tools", "needs"}, ...]}'
    node = f"node {where[1] + 1}"
    written = value["nodes"][where[1]] if isinstance(value, dict) else None  # pyright: ignore[reportUnknownVariableType]  # foreign
    if isinstance(written, dict) and isinstance(written.get("id"), str):  # pyright: ignore[reportUnknownMemberType]  # foreign
        node = f"node `{written['id']}`"
    if len(where) == 2:
        return f"{node} is {written!r}: give an object with `id`, `task`, `tools` and `needs`"
    key = str(where[2])
    if kind == "extra_forbidden":
        near = nearest(key, tuple(_NodeForm.model_fields))
        meant = f"did you mean `{near}`?" if near else "drop it"
        return f"{node} has the unknown key `{key}`: {meant}"
    if kind == "missing":
        return f"{node} has no `{key}`: give it"
    return f"{node} has a wrong `{key}` ({error['input']!r}): {error['msg'].lower()}"


def _count_faults(plan: Plan, bounds: Bounds) -> Iterable[str]:
    if bounds.agents is not None and len(plan.nodes) > bounds.agents:
        yield (
            f"the plan has {len(plan.nodes)} nodes and the budget has room for {bounds.agents}"
            " agents: join nodes until they fit"
        )


def _id_faults(plan: Plan, bounds: Bounds) -> Iterable[str]:
    seen: set[str] = set()
    for node in plan.nodes:
        if not _ID.fullmatch(node.id):
            yield f"the id {node.id!r} cannot be used: give 1 to 40 of letters, digits, `_`, `-`"
        if node.id in seen:
            yield f"two nodes have the id `{node.id}`: give one of them another"
        if node.id in bounds.finished:
            yield f"node `{node.id}` is finished already: drop it, or give new work a new id"
        seen.add(node.id)


def _need_faults(plan: Plan, bounds: Bounds) -> Iterable[str]:
    known = {node.id for node in plan.nodes} | set(bounds.finished)
    unknown = False
    for node in plan.nodes:
        for need in node.needs:
            if need not in known:
                unknown = True
                yield (
                    f"node `{node.id}` needs `{need}`, which is not there: "
                    f"{_meant(need, known - {node.id})}"
                )
    if unknown:
        return
    try:
        TopologicalSorter({node.id: node.needs for node in plan.nodes}).prepare()
    except CycleError as error:
        ring = " → ".join(f"`{id}`" for id in reversed(error.args[1]))
        yield f"the nodes {ring} wait for each other: drop one of these needs"


def _tool_faults(plan: Plan, bounds: Bounds) -> Iterable[str]:
    for node in plan.nodes:
        held: frozenset[str] | None = bounds.tools
        holder = ""
        if bounds.workers:
            held = bounds.workers.get(node.worker or "")
            holder = f" to `{node.worker}`"
        elif node.worker is not None:
            yield f"node `{node.id}` names a worker, and there are no roles here: drop `worker`"
        if held is None:
            roles = _some(bounds.workers)
            yield f"node `{node.id}` has the worker {node.worker!r}: use one of {roles}"
            continue
        for tool in node.tools:
            if tool not in held:
                yield (
                    f"node `{node.id}` cannot be solved with `{tool}`, which is not granted"
                    f"{holder}: {_meant(tool, held)}"
                )


def _repeat_faults(plan: Plan, bounds: Bounds) -> Iterable[str]:
    first: dict[tuple[object, ...], Node] = {}
    for node in (*bounds.finished.values(), *plan.nodes):
        earlier = first.setdefault(node.sense, node)
        if earlier is node or earlier.id == node.id:
            continue
        yield (
            f"node `{node.id}` repeats `{earlier.id}`: drop it and put `{earlier.id}` into the"
            " `needs` of what builds on it"
        )


def _end_faults(plan: Plan, bounds: Bounds) -> Iterable[str]:
    if not bounds.one_end:
        return
    nodes = (*bounds.finished.values(), *plan.nodes)
    needed = {need for node in nodes for need in node.needs}
    ends = [node.id for node in nodes if node.id not in needed]
    for id in ends[:-1]:
        yield (
            f"the result of node `{id}` reaches nobody: put `{id}` into the `needs` of"
            f" `{ends[-1]}`, or drop it"
        )


def _meant(name: str, known: Iterable[str]) -> str:
    names = sorted(known)
    near = nearest(name, names)
    if near:
        return f"use `{near}`, or drop it"
    return f"use {_some(names)}, or drop it" if names else "drop it"


def _some(names: Iterable[str]) -> str:
    listed = sorted(names)
    shown = ", ".join(f"`{name}`" for name in listed[:_LISTED])
    return shown if len(listed) <= _LISTED else f"{shown} or one of {len(listed) - _LISTED} others"

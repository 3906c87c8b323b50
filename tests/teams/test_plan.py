"""Plans: what is refused before anything runs, and in what order the rest runs."""

import json

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from guildry.errors import PlanError
from guildry.teams.plan import Bounds, Node, Plan, check_plan, parse_plan, plan_schema, run_ready

TOOLS = frozenset({"git_log", "git_show", "count_lines"})


def node(id: str, *needs: str, tools: tuple[str, ...] = (), task: str | None = None) -> Node:
    return Node(id, task or f"Do {id}", tools, needs)


def faults(*nodes: Node, bounds: Bounds | None = None) -> tuple[str, ...]:
    with pytest.raises(PlanError) as caught:
        check_plan(Plan(nodes), bounds or Bounds(TOOLS))
    return caught.value.faults


def test_a_sound_plan_passes_its_checks() -> None:
    plan = Plan((node("a", tools=("git_log",)), node("b"), node("c", "a", "b")))

    check_plan(plan, Bounds(TOOLS, agents=3, one_end=True))


def test_an_empty_plan_is_refused() -> None:
    assert faults() == ("the plan is empty: give at least one node",)


def test_two_nodes_of_one_id_are_refused() -> None:
    assert faults(node("a"), node("a", task="Other")) == (
        "two nodes have the id `a`: give one of them another",
    )


def test_an_id_that_cannot_be_written_is_refused() -> None:
    assert faults(node("a b")) == (
        "the id 'a b' cannot be used: give 1 to 40 of letters, digits, `_`, `-`",
    )


def test_a_need_that_is_not_there_is_refused_with_the_nearest_id() -> None:
    assert faults(node("sizes"), node("b", "size")) == (
        "node `b` needs `size`, which is not there: use `sizes`, or drop it",
    )


def test_nodes_that_wait_for_each_other_are_refused_with_their_ring() -> None:
    (fault,) = faults(node("a", "c"), node("b", "a"), node("c", "b"), node("d"))

    assert fault.endswith("wait for each other: drop one of these needs")
    assert all(f"`{id}`" in fault for id in "abc")
    assert "`d`" not in fault


def test_a_node_that_waits_for_itself_is_refused() -> None:
    assert faults(node("a", "a")) == (
        "the nodes `a` → `a` wait for each other: drop one of these needs",
    )


def test_a_tool_that_is_not_granted_is_refused_with_the_nearest_name() -> None:
    assert faults(node("a", tools=("git_lgo", "rm"))) == (
        "node `a` cannot be solved with `git_lgo`, which is not granted: use `git_log`, or drop it",
        "node `a` cannot be solved with `rm`, which is not granted: "
        "use `count_lines`, `git_log`, `git_show`, or drop it",
    )


def test_a_node_that_asks_for_the_same_in_other_letters_is_refused() -> None:
    twice = (
        node("a", tools=("git_log", "git_show"), task="List the authors."),
        node("b", tools=("git_show", "git_log"), task="  list THE authors"),
    )

    assert faults(*twice) == (
        "node `b` repeats `a`: drop it and put `a` into the `needs` of what builds on it",
    )


def test_the_same_words_about_other_results_are_no_repeat() -> None:
    nodes = (node("a"), node("b"), node("x", "a", task="Sum up"), node("y", "b", task="Sum up"))

    check_plan(Plan(nodes), Bounds(TOOLS))


def test_a_result_that_reaches_nobody_is_refused_where_one_node_must_gather_all() -> None:
    nodes = (node("a"), node("b"), node("end", "a"))

    check_plan(Plan(nodes), Bounds(TOOLS))
    assert faults(*nodes, bounds=Bounds(TOOLS, one_end=True)) == (
        "the result of node `b` reaches nobody: put `b` into the `needs` of `end`, or drop it",
    )


def test_more_nodes_than_agents_are_refused() -> None:
    assert faults(node("a"), node("b"), bounds=Bounds(TOOLS, agents=1)) == (
        "the plan has 2 nodes and the budget has room for 1 agents: join nodes until they fit",
    )


def test_finished_nodes_may_be_needed_and_not_planned_again() -> None:
    bounds = Bounds(TOOLS, finished={"a": node("a"), "b": node("b")})

    check_plan(Plan((node("c", "a"),)), bounds)
    assert faults(node("a", task="New"), bounds=bounds) == (
        "node `a` is finished already: drop it, or give new work a new id",
    )
    assert faults(node("d", task="do B!"), bounds=bounds) == (
        "node `d` repeats `b`: drop it and put `b` into the `needs` of what builds on it",
    )


def test_a_node_is_held_to_the_tools_of_its_worker() -> None:
    bounds = Bounds(TOOLS, workers={"historian": frozenset({"git_log"}), "clerk": frozenset()})

    check_plan(Plan((Node("a", "A", ("git_log",), worker="historian"),)), bounds)
    assert faults(
        Node("a", "A", ("git_log",), worker="clerk"),
        Node("b", "B"),
        Node("c", "C", worker="cook"),
        bounds=bounds,
    ) == (
        "node `a` cannot be solved with `git_log`, which is not granted to `clerk`: drop it",
        "node `b` has the worker None: use one of `clerk`, `historian`",
        "node `c` has the worker 'cook': use one of `clerk`, `historian`",
    )


def test_a_worker_is_refused_where_there_are_no_roles() -> None:
    assert faults(Node("a", "A", worker="cook")) == (
        "node `a` names a worker, and there are no roles here: drop `worker`",
    )


def test_all_faults_are_told_at_once() -> None:
    assert len(faults(node("a", "z", tools=("rm",)), node("a", task="Do A"))) == 3


def test_a_plan_survives_the_way_through_json() -> None:
    plan = Plan(
        (
            Node("a", "A", ("git_log",), answer_schema={"type": "object"}),
            Node("b", "B", (), ("a",), worker="clerk"),
        )
    )

    assert parse_plan(json.loads(json.dumps(plan.as_json()))) == plan


@pytest.mark.parametrize(
    ("value", "fault"),
    [
        (
            "do it",
            'the plan has another form: give {"nodes": [{"id", "task", "tools", "needs"}, ...]}',
        ),
        (
            {"nodes": 3},
            'the plan has another form: give {"nodes": [{"id", "task", "tools", "needs"}, ...]}',
        ),
        ({"nodes": ["a"]}, "node 1 is 'a': give an object with `id`, `task`, `tools` and `needs`"),
        ({"nodes": [{"id": "a"}]}, "node `a` has no `task`: give it"),
        ({"nodes": [{"task": "A"}]}, "node 1 has no `id`: give it"),
        (
            {"nodes": [{"id": "a", "task": "A", "need": ["b"]}]},
            "node `a` has the unknown key `need`: did you mean `needs`?",
        ),
        (
            {"nodes": [{"id": "a", "task": "A", "colour": 1}]},
            "node `a` has the unknown key `colour`: drop it",
        ),
        (
            {"nodes": [{"id": "a", "task": "A", "tools": "git_log"}]},
            "node `a` has a wrong `tools` ('git_log'): input should be a valid tuple",
        ),
    ],
)
def test_an_answer_of_another_form_is_refused_with_the_place(value: object, fault: str) -> None:
    with pytest.raises(PlanError) as caught:
        parse_plan(value)

    assert caught.value.faults == (fault,)


def test_the_schema_that_a_planner_is_sent_is_small() -> None:
    assert len(json.dumps(plan_schema())) / 4 < 100
    assert plan_schema(["clerk"])["properties"]["nodes"]["items"]["properties"]["worker"] == {
        "enum": ["clerk"]
    }


async def test_ready_nodes_overlap_and_others_wait_for_their_needs() -> None:
    begun: list[str] = []
    both = anyio.Event()

    async def work(each: Node) -> bool:
        begun.append(each.id)
        if {"a", "b"} <= set(begun):
            both.set()
        await both.wait()
        return True

    with anyio.fail_after(5):
        await run_ready(Plan((node("c", "a", "b"), node("a"), node("b"))), work)

    assert begun == ["a", "b", "c"]


async def test_what_needs_a_failed_node_is_left_alone_and_the_rest_goes_on() -> None:
    done: list[str] = []

    async def work(each: Node) -> bool:
        done.append(each.id)
        return each.id != "a"

    await run_ready(
        Plan((node("a"), node("b", "a"), node("c", "b"), node("d"), node("e", "d"))), work
    )

    assert sorted(done) == ["a", "d", "e"]


async def test_a_crash_in_the_work_stops_the_rest_and_is_told() -> None:
    async def work(each: Node) -> bool:
        if each.id == "a":
            raise ValueError("broken")
        await anyio.sleep_forever()
        return True

    with anyio.fail_after(5), pytest.raises(ExceptionGroup) as caught:
        await run_ready(Plan((node("a"), node("b"))), work)

    assert caught.group_contains(ValueError)


@st.composite
def graphs(draw: st.DrawFn) -> tuple[Plan, frozenset[str], frozenset[str]]:
    """Draw a plan in any order, the nodes that are finished already, and those that will fail."""
    count = draw(st.integers(1, 12))
    ids = [f"n{index}" for index in range(count)]
    nodes: list[Node] = []
    for index, id in enumerate(ids):
        needs = draw(st.sets(st.sampled_from(ids[:index]))) if index else set[str]()
        nodes.append(node(id, *sorted(needs)))
    finished = draw(st.sets(st.sampled_from(ids)))
    failing = draw(st.sets(st.sampled_from(ids))) - finished
    return Plan(tuple(draw(st.permutations(nodes)))), frozenset(finished), frozenset(failing)


@settings(deadline=None, max_examples=150)
@given(graphs(), st.integers(0, 3))
def test_every_node_that_can_runs_once_after_all_its_needs_and_none_is_redone(
    drawn: tuple[Plan, frozenset[str], frozenset[str]], yields: int
) -> None:
    plan, finished, failing = drawn
    by_id = {each.id: each for each in plan.nodes}
    runs: list[str] = []
    done = set(finished)
    at_work = widest = 0

    async def work(each: Node) -> bool:
        nonlocal at_work, widest
        assert set(each.needs) <= done
        runs.append(each.id)
        at_work += 1
        widest = max(widest, at_work)
        for _ in range(yields):
            await anyio.lowlevel.checkpoint()
        at_work -= 1
        if each.id in failing:
            return False
        done.add(each.id)
        return True

    anyio.run(run_ready, plan, work, finished)

    def reachable(id: str) -> bool:
        return id in finished or all(n not in failing and reachable(n) for n in by_id[id].needs)

    assert sorted(runs) == sorted(id for id in by_id if id not in finished and reachable(id))
    at_once = [id for id in runs if set(by_id[id].needs) <= finished]
    assert widest >= (len(at_once) if yields else min(1, len(runs)))


@settings(deadline=None, max_examples=150)
@given(graphs())
def test_a_random_acyclic_plan_passes_and_one_with_a_ring_does_not(
    drawn: tuple[Plan, frozenset[str], frozenset[str]],
) -> None:
    plan, _, _ = drawn
    check_plan(plan, Bounds(TOOLS))
    first = min(plan.nodes, key=lambda each: int(each.id[1:]))
    last = max(plan.nodes, key=lambda each: int(each.id[1:]))
    joined = [
        Node(each.id, each.task, needs=tuple(dict.fromkeys((*each.needs, last.id))))
        if each is first
        else Node(each.id, each.task, needs=tuple(dict.fromkeys((*each.needs, first.id))))
        for each in plan.nodes
    ]

    with pytest.raises(PlanError, match="wait for each other"):
        check_plan(Plan(tuple(joined)), Bounds(TOOLS))

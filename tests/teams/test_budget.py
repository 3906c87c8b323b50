import asyncio  # noqa: TID251 - cancels a task in the very step that wakes it
from collections.abc import Callable

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from guildry.errors import BudgetExceeded, GrantError
from guildry.teams.budget import Budget, Reservation, hand_back_slice
from guildry.teams.model import Usage
from guildry.tools.grants import Limits


def frozen() -> float:
    return 100.0


def budget(
    tokens: int | None = None,
    *,
    calls: int | None = None,
    agents: int | None = None,
    wall_s: float | None = None,
    hand_back_tokens: int = 0,
    clock: Callable[[], float] = frozen,
) -> Budget:
    return Budget(
        Limits(tokens, calls, agents, wall_s), hand_back_tokens=hand_back_tokens, clock=clock
    )


def spend_one(node: Budget, kind: str) -> None:
    if kind == "calls":
        node.charge_call()
    elif kind == "agents":
        node.reserve(agents=1).settle()
    else:
        node.reserve(tokens=1).settle(tokens=1)


maybe = st.none() | st.integers(0, 2_000)


class Tree(RuleBasedStateMachine):
    """Any order of children, reservations, settlements and releases over a growing tree."""

    nodes = Bundle[Budget]("nodes")
    taken = Bundle[tuple[Budget, Reservation, bool]]("taken")

    def __init__(self) -> None:
        super().__init__()
        self.every: list[Budget] = []
        self.open: list[tuple[Budget, Reservation]] = []
        self.parents: dict[int, Budget | None] = {}
        self.spent: dict[int, int] = {}
        self.spent_by_hand_back: dict[int, int] = {}

    def chain(self, node: Budget) -> list[Budget]:
        found = [node]
        while (above := self.parents[id(found[-1])]) is not None:
            found.append(above)
        return found

    def add(self, node: Budget, parent: Budget | None) -> Budget:
        self.every.append(node)
        self.parents[id(node)] = parent
        self.spent[id(node)] = 0
        return node

    @initialize(target=nodes, tokens=maybe, agents=maybe, kept=st.integers(0, 600))
    def root(self, tokens: int | None, agents: int | None, kept: int) -> Budget:
        return self.add(budget(tokens, agents=agents, hand_back_tokens=kept), None)

    @rule(target=nodes, parent=nodes, tokens=maybe, agents=maybe)
    def grow(self, parent: Budget, tokens: int | None, agents: int | None) -> Budget:
        return self.add(parent.child(Limits(tokens, agents=agents)), parent)

    @rule(
        target=taken,
        node=nodes,
        tokens=st.integers(0, 900),
        agents=st.integers(0, 3),
        hand_back=st.booleans(),
    )
    def reserve(
        self, node: Budget, tokens: int, agents: int, hand_back: bool
    ) -> tuple[Budget, Reservation, bool]:
        before = [(each.used(), each.held, each.remaining()) for each in self.every]
        room = node.remaining(hand_back=hand_back)
        fits = (room.tokens is None or tokens <= room.tokens or tokens == 0) and (
            room.agents is None or agents <= room.agents or agents == 0
        )
        try:
            reservation = node.reserve(tokens=tokens, agents=agents, hand_back=hand_back)
        except BudgetExceeded:
            assert not fits
            assert before == [(each.used(), each.held, each.remaining()) for each in self.every]
            reservation = node.reserve()
        else:
            assert fits
        self.open.append((node, reservation))
        return node, reservation, hand_back

    @rule(one=consumes(taken))
    def release(self, one: tuple[Budget, Reservation, bool]) -> None:
        node, reservation, _ = one
        before = [each.used() for each in self.every]

        reservation.release()
        reservation.release()

        self.open.remove((node, reservation))
        assert before == [each.used() for each in self.every]

    @rule(one=consumes(taken), share=st.floats(0, 1))
    def settle(self, one: tuple[Budget, Reservation, bool], share: float) -> None:
        node, reservation, _ = one
        actual = int(reservation.tokens * share)

        reservation.settle(tokens=actual)
        reservation.settle(tokens=actual)

        self.open.remove((node, reservation))
        for each in self.chain(node):
            self.spent[id(each)] += actual

    @invariant()
    def nothing_is_overspent_and_nothing_is_lost(self) -> None:
        for node in self.every:
            held = sum(r.tokens for at, r in self.open if node in self.chain(at))
            used = node.used()
            assert node.held == held
            assert used.tokens == self.spent[id(node)]
            assert node.overshoot == 0
            if node.limits.tokens is not None:
                assert used.tokens is not None
                assert used.tokens + held <= node.limits.tokens
            if node.limits.agents is not None:
                assert used.agents is not None
                assert used.agents <= node.limits.agents


TestTree = Tree.TestCase


def test_a_reservation_takes_from_every_ancestor_or_from_none() -> None:
    root = budget(100)
    child = root.child(Limits(), hand_back_tokens=0)
    leaf = child.child(Limits(80), hand_back_tokens=0)
    child.reserve(tokens=50)

    with pytest.raises(BudgetExceeded) as refused:
        leaf.reserve(tokens=60)

    assert (refused.value.kind, refused.value.limit, refused.value.used) == ("tokens", 100, 50)
    assert [node.held for node in (root, child, leaf)] == [50, 50, 0]


@pytest.mark.parametrize(
    ("limits", "kind"),
    [(Limits(tokens=0), "tokens"), (Limits(agents=0), "agents"), (Limits(calls=0), "calls")],
)
def test_zero_is_zero(limits: Limits, kind: str) -> None:
    node = budget().child(limits)

    with pytest.raises(BudgetExceeded, match=f"budget of 0 {kind}"):
        spend_one(node, kind)


def test_no_limit_is_no_limit() -> None:
    node = budget().child(Limits())

    node.reserve(tokens=10**12, agents=10**6).settle(tokens=10**12)
    node.charge_call()

    assert node.remaining() == Limits()
    assert not node.soft


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(GrantError, match="`calls` is -1"):
        budget().child(Limits(calls=-1))


def test_a_negative_reservation_is_refused() -> None:
    with pytest.raises(ValueError, match="-1 tokens"):
        budget().reserve(tokens=-1)


def test_calls_are_charged_to_every_ancestor_or_to_none() -> None:
    root = budget(calls=3)
    child = root.child(Limits(calls=2))
    child.charge_call()
    child.charge_call()

    with pytest.raises(BudgetExceeded, match="budget of 2 calls"):
        child.charge_call()

    assert (root.used().calls, child.used().calls) == (2, 2)
    assert child.remaining().calls == 0
    assert root.remaining().calls == 1


@given(st.integers(0, 100_000))
def test_a_slice_is_kept_back_and_never_more_than_half(tokens: int) -> None:
    kept = hand_back_slice(tokens)

    assert kept <= tokens / 2
    assert kept >= min(500, tokens // 2)
    assert kept >= int(tokens / 10)


def test_an_unlimited_node_keeps_no_slice() -> None:
    assert hand_back_slice(None) == 0
    assert budget(hand_back_tokens=50).remaining() == Limits()


def test_only_a_hand_back_may_take_the_slice() -> None:
    node = budget(10_000, hand_back_tokens=1_000)
    node.reserve(tokens=9_000).settle(tokens=9_000)

    with pytest.raises(BudgetExceeded, match="budget of 9000 tokens"):
        node.reserve(tokens=1)
    node.reserve(tokens=1_000, hand_back=True).settle(tokens=1_000)

    assert node.used().tokens == 10_000
    with pytest.raises(BudgetExceeded, match="budget of 10000 tokens"):
        node.reserve(tokens=1, hand_back=True)


def test_what_an_endpoint_uses_beyond_its_reservation_is_recorded() -> None:
    root = budget(100)
    child = root.child(Limits())

    child.reserve(tokens=10).settle(usage=Usage(20, 5, 15))

    assert (root.overshoot, child.overshoot) == (15, 15)
    assert root.used().tokens == 25
    assert root.usage == Usage(20, 5, 15)
    assert root.remaining().tokens == 75


def test_settled_agents_stay_spent_and_released_ones_come_back() -> None:
    node = budget(agents=2)
    node.reserve(agents=1).settle()
    tried = node.reserve(agents=1)
    assert node.remaining().agents == 0

    tried.release()

    assert node.remaining().agents == 1
    assert node.used().agents == 1


@pytest.mark.parametrize("kind", ["tokens", "calls", "agents"])
def test_the_soft_line_is_crossed_at_four_fifths_of_any_limit(kind: str) -> None:
    root = Budget(Limits(**{kind: 5}), clock=frozen)
    leaf = root.child(Limits())

    for spent in range(1, 5):
        spend_one(leaf, kind)
        assert leaf.soft == (spent == 4)


def test_time_crosses_the_soft_line_then_ends_the_budget() -> None:
    now = [0.0]
    root = budget(wall_s=10, clock=lambda: now[0])
    leaf = root.child(Limits(wall_s=100))
    assert leaf.deadline == 10

    now[0] = 8.0
    assert leaf.soft
    assert leaf.remaining().wall_s == 2
    now[0] = 10.0

    with pytest.raises(BudgetExceeded, match="budget of 10 wall_s"):
        leaf.reserve(tokens=1)
    with pytest.raises(BudgetExceeded, match="wall_s"):
        leaf.charge_call()
    assert leaf.remaining().wall_s == 0


def test_a_childs_own_time_ends_before_its_parents() -> None:
    root = budget(wall_s=10)

    assert root.child(Limits(wall_s=3)).deadline == 103
    assert root.child(Limits()).deadline == 110


async def test_siblings_under_a_tight_budget_take_turns_instead_of_failing() -> None:
    root = budget(1_000)
    at_once: list[int] = []

    async def sibling() -> None:
        child = root.child(Limits())
        for _ in range(3):
            reservation = await child.obtain(tokens=300)
            at_once.append(root.held)
            await anyio.lowlevel.checkpoint()
            reservation.settle(tokens=8)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for _ in range(10):
                tasks.start_soon(sibling)

    assert len(at_once) == 30
    assert max(at_once) == 900
    assert root.used().tokens == 240
    assert root.held == 0


async def test_what_no_sibling_can_give_back_is_refused_at_once() -> None:
    root = budget(100)
    root.reserve(tokens=90)

    with anyio.fail_after(5), pytest.raises(BudgetExceeded):
        await root.obtain(tokens=101)


async def test_a_waiting_sibling_is_refused_once_the_rest_is_really_spent() -> None:
    root = budget(100)
    first = root.reserve(tokens=90)
    refused = anyio.Event()

    async def second() -> None:
        with pytest.raises(BudgetExceeded):
            await root.obtain(tokens=50)
        refused.set()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(second)
            await anyio.wait_all_tasks_blocked()
            assert not refused.is_set()
            first.settle(tokens=90)
            await refused.wait()

    assert root.remaining().tokens == 10


async def test_a_waiter_that_is_cancelled_passes_its_turn_on() -> None:
    root = budget(100)
    first = root.reserve(tokens=100)
    served = anyio.Event()

    async def second(scope: anyio.CancelScope) -> None:
        with scope:
            (await root.obtain(tokens=60)).release()

    async def third() -> None:
        (await root.obtain(tokens=60)).release()
        served.set()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            woken_then_cancelled, still_waiting = anyio.CancelScope(), anyio.CancelScope()
            tasks.start_soon(second, woken_then_cancelled)
            tasks.start_soon(second, still_waiting)
            tasks.start_soon(third)
            await anyio.wait_all_tasks_blocked()
            still_waiting.cancel()
            first.release()
            woken_then_cancelled.cancel()
            await served.wait()

    assert root.held == 0


async def test_a_waiter_woken_and_cancelled_in_one_step_passes_its_turn_on() -> None:
    root = budget(100)
    first = root.reserve(tokens=100)
    served = anyio.Event()
    waiter = asyncio.ensure_future(root.obtain(tokens=60))

    async def second() -> None:
        (await root.obtain(tokens=60)).release()
        served.set()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            await anyio.wait_all_tasks_blocked()
            tasks.start_soon(second)
            await anyio.wait_all_tasks_blocked()
            first.release()
            waiter.cancel()
            await served.wait()

        assert waiter.cancelled()

    assert root.held == 0


async def test_a_waiter_is_refused_when_the_time_is_over() -> None:
    now = [0.0]
    root = budget(100, wall_s=10, clock=lambda: now[0])
    first = root.reserve(tokens=100)

    async def late() -> None:
        with pytest.raises(BudgetExceeded, match="wall_s"):
            await root.obtain(tokens=60)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(late)
            await anyio.wait_all_tasks_blocked()
            now[0] = 10.0
            first.release()


async def test_a_waiter_freed_at_one_node_waits_on_at_another() -> None:
    root = budget(100)
    child = root.child(Limits(50), hand_back_tokens=0)
    in_child = child.reserve(tokens=50)
    in_root = root.reserve(tokens=50)
    served = anyio.Event()

    async def waiter() -> None:
        (await child.obtain(tokens=50)).settle(tokens=50)
        served.set()

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(waiter)
            await anyio.wait_all_tasks_blocked()
            in_child.settle(tokens=0)
            blocker = root.reserve(tokens=50)
            await anyio.wait_all_tasks_blocked()
            assert not served.is_set()
            in_root.release()
            await served.wait()
            blocker.release()

    assert root.used().tokens == 50

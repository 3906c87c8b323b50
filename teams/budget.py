"""Budgets: a tree of limits, reserved before a step and settled after it. Knows no model.

Every method but `obtain` is synchronous, so each is atomic on the event loop, and a reservation is
taken from a node and all of its ancestors at once or not at all.
"""

from collections import deque
from collections.abc import Callable
from typing import Final, Literal

import anyio

from guildry.errors import BudgetExceeded, GrantError
from guildry.teams.model import Usage
from guildry.tools.grants import Limits

__all__ = ["SOFT_SHARE", "Budget", "Reservation", "hand_back_slice"]

SOFT_SHARE: Final = 0.8
"""The part of a limit above which an agent is told to come to an end."""

_HAND_BACK_SHARE: Final = 0.1
_HAND_BACK_MIN: Final = 500
_NOTHING: Final = Usage()


def hand_back_slice(tokens: int | None) -> int:
    """Return how many of `tokens` are kept back for a last report.

    A tenth, at least 500, but at most half of a small limit.
    """
    if tokens is None:
        return 0
    return min(max(round(tokens * _HAND_BACK_SHARE), _HAND_BACK_MIN), tokens // 2)


class Budget:
    """How much may still be spent by one holder and everyone below it.

    Args:
        limits: what this node may spend. None sets no limit of its own; zero is zero.
        parent: the node that this one spends from as well.
        hand_back_tokens: the part of `limits.tokens` that only `hand_back` reservations may take.
        clock: seconds, the clock of every deadline.
    """

    __slots__ = (
        "_agents",
        "_calls",
        "_chain",
        "_clock",
        "_hand_back",
        "_held_agents",
        "_held_tokens",
        "_overshoot",
        "_started",
        "_tokens",
        "_usage",
        "_waiting",
        "deadline",
        "limits",
    )

    def __init__(
        self,
        limits: Limits,
        parent: "Budget | None" = None,
        *,
        hand_back_tokens: int = 0,
        clock: Callable[[], float] = anyio.current_time,
    ) -> None:
        for name, value in limits.as_json().items():
            if value is not None and value < 0:
                raise GrantError(f"`{name}` is {value}: give zero or more")
        self.limits: Final = limits
        self._hand_back = min(hand_back_tokens, limits.tokens or 0)
        self._chain: tuple[Budget, ...] = (self, *(parent._chain if parent else ()))
        self._clock = clock
        self._started = clock()
        above = None if parent is None else parent.deadline
        ends: list[float] = [] if above is None else [above]
        if limits.wall_s is not None:
            ends.append(self._started + limits.wall_s)
        self.deadline: Final[float | None] = min(ends) if ends else None
        self._tokens = self._held_tokens = self._overshoot = 0
        self._agents = self._held_agents = self._calls = 0
        self._usage = _NOTHING
        self._waiting: deque[anyio.Event] | None = None

    def child(self, limits: Limits, *, hand_back_tokens: int | None = None) -> "Budget":
        """Return a node below this one.

        Args:
            limits: what the child may spend; every ancestor's limits hold for it as well.
            hand_back_tokens: its slice for a last report; `hand_back_slice` where not given.
        """
        kept = hand_back_slice(limits.tokens) if hand_back_tokens is None else hand_back_tokens
        return Budget(limits, self, hand_back_tokens=kept, clock=self._clock)

    def reserve(
        self, *, tokens: int = 0, agents: int = 0, hand_back: bool = False
    ) -> "Reservation":
        """Take room from this node and every ancestor at once.

        Raises:
            BudgetExceeded: one of them has too little left, and nothing was taken.
        """
        if tokens < 0 or agents < 0:
            raise ValueError(f"cannot reserve {tokens} tokens and {agents} agents")
        if self.deadline is not None and self._clock() >= self.deadline:
            raise self._late()
        for node in self._chain:
            if tokens and not node._fits(tokens, hand_back):
                kept = 0 if hand_back else node._hand_back
                limit, held = node.limits.tokens or 0, node._held_tokens
                raise BudgetExceeded("tokens", limit - kept, node._tokens + held)
            most = node.limits.agents
            if agents and most is not None and node._agents + node._held_agents + agents > most:
                raise BudgetExceeded("agents", most, node._agents + node._held_agents)
        for node in self._chain:
            node._held_tokens += tokens
            node._held_agents += agents
        return Reservation(self, tokens, agents)

    async def obtain(self, *, tokens: int, hand_back: bool = False) -> "Reservation":
        """Reserve tokens, waiting while siblings' reservations are all that stands in the way.

        So a fan-out under a tight budget takes turns instead of failing: a reservation is larger
        than what its step spends. Do not call it while holding a reservation in the same tree.

        Raises:
            BudgetExceeded: the tokens do not fit, whatever the siblings give back.
        """
        node: Budget | None = None
        while True:
            try:
                reservation = self.reserve(tokens=tokens, hand_back=hand_back)
            except BudgetExceeded:
                crowded = self._crowded(tokens, hand_back)
                if node is not None and crowded is not node:
                    node._wake()
                if crowded is None:
                    raise
                await crowded._wait(first=crowded is node)
                node = crowded
            else:
                if node is not None:
                    node._wake()
                return reservation

    def charge_call(self) -> None:
        """Spend one tool call of this node and every ancestor.

        Raises:
            BudgetExceeded: one of them has none left, or the time is over.
        """
        if self.deadline is not None and self._clock() >= self.deadline:
            raise self._late()
        for node in self._chain:
            most = node.limits.calls
            if most is not None and node._calls >= most:
                raise BudgetExceeded("calls", most, node._calls)
        for node in self._chain:
            node._calls += 1

    def remaining(self, *, hand_back: bool = False) -> Limits:
        """Return what can still be reserved here: the least of this node and its ancestors.

        The slice kept for a last report is counted only with `hand_back`.
        """
        tokens: list[int] = []
        calls: list[int] = []
        agents: list[int] = []
        for node in self._chain:
            limits = node.limits
            if limits.tokens is not None:
                kept = 0 if hand_back else node._hand_back
                tokens.append(limits.tokens - kept - node._tokens - node._held_tokens)
            if limits.calls is not None:
                calls.append(limits.calls - node._calls)
            if limits.agents is not None:
                agents.append(limits.agents - node._agents - node._held_agents)
        return Limits(
            tokens=max(0, min(tokens)) if tokens else None,
            calls=min(calls) if calls else None,
            agents=min(agents) if agents else None,
            wall_s=None if self.deadline is None else max(0.0, self.deadline - self._clock()),
        )

    def used(self) -> Limits:
        """Return what was spent at this node, its descendants included; reservations are not."""
        return Limits(self._tokens, self._calls, self._agents, self._clock() - self._started)

    @property
    def usage(self) -> Usage:
        """The settled tokens by kind, where those who settled said."""
        return self._usage

    @property
    def held(self) -> int:
        """Tokens that are reserved and not settled yet."""
        return self._held_tokens

    @property
    def overshoot(self) -> int:
        """Tokens that endpoints used beyond what was reserved for them."""
        return self._overshoot

    @property
    def soft(self) -> bool:
        """Tell whether most of some limit, here or at an ancestor, is spent."""
        for node in self._chain:
            limits = node.limits
            if (
                _most_of(node._tokens, limits.tokens)
                or _most_of(node._calls, limits.calls)
                or _most_of(node._agents, limits.agents)
                or (limits.wall_s and _most_of(self._clock() - node._started, limits.wall_s))
            ):
                return True
        return False

    def _fits(self, tokens: int, hand_back: bool, *, held: bool = True) -> bool:
        limit = self.limits.tokens
        if limit is None:
            return True
        taken = self._tokens + (self._held_tokens if held else 0)
        return taken + tokens <= limit - (0 if hand_back else self._hand_back)

    def _crowded(self, tokens: int, hand_back: bool) -> "Budget | None":
        """Return the first node that lacks only what others hold; None where one lacks more."""
        if self.deadline is not None and self._clock() >= self.deadline:
            return None
        crowded: Budget | None = None
        for node in self._chain:
            if not node._fits(tokens, hand_back, held=False):
                return None
            if crowded is None and not node._fits(tokens, hand_back):
                crowded = node
        return crowded

    async def _wait(self, *, first: bool) -> None:
        waiting = self._waiting = deque() if self._waiting is None else self._waiting
        event = anyio.Event()
        if first:
            waiting.appendleft(event)
        else:
            waiting.append(event)
        try:
            await event.wait()
        except BaseException:
            if event.is_set():
                self._wake()
            else:
                waiting.remove(event)
            raise

    def _wake(self) -> None:
        if self._waiting:
            self._waiting.popleft().set()

    def _late(self) -> BudgetExceeded:
        now = self._clock()
        node = min(
            (n for n in self._chain if n.limits.wall_s is not None),
            key=lambda n: n._started + (n.limits.wall_s or 0.0),
        )
        return BudgetExceeded("wall_s", node.limits.wall_s or 0.0, round(now - node._started, 3))

    def _give(self, reservation: "Reservation", tokens: int, agents: int, usage: Usage) -> None:
        for node in self._chain:
            node._held_tokens -= reservation.tokens
            node._held_agents -= reservation.agents
            node._tokens += tokens
            node._agents += agents
            if tokens > reservation.tokens:
                node._overshoot += tokens - reservation.tokens
            if usage.total:
                node._usage += usage
            node._wake()


class Reservation:
    """Room that was taken and is not spent yet. The first of `settle` and `release` counts."""

    __slots__ = ("_budget", "_state", "agents", "tokens")

    def __init__(self, budget: Budget, tokens: int, agents: int) -> None:
        self._budget = budget
        self._state: Literal["open", "closed"] = "open"
        self.tokens: Final = tokens
        self.agents: Final = agents

    def settle(self, *, tokens: int = 0, usage: Usage = _NOTHING) -> None:
        """Spend `tokens` and the reserved agents; the rest goes back.

        Args:
            tokens: what was really used; above the reservation only where an endpoint did so.
            usage: the same by kind; its total is `tokens` where `tokens` is not given.
        """
        if self._state == "open":
            self._state = "closed"
            self._budget._give(self, tokens or usage.total, self.agents, usage)  # pyright: ignore[reportPrivateUsage]  # one class in two

    def release(self) -> None:
        """Give everything back."""
        if self._state == "open":
            self._state = "closed"
            self._budget._give(self, 0, 0, _NOTHING)  # pyright: ignore[reportPrivateUsage]  # one class in two


def _most_of(used: float, limit: float | None) -> bool:
    return bool(limit) and used >= SOFT_SHARE * (limit or 0.0)

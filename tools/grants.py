"""Grants: what one caller may do. Authority only narrows; nothing here can widen it."""

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Final, Literal

from guildry.errors import GrantError

__all__ = ["EVERY_TOOL", "Grant", "Limits"]

EVERY_TOOL: Final = "*"
"""The tools of a root grant: whatever is plugged now or later."""


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be spent. None sets no limit of its own; zero is zero.

    Args:
        tokens: prompt and completion tokens of every model call.
        calls: tool calls.
        agents: agents spawned, children of children included.
        wall_s: seconds from the grant's first use.
    """

    tokens: int | None = None
    calls: int | None = None
    agents: int | None = None
    wall_s: float | None = None

    def within(self, other: "Limits") -> "Limits":
        """Return these limits, taking the other's where none is set here.

        Raises:
            GrantError: a limit is negative, or above the other's.
        """
        merged: dict[str, float | None] = {}
        for name in _LIMITS:
            mine, theirs = getattr(self, name), getattr(other, name)
            if mine is not None and mine < 0:
                raise GrantError(f"`{name}` is {mine}: give zero or more")
            if mine is not None and theirs is not None and mine > theirs:
                raise GrantError(f"`{name}` is {mine}: at most {theirs} can be granted here")
            merged[name] = theirs if mine is None else mine
        return Limits(**merged)  # type: ignore[arg-type]  # each value keeps its field's type

    def as_json(self) -> dict[str, float | None]:
        """Return the limits by name."""
        return {name: getattr(self, name) for name in _LIMITS}


_LIMITS: Final = tuple(f.name for f in fields(Limits))


@dataclass(frozen=True, slots=True)
class Grant:
    """What one holder may do.

    `Grant.root` makes the first one; `narrow` is the only other way to get one.

    Args:
        holder: who holds it: a principal such as `local`, or an agent such as `r1a2b3/planner.2`.
        tools: names of the tools that may be seen and called, or `EVERY_TOOL`.
        references: ids of objects that may be read, besides those that the holder makes.
        limits: how much may be spent.
        deadline: seconds on the event loop's clock (`anyio.current_time`), or None.
        depth: how many generations of agents may still be spawned below this one.
        scopes: which kinds of tools may be called: `tools`, `teams`, `admin`. `admin` is never
            handed on.
        chain: the holders from the root to this one.
    """

    holder: str
    tools: frozenset[str] | Literal["*"]
    references: frozenset[str] = frozenset()
    limits: Limits = Limits()
    deadline: float | None = None
    depth: int = 0
    scopes: frozenset[str] = frozenset()
    chain: tuple[str, ...] = field(default=())

    @classmethod
    def root(
        cls,
        holder: str,
        *,
        tools: Iterable[str] | Literal["*"] = EVERY_TOOL,
        limits: Limits = Limits(),
        depth: int = 3,
        scopes: Iterable[str] = ("tools", "teams"),
    ) -> "Grant":
        """Return the grant of a principal, from which all others are narrowed."""
        named: frozenset[str] | Literal["*"] = EVERY_TOOL if tools == "*" else frozenset(tools)
        return cls(
            holder=holder,
            tools=named,
            limits=limits,
            depth=depth,
            scopes=frozenset(scopes),
            chain=(holder,),
        )

    def allows(self, tool: str) -> bool:
        """Tell whether `tool` may be seen and called under this grant."""
        return self.tools == EVERY_TOOL or tool in self.tools

    def narrow(
        self,
        holder: str,
        *,
        tools: Iterable[str],
        references: Iterable[str] = (),
        may_read: Iterable[str] = (),
        limits: Limits = Limits(),
        deadline: float | None = None,
        depth: int | None = None,
    ) -> "Grant":
        """Return a grant for a child: a subset of this one.

        Args:
            holder: who gets it.
            tools: what the child may call. Nothing is inherited by silence.
            references: ids the child may read.
            may_read: ids that this holder owns or was given; it may pass these on as well.
            limits: what the child may spend; each limit that is not set is this grant's.
            deadline: when the child must be done; this grant's where it is later or not set.
            depth: generations below the child; one less than here where not set.

        Raises:
            GrantError: something was asked for that this grant does not hold. Says what.
        """
        asked = frozenset(tools)
        if self.tools != EVERY_TOOL and not asked <= self.tools:
            missing = ", ".join(f"`{name}`" for name in sorted(asked - self.tools))
            raise GrantError(f"{missing} cannot be granted: `{self.holder}` does not hold it")
        passed = frozenset(references)
        foreign = passed - self.references - frozenset(may_read)
        if foreign:
            raise GrantError(
                f"{len(foreign)} reference(s) cannot be granted: `{self.holder}` may not read them"
            )
        below = self.depth - 1 if depth is None else depth
        if self.depth < 1 or not 0 <= below < self.depth:
            raise GrantError(
                f"`{self.holder}` may spawn {self.depth} generation(s) of agents: "
                f"a child with {below} below it cannot be granted"
            )
        ends = [at for at in (self.deadline, deadline) if at is not None]
        return Grant(
            holder=holder,
            tools=asked,
            references=passed,
            limits=limits.within(self.limits),
            deadline=min(ends) if ends else None,
            depth=below,
            scopes=self.scopes - {"admin"},
            chain=(*self.chain, holder),
        )

"""Who an agent is, and where it works: its authority and the live things around it."""

from collections.abc import Callable
from dataclasses import dataclass, field

from guildry.memory.journal import Journal
from guildry.memory.objects import ObjectStore
from guildry.teams.budget import Budget
from guildry.teams.model import Model
from guildry.tools.caller import Caller
from guildry.tools.dispatch import Dispatch
from guildry.tools.registry import Catalog

__all__ = ["AgentSpec", "Desk"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSpec:
    """Who an agent is.

    Args:
        name: what people call it.
        instructions: its part of the system text.
        model: what thinks for it.
        tools: what it may be shown; only what its grant holds is.
        asks: it may ask the person who gave the task, by the tool `ask`.
        max_turns: replies of the model before it has to hand back what it has.
        max_reply_tokens: bound on each reply; under a token budget 4,096 where not set.
        context_tokens: bound on what the model is sent, or None for the model's own.
        temperature: sampling temperature, or None for the endpoint's own.
    """

    name: str
    instructions: str
    model: Model
    tools: tuple[str, ...] = ()
    asks: bool = False
    max_turns: int = 40
    max_reply_tokens: int | None = None
    context_tokens: int | None = None
    temperature: float | None = None


@dataclass(frozen=True, slots=True)
class Desk:
    """Where one agent works: its authority and the live things around it.

    Args:
        caller: its grant; its `meter` is `budget`.
        budget: a node of its own in the budget tree.
        dispatch: the gate of its tool calls.
        catalog: the tools there are.
        objects: where references lead.
        journal: takes one `Completed` for each reply.
        agent: its id in the journal, the holder of its grant.
        inbox: texts for it, taken before each turn.
        on_text: called with each piece of text as the model writes it.
    """

    caller: Caller
    budget: Budget
    dispatch: Dispatch
    catalog: Catalog
    objects: ObjectStore
    journal: Journal
    agent: str
    inbox: list[str] = field(default_factory=list[str])
    on_text: Callable[[str], None] | None = None

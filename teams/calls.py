"""The tool calls of one turn: side by side unless their effects conflict, results in call order."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import anyio

from guildry.memory.references import Reference
from guildry.teams.context import Conversation
from guildry.teams.model import Completion, Message, ToolCall
from guildry.teams.reply import Broken, read_arguments
from guildry.tools.base import Tool
from guildry.tools.caller import Caller
from guildry.tools.dispatch import Dispatch
from guildry.tools.registry import Catalog, UnknownTool

__all__ = ["CallRunner", "in_groups"]

_STOPPED: Final = "This call was stopped before it ended."
_NOTHING: Final = "(no output)"


@dataclass(slots=True)
class _Asked:
    """A call of one reply, on its way to a result."""

    call: ToolCall
    given: dict[str, Any] | None = None
    text: str = _STOPPED
    stored: str | None = None
    broken: bool = False


class CallRunner:
    """Make the calls of one agent, and keep account of what came of them.

    Args:
        dispatch: the gate.
        catalog: the tools there are, for their effects.
        caller: who calls.
        names: the tools that the agent was shown.
    """

    __slots__ = (
        "_caller",
        "_catalog",
        "_dispatch",
        "_made",
        "_names",
        "_origins",
        "saved_tokens",
        "served",
    )

    def __init__(
        self, dispatch: Dispatch, catalog: Catalog, caller: Caller, names: tuple[str, ...]
    ) -> None:
        self._dispatch = dispatch
        self._catalog = catalog
        self._caller = caller
        self._names = names
        self._made: dict[str, Reference] = {}
        self._origins: frozenset[str] = frozenset()
        self.saved_tokens = 0
        self.served = 0

    @property
    def references(self) -> tuple[Reference, ...]:
        """What the calls stored, in order."""
        return tuple(self._made.values())

    @property
    def labels(self) -> frozenset[str]:
        """Where the results came from."""
        stored = {label for made in self._made.values() for label in made.labels}
        seen = self._dispatch.flow.seen(self._caller.grant.holder)
        return self._origins | stored | seen.keys()

    async def run(self, completion: Completion, conversation: Conversation) -> str | None:
        """Make the calls of a reply and enter them, with their results, in the conversation.

        Returns what is wrong with the reply when not one of its calls could be made.
        """
        asked = _read(completion.calls, conversation)
        try:
            await self._make(asked)
        finally:  # a conversation that is cut here can still be sent: each call has a result
            calls = tuple([each.call for each in asked])
            conversation.add(Message("assistant", completion.text, calls))
            for each in asked:
                conversation.add_result(each.call.id, each.call.name, each.text, each.stored)
        return asked[0].text if all(each.broken for each in asked) else None

    async def _make(self, asked: list[_Asked]) -> None:
        if len(asked) == 1:
            await self._one(asked[0])
            return
        groups = in_groups([each.call.name for each in asked], self._catalog.current.tools)
        if len(groups) == 1:
            await self._in_order(asked, groups[0])
            return
        async with anyio.create_task_group() as tasks:
            for group in groups:
                tasks.start_soon(self._in_order, asked, group)

    async def _in_order(self, asked: list[_Asked], group: Sequence[int]) -> None:
        for index in group:
            await self._one(asked[index])

    async def _one(self, asked: _Asked) -> None:
        if asked.given is None:
            return
        name = asked.call.name
        try:
            result = await self._dispatch.call(self._caller, name, asked.given)
        except UnknownTool as error:
            have = ", ".join(f"`{name}`" for name in self._names) or "none"
            asked.text, asked.broken = f"{error}. Your tools: {have}", True
            return
        asked.text = result.text or _NOTHING
        self.saved_tokens += result.saved_tokens
        if result.references:
            last = result.references[-1]
            asked.stored = f"{last.short} {last.sketch}"
            self._made.update((made.id, made) for made in result.references)
        if not result.is_error:
            self.served += 1
            self._origins |= result.labels


def in_groups(names: Sequence[str], tools: Mapping[str, Tool]) -> list[list[int]]:
    """Return the positions of `names` in groups: calls of one group run one after another.

    Calls conflict when they go to the same plug and one of them may write there.
    """
    plugs: dict[str, list[int]] = {}
    writing: set[str] = set()
    groups: list[list[int]] = []
    for index, name in enumerate(names):
        tool = tools.get(name)
        if tool is None:
            groups.append([index])
            continue
        plugs.setdefault(tool.plug, []).append(index)
        if tool.effects.writes:
            writing.add(tool.plug)
    for plug, indexes in plugs.items():
        if plug in writing:
            groups.append(indexes)
        else:
            groups += [[index] for index in indexes]
    return groups


def _read(calls: Sequence[ToolCall], conversation: Conversation) -> list[_Asked]:
    """Return the calls with arguments parsed and ids of their own.

    A conversation that holds broken JSON would be refused by some endpoints: it is told in the
    result instead.
    """
    asked: list[_Asked] = []
    taken: set[str] = set()
    for call in calls:
        free = conversation.unused_id(call.id, taken)
        taken.add(free)
        if free != call.id:
            call = replace(call, id=free)
        try:
            given = read_arguments(call.arguments)
        except Broken as error:
            asked.append(_Asked(replace(call, arguments="{}"), None, str(error), broken=True))
        else:
            asked.append(_Asked(call, given))
    return asked

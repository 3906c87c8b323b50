"""The guard of flow: what happens where labelled values go into calls that write or reach out.

A guard of dispatch. Knows no value: what counts is where it came from.
"""

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from fnmatch import fnmatchcase
from typing import Final, Literal

import structlog

from guildry.errors import StoreError, ToolFailed
from guildry.memory.events import Messaged
from guildry.memory.journal import Journal
from guildry.tools.asking.board import QuestionBoard
from guildry.tools.asking.questions import Question
from guildry.tools.base import Tool
from guildry.tools.dispatch import Intent
from guildry.tools.flow import Flow, FlowPolicy

__all__ = ["FlowGuard"]

log = structlog.get_logger()

_OWN_PLUG: Final = "guildry"
_OWN_SINKS: Final = frozenset({"run_shell", "propose_tool"})
_MOST_TOLD: Final = 10_000
_Outcome = Literal["told", "allowed", "refused"]


class FlowGuard:
    """Check what goes into calls that write or reach out.

    Guildry's own tools only pass on: the calls that they make are checked, each by itself.

    Args:
        flow: knows the labels of what each agent has seen.
        policy: what happens where a label matters.
        allow: which labels may go into which tools; both with `*` and `?`.
        board: where a person is asked.
        journal: takes word of each such call.
    """

    def __init__(
        self,
        flow: Flow,
        *,
        policy: FlowPolicy,
        allow: Mapping[str, Sequence[str]],
        board: QuestionBoard,
        journal: Journal,
    ) -> None:
        self._flow = flow
        self._policy = policy
        self._allow = {pattern: tuple(labels) for pattern, labels in allow.items()}
        self._board = board
        self._journal = journal
        self._told: OrderedDict[tuple[str, str, tuple[str, ...]], None] = OrderedDict()

    async def __call__(self, intent: Intent) -> None:
        """Let a call pass where no label matters, or where the policy or a person lets it.

        Raises:
            ToolFailed: it was refused; names the labels, what brought them, and the chain.
        """
        tool = intent.tool
        if self._policy == "off" or not _is_sink(tool):
            return
        found = self._flow.reaching(intent.caller, tool.effects, intent.references)
        if found:
            found = {label: by for label, by in found.items() if not self._allows(tool, label)}
        if not found:
            return
        if self._policy == "warn":
            self._tell(intent, found, "told")
            return
        if self._policy == "ask" and await self._is_allowed(intent, found):
            self._tell(intent, found, "allowed")
            return
        self._tell(intent, found, "refused")
        raise ToolFailed(_refusal(intent, found))

    def _allows(self, tool: Tool, label: str) -> bool:
        return any(
            fnmatchcase(tool.name, pattern) and any(fnmatchcase(label, each) for each in labels)
            for pattern, labels in self._allow.items()
        )

    async def _is_allowed(self, intent: Intent, found: Mapping[str, str]) -> bool:
        tool, grant = intent.tool, intent.caller.grant
        question = Question(
            key=f"flow:{tool.name}",
            kind="approval",
            message=(
                f"Allow `{grant.holder}` to call `{tool.name}` of `{tool.plug}` with values that"
                f" it should not just get?\n{_listed(found)}\nAsked by: {' → '.join(grant.chain)}"
            ),
            tool=tool.name,
            plug=tool.plug,
            repeatable=len(grant.chain) == 1,
        )
        return (await self._board.ask(intent.caller, question)).action == "accept"

    def _tell(self, intent: Intent, found: Mapping[str, str], outcome: _Outcome) -> None:
        """Enter it in the journal and the log; of calls that are let pass, each kind once."""
        tool, grant = intent.tool, intent.caller.grant
        kind = (grant.holder, tool.name, tuple(found))
        if outcome == "told":
            if kind in self._told:
                return
            self._told[kind] = None
            while len(self._told) > _MOST_TOLD:
                self._told.popitem(last=False)
        log.warning("labelled_values_passed", tool=tool.name, labels=list(found), outcome=outcome)
        body = {"tool": tool.name, "labels": dict(found), "outcome": outcome}
        with suppress(StoreError):  # a call must not fail, or live on, for its journal
            self._journal.append(
                intent.caller.run, Messaged(grant.holder, grant.holder, "flow", body)
            )


def _is_sink(tool: Tool) -> bool:
    if tool.plug == _OWN_PLUG and tool.name not in _OWN_SINKS:
        return False
    return tool.effects.egress or tool.effects.writes


def _listed(found: Mapping[str, str]) -> str:
    return "\n".join(f"- `{label}`, from {by}" for label, by in found.items())


def _refusal(intent: Intent, found: Mapping[str, str]) -> str:
    tool, chain = intent.tool, " → ".join(intent.caller.grant.chain)
    labels = "; ".join(f"`{label}` from {by}" for label, by in found.items())
    does = "reaches out" if tool.effects.egress else "writes"
    return (
        f"`{tool.name}` {does} and was not called, since labelled values would go into it"
        f" ({labels}; asked by {chain}): do it without them, or report that it is needed;"
        f" `flow_allow` in the configuration can let them pass"
    )

"""Approval: which calls a person is asked about before they are made. A guard of dispatch."""

import json
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Final, Literal

from guildry.errors import ToolFailed
from guildry.memory.references import Reference
from guildry.tools.asking.board import DEADLINE, QuestionBoard
from guildry.tools.asking.questions import Answer, Question
from guildry.tools.base import Json, Tool
from guildry.tools.dispatch import Intent
from guildry.tools.grants import Grant

__all__ = ["Approval", "AskDestructive"]

AskDestructive = Literal["always", "agents", "never"]
"""Of whose calls a tool that says it destroys is asked about: of all, of agents', of none."""

_OWN_PLUG: Final = "guildry"
_SHOWN_CHARACTERS: Final = 2_000
_SHOWN_REFERENCES: Final = 10
_GO_ON: Final = "go on without it and say in your report that it is needed"


class Approval:
    """Ask a person before a call that destroys, or that the configuration names.

    Guildry's own tools are never asked about: they are the user's controls.

    Args:
        board: where the question goes up.
        ask_first: names of tools that are asked about, with `*` and `?`, such as `git_*`.
        ask_destructive: of whose calls tools are asked about whose authors say that they destroy.
    """

    def __init__(
        self,
        board: QuestionBoard,
        *,
        ask_first: Sequence[str] = (),
        ask_destructive: AskDestructive = "always",
    ) -> None:
        self._board = board
        self._patterns = tuple(ask_first)
        self._ask_destructive = ask_destructive

    def asks(self, tool: Tool, grant: Grant) -> bool:
        """Tell whether a call of `tool` under `grant` is asked about first."""
        if tool.plug == _OWN_PLUG:
            return False
        effects = tool.effects
        if effects.admits and effects.destructive and effects.writes:
            always = self._ask_destructive == "always"
            if always or (self._ask_destructive == "agents" and len(grant.chain) > 1):
                return True
        return any(fnmatchcase(tool.name, pattern) for pattern in self._patterns)

    async def __call__(self, intent: Intent) -> None:
        """Ask about a call where that is needed, and wait until a person allows it.

        Raises:
            ToolFailed: it was not allowed; names the chain of who asked whom.
        """
        tool, grant = intent.tool, intent.caller.grant
        if not self.asks(tool, grant):
            return
        question = Question(
            key=f"approve:{tool.name}",
            kind="approval",
            message=_message(tool, grant, intent.references),
            tool=tool.name,
            plug=tool.plug,
            arguments=_shown(intent.arguments),
            repeatable=len(grant.chain) == 1,
        )
        answer = await self._board.ask(intent.caller, question)
        if answer.action != "accept":
            raise ToolFailed(_refusal(tool, grant, answer))


def _message(tool: Tool, grant: Grant, references: Sequence[Reference]) -> str:
    effects = tool.effects
    destroys = effects.admits and effects.destructive
    warning = " What it changes may be lost." if destroys else ""
    if len(grant.chain) == 1:
        lines = [f"Allow the call of `{tool.name}` of `{tool.plug}`?{warning}"]
    else:
        lines = [
            f"Allow `{grant.holder}` to call `{tool.name}` of `{tool.plug}`?{warning}",
            f"Asked by: {' → '.join(grant.chain)}",
        ]
    if references:
        lines.append("It reads:")
        lines += [f"- {each.short} {each.sketch}" for each in references[:_SHOWN_REFERENCES]]
        more = len(references) - _SHOWN_REFERENCES
        lines += [f"- and {more} more"] if more > 0 else []
    return "\n".join(lines)


def _shown(arguments: Mapping[str, Json]) -> dict[str, Json]:
    """Return the arguments as a person is shown them, long ones by their beginnings."""
    return {name: _beginning(value) for name, value in arguments.items()}


def _beginning(value: Json) -> Json:
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    if len(text) <= _SHOWN_CHARACTERS:
        return value
    return f"{text[:_SHOWN_CHARACTERS]}… ({len(text):,} characters)"


def _refusal(tool: Tool, grant: Grant, answer: Answer) -> str:
    """Return what the caller reads, who is told what to do now."""
    chain = " → ".join(grant.chain)
    head = f"`{tool.name}` needs a person's approval and was not called (asked by {chain})"
    if answer.action == "decline" and answer.by == DEADLINE:
        why = "nobody allowed it in time"
    elif answer.action == "decline":
        why = f"it was declined by `{answer.by}`"
    else:
        why = "the question was closed without a decision"
    if len(grant.chain) > 1:
        return f"{head}; {why}: {_GO_ON}"
    if answer.action == "decline" and answer.by != DEADLINE:
        return f"{head}; {why}: call it again only when you are told to"
    return f"{head}; {why}: a person allows it where it is asked, or with `guildry approve`"

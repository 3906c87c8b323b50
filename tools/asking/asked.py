"""A question on the board: as it is kept, as people read it, and as journals tell of it."""

import base64
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from guildry.memory.events import Answered, Asked
from guildry.memory.questions import QuestionRecord
from guildry.tools.asking.questions import Answer, Question
from guildry.tools.caller import Caller

__all__ = [
    "KEPT",
    "WAITS",
    "OpenQuestion",
    "answered_event",
    "asked_event",
    "given",
    "new_id",
    "opened",
    "runs_of",
    "said",
    "waiting_word",
]

KEPT: Final = frozenset({"approval", "form"})
"""The kinds of questions that are kept, so that others than the client can answer them."""

WAITS: Final = "waits for an answer"
"""How word of a call begins that waits for a person."""

_MESSAGE_CHARACTERS: Final = 2_000


@dataclass(frozen=True, slots=True)
class OpenQuestion:
    """A question that waits for its answer.

    Args:
        id: by which it is answered.
        run: whose call asks; the principal itself outside any run.
        principal: whose call it is in the end.
        question: what is asked, of whom the chain tells.
        asked_at: seconds since the epoch.
        expires_at: seconds since the epoch.
    """

    id: str
    run: str
    principal: str
    question: Question
    asked_at: float
    expires_at: float

    def as_json(self) -> dict[str, Any]:
        """Return the question as a person or a model reads it."""
        asked = self.question
        about: dict[str, Any] = {
            "question": self.id,
            "run": self.run,
            "principal": self.principal,
            "kind": asked.kind,
            "message": asked.message,
            "chain": list(asked.chain),
            "tool": asked.tool,
            "plug": asked.plug,
            "asked_at": self.asked_at,
            "expires_at": self.expires_at,
        }
        given = {"arguments": dict(asked.arguments), "schema": dict(asked.schema)}
        return about | {name: value for name, value in given.items() if value}


def new_id() -> str:
    """Return an id that nobody guesses."""
    return "q" + base64.b32encode(secrets.token_bytes(7))[:10].decode().lower()


def waiting_word(id: str) -> str:
    """Return the word of progress of a call that waits for the answer to a question."""
    return f"{WAITS}: `guildry approve {id}`"


def runs_of(caller: Caller) -> dict[str, str]:
    """Return the run that asks, and the runs whose agents have started it, each with its agent."""
    agents = [holder for holder in caller.grant.chain[1:] if "/" in holder]
    runs = {holder.rpartition("/")[0]: holder for holder in agents}
    return {**runs, caller.run: caller.grant.holder}


def asked_event(question: Question, agent: str) -> Asked:
    """Return what the journal says of a question that `agent` has put."""
    return Asked(
        agent=agent,
        question=question.id,
        type=question.kind,
        tool=question.tool,
        message=question.message[:_MESSAGE_CHARACTERS],
        can_be_answered=question.kind in KEPT,
    )


def answered_event(question: Question, answer: Answer, agent: str) -> Answered:
    """Return what the journal says of an answer that `agent` has got."""
    return Answered(agent, question.id, answer.action, answer.by)


def said(question: Question) -> Mapping[str, Any]:
    """Return a question as it is kept."""
    return {
        "key": question.key,
        "kind": question.kind,
        "message": question.message,
        "schema": dict(question.schema),
        "params": dict(question.params),
        "chain": list(question.chain),
        "tool": question.tool,
        "plug": question.plug,
        "arguments": dict(question.arguments),
        "repeatable": question.repeatable,
    }


def given(answer: Answer) -> Mapping[str, Any]:
    """Return an answer as it is kept."""
    return {"action": answer.action, "content": dict(answer.content), "by": answer.by}


def opened(record: QuestionRecord) -> OpenQuestion:
    """Return a question that was kept."""
    kept: dict[str, Any] = {**record.question, "chain": tuple(record.question["chain"])}
    return OpenQuestion(
        id=record.id,
        run=record.run,
        principal=record.principal,
        question=Question(**kept, id=record.id),
        asked_at=record.asked_at,
        expires_at=record.expires_at,
    )

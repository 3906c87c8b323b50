"""Questions: what a call asks a person, or the client's own model, while it goes on.

Knows no client: a `Channel` is one way of putting a question, and whoever serves clients has them.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, Protocol

from guildry.tools.base import Json

__all__ = ["Answer", "Ask", "Channel", "Question", "QuestionKind"]

QuestionKind = Literal["approval", "form", "url", "sampling", "roots"]
"""What is asked: may this call be made; fill in a form; visit a page; have your model complete a
prompt; name your folders. Only the first two can be answered without the client that made the call.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question that a call has.

    Args:
        key: names it within its call. The same call, made again, asks it under the same key.
        kind: what is asked.
        message: what a person reads.
        schema: JSON Schema of the answer's content: for `form`, and for `approval` (no content).
        params: the parameters as they go on the wire, for `url`, `sampling` and `roots`.
        chain: who asks, through whom: the holders from the principal to the asker.
        tool: the tool whose call asks, or which is to be approved.
        plug: the plug that the tool came from.
        arguments: of the call that is to be approved, long values cut.
        repeatable: nothing has been done yet, so that the call may be begun anew with the answer.
        id: under which it is kept; set by whoever keeps it, before a channel is asked.
    """

    key: str
    kind: QuestionKind
    message: str
    schema: Mapping[str, Json] = field(default_factory=dict[str, Json])
    params: Mapping[str, Json] = field(default_factory=dict[str, Json])
    chain: tuple[str, ...] = ()
    tool: str = ""
    plug: str = ""
    arguments: Mapping[str, Json] = field(default_factory=dict[str, Json])
    repeatable: bool = False
    id: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of a question.

    Args:
        action: `accept`, with content; `decline`, a clear no; `cancel`, no decision.
        content: what was filled in; for `sampling` and `roots` the whole result from the wire.
        by: who answered: a principal, `deadline` or `nobody`.
    """

    action: Literal["accept", "decline", "cancel"]
    content: Mapping[str, Json] = field(default_factory=dict[str, Json])
    by: str = ""


Ask = Callable[[Question], Awaitable[Answer]]
"""Put a question and wait for its answer, which comes at its deadline at the latest."""


class Channel(Protocol):
    """A way to the client that waits for a call: questions go out, answers come back."""

    def takes(self, kind: QuestionKind) -> bool:
        """Tell whether this client can be asked that kind of question."""
        ...

    async def ask(self, question: Question) -> Answer:
        """Put the question and wait. Cancelled once somebody else has answered it."""
        ...

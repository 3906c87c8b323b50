"""What a model is to an agent: a request goes in, a completion with its usage comes out."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

__all__ = [
    "CHARS_PER_TOKEN",
    "Completion",
    "Message",
    "Model",
    "Request",
    "ToolCall",
    "ToolSpec",
    "Usage",
    "estimated_tokens",
]

CHARS_PER_TOKEN: Final = 4
"""What a token is taken for where no endpoint counts."""


@dataclass(frozen=True, slots=True)
class ToolSpec:
    """A tool as a model is shown it. `parameters` is JSON Schema with an object at its root.

    Args:
        name: what the model calls it.
        description: what it does.
        parameters: the schema of its arguments.
        strict: ask the endpoint to hold the model to the schema while it decodes. Only where
            the endpoint is known to take it: some refuse schemas with optional parameters.
    """

    name: str
    description: str
    parameters: Mapping[str, Any]
    strict: bool = False
    _wire: bytes = field(default=b"", init=False, repr=False, compare=False)

    def encoded(self, encode: "Callable[[ToolSpec], bytes]") -> bytes:
        """Return `encode(self)`, worked out once: siblings and turns share the bytes."""
        if not self._wire:
            object.__setattr__(self, "_wire", encode(self))
        return self._wire

    @property
    def size(self) -> int:
        """Characters, as a model is shown them."""
        return len(self.name) + len(self.description) + len(json.dumps(self.parameters))


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A call that a model asked for. `arguments` is the JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str

    @property
    def size(self) -> int:
        """Characters, as a model wrote them."""
        return len(self.name) + len(self.arguments)


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a conversation. `call_id` is set on role `tool`, `calls` on `assistant`."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str
    calls: tuple[ToolCall, ...] = ()
    call_id: str | None = None
    _wire: bytes = field(default=b"", init=False, repr=False, compare=False)

    def encoded(self, encode: "Callable[[Message], bytes]") -> bytes:
        """Return `encode(self)`, worked out once: a conversation is sent again on each turn."""
        if not self._wire:
            object.__setattr__(self, "_wire", encode(self))
        return self._wire

    @property
    def size(self) -> int:
        """Characters, calls included."""
        calls = self.calls
        return len(self.content) + (sum(call.size for call in calls) if calls else 0)


@dataclass(frozen=True, slots=True)
class Usage:
    """Tokens of one or more model calls. `cached_tokens` are part of `prompt_tokens`."""

    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0

    @property
    def total(self) -> int:
        """Prompt and completion tokens together."""
        return self.prompt_tokens + self.completion_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.prompt_tokens + other.prompt_tokens,
            self.completion_tokens + other.completion_tokens,
            self.cached_tokens + other.cached_tokens,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a model is asked.

    Args:
        messages: the conversation; the system message, if any, is first.
        tools: what may be called, in a fixed order (the prefix stays byte-stable).
        response_schema: JSON Schema that the text of the reply must meet, or None.
        max_tokens: bound on the reply, or None for the endpoint's own.
        temperature: sampling temperature, or None for the endpoint's own.
        parallel_calls: whether several tool calls in one reply are welcome.
    """

    messages: tuple[Message, ...]
    tools: tuple[ToolSpec, ...] = ()
    response_schema: Mapping[str, Any] | None = None
    max_tokens: int | None = None
    temperature: float | None = None
    parallel_calls: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Completion:
    """What a model replied. `finish` is the endpoint's own word, such as `stop` or `length`."""

    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    usage: Usage = field(default_factory=Usage)
    finish: str = "stop"


def estimated_tokens(request: Request, reply: Completion) -> Usage:
    """Return the tokens that a call cost, estimated from its characters."""
    shown = sum(m.size for m in request.messages) + sum(t.size for t in request.tools)
    written = len(reply.text) + sum(call.size for call in reply.calls)
    return Usage(-(-shown // CHARS_PER_TOKEN), -(-written // CHARS_PER_TOKEN))


class Model(Protocol):
    """Complete requests. Safe to call from many tasks at once."""

    @property
    def name(self) -> str:
        """What the journal calls this model."""
        ...

    @property
    def context_tokens(self) -> int:
        """How many tokens it may be sent at once."""
        ...

    async def complete(
        self, request: Request, *, on_text: Callable[[str], None] | None = None
    ) -> Completion:
        """Return the model's reply.

        Args:
            request: what is asked.
            on_text: called with each piece of text as it streams in, when streaming is wanted.

        Raises:
            ModelUnavailable: connection loss, time-out, 429 or 5xx after every retry.
            ModelRejected: 4xx.
            ModelReplyError: the endpoint's answer is not a chat completion.
        """
        ...

    async def aclose(self) -> None:
        """Release connections."""
        ...

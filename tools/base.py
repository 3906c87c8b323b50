"""What a tool is and what it answers. Knows no source of tools, no client and no model."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal, Protocol

from guildry.memory.references import Reference

__all__ = [
    "READS",
    "REFERENCE_FORMAT",
    "SOME_OBJECT",
    "Block",
    "Call",
    "Effects",
    "Embedded",
    "Failure",
    "Icon",
    "Invoke",
    "Json",
    "Link",
    "Log",
    "Media",
    "Outcome",
    "Progress",
    "Result",
    "Text",
    "Tool",
]

Json = Any
"""A JSON value. An alias, so that signatures say what is meant where `Any` is unavoidable."""

SOME_OBJECT: Final[Mapping[str, Json]] = {"type": "object"}
"""The output schema of a tool that promises an object and no more."""

REFERENCE_FORMAT: Final = "guildry-reference"
"""JSON Schema `format` of a parameter that takes references as they are written, also inside."""


@dataclass(frozen=True, slots=True)
class Effects:
    """What a tool does to the world, as declared by its author or by MCP annotations.

    They drive what runs in parallel, what is retried or repeated on resume and what is asked
    about first. The defaults are those of MCP tool annotations: a tool that says nothing may
    write, destroy and reach out.

    Args:
        writes: it changes something outside itself.
        egress: it reaches out of this machine.
        destructive: what it changes may be lost.
        idempotent: a second call with the same arguments changes nothing more.
        admits: its author says in so many words that it destroys, so that it is asked about first.
    """

    writes: bool = True
    egress: bool = True
    destructive: bool = True
    idempotent: bool = False
    admits: bool = False

    @property
    def reads_only(self) -> bool:
        """Tell whether the tool changes nothing."""
        return not self.writes

    @property
    def repeatable(self) -> bool:
        """Tell whether running the same call twice does no more than running it once."""
        return self.idempotent or not self.writes


READS: Final = Effects(writes=False, egress=False, destructive=False, idempotent=True)
"""The effects of a tool that only reads what is on this machine."""


@dataclass(frozen=True, slots=True)
class Text:
    """Text, as a model reads it."""

    text: str


@dataclass(frozen=True, slots=True)
class Media:
    """An image, a sound or any other bytes, with their media type."""

    data: bytes
    media_type: str


@dataclass(frozen=True, slots=True)
class Link:
    """A pointer to a resource that the caller may read."""

    uri: str
    name: str
    media_type: str | None = None
    description: str | None = None
    size: int | None = None


@dataclass(frozen=True, slots=True)
class Embedded:
    """A resource with its content: exactly one of `text` and `data` is set."""

    uri: str
    media_type: str | None = None
    text: str | None = None
    data: bytes | None = None


Block = Text | Media | Link | Embedded


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a tool answered, before the result contract is applied.

    `structured` is the value of a tool with an output schema; `blocks` is everything else.
    Where both are there they say the same thing in two forms.
    """

    blocks: tuple[Block, ...] = ()
    structured: Json = None
    has_structured: bool = False
    is_error: bool = False


Failure = Literal["refused", "denied", "misused", "failed", "late"]
"""How a call failed: `refused`, wrong as it was written, or `denied` by a guard, a budget or
Guildry's own trouble, both before anything was done; `misused`, the tool says that the caller is
wrong; `failed`, the tool is; `late`, the caller's own time was over.
"""


@dataclass(frozen=True, slots=True)
class Result:
    """What a caller gets: one form of the answer, inline or by reference.

    Args:
        text: what a model reads. For a stored answer: sketch, preview and reference.
        blocks: what a client shows. Media stay here; for a model they are references in `text`.
        structured: the inline value of a tool with an output schema, else None.
        references: where the answer is kept, when it was too large to be inline (usually one).
        size: of the whole answer, in bytes.
        saved_tokens: estimated tokens that the references keep out of a model's context.
        failure: how the call failed, where its text is not an answer of the tool's own.
        labels: where the answer, and all that was read for it, came from.
    """

    text: str
    blocks: tuple[Block, ...] = ()
    structured: Json = None
    has_structured: bool = False
    references: tuple[Reference, ...] = ()
    is_error: bool = False
    size: int = 0
    saved_tokens: int = 0
    failure: Failure | None = None
    labels: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Icon:
    """A picture of a tool, a prompt or a resource: an `https:` or `data:` URI."""

    src: str
    media_type: str | None = None
    sizes: tuple[str, ...] = ()
    theme: Literal["light", "dark"] | None = None


class Progress(Protocol):
    """Take word of how far a call has come; never raises, never blocks for long."""

    async def __call__(
        self, done: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Report that `done` of `total` is finished."""
        ...


class Log(Protocol):
    """Take a log message for the client; never raises, never blocks for long."""

    @property
    def level(self) -> str:
        """The least level that the client wants: one of `debug`, `info`, ... `emergency`."""
        ...

    async def __call__(self, level: str, data: Json, logger: str | None = None) -> None:
        """Pass on a message of that level; one below `self.level` is dropped."""
        ...


@dataclass(frozen=True, slots=True)
class Call:
    """What a tool is told about the call it serves.

    Args:
        tool: what is called.
        caller: a `guildry.tools.caller.Caller`.
        progress: where word of progress goes.
        ask: puts a question to whoever made the call (`guildry.tools.asking.questions.Ask`), or
            None where nobody can be asked.
        touch: says that the resource at a URI, of the tool's own plug, is another one now. Set
            for Python functions; may be called in any thread.
    """

    tool: "Tool"
    caller: Any
    progress: Progress | None = None
    ask: Any = None
    touch: Callable[[str], None] | None = None

    @property
    def log(self) -> Log | None:
        """Where log messages for the client go, or None where it wants none."""
        log: Log | None = getattr(self.caller, "log", None)
        return log


Invoke = Callable[[dict[str, Json], Call], Awaitable[Outcome]]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, weakref_slot=True)
class Tool:
    """A tool that can be called. Two tools are equal only when they are the same object.

    Args:
        name: what callers say; 1 to 64 of `[A-Za-z0-9_-]`, unique in a registry.
        plug: the name of the plug that it came from.
        source_name: its name there.
        description: what a model reads.
        input_schema: JSON Schema 2020-12 of the arguments; the root is an object.
        output_schema: JSON Schema of the structured answer, if the tool promises one.
        effects: what it does to the world.
        invoke: runs it on arguments that were checked against `input_schema`.
        timeout_s: seconds that one call may take, or None for the server's default.
        scope: what a caller's grant must hold to call it: `tools`, `teams` or `admin`.
        annotations: further MCP annotations and `_meta`, passed on as they came.
        icons: pictures of it.
        asks: it may put questions to the caller while it runs (`Call.ask`).
        task: whether a client with tasks gets its call as a task: never, if it likes, or only so.
    """

    name: str
    plug: str
    description: str
    input_schema: Mapping[str, Json]
    invoke: Invoke
    source_name: str = ""
    title: str | None = None
    output_schema: Mapping[str, Json] | None = None
    effects: Effects = Effects()
    timeout_s: float | None = None
    scope: Literal["tools", "teams", "admin"] = "tools"
    annotations: Mapping[str, Json] = field(default_factory=dict[str, Json])
    icons: tuple[Icon, ...] = ()
    asks: bool = False
    task: Literal["never", "optional", "required"] = "never"

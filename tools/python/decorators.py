"""What the author of a Python plug says of a function: decorators, and how they are read."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal, TypeVar, overload

from guildry.tools.base import READS, Effects, Icon, Json

__all__ = [
    "Completes",
    "DeclaredPrompt",
    "DeclaredResource",
    "DeclaredTool",
    "declared",
    "effects",
    "prompt",
    "reads",
    "resource",
    "tool",
]

F = TypeVar("F", bound=Callable[..., Any])
Task = Literal["never", "optional", "required"]

Completes = Callable[..., Any] | Mapping[str, Sequence[str]]
"""How arguments are completed: the values of each, or a function of the argument's name, what was
typed so far and the other arguments, which returns values.
"""

_DECLARED: Final = "__guildry_declared__"


@dataclass(frozen=True, slots=True)
class DeclaredTool:
    """What is said of a function that is a tool."""

    effects: Effects = Effects()
    title: str | None = None
    name: str | None = None
    timeout_s: float | None = None
    icons: tuple[Icon, ...] = ()
    task: Task = "never"
    asks: bool = False


@dataclass(frozen=True, slots=True)
class DeclaredPrompt:
    """What is said of a function that is a prompt."""

    title: str | None = None
    name: str | None = None
    icons: tuple[Icon, ...] = ()
    complete: Completes | None = None


@dataclass(frozen=True, slots=True)
class DeclaredResource:
    """What is said of a function that is a resource, or with variables in its URI a template."""

    uri: str
    title: str | None = None
    name: str | None = None
    media_type: str | None = None
    size: int | None = None
    icons: tuple[Icon, ...] = ()
    annotations: Mapping[str, Json] = field(default_factory=dict[str, Json])
    complete: Completes | None = None


Declared = DeclaredTool | DeclaredPrompt | DeclaredResource


def declared(function: Callable[..., Any]) -> Declared:
    """Return what was said of `function`; without a word it is a tool that may do anything."""
    said: Declared = getattr(function, _DECLARED, DeclaredTool())
    return said


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *,
    writes: bool = True,
    egress: bool = True,
    destructive: bool | None = None,
    idempotent: bool = False,
    title: str | None = None,
    name: str | None = None,
    timeout_s: float | None = None,
    icons: Sequence[Icon] = (),
    task: Task = "never",
    asks: bool = False,
) -> Callable[[F], F]: ...
def tool(
    function: F | None = None,
    /,
    *,
    writes: bool = True,
    egress: bool = True,
    destructive: bool | None = None,
    idempotent: bool = False,
    title: str | None = None,
    name: str | None = None,
    timeout_s: float | None = None,
    icons: Sequence[Icon] = (),
    task: Task = "never",
    asks: bool = False,
) -> F | Callable[[F], F]:
    """Declare what a function does to the world, so that it can run in parallel or be repeated.

    Args:
        function: what is declared, where nothing else is said.
        writes: it changes something outside itself.
        egress: it reaches out of this machine.
        destructive: what it changes may be lost. Said in so many words, a person is asked first;
            unsaid, it may, as MCP has it, but nobody is asked.
        idempotent: a second call with the same arguments changes nothing more.
        title: what a person reads in place of the name.
        name: what callers say, instead of the function's name.
        timeout_s: seconds that one call may take.
        icons: pictures of it.
        task: whether a client that has tasks gets its calls as tasks.
        asks: it may put questions while it runs. A function with a parameter `Ask` always may.
    """
    done = Effects(writes, egress, destructive is not False, idempotent, destructive is True)
    said = DeclaredTool(done, title, name, timeout_s, tuple(icons), task, asks)
    declare = _declare(said)
    return declare if function is None else declare(function)


effects = tool
"""The same as `tool`."""


@overload
def reads(function: F, /) -> F: ...
@overload
def reads(
    *,
    title: str | None = None,
    name: str | None = None,
    timeout_s: float | None = None,
    icons: Sequence[Icon] = (),
    task: Task = "never",
    asks: bool = False,
) -> Callable[[F], F]: ...
def reads(
    function: F | None = None,
    /,
    *,
    title: str | None = None,
    name: str | None = None,
    timeout_s: float | None = None,
    icons: Sequence[Icon] = (),
    task: Task = "never",
    asks: bool = False,
) -> F | Callable[[F], F]:
    """Declare that a function only reads what is on this machine. Used with or without brackets."""
    declare = _declare(DeclaredTool(READS, title, name, timeout_s, tuple(icons), task, asks))
    return declare if function is None else declare(function)


@overload
def prompt(function: F, /) -> F: ...
@overload
def prompt(
    *,
    title: str | None = None,
    name: str | None = None,
    icons: Sequence[Icon] = (),
    complete: Completes | None = None,
) -> Callable[[F], F]: ...
def prompt(
    function: F | None = None,
    /,
    *,
    title: str | None = None,
    name: str | None = None,
    icons: Sequence[Icon] = (),
    complete: Completes | None = None,
) -> F | Callable[[F], F]:
    """Declare that a function is a prompt: its parameters are the arguments, its answer the text.

    It returns text, a block, a `Message`, a list of these, or `Messages`.

    Args:
        function: what is declared, where nothing else is said.
        title: what a person reads in place of the name.
        name: what callers say, instead of the function's name.
        icons: pictures of it.
        complete: completes its arguments.
    """
    declare = _declare(DeclaredPrompt(title, name, tuple(icons), complete))
    return declare if function is None else declare(function)


def resource(
    uri: str,
    /,
    *,
    title: str | None = None,
    name: str | None = None,
    media_type: str | None = None,
    size: int | None = None,
    icons: Sequence[Icon] = (),
    annotations: Mapping[str, Json] | None = None,
    complete: Completes | None = None,
) -> Callable[[F], F]:
    """Declare that a function reads what is at a URI, or at all URIs that follow a template.

    It returns text, bytes, what JSON can carry, an `Embedded` or a list of these.

    Args:
        uri: such as `notes://today`, or `notes://{day}` for a function with a parameter `day`.
        title: what a person reads in place of the name.
        name: instead of the function's name.
        media_type: of what it returns; by its kind if None.
        size: in bytes, where it is known.
        icons: pictures of it.
        annotations: `audience`, `priority` and `lastModified`, as MCP has them.
        complete: completes the variables of a template.
    """
    told = dict(annotations or {})
    said = DeclaredResource(uri, title, name, media_type, size, tuple(icons), told, complete)
    return _declare(said)


def _declare(said: Declared) -> Callable[[F], F]:
    def mark(function: F) -> F:
        setattr(function, _DECLARED, said)
        return function

    return mark

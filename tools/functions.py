"""Plain functions as tools: the schema comes from type hints, the words from the docstring."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast, get_type_hints, overload

import pydantic
import structlog

from guildry.errors import ToolError, ToolFailed, ToolRetry
from guildry.tools.answers import Answers, PlainSchema, untitled
from guildry.tools.base import READS, Call, Effects, Invoke, Json, Outcome, Tool
from guildry.tools.docstrings import Docstring
from guildry.tools.threads import DaemonThreads

__all__ = ["UnfitFunction", "effects", "reads", "tool_from"]

log = structlog.get_logger()

F = TypeVar("F", bound=Callable[..., Any])

_DECLARED: Final = "__guildry_tool__"


class UnfitFunction(Exception):
    """Report a function that cannot be a tool, with the reason and the cure."""


@dataclass(frozen=True, slots=True)
class _Declared:
    effects: Effects = Effects()
    title: str | None = None
    name: str | None = None
    timeout_s: float | None = None


def effects(
    *,
    writes: bool = True,
    egress: bool = True,
    destructive: bool = True,
    idempotent: bool = False,
    title: str | None = None,
    name: str | None = None,
    timeout_s: float | None = None,
) -> Callable[[F], F]:
    """Declare what a function does to the world, so that it can run in parallel or be repeated.

    Args:
        writes: it changes something outside itself.
        egress: it reaches out of this machine.
        destructive: what it changes may be lost.
        idempotent: a second call with the same arguments changes nothing more.
        title: what a person reads in place of the name.
        name: what callers say, instead of the function's name.
        timeout_s: seconds that one call may take.
    """
    declared = Effects(writes, egress, destructive, idempotent)
    return _declare(_Declared(declared, title, name, timeout_s))


@overload
def reads(function: F, /) -> F: ...
@overload
def reads(
    *, title: str | None = None, name: str | None = None, timeout_s: float | None = None
) -> Callable[[F], F]: ...
def reads(
    function: F | None = None,
    /,
    *,
    title: str | None = None,
    name: str | None = None,
    timeout_s: float | None = None,
) -> F | Callable[[F], F]:
    """Declare that a function only reads what is on this machine. Used with or without brackets."""
    declare = _declare(_Declared(READS, title, name, timeout_s))
    return declare if function is None else declare(function)


def _declare(declared: _Declared) -> Callable[[F], F]:
    def mark(function: F) -> F:
        setattr(function, _DECLARED, declared)
        return function

    return mark


@dataclass(frozen=True, slots=True)
class _Parameters:
    """How the arguments of a call become those of a function."""

    model: type[pydantic.BaseModel]
    fields: Mapping[str, str]
    positional: tuple[inspect.Parameter, ...]
    call: str | None

    def bind(self, tool: str, arguments: Mapping[str, Json], call: Call) -> "_Bound":
        """Return the arguments as the function wants them, in the types of its hints.

        Raises:
            ToolRetry: an argument does not fit; says which and why.
        """
        try:
            given = self.model.model_validate(arguments)
        except pydantic.ValidationError as error:
            faults = "; ".join(_fault(each) for each in error.errors(include_url=False)[:3])
            raise ToolRetry(f"`{tool}` was not called: {faults}") from error
        values = {self.fields[key]: getattr(given, key) for key in given.model_fields_set}
        if self.call is not None:
            values[self.call] = call
        positional = [values.pop(each.name, each.default) for each in self.positional]
        return _Bound(positional, values)


@dataclass(frozen=True, slots=True)
class _Bound:
    positional: list[Any]
    named: dict[str, Any]

    def of(self, function: Callable[..., Any]) -> Any:
        """Call `function` with these."""
        return function(*self.positional, **self.named)


def _fault(error: Any) -> str:
    where = ".".join(str(step) for step in error["loc"])
    return f"`{where}` is {error['input']!r:.100}: {error['msg'].lower()}"


def tool_from(function: Callable[..., Any], *, plug: str, threads: DaemonThreads) -> Tool:
    """Return `function` as a tool of `plug`. A plain one runs in `threads`, an async one here.

    Raises:
        UnfitFunction: its signature cannot be described to a model.
    """
    declared = getattr(function, _DECLARED, _Declared())
    name = declared.name or function.__name__
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UnfitFunction("it yields: return a list instead")
    about = Docstring.of(function)
    hints = _hints(function)
    answers = Answers.of(name, hints.pop("return", Any))
    parameters = _parameters(function, hints, about.parameters)
    return Tool(
        name=name,
        plug=plug,
        source_name=name,
        title=declared.title,
        description=about.text,
        input_schema=_input_schema(parameters.model),
        output_schema=answers.schema,
        effects=declared.effects,
        timeout_s=declared.timeout_s,
        invoke=_invoker(function, name, parameters, answers, threads),
    )


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except Exception as error:  # a hint is any expression of the user's
        raise UnfitFunction(
            f"its type hints cannot be read ({type(error).__name__}: {error}):"
            " import what they name at the top of the file"
        ) from error


def _parameters(
    function: Callable[..., Any], hints: dict[str, Any], words: Mapping[str, str]
) -> _Parameters:
    fields: dict[str, Any] = {}
    names: dict[str, str] = {}
    positional: list[inspect.Parameter] = []
    call: str | None = None
    for n, parameter in enumerate(inspect.signature(function).parameters.values()):
        hint = hints.get(parameter.name, Any)
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise UnfitFunction(f"it takes `{parameter}`: name each parameter")
        if parameter.kind is parameter.POSITIONAL_ONLY:
            positional.append(parameter)
        if hint is Call:
            call = parameter.name
            continue
        key = f"p{n}"  # a parameter may have any name, a field of a model may not
        required = parameter.default is parameter.empty
        names[key] = parameter.name
        about: dict[str, Any] = {"alias": parameter.name}
        if parameter.name in words:
            about["description"] = words[parameter.name]
        fields[key] = (hint, pydantic.Field(... if required else parameter.default, **about))
    config = pydantic.ConfigDict(extra="forbid")
    try:
        model = pydantic.create_model("Arguments", __config__=config, **fields)
    except (pydantic.PydanticUserError, TypeError) as error:
        raise UnfitFunction(_first_line(error)) from error
    return _Parameters(model, names, tuple(positional), call)


def _input_schema(model: type[pydantic.BaseModel]) -> dict[str, Json]:
    try:
        schema = model.model_json_schema(schema_generator=PlainSchema)
    except pydantic.PydanticUserError as error:
        raise UnfitFunction(_first_line(error)) from error
    return {"type": "object", "properties": {}, **cast("dict[str, Json]", untitled(schema))}


def _first_line(error: Exception) -> str:
    text = str(error).splitlines()[0].rstrip(".:")
    return f"its hints have no JSON Schema ({text}): use types that JSON can carry"


def _invoker(
    function: Callable[..., Any],
    name: str,
    parameters: _Parameters,
    answers: Answers,
    threads: DaemonThreads,
) -> Invoke:
    is_async = inspect.iscoroutinefunction(function)

    async def invoke(arguments: dict[str, Json], call: Call) -> Outcome:
        bound = parameters.bind(name, arguments, call)
        try:
            if is_async:
                value = await bound.of(function)
            else:
                value = await threads.run(bound.of, function)
            if inspect.isawaitable(value):  # a plain wrapper around an async function
                value = await value
        except ToolError:
            raise
        except (Exception, SystemExit) as error:
            log.warning("function_raised", tool=name, plug=call.tool.plug, exc_info=True)
            words = f": {error}" if str(error) else ""
            raise ToolFailed(f"`{name}` failed: {type(error).__name__}{words}") from error
        return answers.outcome(value)

    return invoke

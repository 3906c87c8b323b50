"""The parameters of a function: what a caller gives them, in the types of their hints.

Knows functions and pydantic; knows neither tools nor prompts.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, get_type_hints

import pydantic
import structlog

from guildry.errors import ToolError, ToolFailed, ToolRetry
from guildry.tools.asking.questions import Answer, Ask, Question
from guildry.tools.base import Call, Json
from guildry.tools.python.threads import DaemonThreads

__all__ = ["Bound", "Parameters", "UnfitFunction", "ask_nobody", "hints_of", "no_schema"]

log = structlog.get_logger()


class UnfitFunction(Exception):
    """Report a function that cannot be what it is meant to be, with the reason and the cure."""


async def ask_nobody(question: Question) -> Answer:
    """Answer a question where nobody can be asked."""
    return Answer("cancel", by="nobody")


@dataclass(frozen=True, slots=True)
class Bound:
    """The arguments of one call of a function."""

    positional: list[Any]
    named: dict[str, Any]
    is_async: bool
    asks: bool

    def of(self, function: Callable[..., Any]) -> Any:
        """Call `function` with these."""
        return function(*self.positional, **self.named)

    async def done(
        self, function: Callable[..., Any], threads: DaemonThreads, name: str, plug: str
    ) -> Any:
        """Return what `function` returns in the end. A plain one runs in `threads`.

        Raises:
            ToolFailed: it raised, and what.
        """
        try:
            if self.is_async:
                value = await self.of(function)
            else:
                value = await threads.run(self.of, function)
            if inspect.isawaitable(value):  # a plain wrapper around an async function
                value = await value
        except ToolError:
            raise
        except (Exception, SystemExit) as error:
            log.warning("function_raised", tool=name, plug=plug, exc_info=True)
            words = f": {error}" if str(error) else ""
            raise ToolFailed(f"`{name}` failed: {type(error).__name__}{words}") from error
        return value


@dataclass(frozen=True, slots=True)
class Parameters:
    """How the arguments of a call become those of a function.

    Args:
        model: checks the arguments, by the names that callers say.
        fields: the function's parameters, by the fields of the model.
        positional: parameters that take no name.
        call: the parameter that takes the `Call`.
        ask: the parameter that takes an `Ask`.
        is_async: the function runs in the event loop.
    """

    model: type[pydantic.BaseModel]
    fields: Mapping[str, str]
    positional: tuple[inspect.Parameter, ...]
    call: str | None
    ask: str | None
    is_async: bool

    @classmethod
    def of(
        cls, function: Callable[..., Any], hints: Mapping[str, Any], words: Mapping[str, str]
    ) -> "Parameters":
        """Read the parameters of `function`.

        Args:
            function: whose they are.
            hints: their types by name.
            words: what is said of them, by name.

        Raises:
            UnfitFunction: they cannot be described.
        """
        fields: dict[str, Any] = {}
        names: dict[str, str] = {}
        positional: list[inspect.Parameter] = []
        given: dict[str, str] = {}
        for n, parameter in enumerate(inspect.signature(function).parameters.values()):
            hint = hints.get(parameter.name, Any)
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                raise UnfitFunction(f"it takes `{parameter}`: name each parameter")
            if parameter.kind is parameter.POSITIONAL_ONLY:
                positional.append(parameter)
            if hint is Call or hint == Ask:
                given["call" if hint is Call else "ask"] = parameter.name
                continue
            key = f"p{n}"  # a parameter may have any name, a field of a model may not
            required = parameter.default is parameter.empty
            names[key] = parameter.name
            about: dict[str, Any] = {"alias": parameter.name}
            if parameter.name in words:
                about["description"] = words[parameter.name]
            fields[key] = (hint, pydantic.Field(... if required else parameter.default, **about))
        is_async = inspect.iscoroutinefunction(function)
        if "ask" in given and not is_async:
            raise UnfitFunction(f"it takes `{given['ask']}: Ask`: make it `async def`")
        config = pydantic.ConfigDict(extra="forbid")
        try:
            model = pydantic.create_model("Arguments", __config__=config, **fields)
        except (pydantic.PydanticUserError, TypeError) as error:
            raise UnfitFunction(no_schema(error)) from error
        return cls(model, names, tuple(positional), given.get("call"), given.get("ask"), is_async)

    def bind(
        self, name: str, arguments: Mapping[str, Json], call: Call | None, ask: Ask | None
    ) -> Bound:
        """Return the arguments as the function wants them, in the types of its hints.

        Args:
            name: of what is called, for the error.
            arguments: by name.
            call: for the parameter that takes one.
            ask: for the parameter that takes one.

        Raises:
            ToolRetry: an argument does not fit; says which and why.
        """
        try:
            given = self.model.model_validate(arguments)
        except pydantic.ValidationError as error:
            faults = "; ".join(_faults(error.errors(include_url=False)[:3]))
            raise ToolRetry(f"`{name}` was not called: {faults}") from error
        values = {self.fields[key]: getattr(given, key) for key in given.model_fields_set}
        if self.call is not None:
            values[self.call] = call
        if self.ask is not None:
            values[self.ask] = ask or ask_nobody
        positional = [values.pop(each.name, each.default) for each in self.positional]
        return Bound(positional, values, self.is_async, self.ask is not None)


def hints_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the type hints of a function that is called once and answers once.

    Raises:
        UnfitFunction: it yields, or its hints cannot be read.
    """
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UnfitFunction("it yields: return a list instead")
    try:
        return get_type_hints(function, include_extras=True)
    except Exception as error:  # a hint is any expression of the user's
        raise UnfitFunction(
            f"its type hints cannot be read ({type(error).__name__}: {error}):"
            " import what they name at the top of the file"
        ) from error


def no_schema(error: Exception) -> str:
    """Say that hints have no JSON Schema, and why."""
    text = str(error).splitlines()[0].rstrip(".:")
    return f"its hints have no JSON Schema ({text}): use types that JSON can carry"


def _faults(errors: Iterable[Any]) -> Iterable[str]:
    for error in errors:
        where = ".".join(str(step) for step in error["loc"])
        yield f"`{where}` is {error['input']!r:.100}: {error['msg'].lower()}"

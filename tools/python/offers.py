"""Plain functions as prompts, resources and templates: what they take, what becomes of answers."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from inspect import isawaitable
from typing import Any, Final, cast, get_origin

import anyio
import structlog
from pydantic_core import PydanticSerializationError, to_json

from guildry.errors import ToolFailed, ToolRetry
from guildry.tools.asking.questions import Answer, Question
from guildry.tools.base import Embedded, Link, Media, Text
from guildry.tools.offers import (
    Complete,
    Message,
    Messages,
    Prompt,
    PromptArgument,
    Resource,
    Template,
)
from guildry.tools.python.answers import media_type
from guildry.tools.python.decorators import Completes, DeclaredPrompt, DeclaredResource
from guildry.tools.python.docstrings import Docstring
from guildry.tools.python.signatures import Bound, Parameters, UnfitFunction, ask_nobody, hints_of
from guildry.tools.python.threads import DaemonThreads
from guildry.tools.registry import nearest
from guildry.tools.uri_templates import BadTemplate, UriTemplate, uri_fault

__all__ = ["prompt_from", "resource_from"]

log = structlog.get_logger()

_NOTHING: Final[Mapping[str, str]] = {}
_LIMIT_S: Final = 60.0
_COMPLETE_S: Final = 5.0
_TEXT: Final = "text/plain"
_JSON: Final = "application/json"
_BLOCKS: Final = (Text, Media, Link, Embedded)


def prompt_from(
    function: Callable[..., Any], said: DeclaredPrompt, *, plug: str, threads: DaemonThreads
) -> Prompt:
    """Return `function` as a prompt of `plug`.

    Raises:
        UnfitFunction: its signature cannot be that of a prompt.
    """
    name = said.name or function.__name__
    hints = hints_of(function)
    hints.pop("return", None)
    about = Docstring.of(function)
    parameters = _plain(Parameters.of(function, hints, about.parameters))
    fields = parameters.model.model_fields
    arguments = tuple(
        PromptArgument(parameters.fields[key], each.description, each.is_required())
        for key, each in fields.items()
    )

    async def get(given: Mapping[str, str], caller: Any) -> Messages:
        _check(name, arguments, given)
        bound = parameters.bind(name, given, None, _asking(caller))
        return _messages(name, await _done(function, bound, threads, name, plug), about.text)

    return Prompt(
        name=name,
        plug=plug,
        source_name=name,
        get=get,
        title=said.title,
        description=about.text,
        arguments=arguments,
        complete=_completing(said.complete, threads, name, plug),
        icons=said.icons,
    )


def resource_from(
    function: Callable[..., Any], said: DeclaredResource, *, plug: str, threads: DaemonThreads
) -> Resource | Template:
    """Return `function` as a resource of `plug`, or as a template if its URI has variables.

    Raises:
        UnfitFunction: its signature does not fit its URI, or that is none.
    """
    name = said.name or function.__name__
    hints = hints_of(function)
    kind = said.media_type or _promised(hints.pop("return", None))
    about = Docstring.of(function)
    parameters = _plain(Parameters.of(function, hints, about.parameters))
    template = _template(said.uri, parameters)

    async def read(uri: str, caller: Any) -> tuple[Embedded, ...]:
        values = _NOTHING if template is None else template.values(uri)
        if values is None:
            raise ToolRetry(f"{uri!r} does not follow `{said.uri}`: fill in its variables")
        bound = parameters.bind(uri, values, None, _asking(caller))
        value = await _done(function, bound, threads, name, plug)
        return tuple(_contents(name, value, uri, said.media_type))

    async def follow(uri: str) -> None:
        """Changes are told by the plug's own tools, through `Call.touch`, whoever listens."""

    if template is None:
        return Resource(
            uri=said.uri,
            name=name,
            plug=plug,
            read=read,
            title=said.title,
            description=about.text,
            media_type=kind,
            size=said.size,
            follow=follow,
            icons=said.icons,
            annotations=said.annotations,
        )
    return Template(
        uri_template=said.uri,
        name=name,
        plug=plug,
        matches=template.matches,
        read=read,
        title=said.title,
        description=about.text,
        media_type=kind,
        complete=_completing(said.complete, threads, name, plug),
        follow=follow,
        icons=said.icons,
        annotations=said.annotations,
    )


def _plain(parameters: Parameters) -> Parameters:
    if parameters.call is not None:
        raise UnfitFunction(
            f"it takes `{parameters.call}: Call`, which only tools have: leave it out"
        )
    return parameters


def _template(uri: str, parameters: Parameters) -> UriTemplate | None:
    """Return the template that `uri` is, or None if it has no variables."""
    fields = parameters.model.model_fields
    required = {parameters.fields[key] for key, each in fields.items() if each.is_required()}
    if "{" not in uri and "}" not in uri:
        if fault := uri_fault(uri):
            raise UnfitFunction(fault)
        if required:
            raise UnfitFunction(f"nothing in {uri!r} fills in {_listed(required)}: add variables")
        return None
    try:
        template = UriTemplate.of(uri)
        variables = set(template.variables)
    except BadTemplate as error:
        raise UnfitFunction(str(error)) from error
    if missing := required - variables:
        raise UnfitFunction(f"nothing in `{uri}` fills in {_listed(missing)}: add variables")
    if unknown := variables - set(parameters.fields.values()):
        raise UnfitFunction(
            f"`{uri}` has {_listed(unknown)}, which it does not take: add parameters"
        )
    return template


def _listed(names: Iterable[str]) -> str:
    return ", ".join(f"`{each}`" for each in sorted(names))


def _check(name: str, known: Sequence[PromptArgument], given: Mapping[str, str]) -> None:
    names = [each.name for each in known]
    for each in given:
        if each not in names:
            near = nearest(each, names)
            takes = f"it takes {_listed(names)}" if names else "it takes none"
            cure = f"did you mean `{near}`?" if near else takes
            raise ToolRetry(f"{each!r} is not an argument of the prompt `{name}`: {cure}")
    for argument in known:
        if argument.required and argument.name not in given:
            raise ToolRetry(f"`{argument.name}` is missing: the prompt `{name}` needs it")


def _asking(caller: Any) -> Callable[[Question], Awaitable[Answer]]:
    """Return what puts questions to the client behind `caller`, if it takes them."""
    channel = None if caller is None else caller.channel

    async def ask(question: Question) -> Answer:
        if channel is None or not channel.takes(question.kind):
            return await ask_nobody(question)
        answer: Answer = await channel.ask(question)
        return answer

    return ask


async def _done(
    function: Callable[..., Any], bound: Bound, threads: DaemonThreads, name: str, plug: str
) -> Any:
    """Return what `function` returns.

    Raises:
        ToolFailed: it raised, or took too long. One that asks takes as long as its answers.
    """
    with anyio.move_on_after(None if bound.asks else _LIMIT_S):
        return await bound.done(function, threads, name, plug)
    raise ToolFailed(f"`{name}` gave no answer within {_LIMIT_S:g} s: it has to do less")


def _messages(name: str, value: object, description: str) -> Messages:
    if isinstance(value, Messages):
        return value
    items = cast("Sequence[object]", value) if isinstance(value, list | tuple) else (value,)
    messages: list[Message] = []
    for item in items:
        if isinstance(item, str):
            item = Text(item)
        if isinstance(item, _BLOCKS):
            item = Message("user", item)
        if not isinstance(item, Message):
            raise ToolFailed(
                f"`{name}` returned {type(item).__name__}, which is no message of a prompt:"
                " it has to return text, `Message` objects or a list of these"
            )
        messages.append(item)
    return Messages(tuple(messages), description)


def _contents(name: str, value: object, uri: str, kind: str | None) -> Iterable[Embedded]:
    """Return what a function returned as the contents of a resource."""
    if isinstance(value, Embedded):
        yield value
    elif isinstance(value, Media):
        yield Embedded(uri, kind or value.media_type, data=value.data)
    elif isinstance(value, str):
        yield Embedded(uri, kind or _TEXT, text=value)
    elif isinstance(value, bytes | bytearray):
        held = bytes(value)
        yield Embedded(uri, kind or media_type(held[:16]), data=held)
    elif _holds_contents(value):
        for each in cast("Sequence[object]", value):
            yield from _contents(name, each, uri, kind)
    else:
        try:
            text = to_json(value, bytes_mode="base64").decode()
        except PydanticSerializationError as error:
            raise ToolFailed(
                f"`{name}` returned {type(value).__name__}, which is no content of a resource:"
                " it has to return text, bytes or what JSON can carry"
            ) from error
        yield Embedded(uri, kind or _JSON, text=text)


def _holds_contents(value: object) -> bool:
    items: Any = value
    return (
        isinstance(value, list | tuple)
        and bool(items)
        and all(isinstance(each, Embedded | Media) for each in items)
    )


def _promised(hint: Any) -> str | None:
    """Return the media type that a return hint promises, if it does."""
    kind = get_origin(hint) or hint
    if kind is str:
        return _TEXT
    return _JSON if kind in (dict, list, int, float, bool) else None


def _completing(
    complete: Completes | None, threads: DaemonThreads, name: str, plug: str
) -> Complete | None:
    if complete is None:
        return None
    if not callable(complete):
        return _listed_values(complete)
    function = complete

    async def values(argument: str, typed: str, others: Mapping[str, str]) -> Sequence[str]:
        try:
            with anyio.fail_after(_COMPLETE_S):
                found: Any = await threads.run(function, argument, typed, dict(others))
                found = await found if isawaitable(found) else found
                return [str(each) for each in found or ()]
        except Exception:
            log.warning("function_raised", tool=name, plug=plug, exc_info=True)
            return ()

    return values


def _listed_values(known: Mapping[str, Sequence[str]]) -> Complete:
    async def values(argument: str, typed: str, others: Mapping[str, str]) -> Sequence[str]:
        begins = typed.casefold()
        return [each for each in known.get(argument, ()) if each.casefold().startswith(begins)]

    return values

"""Plain functions as tools: the schema comes from type hints, the words from the docstring."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pydantic

from guildry.tools.base import Call, Invoke, Json, Outcome, Tool
from guildry.tools.python.answers import Answers, PlainSchema, untitled
from guildry.tools.python.decorators import (
    DeclaredTool,
    declared,
    effects,
    prompt,
    reads,
    resource,
    tool,
)
from guildry.tools.python.docstrings import Docstring
from guildry.tools.python.signatures import Parameters, UnfitFunction, hints_of, no_schema
from guildry.tools.python.threads import DaemonThreads

__all__ = ["UnfitFunction", "effects", "prompt", "reads", "resource", "tool", "tool_from"]


def tool_from(
    function: Callable[..., Any],
    *,
    plug: str,
    threads: DaemonThreads,
    touch: Callable[[str], None] | None = None,
) -> Tool:
    """Return `function` as a tool of `plug`. A plain one runs in `threads`, an async one here.

    Args:
        function: what is called.
        plug: whose it is.
        threads: where it runs.
        touch: says that a resource of the plug has changed.

    Raises:
        UnfitFunction: its signature cannot be described to a model.
    """
    said = declared(function)
    if not isinstance(said, DeclaredTool):
        raise UnfitFunction("it is declared as a prompt or a resource, not as a tool")
    name = said.name or function.__name__
    hints = hints_of(function)
    about = Docstring.of(function)
    answers = Answers.of(name, hints.pop("return", Any))
    parameters = Parameters.of(function, hints, about.parameters)
    return Tool(
        name=name,
        plug=plug,
        source_name=name,
        title=said.title,
        description=about.text,
        input_schema=_input_schema(parameters.model),
        output_schema=answers.schema,
        effects=said.effects,
        timeout_s=said.timeout_s,
        invoke=_invoker(function, name, parameters, answers, threads, touch),
        icons=said.icons,
        task=said.task,
        asks=said.asks or parameters.ask is not None,
    )


def _input_schema(model: type[pydantic.BaseModel]) -> dict[str, Json]:
    try:
        schema = model.model_json_schema(schema_generator=PlainSchema)
    except pydantic.PydanticUserError as error:
        raise UnfitFunction(no_schema(error)) from error
    return {"type": "object", "properties": {}, **cast("dict[str, Json]", untitled(schema))}


def _invoker(
    function: Callable[..., Any],
    name: str,
    parameters: Parameters,
    answers: Answers,
    threads: DaemonThreads,
    touch: Callable[[str], None] | None,
) -> Invoke:
    async def invoke(arguments: dict[str, Json], call: Call) -> Outcome:
        told = call if touch is None or parameters.call is None else replace(call, touch=touch)
        bound = parameters.bind(name, arguments, told, call.ask)
        return answers.outcome(await bound.done(function, threads, name, call.tool.plug))

    return invoke

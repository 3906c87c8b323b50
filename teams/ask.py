"""The tool `ask`: how an agent asks the person who gave the task, and what it is told."""

import json
from collections.abc import Mapping
from math import inf
from typing import TYPE_CHECKING, Final, cast

from guildry.errors import ToolRetry
from guildry.tools.asking.board import DEADLINE
from guildry.tools.asking.questions import Answer, Question
from guildry.tools.base import Call, Effects, Json, Outcome, Text, Tool
from guildry.tools.schema import as_list, as_object, schema_fault

if TYPE_CHECKING:
    from guildry.tools.asking.questions import Ask
    from guildry.tools.caller import Caller

__all__ = ["ASK", "ask_tool"]

ASK: Final = "ask"
"""The name of the tool by which an agent asks a person."""

_PLUG: Final = "guildry"
_ASKS: Final = Effects(writes=False, egress=False, destructive=False)
"""Questions change nothing, so several may be open side by side."""

_MAX_FIELDS: Final = 20
_PLAIN: Final = frozenset({"string", "number", "integer", "boolean"})
_GO_ON: Final = "go on without it, and say in your report what you had to assume"
_WORDS: Final[Mapping[str, Json]] = {"type": "string", "minLength": 1, "maxLength": 4_000}


def ask_tool() -> Tool:
    """Return the tool `ask`."""
    return Tool(
        name=ASK,
        plug=_PLUG,
        description=(
            "Ask the person who gave the task. Only for what you cannot find out yourself; you"
            " wait for the answer."
        ),
        input_schema={
            "type": "object",
            "properties": {
                "question": {**_WORDS, "description": "Complete in itself, with what is at stake."},
                "choices": {
                    "type": "array",
                    "items": {"type": "string", "minLength": 1, "maxLength": 200},
                    "minItems": 2,
                    "maxItems": 20,
                    "uniqueItems": True,
                    "description": "The answers there are, if it is one of a few.",
                },
                "schema": {
                    "type": "object",
                    "description": "JSON Schema of the answer, if it is more than a text: an"
                    " object of texts, numbers and truth values.",
                },
            },
            "required": ["question"],
            "additionalProperties": False,
        },
        invoke=_invoke,
        effects=_ASKS,
        timeout_s=inf,
        scope="teams",
        asks=True,
    )


async def _invoke(arguments: dict[str, Json], call: Call) -> Outcome:
    caller = cast("Caller", call.caller)
    if len(caller.grant.chain) == 1:
        raise ToolRetry(f"`{ASK}` is for agents at work: ask whoever called you")
    schema, is_form = _schema(arguments)
    ask = cast("Ask | None", call.ask)
    if ask is None:
        return _said(f"Nobody can be asked here: {_GO_ON}.")
    message = f"{arguments['question']}\nAsked by: {' → '.join(caller.grant.chain)}"
    answer = await ask(Question(key=ASK, kind="form", message=message, schema=schema))
    if answer.action == "accept":
        content = dict(answer.content)
        text = _compact(content) if is_form else str(content.get("answer", ""))
        return _said(text)
    return _said(f"{_why(answer)}: {_GO_ON}.")


def _schema(arguments: Mapping[str, Json]) -> tuple[dict[str, Json], bool]:
    """Return the schema of the answer, and whether the agent gave it itself."""
    choices, schema = arguments.get("choices"), arguments.get("schema")
    if schema is not None and choices is not None:
        raise ToolRetry(f"`{ASK}` takes `choices` or `schema`: leave one of them out")
    if schema is None:
        field: dict[str, Json] = {"type": "string", "title": "Answer"}
        if choices is not None:
            field["enum"] = choices
        return {"type": "object", "properties": {"answer": field}, "required": ["answer"]}, False
    fault = schema_fault(schema) or _form_fault(schema)
    if fault is not None:
        raise ToolRetry(f"`schema` describes no form: {fault}")
    return {"type": "object", **schema}, True


def _form_fault(schema: Mapping[str, Json]) -> str | None:
    """Return why a person cannot be shown `schema` as a form of plain fields."""
    fields = as_object(schema.get("properties"))
    if not fields or len(fields) > _MAX_FIELDS:
        return f"give it 1 to {_MAX_FIELDS} `properties`"
    for name, about in fields.items():
        field = as_object(about) or {}
        kind = field.get("type")
        if kind == "array":
            items = as_object(field.get("items")) or {}
            if items.get("type") == "string" and as_list(items.get("enum")):
                continue
            return f"the items of `{name}` are no strings with an `enum`"
        if kind not in _PLAIN:
            return f"the type of `{name}` is {kind!r}: use one of {', '.join(sorted(_PLAIN))}"
    return None


def _why(answer: Answer) -> str:
    if answer.by == DEADLINE:
        return "Nobody answered in time"
    if answer.action == "decline":
        return "The person declined to answer"
    return "The question was closed without an answer"


def _said(text: str) -> Outcome:
    return Outcome((Text(text),))


def _compact(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))

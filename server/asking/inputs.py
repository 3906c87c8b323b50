"""Questions in the forms of MCP: what a client is asked, and what it answered. Knows no session."""

import json
from collections.abc import Mapping
from typing import Any, Final, cast

from mcp_types import (
    ClientCapabilities,
    CreateMessageResult,
    CreateMessageResultWithTools,
    ListRootsResult,
)
from pydantic import TypeAdapter, ValidationError

from guildry.tools.asking.questions import Answer, Question, QuestionKind
from guildry.tools.base import Json

__all__ = ["NOTHING", "UnfitAnswer", "answer_of", "client_takes", "request_of"]

NOTHING: Final[frozenset[QuestionKind]] = frozenset()
"""What a client takes that can be asked nothing."""

_NO_FIELDS: Final[Mapping[str, Json]] = {"type": "object", "properties": {}}
_SHOWN_CHARACTERS: Final = 2_000
_ACTIONS: Final = ("accept", "decline", "cancel")
_SAMPLED: Final = TypeAdapter[Any](CreateMessageResult | CreateMessageResultWithTools)


class UnfitAnswer(Exception):
    """Refuse what a client answered; the text says what is wrong with it."""


def client_takes(capabilities: ClientCapabilities | None) -> frozenset[QuestionKind]:
    """Return the kinds of questions that a client says it takes.

    A client that names no way of asking takes forms, as it was before there were others.
    """
    if capabilities is None:
        return NOTHING
    kinds: set[QuestionKind] = set()
    asks = capabilities.elicitation
    if asks is not None and (asks.form is not None or asks.url is None):
        kinds |= {"approval", "form"}
    if asks is not None and asks.url is not None:
        kinds.add("url")
    if capabilities.sampling is not None:
        kinds.add("sampling")
    if capabilities.roots is not None:
        kinds.add("roots")
    return frozenset(kinds)


def request_of(
    question: Question, capabilities: ClientCapabilities | None, fault: str = ""
) -> dict[str, Json] | None:
    """Return the request that puts `question`, or None where the client does not take it.

    Args:
        question: what is asked.
        capabilities: what the client declared.
        fault: what was wrong with its last answer.
    """
    if question.kind not in client_takes(capabilities):
        return None
    params = dict(question.params)
    if question.kind == "roots":
        return {"method": "roots/list", "params": params}
    if question.kind == "sampling":
        return _sampling(params, capabilities)
    message = _message(question) if not fault else f"{_message(question)}\n\n{fault}"
    if question.kind == "url":
        asked: dict[str, Json] = {**params, "mode": "url", "message": message}
    else:
        schema = question.schema if question.kind == "form" else _NO_FIELDS
        schema = {**_NO_FIELDS, **schema}
        asked = {"mode": "form", "message": message, "requestedSchema": schema}
    return {"method": "elicitation/create", "params": asked}


def _sampling(
    params: dict[str, Json], capabilities: ClientCapabilities | None
) -> dict[str, Json] | None:
    taken = capabilities.sampling if capabilities is not None else None
    if taken is None or (taken.tools is None and {"tools", "toolChoice"} & params.keys()):
        return None
    if taken.context is None:
        params.pop("includeContext", None)
    return {"method": "sampling/createMessage", "params": params}


def _message(question: Question) -> str:
    """Return what a person reads: the question, and what they must know to answer it."""
    lines = [question.message or str(question.params.get("message", ""))]
    text = lines[0]
    if question.kind == "approval":
        if question.tool not in text:
            lines.append(f"Tool: {question.tool} of {question.plug}")
        if question.arguments:
            shown = json.dumps(question.arguments, ensure_ascii=False, default=str)
            lines += [f"Arguments: {_cut(shown)}"] if shown not in text else []
    chain = " → ".join(question.chain)
    if len(question.chain) > 1 and chain not in text:
        lines.append(f"Asked by: {chain}")
    return "\n".join(lines)


def _cut(text: str) -> str:
    if len(text) <= _SHOWN_CHARACTERS:
        return text
    return f"{text[:_SHOWN_CHARACTERS]}… ({len(text):,} characters)"


def answer_of(question: Question, result: Json, by: str) -> Answer:
    """Return what the client's `result` says.

    Raises:
        UnfitAnswer: it does not answer the question.
    """
    if not isinstance(result, Mapping):
        raise UnfitAnswer("The last answer was no object.")
    given = cast("Mapping[str, Json]", result)
    if question.kind in ("sampling", "roots"):
        return Answer("accept", _whole(question.kind, given), by)
    action = given.get("action")
    if action not in _ACTIONS:
        raise UnfitAnswer(f"The last answer had no `action` of {', '.join(_ACTIONS)}.")
    if action != "accept" or question.kind != "form":
        return Answer(action, {}, by)
    content: Json = given.get("content")
    return Answer("accept", _fitting(question, {} if content is None else content), by)


def _whole(kind: QuestionKind, given: Mapping[str, Json]) -> Mapping[str, Json]:
    try:
        if kind == "roots":
            ListRootsResult.model_validate(given, by_name=False)
        else:
            _SAMPLED.validate_python(given, by_name=False)
    except ValidationError as error:
        where = ".".join(str(step) for step in error.errors(include_url=False)[0]["loc"])
        raise UnfitAnswer(f"The last answer was not usable: see `{where}`.") from None
    return given


def _fitting(question: Question, content: Json) -> Mapping[str, Json]:
    """Return what was filled in, where it fits.

    Raises:
        UnfitAnswer: it does not.
    """
    from guildry.tools.schema import faults_of, schema_fault

    if not isinstance(content, Mapping):
        raise UnfitAnswer("The last answer had no `content` object.")
    schema = {"type": "object", **question.schema}
    filled = cast("Mapping[str, Json]", content)
    faults = [] if schema_fault(schema) else faults_of(schema, dict(filled))
    if faults:
        raise UnfitAnswer(f"The last answer did not fit: {'; '.join(faults)}.")
    return filled

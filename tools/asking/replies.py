"""Replies to questions: what a person gave, as the question wants it, or what to change in it."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from guildry.errors import ToolRetry
from guildry.tools.asking.questions import Answer, Question
from guildry.tools.base import Json
from guildry.tools.schema import as_object, faults_of, types_wanted

__all__ = ["checked", "reply_to"]

_YES: Final = frozenset({"yes", "y", "true", "accept", "approve", "allow", "ok"})
_NO: Final = frozenset({"no", "n", "false", "decline", "deny", "refuse"})


def reply_to(question: Question, given: Json, by: str = "") -> Answer:
    """Return what was given as an answer: yes or no, a whole form, or the one field of a form.

    Raises:
        ToolRetry: it is no answer to this question; says what to give.
    """
    if question.kind == "approval":
        return Answer("accept" if _agrees(given) else "decline", by=by)
    members = as_object(given)
    return Answer("accept", _of_one_field(question, given) if members is None else members, by)


def checked(question: Question, answer: Answer) -> Answer:
    """Return an answer as it counts: content only where something was filled in, and as asked for.

    Raises:
        ToolRetry: the content does not fit the question's schema; says what to change.
    """
    if answer.action != "accept" or question.kind == "approval":
        return replace(answer, content={})
    if faults := faults_of(question.schema, dict(answer.content)):
        raise ToolRetry(f"this is no answer to `{question.id}`: {'; '.join(faults)}")
    return answer


def _agrees(given: Json) -> bool:
    word = str(given).strip().lower()
    if word in _YES or word in _NO:
        return word in _YES
    raise ToolRetry(f"the answer is {given!r:.80}: give true to allow the call, false to refuse it")


def _of_one_field(question: Question, given: Json) -> Mapping[str, Json]:
    """Return a plain value as the only field that a form has, a text as what that field wants."""
    fields = as_object(question.schema.get("properties")) or {}
    if len(fields) != 1:
        named = ", ".join(f"`{name}`" for name in fields) or "no fields"
        raise ToolRetry(f"the answer is {given!r:.80}: give an object with {named}")
    ((name, schema),) = fields.items()
    wanted = types_wanted(as_object(schema) or {}, question.schema)
    return {name: _typed(given, wanted) if isinstance(given, str) else given}


def _typed(text: str, wanted: frozenset[str]) -> Json:
    if not wanted or "string" in wanted:
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text

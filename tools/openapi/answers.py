"""Answers of an HTTP API as outcomes: JSON, text and files, and refusals in words."""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from anyio import to_thread

from guildry.errors import ToolFailed, ToolRetry
from guildry.tools.base import Json, Media, Outcome, Text
from guildry.tools.openapi.client import Answer
from guildry.tools.openapi.operations import Operation
from guildry.tools.openapi.security import Credentials
from guildry.tools.schema import as_object, validator_of

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

__all__ = ["Reader"]

_EXCERPT: Final = 1_000
_ON_LOOP_BYTES: Final = 64_000
_TEXTS: Final = ("json", "xml", "yaml", "javascript", "x-www-form-urlencoded", "csv", "graphql")
_TOLD: Final = ("content-type", "content-length", "etag", "last-modified", "location", "link")
_MENDABLE: Final = frozenset({400, 404, 405, 409, 410, 412, 413, 414, 415, 422})


class Reader:
    """Read the answers of one operation.

    Args:
        operation: which.
        credentials: what must not be seen in an answer.
    """

    def __init__(self, operation: Operation, credentials: Credentials) -> None:
        self._operation = operation
        self._credentials = credentials
        self._validator: Validator | None = None

    async def outcome(self, tool: str, answer: Answer) -> Outcome:
        """Return what a tool answers.

        Raises:
            ToolRetry: the API says that the request is wrong.
            ToolFailed: it refuses, or cannot answer.
        """
        if not 200 <= answer.status < 300:
            raise self._refusal(tool, answer)
        if not answer.body:
            return Outcome((Text(self._credentials.without(_head(answer))),))
        kind = answer.media_type
        is_json = kind == "application/json" or kind.endswith("+json")
        if not (is_json or kind.startswith("text/") or kind.endswith(_TEXTS) or not kind):
            return Outcome((Media(answer.body, kind),))
        text = self._credentials.without(_decoded(answer))
        next_page = self._credentials.without(_next_page(answer))
        blocks = (Text(next_page),) if next_page else ()
        if self._operation.output_schema is None:
            return Outcome((Text(text), *blocks))
        if len(text) < _ON_LOOP_BYTES:
            value = self._checked(text)
        else:
            value = await to_thread.run_sync(self._checked, text)
        if value is None:
            words = f"`{tool}` was answered ({answer.status}), but not as its document says:"
            return Outcome((Text(words), Text(text), *blocks), is_error=True)
        return Outcome(blocks, structured=value, has_structured=True)

    def _checked(self, text: str) -> Mapping[str, Json] | None:
        """Return the object that an answer is, or None where its schema does not allow it."""
        try:
            value = as_object(json.loads(text))
        except (ValueError, RecursionError):
            return None
        if value is None or self._operation.output_schema is None:
            return None
        if self._validator is None:
            self._validator = validator_of(self._operation.output_schema)
        try:
            return value if self._validator.is_valid(value) else None
        except RecursionError:
            return None

    def _refusal(self, tool: str, answer: Answer) -> ToolRetry | ToolFailed:
        operation = self._operation
        excerpt = " ".join(self._credentials.without(_decoded(answer)).split())[:_EXCERPT]
        reason = self._credentials.without(answer.reason)[:100]
        said = f"`{tool}`: {operation.method} {operation.path} was answered {answer.status}"
        said = f"{said} {reason}".rstrip() + (f": {excerpt}" if excerpt else "")
        if answer.status in (401, 403):
            return ToolFailed(f"{said}. Whoever runs this server has to {operation.refused}")
        if answer.status in _MENDABLE:
            return ToolRetry(f"{said}. Change the arguments")
        if 300 <= answer.status < 400:
            return ToolFailed(f"{said}. It leads elsewhere, which is not followed")
        return ToolFailed(said)


def _decoded(answer: Answer) -> str:
    charset = "utf-8"
    for part in answer.headers.get("content-type", "").split(";")[1:]:
        name, _, value = part.strip().partition("=")
        if name.lower() == "charset":
            charset = value.strip("\"' ")
    try:
        return answer.body.decode(charset, "replace")
    except (LookupError, ValueError, TypeError):
        return answer.body.decode("utf-8", "replace")


def _head(answer: Answer) -> str:
    lines = [f"{answer.status} {answer.reason}".strip()]
    lines += [f"{name}: {answer.headers[name][:500]}" for name in _TOLD if name in answer.headers]
    return "\n".join(lines)


def _next_page(answer: Answer) -> str:
    """Return where the next page of a list is, if the answer says so (RFC 8288)."""
    for link in answer.headers.get("link", "")[:4_000].split(","):
        target, _, said = link.partition(">")
        if 'rel="next"' in said or "rel=next" in said:
            return f"Next page: {target.strip().lstrip('<')}"
    return ""

"""Values at the border of a program: what goes in, and what comes out as JSON. Calls nothing."""

import base64
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import TYPE_CHECKING, Any, Final, cast
from uuid import UUID, uuid5

from pydantic_monty import ClassInstance, MontyClassProxy

from guildry.errors import ToolRetry
from guildry.memory.references import Reference, parse_handle
from guildry.tools.base import Json, Result, Tool
from guildry.tools.code.names import BARE, bare_schema
from guildry.tools.results import stored_text
from guildry.tools.schema import as_list, as_object

if TYPE_CHECKING:
    from pydantic_monty import ExternalSettledResult

__all__ = [
    "Answer",
    "Ref",
    "Refs",
    "answer_of",
    "as_json",
    "external",
    "ref_of",
    "text_answer",
    "wrapped",
]

Answer = dict[str, Json]
"""What a call came to, as JSON that can be kept.

One of: `value`; `ref` (the fields of a `Ref`); `text` with `refs`; `error` with `kind`.
"""

Refs = dict[str, tuple[str, str]]
"""The `Ref`s of a program, by the ids that the interpreter has for them: each the id of what is
stored, and the reference as the program has it.
"""

_REFS: Final = UUID("6f1c7a52-9d0e-4d8b-9a3f-1f6f3f0c2b11")
_DEPTH: Final = 100
_NUMBER_BITS: Final = 14_000
_NODE_BYTES: Final = 8


@dataclass(frozen=True, slots=True)
class Ref:
    """A stored value, as a program holds it: what is read of it comes in by `value(selector)`.

    Args:
        reference: as it is written.
        media_type: of the stored bytes.
        size: in bytes, of all that is stored.
        sketch: what it is, in a few words.
        id: of the stored object.
    """

    reference: str
    media_type: str
    size: int
    sketch: str
    id: str


_SHOWN: Final = ("reference", "media_type", "size", "sketch")


def ref_of(reference: Reference, selector: str | None = None) -> Answer:
    """Return the fields of the `Ref` that stands for a stored value, or for a part of it."""
    return {
        "reference": f"{reference.short}{selector or ''}",
        "media_type": reference.media_type,
        "size": reference.size,
        "sketch": reference.sketch,
        "id": reference.id,
    }


def answer_of(tool: Tool | None, result: Result) -> Answer:
    """Return what a tool's answer is to a program."""
    if result.is_error:
        return {"error": result.text, "kind": "RuntimeError"}
    is_bare = tool is not None and bare_schema(tool) is not None
    if result.has_structured:
        members: Mapping[str, Json] = (as_object(result.structured) if is_bare else None) or {}
        return {"value": members.get(BARE, result.structured)}
    if not result.references:
        return text_answer(result.text)
    last = result.references[-1]
    if len(result.references) == 1 and _is_all(result.text, last):
        return {"ref": ref_of(last, f"#/{BARE}" if is_bare else None)}
    return {"text": result.text, "refs": [ref_of(each) for each in result.references]}


def text_answer(text: str) -> Answer:
    """Return what a text is to a program: a value where it is a JSON object or list."""
    if text.lstrip()[:1] in ("{", "["):
        try:
            return {"value": json.loads(text)}
        except (ValueError, RecursionError):
            pass
    return {"value": text}


def external(answer: Answer, refs: Refs) -> "ExternalSettledResult":
    """Return an answer as the interpreter takes it, and enter the `Ref`s in it in `refs`."""
    if "error" in answer:
        return cast(
            "ExternalSettledResult",
            {"exc_type": answer.get("kind", "RuntimeError"), "message": _clean(answer["error"])},
        )
    if "ref" in answer:
        return {"return_value": wrapped(answer["ref"], refs)}
    if "refs" in answer:
        made = [wrapped(each, refs) for each in answer["refs"]]
        return {"return_value": {"text": _clean(answer["text"]), "references": made}}
    return {"return_value": _fit(answer["value"])}


def wrapped(fields: Mapping[str, Json], refs: Refs) -> ClassInstance:
    """Return the `Ref` with these fields as the interpreter takes it, and enter it in `refs`."""
    ref = Ref(**dict(fields))
    key = uuid5(_REFS, f"{ref.id} {ref.reference}")
    refs[str(key)] = (ref.id, ref.reference)
    return ClassInstance(ref, eager_attrs=_SHOWN, id=key)


def as_json(value: Any, max_bytes: int) -> Json:
    """Return what a program handed over as JSON. A reference becomes its text.

    Raises:
        ToolRetry: it is too large, nested too deep, or no value.
    """
    return _Reading(max_bytes).read(value, 0)


class _Reading:
    """One value on its way out."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._left = max_bytes

    def read(self, value: Any, depth: int) -> Json:
        self._spend(_NODE_BYTES)
        if depth > _DEPTH:
            raise ToolRetry(f"the value is nested more than {_DEPTH} deep: flatten it")
        if value is None or isinstance(value, bool):
            return value
        if isinstance(value, str):
            self._spend(len(value))
            return value
        inside: Any = value
        if isinstance(value, dict):
            return {self._key(key): self.read(each, depth + 1) for key, each in inside.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.read(each, depth + 1) for each in inside]
        if isinstance(value, MontyClassProxy):
            return self._instance(value, depth)
        return self._plain(value)

    def _key(self, key: Any) -> str:
        text = key if isinstance(key, str) else str(self.read(key, _DEPTH))
        self._spend(len(text))
        return text

    def _instance(self, value: MontyClassProxy, depth: int) -> Json:
        reference = value.attributes.get("reference")
        if value.name == Ref.__name__ and isinstance(reference, str) and parse_handle(reference):
            return reference
        return self.read(value.attributes, depth)

    def _plain(self, value: Any) -> Json:
        if isinstance(value, int):
            if value.bit_length() > _NUMBER_BITS:
                raise ToolRetry("a number has more than 4,000 digits: give it as text")
            return value
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        if isinstance(value, Ref):
            return value.reference
        if isinstance(value, bytes):
            self._spend(len(value) * 2)
            return base64.b64encode(value).decode("ascii")
        if isinstance(value, datetime | date | time):
            return value.isoformat()
        if isinstance(value, timedelta):
            return value.total_seconds()
        text = str(value) if isinstance(value, Decimal | BaseException) else repr(value)
        self._spend(len(text))
        return text

    def _spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise ToolRetry(
                f"the value is longer than {self._max_bytes:,} bytes: hand over a part of it, or"
                " leave it stored and hand over the reference"
            )


def _is_all(text: str, reference: Reference) -> bool:
    """Tell whether the text of an answer is nothing but its one reference."""
    return text == stored_text(reference) or (
        text.startswith("[") and text.endswith(f"{reference.short}]") and "\n" not in text
    )


def _clean(text: str) -> str:
    """Return `text` without halves of surrogate pairs, which the interpreter does not take."""
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _fit(value: Json, depth: int = 0) -> Json:
    """Return a value as the interpreter takes it: clean text, and not nested without end."""
    if isinstance(value, str):
        return _clean(value)
    if depth > _DEPTH:
        return _folded(value)
    if isinstance(value, dict):
        members = as_object(value) or {}
        return {_clean(key): _fit(each, depth + 1) for key, each in members.items()}
    if isinstance(value, list):
        return [_fit(each, depth + 1) for each in as_list(value)]
    return value


def _folded(value: Json) -> str:
    try:
        return json.dumps(value)
    except RecursionError:
        return "… (nested deeper)"

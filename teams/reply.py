"""What a model's reply amounts to: arguments, an answer, or something that it has to mend."""

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

from guildry.memory.objects import ObjectStore
from guildry.memory.references import Reference
from guildry.tools.caller import Caller
from guildry.tools.schema import as_list, validator_of

__all__ = ["Broken", "mentioned", "read_answer", "read_arguments", "writes_a_call"]

_EXCERPT: Final = 160
_SHOWN_FAULTS: Final = 3
_FENCE: Final = re.compile(r"```[a-zA-Z]*\s*\n(.*?)\n?\s*```", re.DOTALL)
_MENTION: Final = re.compile(r"ref:(//)?([A-Za-z0-9_.-]{1,128})")
_MARKS: Final = ("<tool_call>", "<function=", "[TOOL_CALLS]", "<|python_tag|>", "<|tool_call")


class Broken(Exception):
    """A reply that the model has to mend: the text says what to change."""


def read_arguments(text: str) -> dict[str, Any]:
    """Return the arguments that a model wrote.

    Engines are known to leave control characters in strings and to encode the object twice: both
    are read.

    Raises:
        Broken: it is not a JSON object.
    """
    if not text.strip():
        return {}
    try:
        value = _parse(text)
        if isinstance(value, str):
            value = _parse(value)
    except ValueError as error:
        raise Broken(
            f"The arguments of this call are not valid JSON ({error}): {_cut(text)}. "
            "Nothing was run. Call again with one JSON object"
        ) from None
    if not isinstance(value, dict):
        raise Broken(
            f"The arguments of this call are {_cut(text)}, not a JSON object. "
            "Nothing was run. Call again with one JSON object"
        )
    return cast("dict[str, Any]", value)


def writes_a_call(text: str, tools: Iterable[str]) -> bool:
    """Tell whether `text` is a tool call written out as text, which nothing has run."""
    start = text.lstrip()
    if start.startswith(_MARKS):
        return True
    if start[:1] not in ("{", "[", "`"):
        return False
    try:
        value = _parse(_unfenced(start))
    except ValueError:
        return False
    if isinstance(value, list):
        value = as_list(value)[0] if value else None
    if not isinstance(value, dict):
        return False
    keys = cast("dict[str, Any]", value)
    return keys.get("name") in set(tools) and ("arguments" in keys or "parameters" in keys)


def read_answer(text: str, schema: Mapping[str, Any]) -> Any:
    """Return the value that `text` states, checked against `schema`.

    Raises:
        Broken: it is not JSON, or does not meet the schema.
    """
    try:
        value = _parse(_unfenced(text))
    except ValueError as error:
        raise Broken(
            f"Your answer is not valid JSON ({error}). Reply with the JSON value alone"
        ) from None
    faults = [
        f"{error.json_path}: {_cut(error.message)}"
        for error in sorted(validator_of(schema).iter_errors(value), key=lambda e: e.json_path)
    ]
    if faults:
        more = f" and {len(faults) - _SHOWN_FAULTS} more" if len(faults) > _SHOWN_FAULTS else ""
        raise Broken(
            f"Your answer does not meet its schema: {'; '.join(faults[:_SHOWN_FAULTS])}{more}. "
            "Reply with the corrected JSON value alone"
        )
    return value


async def mentioned(text: str, caller: Caller, objects: ObjectStore) -> list[Reference]:
    """Return the references that `text` names and `caller` may read, in order, each once."""
    found: dict[str, Reference] = {}
    for slashes, key in dict.fromkeys(_MENTION.findall(text)):
        reference = None
        for name in dict.fromkeys((key, key.rstrip(".-_"))):  # a name may end a sentence
            if reference is None and name:
                named = objects.by_id(name) if slashes else objects.by_name(caller.run, name)
                reference = await named
        if reference is not None and _readable(reference, caller):
            found.setdefault(reference.id, reference)
    return list(found.values())


def _readable(reference: Reference, caller: Caller) -> bool:
    grant = caller.grant
    return reference.id in grant.references or reference.readable_by(grant.holder)


def _parse(text: str) -> Any:
    return json.loads(text, strict=False, parse_constant=_refuse_constant)


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not a JSON value")


def _unfenced(text: str) -> str:
    found = _FENCE.fullmatch(text.strip())
    return found[1] if found else text


def _cut(text: str) -> str:
    return repr(text if len(text) <= _EXCERPT else text[:_EXCERPT] + "…")

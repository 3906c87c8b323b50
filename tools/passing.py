"""References on their way into a call: who may read them, and the type that the tool wants.

An argument that *is* a reference string is replaced by what it stands for, at any depth, unless
its schema, or that of what it is in, has the format `guildry-reference`.
"""

import base64
import json
from collections.abc import Mapping
from contextlib import suppress

from guildry.errors import ReferenceNotFound, ToolRetry
from guildry.memory.objects import ObjectStore
from guildry.memory.references import Handle, Reference, parse_handle
from guildry.tools.base import REFERENCE_FORMAT, Json, Tool
from guildry.tools.caller import Caller
from guildry.tools.flow import join
from guildry.tools.schema import as_list, as_object, at, local, types_wanted

__all__ = ["mentions_reference", "open_reference", "pass_references"]

_MAX_DEPTH = 32


def mentions_reference(value: Json, depth: int = 0) -> bool:
    """Tell whether a string anywhere in `value` looks like a reference."""
    if isinstance(value, str):
        return value.startswith("ref:")
    if depth > _MAX_DEPTH:
        return False
    inside = as_list(value) or (as_object(value) or {}).values()
    return any(mentions_reference(each, depth + 1) for each in inside)


async def open_reference(objects: ObjectStore, caller: Caller, handle: Handle) -> Reference:
    """Return the reference that `handle` names, if `caller` may read it.

    Raises:
        ReferenceNotFound: unknown, forged, foreign or expired: always the same words.
    """
    if handle.kind == "uri":
        found = await objects.by_id(handle.key)
    else:
        found = await objects.by_name(caller.run, handle.key)
    grant = caller.grant
    if found is None or not (found.id in grant.references or found.readable_by(grant.holder)):
        name = str(Handle(handle.kind, handle.key))
        raise ReferenceNotFound(f"there is no reference {name!r} here: use one that you were given")
    join(found.labels)
    return found


async def pass_references(
    objects: ObjectStore, caller: Caller, tool: Tool, arguments: Mapping[str, Json]
) -> tuple[dict[str, Json], tuple[Reference, ...]]:
    """Return `arguments` with each reference replaced by its value, and the references read.

    Raises:
        ToolRetry: a reference cannot be read, or cannot become what the tool's schema wants.
    """
    if not any(mentions_reference(value) for value in arguments.values()):
        return dict(arguments), ()
    passing = _Passing(objects, caller, tool)
    given = await passing.put(dict(arguments), tool.input_schema, "", 0)
    return given, tuple(passing.read)


class _Passing:
    def __init__(self, objects: ObjectStore, caller: Caller, tool: Tool) -> None:
        self._objects = objects
        self._caller = caller
        self._root = tool.input_schema
        self._looks = tool.effects.egress or tool.effects.writes
        self.read: list[Reference] = []

    async def put(self, value: Json, schema: Mapping[str, Json], path: str, depth: int) -> Json:
        if isinstance(value, str):
            handle = parse_handle(value)
            return value if handle is None else await self._value(handle, value, schema, path)
        if depth > _MAX_DEPTH or local(schema, self._root).get("format") == REFERENCE_FORMAT:
            return value
        members = as_object(value)
        if members is not None:
            return {
                key: await self.put(each, at(schema, key, self._root), f"{path}.{key}", depth + 1)
                for key, each in members.items()
            }
        if not isinstance(value, list):
            return value
        return [
            await self.put(each, at(schema, n, self._root), f"{path}[{n}]", depth + 1)
            for n, each in enumerate(as_list(value))
        ]

    async def _look(self, handle: Handle) -> None:
        """Enter what a tool that writes or reaches out may read by itself: guards have to know."""
        if self._looks:
            with suppress(ReferenceNotFound):  # the tool says so itself
                self.read.append(await open_reference(self._objects, self._caller, handle))

    async def _value(
        self, handle: Handle, text: str, schema: Mapping[str, Json], path: str
    ) -> Json:
        if local(schema, self._root).get("format") == REFERENCE_FORMAT:
            await self._look(handle)
            return text
        reference = await open_reference(self._objects, self._caller, handle)
        self.read.append(reference)
        wanted = types_wanted(schema, self._root)
        if not _is_textual(reference.media_type):
            content = await self._objects.read(reference)
            return base64.b64encode(content).decode("ascii")
        value = await self._objects.select(reference, handle.selector)
        return _as_wanted(value, wanted, text, path.lstrip("."))


def _is_textual(media_type: str) -> bool:
    kind = media_type.split(";")[0].strip()
    return kind.startswith("text/") or kind == "application/json" or kind.endswith("+json")


def _as_wanted(value: Json, wanted: frozenset[str], text: str, path: str) -> Json:
    kind = _json_type(value)
    if not wanted or kind in wanted or (kind == "integer" and "number" in wanted):
        return value
    if "string" in wanted:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if isinstance(value, str):
        try:
            parsed = json.loads(value)
        except ValueError:
            parsed = value
        if _json_type(parsed) in wanted:
            return parsed
    kinds = " or ".join(sorted(wanted))
    raise ToolRetry(
        f"`{path}` takes {kinds}, and `{text}` is {kind}: select a part of it, such as"
        f" `{text.split('#')[0].split('?')[0]}#/name`, or use a tool that makes {kinds} of it"
    )


def _json_type(value: Json) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"

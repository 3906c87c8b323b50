"""JSON Schema for tool arguments: which schemas are fit, and what a wrong argument is told.

Source: JSON Schema 2020-12. A `$ref` is followed inside the document only; nothing is fetched.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from threading import Lock
from typing import TYPE_CHECKING, Any, Final, cast
from weakref import WeakKeyDictionary

from guildry.errors import ToolRetry
from guildry.tools.base import Json, Tool
from guildry.tools.registry import nearest

if TYPE_CHECKING:
    from jsonschema.protocols import Validator

__all__ = [
    "as_list",
    "as_object",
    "at",
    "check_arguments",
    "faults_of",
    "local",
    "schema_fault",
    "types_wanted",
    "validator_of",
]

_importing: Final = Lock()
_MAX_NODES: Final = 20_000
_MAX_DEPTH: Final = 64
_SHOWN_ERRORS: Final = 3
_PLAIN_KEYS: Final = frozenset({"type", "title", "description", "default", "examples", "format"})
_SIMPLE_ROOT: Final = frozenset(
    {"type", "properties", "required", "additionalProperties", "title", "description", "$schema"}
)
_OPEN_KEYS: Final = ("patternProperties", "$ref", "$dynamicRef", "allOf", "anyOf", "oneOf", "if")
_PYTHON_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "string": (str,),
    "integer": (int,),
    "number": (int, float),
    "boolean": (bool,),
    "array": (list,),
    "object": (dict,),
    "null": (type(None),),
}
_NAMES: Final[dict[type, str]] = {
    kind: name for name, types in reversed(_PYTHON_TYPES.items()) for kind in types
}


def schema_fault(schema: Json) -> str | None:
    """Return why `schema` cannot describe a tool's arguments, or None when it can."""
    root = as_object(schema)
    if root is None:
        return f"the input schema is {type(schema).__name__}, not an object"
    if root.get("type", "object") != "object":
        return f"the input schema has the type {root['type']!r} at its root: use 'object'"
    for count, (depth, node) in enumerate(_walk(root)):
        if count > _MAX_NODES or depth > _MAX_DEPTH:
            return f"the input schema has over {_MAX_NODES} nodes or {_MAX_DEPTH} levels"
        target = (as_object(node) or {}).get("$ref")
        if isinstance(target, str) and not target.startswith("#"):
            return f"the input schema refers to {target[:200]!r}: only what is inside it is read"
    library = _library()
    try:
        _dialect(library, root).check_schema(root)
    except library.SchemaError as error:
        where = "/".join(str(step) for step in error.absolute_path)
        return f"the input schema is not valid at {where or 'its root'!r}: {error.message[:200]}"
    return None


def validator_of(schema: Mapping[str, Json]) -> "Validator":
    """Return what checks values against a fit schema, in the dialect that it names."""
    library = _library()
    empty = library.validators.referencing.Registry()  # fetches nothing from the network
    validator: Validator = _dialect(library, schema)(schema, registry=empty)
    return validator


def _library() -> Any:
    """Import jsonschema, one thread at a time: its modules import each other in a circle."""
    with _importing:
        import jsonschema

        return jsonschema


def _dialect(library: Any, schema: Mapping[str, Json]) -> Any:
    return library.validators.validator_for(schema, default=library.Draft202012Validator)


def as_object(value: Json) -> Mapping[str, Json] | None:
    """Return `value` when it is a JSON object, else None."""
    return cast("Mapping[str, Json]", value) if isinstance(value, Mapping) else None


def as_list(value: Json) -> list[Json]:
    """Return `value` when it is a JSON array, else an empty one."""
    found: Any = value
    return found if isinstance(value, list) else []


def _kind_of(value: Json) -> str:
    python_type: type[object] = value.__class__
    return _NAMES.get(python_type, python_type.__name__)


def _walk(schema: Json) -> Iterator[tuple[int, Json]]:
    waiting: list[tuple[int, Json]] = [(0, schema)]
    while waiting:
        depth, node = waiting.pop()
        yield depth, node
        children = [*(as_object(node) or {}).values(), *as_list(node)]
        waiting.extend((depth + 1, child) for child in children)


def local(schema: Mapping[str, Json], root: Mapping[str, Json]) -> Mapping[str, Json]:
    """Follow `$ref`s of `schema` inside `root`, at most 16 of them."""
    for _ in range(16):
        target = schema.get("$ref")
        if not isinstance(target, str) or not target.startswith("#"):
            return schema
        found: Json = root
        for step in target[1:].split("/")[1:]:
            found = (as_object(found) or {}).get(step.replace("~1", "/").replace("~0", "~"))
        schema = as_object(found) or {}
    return schema


def at(schema: Mapping[str, Json], step: str | int, root: Mapping[str, Json]) -> Mapping[str, Json]:
    """Return the schema of one member (by name) or item (by index) of what `schema` describes."""
    schema = local(schema, root)
    if isinstance(step, str):
        members = as_object(schema.get("properties")) or {}
        found = as_object(members.get(step, schema.get("additionalProperties")))
    else:
        first = as_list(schema.get("prefixItems"))
        found = as_object(first[step] if step < len(first) else schema.get("items"))
    if found is not None:
        return found
    for branch in _branches(schema):
        if deep := at(branch, step, root):
            return deep
    return {}


def types_wanted(schema: Mapping[str, Json], root: Mapping[str, Json]) -> frozenset[str]:
    """Return the JSON types that `schema` takes; empty when it takes any."""
    schema = local(schema, root)
    named = schema.get("type")
    if named is not None:
        return frozenset(as_list(named) or [named])
    if "enum" in schema or "const" in schema:
        values = as_list(schema.get("enum", [schema.get("const")]))
        return frozenset(_kind_of(value) for value in values)
    branches = [types_wanted(branch, root) for branch in _branches(schema)]
    return frozenset[str]().union(*branches) if all(branches) else frozenset()


def _branches(schema: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    return [
        found
        for key in ("anyOf", "oneOf", "allOf")
        for branch in as_list(schema.get(key))
        if (found := as_object(branch)) is not None
    ]


class _Checker:
    """Check arguments against one schema; what is plainly right never reaches jsonschema."""

    def __init__(self, schema: Mapping[str, Json]) -> None:
        self._schema = schema
        self.properties = as_object(schema.get("properties")) or {}
        self._required = tuple(as_list(schema.get("required")))
        open_ended = schema.get("additionalProperties", False) not in (False, None)
        self.closed = not open_ended and not any(key in schema for key in _OPEN_KEYS)
        self._is_simple = self.closed and schema.keys() <= _SIMPLE_ROOT
        self._plain = {name: _plain_types(each) for name, each in self.properties.items()}
        self._validator: Validator | None = None

    def accepts_plainly(self, arguments: Mapping[str, Json]) -> bool:
        """Tell whether the arguments are right by their types alone; False decides nothing."""
        if not self._is_simple:
            return False
        for name, value in arguments.items():
            if type(value) not in self._plain.get(name, ()):
                return False
        return all(name in arguments for name in self._required)

    def errors(self, arguments: Mapping[str, Json]) -> list[Any]:
        """Return jsonschema's errors in a fixed order, less unknown arguments at the root."""
        if self._validator is None:
            self._validator = validator_of(self._schema)
        found: list[Any] = list(cast("Any", self._validator).iter_errors(arguments))
        found = [each for each in found if each.validator != "additionalProperties" or each.path]
        return sorted(found, key=lambda each: [str(step) for step in each.absolute_path])


def _plain_types(schema: Json) -> tuple[type, ...]:
    found = as_object(schema) or {}
    kind = found.get("type")
    if not isinstance(kind, str) or kind in ("array", "object") or not found.keys() <= _PLAIN_KEYS:
        return ()
    return _PYTHON_TYPES.get(kind, ())


_checkers: "WeakKeyDictionary[Tool, _Checker]" = WeakKeyDictionary()


def check_arguments(tool: Tool, arguments: Mapping[str, Json]) -> None:
    """Check `arguments` before `tool` runs.

    Raises:
        ToolRetry: an argument is unknown, missing or wrong; says what to change.
    """
    checker = _checkers.get(tool)
    if checker is None:
        checker = _checkers[tool] = _Checker(tool.input_schema)
    if checker.accepts_plainly(arguments):
        return
    faults = [*_unknown(tool, checker, arguments)]
    faults += [_sentence(tool.input_schema, error) for error in checker.errors(arguments)]
    if faults:
        rest = len(faults) - _SHOWN_ERRORS
        more = f" (and {rest} more)" if rest > 0 else ""
        raise ToolRetry(f"`{tool.name}` was not called: {'; '.join(faults[:_SHOWN_ERRORS])}{more}")


def faults_of(schema: Mapping[str, Json], value: Json) -> list[str]:
    """Return what is wrong with `value` by a fit schema, a few sentences that say what to change.

    For what is no call: answers to questions, requests of other systems.
    """
    errors: list[Any] = list(cast("Any", validator_of(schema)).iter_errors(value))
    errors.sort(key=lambda each: [str(step) for step in each.absolute_path])
    return [_sentence(schema, error) for error in errors[:_SHOWN_ERRORS]]


def _unknown(tool: Tool, checker: _Checker, arguments: Mapping[str, Json]) -> Iterator[str]:
    known = tuple(checker.properties)
    for name in arguments if checker.closed else ():
        if name not in checker.properties:
            near = nearest(name, known)
            takes = ", ".join(f"`{each}`" for each in known) or "no arguments"
            cure = f"did you mean `{near}`?" if near else f"it takes {takes}"
            yield f"{name!r} is not an argument of `{tool.name}`: {cure}"


def _sentence(schema: Mapping[str, Json], error: Any) -> str:
    path = "".join(f"[{s}]" if isinstance(s, int) else f".{s}" for s in error.absolute_path)
    path = path.lstrip(".")
    value, wants = error.instance, error.validator_value
    where = f"`{path}`" if path else "the whole object"
    is_what = f"{where} is {_short(value)}"
    match error.validator:
        case "required":
            missing = next((str(name) for name in wants if name not in value), "?")
            inner = at(as_object(error.schema) or {}, missing, schema)
            name = f"{path}.{missing}".lstrip(".")
            return f"`{name}` is missing: give {_kinds(types_wanted(inner, schema))}"
        case "type":
            return f"{is_what} ({_kind_of(value)}): give {_kinds(as_list(wants) or [wants])}"
        case "enum":
            return f"{is_what}: use one of {', '.join(repr(each) for each in wants[:12])}"
        case "anyOf" | "oneOf":
            kinds = types_wanted(as_object(error.schema) or {}, schema)
            return f"{is_what}: give {_kinds(kinds)} in one of the forms of the schema"
        case _:
            return f"{is_what}: {str(error.message).replace(repr(value), 'it', 1)[:160]}"


def _kinds(kinds: Iterable[str]) -> str:
    wanted = " or ".join(sorted(kinds)) or "value"
    return f"an {wanted}" if wanted[0] in "aeio" else f"a {wanted}"


def _short(value: Json) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value, default=str)
    return text if len(text) <= 80 else text[:77] + "..."

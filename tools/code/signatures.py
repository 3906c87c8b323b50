"""Tools as Python stubs: what a model must know to call them in a program, and little more."""

import json
from collections.abc import Mapping
from typing import Final

from guildry.tools.base import Json, Tool
from guildry.tools.code.names import Parameter, bare_schema, parameters_of
from guildry.tools.schema import as_list, as_object, local

__all__ = ["signature_of"]

_KINDS: Final = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "null": "None",
    "array": "list",
    "object": "dict",
}
_DESCRIBED: Final = 120
_SHAPE: Final = 240
_CHOICES: Final = 8
_CHOICE: Final = 60
_DEPTH: Final = 3


def signature_of(tool: Tool, function: str) -> str:
    """Return `tool` as the stub of the function `function`, of a few lines."""
    parameters = parameters_of(tool)
    root = tool.input_schema
    given = ", ".join(_parameter(each, root) for each in parameters)
    whole = tool.output_schema
    answer = None if whole is None else bare_schema(tool) or whole
    returned = "Any" if answer is None else _hint(answer, whole or {})
    lines = [f"def {function}({given}) -> {returned}:"]
    about = _first_sentence(tool.description)
    if about:
        lines.append(f'    """{about}"""')
    for each in parameters:
        shape = _shape(each.schema, root)
        if shape:
            lines.append(f"    # {each.name}: {shape}")
    if answer is not None:
        shape = _shape(answer, whole or {})
        if shape:
            lines.append(f"    # returns {shape}")
    return "\n".join(lines) if len(lines) > 1 else f"{lines[0]} ..."


def _parameter(parameter: Parameter, root: Mapping[str, Json]) -> str:
    hint = f"{parameter.name}: {_hint(parameter.schema, root)}"
    if parameter.is_required:
        return hint
    default = parameter.schema.get("default", ...)
    told = "..." if default is ... else repr(default)
    return f"{hint} = {told if len(told) <= _CHOICE else '...'}"


def _first_sentence(text: str) -> str:
    line = "".join(each for each in " ".join(text.split()) if each.isprintable())
    end = line.find(". ")
    line = line if end < 0 else line[: end + 1]
    line = line if len(line) <= _DESCRIBED else f"{line[: _DESCRIBED - 1]}…"
    return line.replace("\\", "\\\\").replace('"""', "'''").rstrip('"')


def _hint(schema: Mapping[str, Json], root: Mapping[str, Json], depth: int = 0) -> str:
    """Return the type of a value as a hint."""
    here = local(schema, root)
    if depth > _DEPTH:
        return "Any"
    choices = as_list(here.get("enum")) or ([here["const"]] if "const" in here else [])
    if choices:
        told = ", ".join(repr(each) for each in choices[:_CHOICES])
        if len(choices) <= _CHOICES and len(told) <= _CHOICE:
            return f"Literal[{told}]"
    named = here.get("type")
    if named is not None:
        kinds = as_list(named) or [named]
        return _joined([_kind(str(each), here, root, depth) for each in kinds])
    branches = [*as_list(here.get("anyOf")), *as_list(here.get("oneOf"))]
    if branches:
        return _joined([_hint(as_object(each) or {}, root, depth + 1) for each in branches])
    return "dict" if "properties" in here else "Any"


def _kind(kind: str, schema: Mapping[str, Json], root: Mapping[str, Json], depth: int) -> str:
    if kind == "array" and as_object(schema.get("items")):
        return f"list[{_hint(as_object(schema.get('items')) or {}, root, depth + 1)}]"
    return _KINDS.get(kind, "Any")


def _joined(hints: list[str]) -> str:
    return "Any" if "Any" in hints else " | ".join(dict.fromkeys(hints))


def _shape(schema: Mapping[str, Json], root: Mapping[str, Json]) -> str:
    """Return what is in an object, or in the objects of a list; empty for what is neither."""
    told = _inside(schema, root, 0)
    if "{" not in told:
        return ""
    return told if len(told) <= _SHAPE else f"{told[: _SHAPE - 1]}…"


def _inside(schema: Mapping[str, Json], root: Mapping[str, Json], depth: int) -> str:
    here = local(schema, root)
    members = as_object(here.get("properties"))
    if members and depth <= _DEPTH:
        required = set(as_list(here.get("required")))
        told = [
            f"{_key(key)}{'' if key in required else '?'}:"
            f" {_inside(as_object(each) or {}, root, depth + 1)}"
            for key, each in members.items()
        ]
        return f"{{{', '.join(told)}}}"
    items = as_object(here.get("items"))
    if items and depth <= _DEPTH:
        return f"[{_inside(items, root, depth + 1)}]"
    return _hint(here, root)


def _key(key: str) -> str:
    return key if key.isidentifier() else json.dumps(key, ensure_ascii=False)

"""Tools and their parameters under names that Python takes. Knows neither grants nor calls."""

import builtins
import keyword
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from guildry.tools.base import Json, Tool
from guildry.tools.schema import as_list, as_object, types_wanted

__all__ = ["BARE", "REF", "Parameter", "bare_schema", "function_names", "named", "parameters_of"]

REF: Final = "ref"
"""The function by which a program opens a reference."""

BARE: Final = "result"
"""The one key of the object in which servers wrap an answer that is no object."""

_OUTSIDE_NAME: Final = re.compile(r"[^A-Za-z0-9_]")
_KEYWORDS: Final = frozenset(keyword.kwlist)
_TAKEN: Final = _KEYWORDS | frozenset(dir(builtins)) | {REF}


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of a tool.

    Args:
        name: as a program writes it.
        key: as the tool's schema has it.
        schema: of its value.
        is_required: whether a call must give it.
        nullable: whether None is one of its values.
    """

    name: str
    key: str
    schema: Mapping[str, Json]
    is_required: bool
    nullable: bool


def function_names(tools: Iterable[str]) -> dict[str, str]:
    """Return which function is which tool, in the order of the tools.

    A tool whose name is an identifier keeps it; others get an underscore where theirs has a
    character that Python does not take, and a number where that is taken.
    """
    names = list(tools)
    kept = {name for name in names if named(name, _TAKEN) == name}
    functions: dict[str, str] = {}
    for name in names:
        wanted = function = named(name, _TAKEN)
        number = 2
        while function in functions or (function in kept and function != name):
            function = f"{wanted}_{number}"
            number += 1
        functions[function] = name
    return functions


def parameters_of(tool: Tool) -> tuple[Parameter, ...]:
    """Return the parameters of a tool in the order of its signature: required ones first."""
    schema = tool.input_schema
    required = set(as_list(schema.get("required")))
    found: dict[str, Parameter] = {}
    for key, each in (as_object(schema.get("properties")) or {}).items():
        wanted = name = named(key, _KEYWORDS)
        number = 2
        while name in found:
            name = f"{wanted}_{number}"
            number += 1
        shape = as_object(each) or {}
        kinds = types_wanted(shape, schema)
        nullable = not kinds or "null" in kinds
        found[name] = Parameter(name, key, shape, key in required, nullable)
    return tuple(sorted(found.values(), key=lambda each: not each.is_required))


def bare_schema(tool: Tool) -> Mapping[str, Json] | None:
    """Return the schema of a bare answer, or None where a tool answers with an object proper."""
    schema = tool.output_schema or {}
    properties = as_object(schema.get("properties")) or {}
    return as_object(properties[BARE]) if tuple(properties) == (BARE,) else None


def named(text: str, taken: frozenset[str]) -> str:
    """Return `text` as an identifier that is not one of `taken`."""
    name = _OUTSIDE_NAME.sub("_", text) or "_"
    if name[0].isdigit():
        name = f"_{name}"
    return f"{name}_" if name in taken else name

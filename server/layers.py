"""Layers of settings: who set what, how they are joined, and how a wrong one is told."""

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, cast

from guildry.errors import ConfigError
from guildry.server.http import settings as http_settings

if TYPE_CHECKING:
    from pydantic import ValidationError

__all__ = ["Layer", "merge", "refusal", "spread"]

_SHOWN: Final = 3
_KINDS: Final = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "text",
    "array": "a list of texts",
    "object": "a table",
}
_BOUNDS: Final = (
    ("minimum", "of {} or more"),
    ("exclusiveMinimum", "above {}"),
    ("maximum", "and at most {}"),
    ("pattern", "like {}"),
    ("minLength", "of length {} or more"),
)


@dataclass(frozen=True, slots=True)
class Layer:
    """One source of settings.

    Args:
        name: `flag`, `set`, `environment`, or the file in backticks.
        values: by the names of the settings, nested.
        folder: where its relative paths start.
    """

    name: str
    values: dict[str, Any]
    folder: Path

    def located(self) -> "Layer":
        """Return this layer with its paths made absolute, so that layers can be joined."""
        values = dict(self.values)
        for name in ("home", "folder", "plugs_folder"):
            if isinstance(values.get(name), str | Path):
                values[name] = self._absolute(values[name])
        for name in ("teams", "skills"):
            if isinstance(values.get(name), str):
                values[name] = [t.strip() for t in values[name].split(",") if t.strip()]
            if isinstance(values.get(name), list | tuple):
                values[name] = [
                    self._absolute(t) if isinstance(t, str | Path) else t for t in values[name]
                ]
        if isinstance(values.get("plugs"), dict):
            values["plugs"] = {name: self._plug(plug) for name, plug in values["plugs"].items()}
        if isinstance(values.get("http"), dict):
            values["http"] = http_settings.located(values["http"], self._absolute)
        return replace(self, values=values)

    def _absolute(self, path: str | Path) -> Path:
        return (self.folder / Path(path).expanduser()).absolute()

    def _plug(self, plug: object) -> object:
        """Make the source absolute where it is a path: a command line or a URL stays as it is."""
        given: dict[str, Any] = {"source": plug} if isinstance(plug, str) else plug  # type: ignore[assignment]
        if not isinstance(given, dict) or not isinstance(given.get("source"), str):  # pyright: ignore[reportUnnecessaryIsInstance]
            return plug
        path = self._absolute(given["source"])
        return {**given, "source": str(path)} if os.path.exists(path) else given

    def says(self, loc: Sequence[str]) -> str:
        """Return how the setting at `loc` is written in this layer."""
        if self.name == "flag":
            return f"`--{'.'.join(loc).replace('_', '-')}`"
        if self.name == "set":
            return f"`--set {'.'.join(loc)}`"
        if self.name == "environment":
            return f"`GUILDRY_{'__'.join(loc).upper()}`"
        return f"`{'.'.join(loc)}` in {self.name}"

    def depth(self, loc: Sequence[str]) -> int:
        """Return how many steps of `loc` this layer has set."""
        node: object = self.values
        for step, key in enumerate(loc):
            if not isinstance(node, dict) or key not in node:
                return step
            node = node[key]  # pyright: ignore[reportUnknownVariableType]
        return len(loc)


def spread(pairs: object) -> dict[str, Any]:
    """Return the nested values of `key=value` texts; a dot in a key goes one level down.

    Raises:
        ConfigError: a text is not of that form.
    """
    values: dict[str, Any] = {}
    for pair in cast("Sequence[str]", pairs or ()):
        key, equals, text = pair.partition("=")
        if not equals or not all(key.split(".")):
            raise ConfigError(f"`--set` is {pair!r}: give `key=value`, such as `run_depth=2`")
        *path, last = key.replace("-", "_").split(".")
        node = values
        for step in path:
            if not isinstance(node.setdefault(step, {}), dict):
                raise ConfigError(f"`--set {key}`: `{step}` was given a value before")
            node = node[step]
        node[last] = _parsed(text)
    return values


def _parsed(text: str) -> object:
    """Return a list or a table that is written as JSON; any other text as it is."""
    if not text.startswith(("[", "{")):
        return text
    try:
        return cast("object", json.loads(text))
    except ValueError:
        return text


def merge(layers: Sequence[Layer]) -> dict[str, Any]:
    """Return the values of all layers; the first layer that sets a key wins."""
    joined: dict[str, Any] = {}
    for layer in reversed(layers):
        joined = _over(layer.values, joined)
    return joined


def _over(upper: Mapping[str, Any], lower: Mapping[str, Any]) -> dict[str, Any]:
    joined = dict(lower)
    for key, value in upper.items():
        below = joined.get(key)
        both = isinstance(value, dict) and isinstance(below, dict)
        joined[key] = _over(value, below) if both else value  # type: ignore[arg-type]
    return joined


def refusal(error: "ValidationError", layers: Sequence[Layer], schema: Mapping[str, Any]) -> str:
    """Return one line a fault, at most three: the key, who set it, and what it takes."""
    faults = error.errors(include_url=False)
    lines = [
        _fault(item["type"], tuple(map(str, item["loc"])), item["input"], layers, schema)
        for item in faults[:_SHOWN]
    ]
    if len(faults) > _SHOWN:
        lines.append(f"and {len(faults) - _SHOWN} more")
    return "\n".join(lines)


def _fault(
    kind: str,
    loc: tuple[str, ...],
    value: object,
    layers: Sequence[Layer],
    schema: Mapping[str, Any],
) -> str:
    layer = max(layers, key=lambda item: item.depth(loc))
    where = layer.says(loc)
    if kind == "extra_forbidden":
        known = _keys(_node(schema, loc[:-1]), schema)
        return f"{where} is no setting: {_nearest(loc[-1], known)}"
    node = _node(schema, loc)
    takes = _takes(node)
    line = str(node.get("description", ""))
    if kind == "missing":
        return f"{where} is missing: give {takes}. {line}".rstrip()
    return f"{where} is {_shown(loc, value)}: give {takes}. {line}".rstrip()


def _shown(loc: tuple[str, ...], value: object) -> str:
    """Return the wrong value, but never one that may be a secret."""
    if "env" in loc:
        return "of the wrong type"
    text = repr(str(value) if isinstance(value, Path) else value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _node(schema: Mapping[str, Any], loc: Sequence[str]) -> Mapping[str, Any]:
    """Return the part of a JSON Schema that describes the value at `loc`."""
    node: Any = schema
    for key in loc:
        node = _deref(node, schema)
        inner: Any = node.get("properties", {}).get(key) or node.get("additionalProperties")
        node = inner if isinstance(inner, dict) else node.get("items", {})  # pyright: ignore[reportUnknownVariableType]
    described = {"description": node["description"]} if "description" in node else {}
    return {**_deref(node, schema), **described}


def _deref(node: Any, schema: Mapping[str, Any]) -> Mapping[str, Any]:
    ref = node.get("$ref")
    found: Mapping[str, Any] = node
    if isinstance(ref, str):
        found = schema["$defs"][ref.rsplit("/", 1)[-1]]
    return found


def _keys(node: Mapping[str, Any], schema: Mapping[str, Any]) -> list[str]:
    return list(_deref(node, schema).get("properties", {}))


def _nearest(key: str, known: Sequence[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(key.lower(), known, n=1, cutoff=0.5)
    if near:
        return f"did you mean `{near[0]}`?"
    return f"there are {', '.join(f'`{name}`' for name in known)}"


def _takes(node: Mapping[str, Any]) -> str:
    if "enum" in node:
        return "one of " + ", ".join(f"`{value}`" for value in node["enum"])
    kinds = [str(item.get("type", "null")) for item in node.get("anyOf", [node])]
    words = [_KINDS.get(kind, "a value") for kind in kinds if kind != "null"]
    bounds = [text.format(node[key]) for key, text in _BOUNDS if key in node]
    return " ".join([" or ".join(words) or "a value", *bounds])

"""Bounds of schemas: which are plainly right, and which would take for ever to check against.

Knows JSON Schema (2020-12, and what draft 7 shares with it), no tools. Takes time in proportion to
the schema, and reads at most a fixed part of one: what lies beyond is a fault of its own.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from guildry.tools.base import Json
from guildry.tools.schema import as_list, as_object

__all__ = ["MAX_DEPTH", "bounds_fault", "is_plainly_right"]

MAX_DEPTH: Final = 64
"""Most levels of a schema."""

_MAX_NODES: Final = 20_000
_MAX_CHARACTERS: Final = 500_000
_MAX_STEPS: Final = 20_000
_MAX_PATTERN: Final = 2_000
_DIALECTS: Final = frozenset(
    {
        "https://json-schema.org/draft/2020-12/schema",
        "http://json-schema.org/draft-07/schema#",
        "http://json-schema.org/draft-07/schema",
    }
)
_TYPES: Final = frozenset({"string", "integer", "number", "boolean", "array", "object", "null"})
_IN_PLACE: Final = ("allOf", "anyOf", "oneOf")
_IN_PLACE_ONE: Final = ("not", "if", "then", "else")
_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_ATOM: Final = re.compile(r"(\\.|\[(?:\\.|[^\]\\])*\]|[^\\])([*+?]|\{(\d+),?(\d*)\})?[?+]?")
_GROUP: Final = re.compile(
    r"\((?:\?:|\?P<\w+>)?((?:\\.|\[(?:\\.|[^\]\\])*\]|[^()\\\[])*)\)([*+]|\{\d+,\})"
)


def bounds_fault(schema: Json) -> str | None:
    """Return why a schema is too large, or cannot be checked against in bounded time, or None."""
    if fault := _size_fault(schema):
        return fault
    nodes = [node for each in _nodes(schema) if (node := as_object(each)) is not None]
    for node in nodes:
        pattern = node.get("pattern")
        if isinstance(pattern, str) and (fault := _pattern_fault(pattern)):
            return fault
        named = as_object(node.get("patternProperties")) or {}
        if fault := next((found for each in named if (found := _pattern_fault(each))), None):
            return fault
    if not any(key in node for node in nodes for key in _REFERENCES):
        return None
    return _references_fault(as_object(schema) or {}, nodes)


def is_plainly_right(schema: Json) -> bool:
    """Tell whether a schema says only plain things, all of them right; False decides nothing.

    Spares the check against the schema of schemas, which takes a hundred times as long.
    """
    waiting: list[Json] = [schema]
    while waiting:
        node = waiting.pop()
        if isinstance(node, bool):
            continue
        members = as_object(node)
        if members is None:
            return False
        for key, value in members.items():
            rule = _RULES.get(key)
            if rule is None:
                if key in _OTHER_WORDS or key.startswith("$"):
                    return False
            elif not rule(value, waiting):
                return False
    return True


def _size_fault(schema: Json) -> str | None:
    waiting: list[tuple[int, Json]] = [(0, schema)]
    nodes = characters = 0
    while waiting:
        depth, node = waiting.pop()
        nodes += 1
        if nodes > _MAX_NODES or depth > MAX_DEPTH:
            return f"the input schema has over {_MAX_NODES} nodes or {MAX_DEPTH} levels"
        if isinstance(node, str):
            characters += len(node)
        members = as_object(node)
        children = as_list(node) if members is None else list(members.values())
        characters += sum(len(str(key)) for key in members or ())
        if characters > _MAX_CHARACTERS:
            return f"the input schema has over {_MAX_CHARACTERS:,} characters: say less in it"
        if len(waiting) + len(children) > _MAX_NODES:
            return f"the input schema has over {_MAX_NODES} nodes or {MAX_DEPTH} levels"
        waiting.extend((depth + 1, child) for child in children)
    return None


def _nodes(schema: Json) -> Iterator[Json]:
    waiting = [schema]
    while waiting:
        node = waiting.pop()
        yield node
        members = as_object(node)
        waiting.extend(as_list(node) if members is None else members.values())


def _pattern_fault(pattern: str) -> str | None:
    """Return why a pattern may take time beyond all bounds: a repeated group of repeats only."""
    if len(pattern) > _MAX_PATTERN:
        return f"a pattern of the input schema has over {_MAX_PATTERN:,} characters: say it shorter"
    for found in _GROUP.finditer(pattern):
        branches = found.group(1).split("|")
        if any(_repeats_only(branch) for branch in branches):
            return (
                f"the pattern {pattern[:100]!r} of the input schema repeats what repeats itself,"
                " which may take for ever: repeat it once"
            )
    return None


def _repeats_only(branch: str) -> bool:
    """Tell whether everything in a branch may repeat or be left out, and something repeats."""
    repeats = False
    for atom, quantifier, least, _ in _ATOM.findall(branch):
        if atom in ("^", "$", "\\b"):
            continue
        endless = quantifier in ("*", "+") or (quantifier.endswith(",}") and bool(least))
        if not endless and quantifier != "?" and not quantifier.startswith("{0,"):
            return False
        repeats = repeats or endless
    return repeats


def _references_fault(root: Mapping[str, Json], nodes: list[Mapping[str, Json]]) -> str | None:
    anchors = {str(node[key]) for node in nodes for key in _ANCHORS if key in node}
    anchors |= {str(node["$id"])[1:] for node in nodes if str(node.get("$id", "")).startswith("#")}
    if any("$id" in node and node is not root for node in nodes) and not anchors:
        return "the input schema has an `$id` inside, which moves its references: leave it out"
    for node in nodes:
        for key in _REFERENCES:
            target = node.get(key)
            if not isinstance(target, str):
                continue  # a property of that name, or no reference at all
            if not target.startswith("#"):
                return f"the input schema refers to {target[:200]!r}: only what is inside is read"
            if target[1:] not in anchors and _pointed(root, target) is None:
                return f"the input schema refers to {target[:200]!r}, which is not in it"
    return _cost_fault(root, nodes)


_ANCHORS: Final = ("$anchor", "$dynamicAnchor")


def _pointed(root: Json, target: str) -> Json | None:
    """Return what a local reference points to, or None where there is nothing."""
    found: Json | None = root
    for step in target[1:].split("/")[1:]:
        name = step.replace("~1", "/").replace("~0", "~")
        items = as_list(found)
        if items and name.isdecimal() and len(name) < 6:
            found = items[int(name)] if int(name) < len(items) else None
        else:
            found = (as_object(found) or {}).get(name)
        if found is None:
            return None
    return found


def _cost_fault(root: Mapping[str, Json], nodes: list[Mapping[str, Json]]) -> str | None:
    """Return a fault where one value is checked again and again by references that fan out."""
    costs: dict[int, int] = {}
    for start in nodes:
        stack: list[tuple[Mapping[str, Json], list[Mapping[str, Json]]]] = [(start, [])]
        on_the_way: set[int] = set()
        while stack:
            node, rest = stack[-1]
            if id(node) not in on_the_way:
                if id(node) in costs:
                    stack.pop()
                    continue
                on_the_way.add(id(node))
                rest.extend(_applied(root, node))
            if rest:
                inner = rest.pop()
                if id(inner) in on_the_way:
                    return "the input schema refers to itself without end"
                stack.append((inner, []))
                continue
            stack.pop()
            on_the_way.discard(id(node))
            costs[id(node)] = 1 + sum(costs[id(each)] for each in _applied(root, node))
            if costs[id(node)] > _MAX_STEPS:
                return f"the input schema takes over {_MAX_STEPS:,} steps for one value"
    return None


def _applied(root: Mapping[str, Json], node: Mapping[str, Json]) -> list[Mapping[str, Json]]:
    """Return the schemas that a value of `node` is checked against besides."""
    found: list[Json] = [each for key in _IN_PLACE for each in as_list(node.get(key))]
    found += [node[key] for key in _IN_PLACE_ONE if key in node]
    found += (as_object(node.get("dependentSchemas")) or {}).values()
    for key in _REFERENCES:
        target = node.get(key)
        if isinstance(target, str) and (target == "#" or target.startswith("#/")):
            found.append(_pointed(root, target))
    return [each for one in found if (each := as_object(one)) is not None]


_Rule = Callable[[Json, list[Json]], bool]


def _text(value: Json, waiting: list[Json]) -> bool:
    return isinstance(value, str)


def _anything(value: Json, waiting: list[Json]) -> bool:
    return True


def _truth(value: Json, waiting: list[Json]) -> bool:
    return isinstance(value, bool)


def _number(value: Json, waiting: list[Json]) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _count(value: Json, waiting: list[Json]) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _list(value: Json, waiting: list[Json]) -> bool:
    return isinstance(value, list)


def _names(value: Json, waiting: list[Json]) -> bool:
    names = as_list(value)
    are_texts = isinstance(value, list) and all(isinstance(each, str) for each in names)
    return are_texts and len(set(names)) == len(names)


def _types(value: Json, waiting: list[Json]) -> bool:
    if isinstance(value, str):
        return value in _TYPES
    return bool(value) and _names(value, waiting) and _TYPES.issuperset(as_list(value))


def _schema(value: Json, waiting: list[Json]) -> bool:
    waiting.append(value)
    return True


def _schemas(value: Json, waiting: list[Json]) -> bool:
    waiting.extend(as_list(value))
    return bool(as_list(value))


def _named_schemas(value: Json, waiting: list[Json]) -> bool:
    members = as_object(value)
    waiting.extend((members or {}).values())
    return members is not None


def _pattern(value: Json, waiting: list[Json]) -> bool:
    try:
        re.compile(value)
    except (re.error, TypeError, RecursionError, OverflowError):
        return False
    return True


def _dialect(value: Json, waiting: list[Json]) -> bool:
    return isinstance(value, str) and value in _DIALECTS


_RULES: Final[Mapping[str, _Rule]] = {
    **dict.fromkeys(("title", "description", "$comment", "format", "$ref"), _text),
    **dict.fromkeys(("default", "const"), _anything),
    **dict.fromkeys(("enum", "examples"), _list),
    **dict.fromkeys(("uniqueItems", "deprecated", "readOnly", "writeOnly"), _truth),
    **dict.fromkeys(("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"), _number),
    **dict.fromkeys(("minLength", "maxLength", "minItems", "maxItems"), _count),
    **dict.fromkeys(("minProperties", "maxProperties"), _count),
    **dict.fromkeys(("additionalProperties", "items", "not", "contains", "propertyNames"), _schema),
    **dict.fromkeys(_IN_PLACE, _schemas),
    **dict.fromkeys(("properties", "$defs", "definitions"), _named_schemas),
    "type": _types,
    "required": _names,
    "pattern": _pattern,
    "$schema": _dialect,
}
_OTHER_WORDS: Final = frozenset(
    {"if", "then", "else", "multipleOf", "prefixItems", "additionalItems", "patternProperties"}
    | {"dependentSchemas", "dependentRequired", "dependencies", "unevaluatedItems", "id"}
    | {"unevaluatedProperties", "minContains", "maxContains", "contentMediaType"}
    | {"contentEncoding", "contentSchema", "extends", "disallow", "divisibleBy"}
)

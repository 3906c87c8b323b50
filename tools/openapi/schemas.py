"""Schemas of an OpenAPI document as JSON Schema 2020-12, as little of them as a model needs.

What goes in a request is kept as it is said; what comes in an answer is promised loosely, because
servers seldom keep to the letter of their documents. Source: OpenAPI 3.0.4 and 3.1.1.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from guildry.tools.base import REFERENCE_FORMAT, Json
from guildry.tools.openapi.document import Document, Unfit, pointed
from guildry.tools.schema import as_list, as_object

__all__ = ["Shaper", "brief"]

_MAX_NODES: Final = 4_000
_MAX_DEPTH: Final = 40
_MAX_WORDS: Final = 600
_SCALARS: Final = frozenset({"string", "integer", "number", "boolean", "null"})
_TYPES: Final = _SCALARS | {"array", "object"}
_ONE: Final = (
    *("additionalProperties", "items", "not", "contains", "propertyNames", "if", "then", "else"),
    *("unevaluatedItems", "unevaluatedProperties"),
)
_MANY: Final = ("allOf", "anyOf", "oneOf", "prefixItems")
_NAMED: Final = ("properties", "dependentSchemas")
_NUMBERS: Final = (
    *("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"),
    *("minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties"),
)
_STRICT: Final = ("not", "if", "then", "else", "contains", "propertyNames", "dependentSchemas")
_IN_PLACE: Final = ("allOf", "anyOf", "oneOf", "not", "if", "then", "else", "dependentSchemas")


class Shaper:
    """Make the schemas of one operation, with what they refer to in `defs`.

    Args:
        document: where references lead.
        is_answer: the schemas are of what comes back.
    """

    def __init__(self, document: Document, *, is_answer: bool = False) -> None:
        self._document = document
        self._is_answer = is_answer
        self._names: dict[str, str] = {}
        self._waiting: list[tuple[str, str]] = []
        self._nodes = 0
        self.defs: dict[str, Json] = {}

    def shape(self, schema: Json) -> Json:
        """Return a schema, with its references leading to `defs`.

        Raises:
            Unfit: it is none, leads out of the document, or is too large.
        """
        shaped = self._shaped(schema, 0)
        while self._waiting:
            name, pointer = self._waiting.pop()
            self.defs[name] = self._shaped(self._document.at(pointer), 0)
        return shaped

    def rooted(self, schema: dict[str, Json]) -> dict[str, Json]:
        """Return the schema of all arguments or of an answer, with what it refers to.

        Raises:
            Unfit: a schema refers to itself in such a way that no value could be checked.
        """
        leads = {name: frozenset(_in_place(each)) for name, each in self.defs.items()}
        for name in leads:
            _check_end(name, leads)
        return {**schema, "$defs": self.defs} if self.defs else schema

    def whole(self, schema: Json) -> Mapping[str, Json] | None:
        """Return what a shaped schema says itself: what a lone `$ref` to `defs` leads to."""
        found = as_object(schema)
        for _ in range(len(self.defs) + 1):
            if found is None or "$ref" not in found:
                return found
            found = as_object(self.defs.get(str(found["$ref"]).removeprefix("#/$defs/")))
        return None

    def _shaped(self, schema: Json, depth: int) -> Json:
        if isinstance(schema, bool):
            return schema
        node = as_object(schema)
        if node is None:
            raise Unfit(f"a schema is {type(schema).__name__}: write an object")
        self._count(1, depth)
        if "$ref" in node:
            return self._referred(node, depth)
        shaped = {**self._said(node), **self._nested(node, depth)}
        if not self._is_answer:
            self._describe(shaped, node)
        return self._nullable(shaped, node)

    def _count(self, nodes: int, depth: int) -> None:
        self._nodes += nodes
        if self._nodes > _MAX_NODES or depth > _MAX_DEPTH:
            raise Unfit(
                f"its schemas have over {_MAX_NODES:,} parts or {_MAX_DEPTH} levels: make them less"
            )

    def _referred(self, node: Mapping[str, Json], depth: int) -> Json:
        pointer = pointed(node["$ref"])
        target = as_object(self._document.at(pointer))
        is_small = (
            target is not None and "$ref" not in target and str(target.get("type")) in _SCALARS
        )
        found: Json
        if target is not None and is_small:
            found = self._shaped(target, depth + 1)
        else:
            found = {"$ref": f"#/$defs/{self._named(pointer)}"}
        members = as_object(found)
        if members is not None and isinstance(node.get("description"), str) and not self._is_answer:
            return {**members, "description": brief(node["description"])}
        return found

    def _named(self, pointer: str) -> str:
        name = self._names.get(pointer)
        if name is None:
            base = re.sub(r"[^A-Za-z0-9_.-]", "_", pointer.rpartition("/")[2])[:60] or "root"
            name, n = base, 2
            while name in self._names.values():
                name, n = f"{base}_{n}", n + 1
            self._names[pointer] = name
            self._waiting.append((name, pointer))
        return name

    def _said(self, node: Mapping[str, Json]) -> dict[str, Json]:
        """Return what a schema says of a value by itself."""
        said: dict[str, Json] = {}
        kinds = [each for each in _listed(node.get("type")) if str(each) in _TYPES]
        if kinds:
            said["type"] = kinds[0] if len(kinds) == 1 else kinds
        if self._is_answer:
            return said
        for key in ("enum", "const", "default"):
            if key in node and (key != "enum" or as_list(node[key])):
                said[key] = node[key]
                self._count(_size(node[key]), 0)
        said |= {key: node[key] for key in _NUMBERS if _is_number(node.get(key))}
        for limit, bound in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
            if node.get(limit) is True and bound in said:  # OpenAPI 3.0
                said[limit] = said.pop(bound)
        if node.get("uniqueItems") is True:
            said["uniqueItems"] = True
        if (form := _format(node)) is not None:
            said["format"] = form
        return said

    def _nested(self, node: Mapping[str, Json], depth: int) -> dict[str, Json]:
        """Return the schemas inside a schema."""
        nested = self._single(node, depth)
        for key in _MANY:
            if branches := as_list(node.get(key)):
                loose = "anyOf" if self._is_answer and key == "oneOf" else key
                nested[loose] = [self._shaped(each, depth + 1) for each in branches]
        for key in _NAMED:
            inner = as_object(node.get(key))
            if inner is not None and not (self._is_answer and key in _STRICT):
                nested[key] = self._members(inner, depth)
        if not self._is_answer:
            hidden = self._hidden(node)
            required = [each for each in as_list(node.get("required")) if isinstance(each, str)]
            if kept := [each for each in dict.fromkeys(required) if each not in hidden]:
                nested["required"] = kept
        return nested

    def _single(self, node: Mapping[str, Json], depth: int) -> dict[str, Json]:
        nested: dict[str, Json] = {}
        for key in _ONE:
            inner = node.get(key)
            if inner is None or (self._is_answer and (key in _STRICT or inner is False)):
                continue
            if key != "additionalProperties" or "patternProperties" not in node:
                nested[key] = self._shaped(inner, depth + 1)  # patterns are not tried: any name
        return nested

    def _members(self, members: Mapping[str, Json], depth: int) -> dict[str, Json]:
        return {
            str(name): self._shaped(each, depth + 1)
            for name, each in members.items()
            if not self._is_hidden(each)
        }

    def _hidden(self, node: Mapping[str, Json]) -> frozenset[str]:
        members = as_object(node.get("properties")) or {}
        return frozenset(name for name, each in members.items() if self._is_hidden(each))

    def _is_hidden(self, schema: Json) -> bool:
        """Tell whether a member goes only the other way."""
        return (as_object(schema) or {}).get("writeOnly" if self._is_answer else "readOnly") is True

    def _describe(self, shaped: dict[str, Json], node: Mapping[str, Json]) -> None:
        """Add the words of a schema. A pattern is told, not tried: some take for ever to match."""
        words = brief(node.get("description"))
        pattern = node.get("pattern")
        if isinstance(pattern, str) and 0 < len(pattern) <= 200:
            words = f"{words} Matches /{pattern}/.".lstrip()
        if words:
            shaped["description"] = words

    def _nullable(self, shaped: dict[str, Json], node: Mapping[str, Json]) -> Json:
        if not (self._is_answer or (self._document.is_old and node.get("nullable") is True)):
            return shaped
        kinds = _listed(shaped.get("type"))
        if kinds and "null" not in kinds:
            shaped["type"] = [*kinds, "null"]
        elif not kinds and any(key in shaped for key in _MANY):
            return {"anyOf": [shaped, {"type": "null"}]}
        if "enum" in shaped and None not in shaped["enum"]:
            shaped["enum"] = [*shaped["enum"], None]
        return shaped


def brief(words: Json, limit: int = _MAX_WORDS) -> str:
    """Return words of the document, in one piece and not too long; nothing where there are none."""
    if not isinstance(words, str):
        return ""
    text = re.sub(r"[ \t]*\n\s*", "\n", words[: 20 * limit].strip())
    return text if len(text) <= limit else f"{text[: limit - 1].rstrip()}…"


def _check_end(name: str, leads: Mapping[str, frozenset[str]]) -> None:
    """Refuse a schema that applies itself to the value that it is applied to.

    Raises:
        Unfit: names it.
    """
    seen: set[str] = set()
    waiting = [*leads[name]]
    while waiting:
        found = waiting.pop()
        if found == name:
            raise Unfit(f"the schema `{name}` refers to itself without end: give it a member")
        if found not in seen:
            seen.add(found)
            waiting.extend(leads.get(found, ()))


def _in_place(schema: Json) -> Iterator[str]:
    """Yield the names of the schemas that apply wherever `schema` does."""
    waiting = [schema]
    while waiting:
        node = as_object(waiting.pop()) or {}
        if "$ref" in node:
            yield str(node["$ref"]).removeprefix("#/$defs/")
        for key in _IN_PLACE:
            inner = node.get(key)
            if key == "dependentSchemas":
                waiting.extend((as_object(inner) or {}).values())
            elif inner is not None:
                waiting.extend(as_list(inner) if isinstance(inner, list) else [inner])


def _listed(kinds: Json) -> list[Json]:
    return as_list(kinds) or ([kinds] if isinstance(kinds, str) else [])


def _is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _format(node: Mapping[str, Json]) -> str | None:
    found = node.get("format")
    is_plain = isinstance(found, str) and re.fullmatch(r"[A-Za-z0-9-]{1,30}", found)
    return found if is_plain and found != REFERENCE_FORMAT else None


def _size(value: Json) -> int:
    """Return how many parts a value has, counted no further than is allowed."""
    waiting, count = [value], 0
    while waiting and count <= _MAX_NODES:
        node = waiting.pop()
        count += 1
        waiting.extend((as_object(node) or {}).values() or as_list(node))
    return count

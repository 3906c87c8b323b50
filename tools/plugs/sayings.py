"""What an offer says to a model: each of its texts, with where it stands. Judges none of them."""

from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

from guildry.tools.base import Json, Tool
from guildry.tools.offers import Prompt, Resource, Template
from guildry.tools.schema import as_list, as_object

__all__ = ["Saying", "said_by", "said_by_tool"]

_WORDS: Final = frozenset({"title", "description", "$comment"})
_VALUES: Final = frozenset({"default", "const", "enum", "examples"})
_NAMED: Final = frozenset({"properties", "patternProperties", "$defs", "definitions"})
_MAX_TEXTS: Final = 5_000


class Saying(NamedTuple):
    """One text: where it stands, what it says, and whether it is prose, not a name or a value."""

    where: str
    text: str
    is_prose: bool = True


def said_by_tool(tool: Tool) -> Iterator[Saying]:
    """Yield every text of a tool that a model may read, its parameters' and its answer's too."""
    yield Saying("its name", tool.source_name or tool.name, is_prose=False)
    if tool.title:
        yield Saying("its title", tool.title)
    if tool.description:
        yield Saying("its description", tool.description)
    yield from _strings("its annotations", dict(tool.annotations))
    yield from _said_by_schema("parameter", tool.input_schema)
    if tool.output_schema is not None:
        yield from _said_by_schema("answer", tool.output_schema)


def said_by(offer: Prompt | Resource | Template) -> Iterator[Saying]:
    """Yield every text of a prompt, a resource or a template that a model or a person may read."""
    yield Saying("its name", offer.name, is_prose=False)
    if offer.title:
        yield Saying("its title", offer.title)
    if offer.description:
        yield Saying("its description", offer.description)
    if isinstance(offer, Prompt):
        for each in offer.arguments:
            yield Saying("the name of an argument", each.name, is_prose=False)
            for text in (each.title, each.description):
                if text:
                    yield Saying(f"argument `{each.name[:80]}`", text)
    yield from _strings("its annotations", dict(offer.annotations))


def _said_by_schema(what: str, schema: Mapping[str, Json]) -> Iterator[Saying]:
    """Yield the texts of a schema; the nearest property names where each stands."""
    waiting: list[tuple[str, Json]] = [("its schema", schema)]
    texts = 0
    while waiting and texts < _MAX_TEXTS:
        where, node = waiting.pop()
        members = as_object(node)
        if members is None:
            waiting.extend((where, each) for each in as_list(node))
            continue
        for key, value in members.items():
            if key in _WORDS and isinstance(value, str):
                texts += 1
                yield Saying(where, value)
            elif key in _VALUES:
                texts += 1
                yield from _strings(where, value)
            elif key in _NAMED and (named := as_object(value)) is not None:
                for name, inner in named.items():
                    texts += 1
                    yield Saying(f"the name of a {what}", name, is_prose=False)
                    waiting.append((f"{what} `{name[:80]}`", inner))
            elif as_object(value) or as_list(value):
                waiting.append((where, value))


def _strings(where: str, value: Json) -> Iterator[Saying]:
    """Yield every text in a JSON value, names of its members included."""
    waiting: list[Json] = [value]
    texts = 0
    while waiting and texts < _MAX_TEXTS:
        found = waiting.pop()
        texts += 1
        if isinstance(found, str):
            yield Saying(where, found, is_prose=False)
            continue
        for name, inner in (as_object(found) or {}).items():
            yield Saying(where, str(name), is_prose=False)
            waiting.append(inner)
        waiting.extend(as_list(found))

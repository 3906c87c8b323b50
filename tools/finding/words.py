"""What is searched: the words of tools and of queries. Knows no index."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from guildry.tools.base import Tool
from guildry.tools.schema import as_object

__all__ = ["GRAM", "STOP_WORDS", "Document", "document", "grams", "telling_words", "words"]

GRAM: Final = 4
"""How long a gram is: a piece of a word, its ends marked by a space."""

_WORD: Final = re.compile(r"[A-Za-z][a-z]+|[A-Z]+(?![a-z])|[^\W_]+")
_MAX_QUERY_WORDS: Final = 64
_MAX_TEXT: Final = 4_000
_MAX_PARAMETERS: Final = 100
_KEPT_GRAMS: Final = 20_000
STOP_WORDS: Final = frozenset(
    """a about above after again against ain all also am an and any are aren as at be because been
    before being below between both but by can could couldn d did didn do does doesn doing don down
    during each few for from further get give had hadn has hasn have haven having he help her here
    hers herself him himself his how i if in into is isn it its itself just know let like list ll m
    ma me mightn more most mustn my myself need needn no nor not now o of off on once only or other
    our ours ourselves out over own please re s same shall shan she should shouldn show so some such
    t tell than that the their theirs them themselves then there these they this those through to
    too under until up us use using ve very want was wasn we were weren what when where which while
    who whom why will with won would wouldn y you your yours yourself yourselves""".split()
)
"""Words that say nothing of what is needed."""


@dataclass(frozen=True, slots=True)
class Document:
    """What is known of a tool, in fields that tell of it more or less.

    Args:
        name: the words of its name at the source.
        plug: the words of its plug's name.
        text: title and description.
        parameters: the words of the names of its parameters.
        details: what is said of its parameters.
        whole: all of it but the plug, as one text.
    """

    name: str
    plug: str
    text: str
    parameters: str
    details: str
    whole: str

    def views(self) -> tuple[str, str, str]:
        """Return three texts of a tool, from short to long: its name, what it does, all."""
        return self.name, self.text or self.name, self.whole


def document(tool: Tool) -> Document:
    """Return what is known of a tool."""
    properties = as_object(tool.input_schema.get("properties")) or {}
    names: list[str] = []
    details: list[str] = []
    for name, schema in list(properties.items())[:_MAX_PARAMETERS]:
        names.append(" ".join(words(name)))
        details.append(str((as_object(schema) or {}).get("description", "")))
    title = tool.title or ""
    told = tool.description if title in tool.description else f"{title}. {tool.description}"
    name = " ".join(words(tool.source_name or tool.name))
    pairs = "; ".join(f"{each}: {detail}" for each, detail in zip(names, details, strict=True))
    return Document(
        name=name,
        plug=" ".join(words(tool.plug)),
        text=_storable(told),
        parameters=_storable(" ".join(names)),
        details=_storable(" ".join(details)),
        whole=_storable(f"{name}: {told} {pairs}"),
    )


def _storable(text: str) -> str:
    """Return the beginning of a text; halves of characters, which no table takes, become `?`."""
    begun = text[:_MAX_TEXT]
    return begun if begun.isascii() else begun.encode("utf-8", "replace").decode("utf-8")


def words(text: str) -> list[str]:
    """Return the words of a text; `camelCase` and `snake_case` are several."""
    return _WORD.findall(text)


def telling_words(text: str) -> list[str]:
    """Return the words of a query that say what it is about, each once, in small letters."""
    small = [word.lower() for word in words(text)]
    telling = [word for word in small if word not in STOP_WORDS] or small
    return list(dict.fromkeys(telling))[:_MAX_QUERY_WORDS]


def grams(text: Iterable[str]) -> Iterator[str]:
    """Yield the grams of words, which meet where words are only alike."""
    for word in text:
        yield from _grams_of(word.lower())


@lru_cache(maxsize=_KEPT_GRAMS)
def _grams_of(word: str) -> tuple[str, ...]:
    if word in STOP_WORDS:
        return ()
    marked = f" {word} "
    return tuple(marked[at : at + GRAM] for at in range(max(0, len(marked) - GRAM + 1)))

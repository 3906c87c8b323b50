"""Parameters of an operation: how each is read, and how a value of it is written in a request.

Source: OpenAPI 3.1.1, section 4.8.12 (styles), and RFC 6570. A value never leaves its place: what
has a meaning in a URL or a header is encoded or refused.
"""

import json
import re
from dataclasses import dataclass, field
from typing import Final, Literal, cast
from urllib.parse import quote

from guildry.errors import ToolRetry
from guildry.tools.base import Json
from guildry.tools.openapi.document import Document, Unfit
from guildry.tools.schema import as_list, as_object

__all__ = ["Parameter", "Place", "read_parameter", "scalar"]

Place = Literal["path", "query", "header", "cookie"]

_STYLES: Final[dict[str, tuple[str, ...]]] = {
    "path": ("simple", "label", "matrix"),
    "query": ("form", "spaceDelimited", "pipeDelimited", "deepObject"),
    "header": ("simple",),
    "cookie": ("form",),
}
_TOKEN: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,200}")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_DELIMITERS: Final = {"form": ",", "spaceDelimited": "%20", "pipeDelimited": "%7C"}
_RESERVED: Final = ":/?@!$'()*,;"  # less what would begin another parameter or the fragment


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of an operation.

    Args:
        name: in the request.
        where: in which part of the request it goes.
        style: how lists and objects are written, as OpenAPI names it.
        explode: each item or member is written by itself.
        required: a request without it is wrong.
        reserved: reserved characters stay as they are in a query.
        as_json: its value is written as JSON.
        schema: of its value, as the document has it.
        description: what it is for.
    """

    name: str
    where: Place
    style: str
    explode: bool
    required: bool
    reserved: bool = False
    as_json: bool = False
    schema: Json = field(default=True, repr=False)
    description: str = ""

    def in_path(self, value: Json) -> str:
        """Return what stands for the parameter in the path.

        Raises:
            ToolRetry: the value is empty, so that another path would be meant.
        """
        if self.as_json:
            return quote(_json(value), safe="")
        name = quote(self.name, safe="")
        sign, between = {
            "simple": ("", ","),
            "label": (".", "." if self.explode else ","),
            "matrix": (f";{name}=", f";{name}=" if self.explode else ","),
        }[self.style]
        members = as_object(value)
        if members is None or not self.explode:
            written = between.join(quote(each, safe="") for each in _flat(value))
        else:
            pairs = [f"{quote(k, safe='')}={quote(scalar(v), safe='')}" for k, v in members.items()]
            sign, between = {"matrix": (";", ";")}.get(self.style, (sign, between))
            written = between.join(pairs)
        if not written:
            raise ToolRetry(f"`{self.name}` is empty: give a value, for it is part of the path")
        return sign + written

    def in_query(self, value: Json) -> list[tuple[str, str]]:
        """Return the names and values that stand for the parameter in a query, encoded."""
        if self.as_json:
            return [(quote(self.name, safe=""), self._quoted(_json(value)))]
        members = as_object(value)
        name = quote(self.name, safe="")
        if members is not None and self.style == "deepObject":
            return [
                (f"{name}%5B{quote(key, safe='')}%5D", self._quoted(text))
                for key, each in members.items()
                for text in _items(each)
            ]
        if self.explode and members is not None:
            return [
                (quote(key, safe=""), self._quoted(scalar(each))) for key, each in members.items()
            ]
        if self.explode and isinstance(value, list):
            return [(name, self._quoted(text)) for text in _items(value)]
        between = _DELIMITERS.get(self.style, ",")
        return [(name, between.join(self._quoted(text) for text in _flat(value)))]

    def in_header(self, value: Json) -> str:
        """Return the value of the header.

        Raises:
            ToolRetry: it holds control characters, such as a line break.
        """
        members = as_object(value)
        if self.as_json:
            text = _json(value)
        elif members is not None and self.explode:
            text = ",".join(f"{key}={scalar(each)}" for key, each in members.items())
        else:
            text = ",".join(_flat(value))
        if _CONTROL.search(text):
            raise ToolRetry(f"`{self.name}` holds control characters: leave them out of a header")
        return text if text.isascii() else quote(text, safe=" !#$&'()*+,/:;=?@[]~%")

    def in_cookie(self, value: Json) -> str:
        """Return the pair of a cookie."""
        text = _json(value) if self.as_json else ",".join(_flat(value))
        return f"{self.name}={quote(text, safe='')}"

    def _quoted(self, text: str) -> str:
        return quote(text, safe=_RESERVED if self.reserved else "")


def read_parameter(document: Document, node: Json) -> Parameter:
    """Read a parameter.

    Raises:
        Unfit: it cannot be written as its document says.
    """
    said = document.mapping(node, "a parameter")
    name, where = said.get("name"), said.get("in")
    if not isinstance(name, str) or not name or len(name) > 200 or _CONTROL.search(name):
        raise Unfit(f"the name of a parameter is {name!r:.100}: give it one")
    if not isinstance(where, str) or where not in _STYLES:
        raise Unfit(f"`in` of the parameter `{name}` is {where!r:.40}: use {', '.join(_STYLES)}")
    if where in ("header", "cookie") and not _TOKEN.fullmatch(name):
        raise Unfit(f"{name!r:.100} is no name of a {where}")
    style = said.get("style", _STYLES[where][0])
    if style not in _STYLES[where]:
        raise Unfit(
            f"`style` of `{name}` is {style!r:.40}: in a {where} it is one of"
            f" {', '.join(_STYLES[where])}"
        )
    schema, as_json = said.get("schema", True), False
    content = as_object(said.get("content"))
    if content:
        media_type, form = next(iter(content.items()))
        schema = (as_object(form) or {}).get("schema", True)
        as_json = "json" in media_type
    return Parameter(
        name=name,
        where=cast("Place", where),
        style=str(style),
        explode=said.get("explode", style == "form") is True,
        required=where == "path" or said.get("required") is True,
        reserved=said.get("allowReserved") is True,
        as_json=as_json,
        schema=schema,
        description=str(said.get("description") or ""),
    )


def scalar(value: Json) -> str:
    """Return one value as text: as JSON has it, and text as it is."""
    return value if isinstance(value, str) else _json(value)


def _json(value: Json) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _items(value: Json) -> list[str]:
    """Return the texts of a list, or of one value."""
    return [scalar(each) for each in as_list(value)] if isinstance(value, list) else [scalar(value)]


def _flat(value: Json) -> list[str]:
    """Return the texts of a list, of the names and values of an object, or of one value."""
    members = as_object(value)
    if members is not None:
        return [text for key, each in members.items() for text in (key, scalar(each))]
    return _items(value)

"""Bodies of requests: JSON, forms, files and text, from the arguments of a call.

A file is `{"text": …}` or `{"base64": …}`, where a reference to what is stored may stand.
"""

import base64
import binascii
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Final, Literal
from urllib.parse import quote, urlencode

from guildry.errors import ToolRetry
from guildry.tools.base import Json
from guildry.tools.openapi.document import Document, Unfit
from guildry.tools.openapi.parameters import scalar
from guildry.tools.schema import as_list, as_object

__all__ = ["FILE", "Body", "read_body"]

FILE: Final[Mapping[str, Json]] = {
    "type": "object",
    "description": "A file: give `text`, or `base64` for what is no text; either may be a"
    " reference.",
    "properties": {
        "text": {"type": "string"},
        "base64": {"type": "string"},
        "filename": {"type": "string"},
        "media_type": {"type": "string"},
    },
    "additionalProperties": False,
}
"""The schema of a file among arguments."""

_FORM: Final = "application/x-www-form-urlencoded"
_MULTIPART: Final = "multipart/form-data"
_BYTES: Final = "application/octet-stream"
_ORDER: Final = ("json", "form", "multipart", "text", "file")

Kind = Literal["json", "form", "multipart", "text", "file"]


@dataclass(frozen=True, slots=True)
class Body:
    """The body of an operation.

    Args:
        kind: how it is written.
        media_type: as the request names it.
        schema: of the argument, as the document has it.
        required: a request without it is wrong.
        files: members of a form that are files, or lists of them.
        description: what it is for.
    """

    kind: Kind
    media_type: str
    schema: Json = field(repr=False)
    required: bool
    files: frozenset[str] = frozenset()
    description: str = ""

    def encode(self, value: Json) -> tuple[bytes, str]:
        """Return the bytes of a request, and their media type.

        Raises:
            ToolRetry: a file is not given as files are, or a form is no object.
        """
        match self.kind:
            case "json":
                return json.dumps(value, ensure_ascii=False).encode(), self.media_type
            case "text":
                return scalar(value).encode(), f"{self.media_type}; charset=utf-8"
            case "file":
                content, media_type = _file(value, "body")
                return content, self.media_type if "*" not in self.media_type else media_type
            case "form":
                pairs = [
                    (key, text) for key, each in _members(value).items() for text in _texts(each)
                ]
                return urlencode(pairs, quote_via=quote).encode(), self.media_type
            case "multipart":
                return self._multipart(_members(value))

    def _multipart(self, members: Mapping[str, Json]) -> tuple[bytes, str]:
        boundary = f"guildry-{token_hex(16)}"
        parts: list[bytes] = []
        for key, each in members.items():
            head = f'--{boundary}\r\nContent-Disposition: form-data; name="{_quoted(key)}"'
            if key not in self.files:
                for text in _texts(each):
                    kind = "" if _is_plain(each) else "\r\nContent-Type: application/json"
                    parts.append(f"{head}{kind}\r\n\r\n{text}\r\n".encode())
                continue
            for file in as_list(each) if isinstance(each, list) else [each]:
                content, media_type = _file(file, f"body.{key}")
                name = _quoted(str((as_object(file) or {}).get("filename") or key))
                told = f'{head}; filename="{name}"\r\nContent-Type: {media_type}\r\n\r\n'
                parts.append(told.encode() + content + b"\r\n")
        parts.append(f"--{boundary}--\r\n".encode())
        return b"".join(parts), f"{_MULTIPART}; boundary={boundary}"


def read_body(document: Document, node: Json) -> Body | None:
    """Read the body of an operation; None where it takes none.

    Raises:
        Unfit: it cannot be written.
    """
    if node is None:
        return None
    said = document.mapping(node, "`requestBody`")
    content = document.mapping(said.get("content") or {}, "`content` of the request body")
    kinds: dict[str, Kind] = {each: _kind(each) for each in content}
    if not kinds:
        return None
    media_type = min(kinds, key=lambda each: _ORDER.index(kinds[each]))
    form = document.mapping(content[media_type], f"`{media_type}`")
    kind = kinds[media_type]
    schema = form.get("schema", True)
    files: frozenset[str] = frozenset()
    if kind == "multipart":
        schema, files = _with_files(document, schema)
    elif kind == "file":
        schema = FILE
    elif kind == "text":
        schema = {"type": "string"}
    plain = media_type.partition(";")[0].strip()
    if any(ord(each) < 33 or ord(each) > 126 for each in plain):
        raise Unfit(f"the media type {media_type!r:.80} is none")
    return Body(
        kind=kind,
        media_type="application/json" if kind == "json" and "*" in plain else plain,
        schema=schema,
        required=said.get("required") is True,
        files=files,
        description=str(said.get("description") or ""),
    )


def _kind(media_type: str) -> Kind:
    plain = media_type.partition(";")[0].strip().lower()
    if plain in ("application/json", "*/*", "application/*") or plain.endswith("+json"):
        return "json"
    if plain == _FORM:
        return "form"
    if plain == _MULTIPART:
        return "multipart"
    is_text = plain.startswith("text/") or plain.endswith(("xml", "yaml", "javascript"))
    return "text" if is_text and "*" not in plain else "file"


def _with_files(document: Document, schema: Json) -> tuple[Json, frozenset[str]]:
    """Return the schema of a form whose files are given as files are, and their names."""
    node = document.follow(schema)
    members = as_object((as_object(node) or {}).get("properties")) or {}
    shown: dict[str, Json] = {}
    files: set[str] = set()
    for name, each in members.items():
        found = as_object(document.follow(each)) or {}
        items = document.follow(found.get("items")) if found.get("type") == "array" else None
        if _is_file(found):
            shown[name] = FILE
        elif _is_file(as_object(items) or {}):
            shown[name] = {"type": "array", "items": FILE}
        else:
            shown[name] = each
            continue
        files.add(name)
    return ({**(as_object(node) or {}), "properties": shown} if files else schema), frozenset(files)


def _is_file(schema: Mapping[str, Json]) -> bool:
    if schema.get("type", "string") != "string":
        return False
    return schema.get("format") == "binary" or (
        "contentMediaType" in schema and "contentEncoding" not in schema
    )


def _members(value: Json) -> Mapping[str, Json]:
    members = as_object(value)
    if members is None:
        raise ToolRetry("`body` is a form: give an object with its fields")
    return {key: each for key, each in members.items() if each is not None}


def _texts(value: Json) -> list[str]:
    return [scalar(each) for each in as_list(value)] if isinstance(value, list) else [scalar(value)]


def _is_plain(value: Json) -> bool:
    items = as_list(value) if isinstance(value, list) else [value]
    return not any(isinstance(each, dict | list) for each in items)


def _file(value: Json, path: str) -> tuple[bytes, str]:
    """Return the content of a file that was given as an argument, and its media type."""
    said = as_object(value) or {}
    text, encoded = said.get("text"), said.get("base64")
    if isinstance(text, str) == isinstance(encoded, str):
        raise ToolRetry(f"`{path}` is a file: give either `text` or `base64`")
    kind = str(said.get("media_type") or ("text/plain" if encoded is None else _BYTES))
    if not all(32 <= ord(each) < 127 for each in kind):
        raise ToolRetry(f"`{path}.media_type` is {kind!r:.80}: give one such as `text/csv`")
    if isinstance(text, str):
        return text.encode(), kind
    try:
        return base64.b64decode(str(encoded), validate=True), kind
    except (binascii.Error, ValueError) as error:
        raise ToolRetry(
            f"`{path}.base64` is no base64 ({error}): give text, or a reference to it, as `text`"
        ) from error


def _quoted(name: str) -> str:
    """Return a name as it stands between quotes in a head of a part (HTML, 4.10.21.8)."""
    for raw, written in (("\r", "%0D"), ("\n", "%0A"), ('"', "%22")):
        name = name.replace(raw, written)
    return name

"""OpenAPI documents: read from JSON or YAML within limits, and followed inside alone.

A `$ref` that leads out of the document is never fetched. Knows no operation and no request.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NoReturn
from urllib.parse import unquote

from guildry.tools.base import Json
from guildry.tools.schema import as_list, as_object

__all__ = ["MAX_BYTES", "Document", "DocumentError", "Unfit", "pointed", "read_document"]

MAX_BYTES: Final = 32 * 1024 * 1024
"""The longest document that is read."""

_MAX_DEPTH: Final = 200
_MAX_HOPS: Final = 16
_TAG: Final = "tag:yaml.org,2002:"
_PLAIN: Final[tuple[tuple[str, str, str], ...]] = (  # YAML 1.2.2, section 10.3.2
    ("null", r"null|Null|NULL|~|", "nN~\0"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?",
        "-+.0123456789",
    ),
)


class DocumentError(Exception):
    """Report a document that cannot be read: what is wrong, and the cure."""

    def __init__(self, reason: str, cure: str) -> None:
        super().__init__(f"{reason}. {cure}")
        self.reason = reason
        self.cure = cure


class Unfit(Exception):
    """Report a part of a document that cannot be served; the rest of it can."""


@dataclass(frozen=True, slots=True, eq=False)
class Document:
    """A document that was read.

    Args:
        root: all of it.
        is_old: it is OpenAPI 3.0, whose schemas are not quite JSON Schema.
    """

    root: Mapping[str, Json] = field(repr=False)  # with aliases, its text may have no end
    is_old: bool

    def follow(self, node: Json) -> Json:
        """Return what `node` stands for: itself, or what its `$ref` leads to.

        Raises:
            Unfit: it leads out of the document, to nothing, or round in a circle.
        """
        for _ in range(_MAX_HOPS):
            members = as_object(node)
            if members is None or "$ref" not in members:
                return node
            node = self.at(pointed(members["$ref"]))
        raise Unfit("its references lead round in a circle: end them at what is meant")

    def mapping(self, node: Json, what: str) -> Mapping[str, Json]:
        """Return the object that `node` stands for.

        Raises:
            Unfit: it is none; `what` names it.
        """
        found = as_object(self.follow(node))
        if found is None:
            raise Unfit(f"{what} is no object: write it as OpenAPI has it")
        return found

    def at(self, pointer: str) -> Json:
        """Return what a JSON pointer leads to.

        Raises:
            Unfit: there is nothing.
        """
        found: Json = self.root
        for step in pointer.split("/")[1:]:
            key = unquote(step).replace("~1", "/").replace("~0", "~")
            members, items = as_object(found), as_list(found)
            if members is not None and key in members:
                found = members[key]
            elif key.isascii() and key.isdigit() and int(key[:9]) < len(items):
                found = items[int(key[:9])]
            else:
                raise Unfit(f"it refers to '#{pointer[:200]}', which is not in the document")
        return found


def pointed(reference: Json) -> str:
    """Return the JSON pointer of a `$ref` into the document itself.

    Raises:
        Unfit: it leads elsewhere: files and the network are not read for it.
    """
    if not isinstance(reference, str) or not reference.startswith("#"):
        raise Unfit(
            f"it refers to {str(reference)[:200]!r}: only what is inside the document is read,"
            " so bundle it into one file"
        )
    if reference != "#" and not reference.startswith("#/"):
        raise Unfit(f"it refers to {reference[:200]!r}: give the way to it, such as '#/components'")
    return reference[1:]


def read_document(data: bytes) -> Document:
    """Read a document.

    Raises:
        DocumentError: it is neither JSON nor YAML, or no OpenAPI 3 document.
    """
    if len(data) > MAX_BYTES:
        raise DocumentError(f"it has over {MAX_BYTES:,} bytes", "Plug a smaller part of it")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DocumentError(f"it is not UTF-8 ({error})", "Save it as UTF-8") from None
    try:
        root = as_object(_parsed(text))
    except RecursionError:
        raise DocumentError("it is nested too deep", "Flatten it") from None
    if root is None:
        raise DocumentError("it holds no object", "Give an OpenAPI 3 document")
    version = str(root.get("openapi", ""))
    if "swagger" in root and not version:
        raise DocumentError(
            f"it is Swagger {str(root['swagger'])[:10]!r}",
            "Convert it to OpenAPI 3, for example at editor.swagger.io",
        )
    if not re.fullmatch(r"3\.\d{1,3}(\..{0,40})?", version):
        raise DocumentError(f"its `openapi` is {version[:40]!r}", "Give an OpenAPI 3 document")
    if as_object(root.get("paths", {})) is None:
        raise DocumentError("its `paths` is no object", "List its operations there")
    return Document(root, is_old=version.startswith("3.0"))


def _parsed(text: str) -> Json:
    if text.lstrip()[:1] in ("{", "["):
        try:
            return json.loads(text, parse_constant=_no_number)
        except ValueError as error:
            if not isinstance(error, json.JSONDecodeError):
                raise DocumentError(f"it is not JSON: {error}", "Mend it there") from None
            fault = error
        try:
            return _yaml(text)  # YAML in braces
        except DocumentError:
            raise DocumentError(f"it is not JSON: {fault}", "Mend it there") from None
    return _yaml(text)


def _no_number(text: str) -> NoReturn:
    raise ValueError(f"{text} is no number there")


def _yaml(text: str) -> Json:
    import yaml

    try:
        return _built(_composed(text), 0, {})
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f" on line {mark.line + 1}"
        raise DocumentError(f"it is not YAML{where}: {error.problem}", "Mend it there") from None
    except (yaml.YAMLError, ValueError) as error:
        told = (str(error).splitlines() or ["it cannot be read"])[0]
        raise DocumentError(f"it is not YAML: {told[:200]}", "Mend it there") from None


def _composed(text: str) -> Any:
    """Return the nodes of a text in the plain words of YAML 1.2: `no` and dates are text."""
    import yaml

    base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    loader: Any = type("_Loader", (base,), {"yaml_implicit_resolvers": {}})
    for name, pattern, first in _PLAIN:
        starts = ["" if c == "\0" else c for c in first]
        loader.add_implicit_resolver(_TAG + name, re.compile(rf"^(?:{pattern})$"), starts)
    _check_depth(yaml, text, base)
    return yaml.compose(text, Loader=loader)


def _check_depth(yaml: Any, text: str, loader: Any) -> None:
    """Refuse what is nested deep before it is composed, which takes a frame for each level."""
    depth = 0
    for event in yaml.parse(text, Loader=loader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > _MAX_DEPTH:
                line = event.start_mark.line + 1
                raise DocumentError(f"it is nested too deep on line {line}", "Flatten it")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


def _built(node: Any, depth: int, known: dict[int, Json]) -> Json:
    """Return the value of a node; one that is used twice is one value, so aliases cost nothing."""
    if node is None:
        return None
    if id(node) in known:
        if known[id(node)] is _OPEN:
            raise DocumentError("an alias refers to what it is in", "Write the value out")
        return known[id(node)]
    if depth > _MAX_DEPTH:
        raise DocumentError("it is nested too deep", "Flatten it")
    known[id(node)] = _OPEN
    value: Json
    if node.id == "mapping":
        if any(key.id != "scalar" for key, _ in node.value):
            raise DocumentError("a name in it is no text", "Write names as text")
        value = {key.value: _built(each, depth + 1, known) for key, each in node.value}
    elif node.id == "sequence":
        value = [_built(each, depth + 1, known) for each in node.value]
    else:
        value = _scalar(node.tag.removeprefix(_TAG), node.value)
    known[id(node)] = value
    return value


_OPEN: Final = object()


def _scalar(kind: str, text: str) -> Json:
    match kind:
        case "null":
            return None
        case "bool":
            return text.lower() == "true"
        case "int":
            return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
        case "float":
            return float(text)
        case _:
            return text

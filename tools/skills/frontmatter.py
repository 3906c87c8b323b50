"""The head of a text: YAML 1.2 between two lines of dashes, as JSON. Knows nothing of skills.

The plain words of YAML 1.1 (`yes`, `2026-01-01`, `1:30`) are text here, as they are in YAML 1.2 and
in the clients that compare what they were told with what they read.
"""

import math
import re
from typing import Any, Final, cast

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from guildry.tools.base import Json

__all__ = ["FrontmatterError", "read_frontmatter"]

_BLOCK: Final = re.compile(r"\A\ufeff?---\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_MAX_CHARACTERS: Final = 64 * 1024
_MAX_DEPTH: Final = 32
_TAG: Final = "tag:yaml.org,2002:"
_PLAIN: Final[tuple[tuple[str, str, str], ...]] = (  # YAML 1.2.2, section 10.3.2
    ("null", r"null|Null|NULL|~|", "nN~\0"),
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789"),
    (
        "float",
        r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?"
        r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
        "-+.0123456789",
    ),
)

_KINDS: Final = {"str", *(name for name, _, _ in _PLAIN)}


class FrontmatterError(ValueError):
    """Tell what is wrong with a head, on which line, and what to write instead."""


class _Loader(yaml.SafeLoader):
    """Compose what was written into nodes, without aliases and no deeper than is sensible."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}
    _depth = 0

    def compose_node(self, parent: Node | None, index: int) -> Node | None:
        """Return the next node."""
        event = cast("Any", self).peek_event()  # its type is not complete
        if getattr(event, "anchor", None) is not None:
            raise _at(event, "it uses an anchor or an alias: write the value out")
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _at(event, f"it is nested deeper than {_MAX_DEPTH} levels: flatten it")
        node: Node | None = super().compose_node(parent, index)
        self._depth -= 1
        return node


for _name, _pattern, _first in _PLAIN:
    cast("Any", _Loader).add_implicit_resolver(
        _TAG + _name, re.compile(rf"^(?:{_pattern})$"), ["" if c == "\0" else c for c in _first]
    )


def read_frontmatter(text: str) -> dict[str, Json]:
    """Return the head of `text`, every field as it was written.

    Raises:
        FrontmatterError: there is none, or it is no mapping that JSON can hold.
    """
    found = _BLOCK.match(text)
    if found is None:
        raise FrontmatterError(
            "it does not begin with YAML between two lines of `---`: begin it with `---`,"
            " `name: …`, `description: …` and `---`"
        )
    head = found[1]
    if len(head) > _MAX_CHARACTERS:
        raise FrontmatterError(f"its head is over {_MAX_CHARACTERS:,} characters: shorten it")
    try:
        node = _Loader(head).get_single_node()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = "" if mark is None else f" on line {mark.line + 2}"
        raise FrontmatterError(f"its head is not YAML{where}: {error.problem}") from None
    except yaml.YAMLError as error:
        told = str(error).splitlines()[0]
        raise FrontmatterError(f"its head is not YAML: {told}") from None
    if not isinstance(node, MappingNode):
        raise FrontmatterError("its head is not a list of fields: write `name: …` on a line")
    return _mapping(node)


def _value(node: Node) -> Json:
    if isinstance(node, MappingNode) and node.tag == _TAG + "map":
        return _mapping(node)
    if isinstance(node, SequenceNode) and node.tag == _TAG + "seq":
        return [_value(each) for each in node.value]
    kind = node.tag.removeprefix(_TAG)
    if isinstance(node, ScalarNode) and kind in _KINDS:
        return _scalar(node, kind, node.value)
    raise _at(node, f"it has the tag {node.tag!r}: leave the tag out")


def _mapping(node: MappingNode) -> dict[str, Json]:
    members: dict[str, Json] = {}
    for key, value in node.value:
        if not isinstance(key, ScalarNode) or key.tag != _TAG + "str":
            raise _at(key, "a name of a field is no text: put it in quotes")
        if key.value in members:
            raise _at(key, f"the field {key.value!r} is there twice: keep one")
        members[key.value] = _value(value)
    return members


def _scalar(node: ScalarNode, kind: str, text: str) -> Json:
    try:
        match kind:
            case "str":
                return text
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int":
                return int(text, 0) if text[:2] in ("0o", "0x") else int(text)
            case _:
                number = float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
                if math.isfinite(number):
                    return number
    except ValueError:
        pass
    shown = text if len(text) <= 40 else f"{text[:37]}..."
    raise _at(node, f"{shown!r} cannot be said in JSON as {kind!r}: put it in quotes")


def _at(where: Any, reason: str) -> FrontmatterError:
    """Return the error with its line: the head begins on the second line of the text."""
    return FrontmatterError(f"line {where.start_mark.line + 2}: {reason}")

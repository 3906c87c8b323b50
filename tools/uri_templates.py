"""URI templates (RFC 6570): which URIs follow one, and with which values. Fetches nothing.

A variable in braces stands for one or more characters that are none of `/?#`. Other expressions of
the standard (`{+path}`, `{?query}`) are understood as far as to tell what may follow them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final
from urllib.parse import unquote_to_bytes

__all__ = ["BadTemplate", "UriTemplate", "uri_fault"]

MAX_CHARACTERS: Final = 4_096
_MAX_VARIABLES: Final = 32
_EXPRESSION: Final = re.compile(r"\{([^{}]*)\}")
_VARIABLE: Final = re.compile(r"[A-Za-z0-9_]+")
_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:")
_OUTSIDE_URI: Final = re.compile(r"[\x00-\x20\x7f-\x9f]")
_DELIMITERS: Final = re.compile(r"[/?#]")


class BadTemplate(Exception):
    """Report a template that cannot be used, with the reason and the cure."""


def uri_fault(uri: str) -> str | None:
    """Return why `uri` is no URI, or None when it is one."""
    if len(uri) > MAX_CHARACTERS:
        return f"its URI has {len(uri):,} characters: at most {MAX_CHARACTERS:,} are taken"
    if _OUTSIDE_URI.search(uri):
        return f"its URI {uri!r:.100} holds white space or control characters: percent-encode them"
    if _SCHEME.match(uri) is None:
        return f"its URI {uri!r:.100} has no scheme: begin it like `notes://`"
    return None


@dataclass(frozen=True, slots=True)
class _Gap:
    """One expression of a template; `is_plain` if it is a variable and nothing else."""

    name: str
    is_plain: bool


@dataclass(frozen=True, slots=True)
class UriTemplate:
    """A template, split where its expressions are.

    Args:
        text: as it was written.
        literals: what stands before, between and after the expressions: one more than these.
        gaps: the expressions.
    """

    text: str
    literals: tuple[str, ...]
    gaps: tuple[_Gap, ...]

    @classmethod
    def of(cls, text: str) -> "UriTemplate":
        """Split a template.

        Raises:
            BadTemplate: it is none.
        """
        parts = _EXPRESSION.split(text)
        literals, expressions = tuple(parts[::2]), parts[1::2]
        if any("{" in each or "}" in each for each in literals):
            raise BadTemplate(
                f"its template {text!r:.100} has braces that do not match: close them"
            )
        if fault := uri_fault("".join(literals)):
            raise BadTemplate(fault)
        if len(expressions) > _MAX_VARIABLES:
            raise BadTemplate(f"its template has over {_MAX_VARIABLES} expressions: use fewer")
        gaps = (_Gap(each, _VARIABLE.fullmatch(each) is not None) for each in expressions)
        return cls(text, literals, tuple(gaps))

    @property
    def variables(self) -> tuple[str, ...]:
        """The names of its variables.

        Raises:
            BadTemplate: it has none, one twice, two side by side, or other expressions.
        """
        for gap in self.gaps:
            if not gap.is_plain:
                raise BadTemplate(
                    f"`{{{gap.name}}}` in its template is no plain variable: write it as `{{day}}`"
                )
        names = tuple(gap.name for gap in self.gaps)
        if len(set(names)) < len(names):
            raise BadTemplate(f"its template {self.text!r:.100} has a variable twice: rename one")
        if not names or "" in self.literals[1:-1]:
            raise BadTemplate(f"its template {self.text!r:.100} needs text between two variables")
        return names

    def matches(self, uri: str) -> bool:
        """Tell whether `uri` follows the template."""
        return self._split(uri) is not None

    def values(self, uri: str) -> Mapping[str, str] | None:
        """Return the values of the variables in `uri`, decoded; None if it does not follow.

        A value that is no text, or leads out of a folder (`..`), follows no template.
        """
        split = self._split(uri)
        if split is None:
            return None
        values: dict[str, str] = {}
        for gap, piece in zip(self.gaps, split, strict=True):
            try:
                value = unquote_to_bytes(piece).decode()
            except UnicodeDecodeError:
                return None
            if "\0" in value or ".." in re.split(r"[/\\]", value):
                return None
            values[gap.name] = value
        return values

    def _split(self, uri: str) -> list[str] | None:
        """Return what stands in the gaps, each as short as the rest allows. Takes linear time."""
        if len(uri) > MAX_CHARACTERS or not uri.startswith(self.literals[0]):
            return None
        at, found = len(self.literals[0]), list[str]()
        for n, gap in enumerate(self.gaps):
            literal, is_last = self.literals[n + 1], n + 1 == len(self.gaps)
            begin = at + 1 if gap.is_plain else at
            if is_last:
                end = len(uri) - len(literal)
                end = end if end >= begin and uri.endswith(literal) else -1
            else:
                end = uri.find(literal, begin)
            if end < 0 or (gap.is_plain and _DELIMITERS.search(uri, at, end)):
                return None
            found.append(uri[at:end])
            at = end + len(literal)
        return found if self.gaps or at == len(uri) else None

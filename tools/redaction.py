"""Redaction: secrets in texts, replaced before anybody reads them. Knows values and shapes.

The values are those that plugs and models are given. They are hidden everywhere; what only has the
shape of a secret is hidden in what is kept or logged, and left alone in what a tool answers, which
may be a file that is being worked on.
"""

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Final
from urllib.parse import quote

from guildry.tools.base import Block, Embedded, Json, Link, Media, Outcome, Text
from guildry.tools.schema import as_list, as_object

__all__ = ["HIDDEN", "REDACTED", "Redactor", "is_secret", "secrets_in", "shaped"]

REDACTED: Final = "[redacted]"
"""What stands where a secret was."""

_LEAST: Final = 6
_MOST_DEPTH: Final = 64

_HARMLESS_NAMES: Final = re.compile(
    r"(?i)(path|home|lang|language|lc_\w+|tz|user|logname|shell|term|pwd|host|hostname|port|mode"
    r"|debug|verbose|level|log_?level|node_env|env|environment|region|locale|timeout\w*"
    r"|accept(-\w+)?|content-type|user-agent|\w*_(dir|folder|path|file|host|port|region|level|mode))"
)
_TELLING_NAMES: Final = re.compile(
    r"(?i)(key|token|secret|passw|pwd|passphrase|credential|auth|cookie|session|dsn|private)"
)
_WORD: Final = re.compile(r"[A-Za-z]{1,24}")
_NUMBER: Final = re.compile(r"[-+]?\d+(\.\d+)?")
_PLAIN_URL: Final = re.compile(r"https?://[^\s@?#]*")

_IN_WORD: Final = re.compile(
    r"(?i)(?:^|[-?&_])(?:[\w-]*(?:key|token|secret|passw|auth)[\w-]*)=(?P<value>[^&\s]{6,})"
)
_USER: Final = re.compile(r"://(?:[^/\s@:]*:)?(?P<user>[^/\s@]{6,})@")

_SHAPES: Final = re.compile(
    r"""
      (?P<head>\b(?:[Bb]earer|[Bb]asic)\s+)[A-Za-z0-9._~+/=-]{8,}
    | (?P<scheme>://)[^/\s@'"]+(?P<at>@)
    | -----BEGIN\ [A-Z0-9 ]*PRIVATE\ KEY-----[\s\S]*?(?:-----END\ [A-Z0-9 ]*PRIVATE\ KEY-----|\Z)
    | \b(?:sk|pk|rk)[-_](?=[A-Za-z_-]{0,60}[0-9])[A-Za-z0-9_-]{16,}
    | \bgh[opsur]_[A-Za-z0-9]{30,} | \bgithub_pat_[A-Za-z0-9_]{30,}
    | \bglpat-[A-Za-z0-9_-]{18,}
    | \b(?:AKIA|ASIA)[A-Z0-9]{16}\b
    | \bAIza[A-Za-z0-9_-]{30,}
    | \bxox[abeoprs]-[A-Za-z0-9-]{10,}
    | \bhf_[A-Za-z0-9]{30,} | \bnpm_[A-Za-z0-9]{30,}
    | \beyJ[A-Za-z0-9_-]{8,1000}\.eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}
    """,
    re.VERBOSE,
)
_SIGNS: Final = (
    *("earer ", "asic ", "://", "PRIVATE KEY", "k-", "k_", "hub_pat_", "glpat-", "AKIA", "ASIA"),
    *("AIza", "xox", "eyJ"),
)
_SIGNS_WITH_UNDERSCORE: Final = ("ghp_", "gho_", "ghs_", "ghu_", "ghr_", "hf_", "npm_")
_LEAST_SHAPED: Final = 14


def is_secret(name: str, value: str) -> bool:
    """Tell whether a variable or a header holds something that nobody may read.

    Everything does that is not known to be harmless: by its name, or as a number, a single word
    of letters or an address without credentials in it.
    """
    if len(value) < _LEAST:
        return False
    if _TELLING_NAMES.search(name):
        return not (_NUMBER.fullmatch(value) and "token" in name.lower())  # `MAX_TOKENS=100000`
    if _HARMLESS_NAMES.fullmatch(name):
        return False
    plain = (_WORD, _NUMBER, _PLAIN_URL)
    return not any(each.fullmatch(value) for each in plain)


def secrets_in(source: str) -> list[str]:
    """Return the secrets that a source names: in the words of a command line, or in a URL."""
    try:
        words = shlex.split(source)
    except ValueError:
        words = source.split()
    found = [each["value"] for word in words for each in _IN_WORD.finditer(word)]
    for name, value in pairwise(words):
        if name.startswith("-") and "=" not in name and not value.startswith("-"):
            found += [value] if _TELLING_NAMES.search(name) and is_secret(name, value) else []
    return found + [each["user"] for word in words for each in _USER.finditer(word)]


def shaped(text: str) -> str:
    """Return `text` with everything replaced that has the shape of a secret."""
    if len(text) < _LEAST_SHAPED:
        return text
    for sign in _SIGNS:
        if sign in text:
            return _SHAPES.sub(_put, text)
    if "_" in text and any(sign in text for sign in _SIGNS_WITH_UNDERSCORE):
        return _SHAPES.sub(_put, text)
    return text


def _put(found: re.Match[str]) -> str:
    return f"{found['head'] or found['scheme'] or ''}{REDACTED}{found['at'] or ''}"


class Redactor:
    """Hide the values that it was told of, and what has the shape of a secret."""

    def __init__(self) -> None:
        self._known: tuple[str, ...] = ()

    def hide(self, values: Iterable[str]) -> None:
        """Hide these values from now on, in all forms in which they travel.

        A value of fewer than 6 characters would take half a text along, and is not hidden.
        """
        forms = {form for value in values for form in _forms(value)}
        if not forms <= set(self._known):
            self._known = tuple(
                sorted(forms.union(self._known), key=lambda form: (-len(form), form))
            )

    def hide_named(self, *named: Mapping[str, str]) -> None:
        """Hide those values of variables and headers that are secret by their names and looks."""
        self.hide(value for each in named for name, value in each.items() if is_secret(name, value))

    def known(self, text: str) -> str:
        """Return `text` without the values that are known."""
        for value in self._known:
            if value in text:
                return self._without(text)
        return text

    def clean(self, text: str) -> str:
        """Return `text` without the values that are known and without all that is shaped so."""
        return shaped(self.known(text))

    def cut(self, text: str, characters: int) -> str:
        """Return the beginning of `text`, clean: no secret is cut in two and half of it kept."""
        if len(text) <= characters:
            return self.clean(text)
        longest = len(self._known[0]) if self._known else 0
        return self.clean(text[: characters + max(longest, 4_096)])[:characters]

    def value(self, value: Json) -> Json:
        """Return a JSON value without the values that are known; itself where there are none."""
        if not self._known or not self._is_in(value):
            return value
        return self._value(value, 0)

    def outcome(self, outcome: Outcome) -> Outcome:
        """Return what a tool answered, without the values that are known."""
        if not self._known:
            return outcome
        blocks, changed = outcome.blocks, False
        if blocks:
            cleaned = tuple([self.block(block) for block in blocks])
            changed = any(new is not old for new, old in zip(cleaned, blocks, strict=True))
            blocks = cleaned
        structured = self.value(outcome.structured) if outcome.has_structured else None
        if not changed and structured is outcome.structured:
            return outcome
        return replace(outcome, blocks=blocks, structured=structured)

    def block(self, block: Block) -> Block:
        """Return a part of an answer without the values that are known."""
        if isinstance(block, Text):
            text = self.known(block.text)
            return block if text is block.text else Text(text)
        if isinstance(block, Link):
            return self._link(block)
        if isinstance(block, Embedded) and block.text is not None:
            text = self.known(block.text)
            block = block if text is block.text else replace(block, text=text)
        data = block.data
        if data is None or not any(value.encode() in data for value in self._known):
            return block
        return _with_data(block, self._bytes(data))

    def _link(self, link: Link) -> Link:
        about = link.description
        if about is not None:
            about = self.known(about)
        uri, name = self.known(link.uri), self.known(link.name)
        if (uri, name, about) == (link.uri, link.name, link.description):
            return link
        return replace(link, uri=uri, name=name, description=about)

    def _bytes(self, data: bytes) -> bytes:
        for value in self._known:
            data = data.replace(value.encode(), REDACTED.encode())
        return data

    def _is_in(self, value: Json) -> bool:
        try:
            text = json.dumps(value, ensure_ascii=False, default=str)
        except (ValueError, RecursionError):
            return True
        return any(json.dumps(known, ensure_ascii=False)[1:-1] in text for known in self._known)

    def _value(self, value: Json, depth: int) -> Json:
        if isinstance(value, str):
            return self.known(value)
        if depth > _MOST_DEPTH:
            return REDACTED
        members = as_object(value)
        if members is not None:
            return {self.known(key): self._value(each, depth + 1) for key, each in members.items()}
        if isinstance(value, list):
            return [self._value(each, depth + 1) for each in as_list(value)]
        return value

    def _without(self, text: str) -> str:
        for value in self._known:
            text = text.replace(value, REDACTED)
        return text


def _with_data(block: Media | Embedded, data: bytes) -> Block:
    return replace(block, data=data)


def _forms(value: str) -> set[str]:
    """Return a value and the other forms in which it travels: in URLs, in JSON, after a scheme."""
    value = value.strip()
    last = value.rpartition(" ")[2] if value.count(" ") == 1 else value
    forms: set[str] = set()
    for each in (value, last):
        forms |= {each, quote(each, safe="")}
        for is_ascii in (False, True):
            escaped = json.dumps(each, ensure_ascii=is_ascii)[1:-1]
            twice = json.dumps(escaped, ensure_ascii=is_ascii)[1:-1]  # JSON as text within JSON
            forms |= {escaped, twice}
    return {form for form in forms if len(form) >= _LEAST}


HIDDEN: Final = Redactor()
"""The secrets of this process: whatever one part of it must not show, no other part may either."""

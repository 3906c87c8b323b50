"""Docstrings, as far as a model reads them. Knows Google style; other styles give no parameters."""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

__all__ = ["Docstring"]

_SECTION: Final = re.compile(r"^(Args|Arguments|Parameters):\s*$")
_ENTRY: Final = re.compile(r"^\*{0,2}(\w+)\s*(?:\([^)]*\))?\s*:\s*(.*)$")


@dataclass(frozen=True, slots=True)
class Docstring:
    """The words of a docstring: its first paragraph, and those of its `Args:` section."""

    text: str
    parameters: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "Docstring":
        """Read the docstring of `function`; its name stands in where there is none."""
        lines = (inspect.getdoc(function) or "").splitlines()
        first: list[str] = []
        for line in lines:
            if not line.strip() or _SECTION.match(line):
                break
            first.append(line.strip())
        text = " ".join(first) or function.__name__.replace("_", " ").strip().capitalize() + "."
        return cls(text, _section(lines))


def _section(lines: list[str]) -> dict[str, str]:
    starts = [n for n, line in enumerate(lines) if _SECTION.match(line)]
    found: dict[str, str] = {}
    name, depth = "", 0
    for line in lines[starts[0] + 1 :] if starts else []:
        indent = len(line) - len(line.lstrip())
        if line.strip() and not indent:
            break
        entry = _ENTRY.match(line.strip())
        if entry and (not found or indent <= depth):
            name, depth = entry[1], indent
            found[name] = entry[2]
        elif name and line.strip():
            found[name] = f"{found[name]} {line.strip()}".strip()
    return {name: text for name, text in found.items() if text}

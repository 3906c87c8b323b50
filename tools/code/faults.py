"""Errors of programs, told to the model that wrote them: which line, what is wrong, what to do."""

import re
from collections.abc import Sequence
from typing import Final

from pydantic_monty import (
    Frame,
    MontyCrashedError,
    MontyError,
    MontyRuntimeError,
    MontySyntaxError,
)

from guildry.tools.code.limits import CodeLimits
from guildry.tools.registry import nearest

__all__ = ["MODULES", "told"]

MODULES: Final = (
    "asyncio, base64, bisect, collections, copy, csv, dataclasses, datetime, decimal, functools,"
    " hashlib, itertools, json, math, random, re, time, typing, unicodedata"
)
"""The modules that a program is told of. The interpreter has a few more, which do it no good."""

_LINE: Final = 120
_MESSAGE: Final = 1_500
_UNDEFINED: Final = re.compile(r"NameError: name '(\w+)' is not defined")
_UNKNOWN_SYNTAX: Final = re.compile(r"The \w+ syntax parser does not yet support (?:the )?(.+)")
_CURES: Final = (
    (
        "cannot suspend in this synchronous context",
        "a tool cannot be called by `map`, a sort key or a method with two underscores: call it in"
        " a loop or a comprehension",
    ),
    (
        "can't be awaited",
        "write `await` directly before the call of a tool, or call it without `await`",
    ),
    ("No module named", f"a program has these modules: {MODULES}. For all else there are tools"),
    ("'Ref'", "a `Ref` is read by `.value()`, or in parts by `.value('#/rows/0')`"),
    ("Permission denied", "a program has no files: use tools, or references by `ref('ref:name')`"),
    (
        "is not supported in this environment",
        "a program has no system around it: no files, network or environment. Use tools",
    ),
    ("maximum recursion depth exceeded", "use a loop"),
    (
        "failed to load session",
        "another version of the interpreter kept it: run the program from its first line",
    ),
    ("suspension limit", "it asked for functions, references or pauses without end: ask for fewer"),
)


def told(error: MontyError, limits: CodeLimits, functions: Sequence[str] = ()) -> str:
    """Return what a model reads of an error that ended its program.

    Args:
        error: as the interpreter gave it.
        limits: under which the program ran.
        functions: the names that it could have meant.
    """
    if isinstance(error, MontyCrashedError):
        return _ended(limits)
    if not isinstance(error, MontyRuntimeError | MontySyntaxError):
        return f"the program could not be run: {_short(str(error))}"
    message = _message(error)
    cure = _cure(message, limits, functions)
    where = _where(error.traceback())
    return f"{where}{_short(message)}{f' — {cure}' if cure else ''}"


def _message(error: MontyRuntimeError | MontySyntaxError) -> str:
    text = error.display("type-msg")
    found = _UNKNOWN_SYNTAX.search(text)
    return text if found is None else f"this Python has no {found[1]}: write it in another way"


def _where(frames: Sequence[Frame]) -> str:
    """Return the line at which it went wrong, and where that was called from."""
    if not frames:
        return ""
    last, first = frames[-1], frames[0]
    line = (last.source_line or "").strip()
    shown = f": `{line if len(line) <= _LINE else line[: _LINE - 1] + '…'}`" if line else ""
    called = f" (called from line {first.line})" if first.line != last.line else ""
    return f"line {last.line}{called}{shown}: "


def _cure(message: str, limits: CodeLimits, functions: Sequence[str]) -> str:
    undefined = _UNDEFINED.search(message)
    if undefined is not None:
        near = nearest(undefined[1], functions)
        return f"did you mean `{near}`?" if near else ""
    if "time limit exceeded" in message:
        return f"it computed for more than {limits.cpu_s:g} s: do less in one program"
    if "memory limit" in message:
        return (
            f"it needs more than {limits.memory_mb} MB: read parts of what is stored"
            " (`.value('#/rows/0')`), or give references to tools"
        )
    return next((cure for sign, cure in _CURES if sign in message), "")


def _ended(limits: CodeLimits) -> str:
    return (
        "the interpreter ended in the middle of the program: it computed for too long"
        f" ({limits.cpu_s:g} s at most) or needed too much ({limits.memory_mb} MB at most)."
        " Do less in one program"
    )


def _short(text: str) -> str:
    return text if len(text) <= _MESSAGE else f"{text[:_MESSAGE]}… ({len(text):,} characters)"

"""Where the functions of a source file begin and end.

Python is parsed, so its functions are exact. For the languages of `BRACES` a function is a block
in braces whose header looks like one: comments and strings are blanked out first, but a header
with braces of its own (destructured arguments, inline object types) is not recognised.
"""

import ast
import re
import warnings
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

__all__ = ["BRACES", "Function", "functions_of"]


@dataclass(frozen=True, slots=True)
class Function:
    """A function as it lies in its file; `line` is that of its name."""

    name: str
    line: int
    lines: int


_NO_NAME: Final = (
    r"(?!(?:if|for|while|switch|catch|else|do|try|return|synchronized|using|lock|foreach|with|match"
    r"|elseif|function|sizeof|new|throw|await|super|defined)\b)"
)
_C_LIKE: Final = (
    rf"(?<![\w:~]){_NO_NAME}(?P<name>[A-Za-z_~][\w:~]*)\s*\((?:[^()]|\([^()]*\))*\)"
    r"(?:[\w<>&*,.\s\-\[\]]*|\s*:\s*[^:;][^;]*)$"
)
_SCRIPT: Final = (
    r"\bfunction\s*\*?\s*(?P<name>[\w$]+)\s*[(<]"
    r"|\b(?P<arrow>[\w$]+)\s*(?::[^=]+)?=\s*(?:async\s*)?(?:\([^()]*\)(?:\s*:[^=]+)?|[\w$]+)\s*=>\s*$"
    rf"|(?:^|\s){_NO_NAME}(?P<method>[\w$#]+)\s*(?:<[^()]*>)?\((?:[^()]|\([^()]*\))*\)\s*(?::[^=()]+)?\s*$"
)
BRACES: Final = {
    "C": _C_LIKE,
    "C++": _C_LIKE,
    "C#": _C_LIKE,
    "CUDA": _C_LIKE,
    "Java": _C_LIKE,
    "Go": r"\bfunc\s+(?:\([^()]*\)\s*)?(?P<name>\w+)\s*[(\[]",
    "Rust": r"\bfn\s+(?P<name>\w+)\s*[(<]",
    "PHP": r"\bfunction\s+&?\s*(?P<name>\w+)\s*\(",
    "Kotlin": r"\bfun\s+(?:<[^>]*>\s*)?(?:[\w.]+\.)?(?P<name>\w+)\s*\(",
    "Swift": r"\bfunc\s+(?P<name>\w+)\s*[(<]",
    "JavaScript": _SCRIPT,
    "TypeScript": _SCRIPT,
}
_HEADERS: Final = {name: re.compile(pattern, re.DOTALL) for name, pattern in BRACES.items()}
_BLANKED: Final = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'|`(?:\\.|[^`\\])*`", re.DOTALL
)
_RUST_BLANKED: Final = re.compile(
    r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\])*\"|'(?:\\.[^'\n]{0,8}|[^'\\\n])'", re.DOTALL
)
_MAX_HEADER: Final = 600
_BLOCKS: Final = ("body", "orelse", "finalbody", "handlers", "cases")
"""Where statements hold statements: functions are defined nowhere else."""


def functions_of(language: str, text: str) -> list[Function] | None:
    """Return the functions of a source text, or None where they cannot be told.

    Raises:
        SyntaxError: it calls itself Python and is not.
    """
    if language == "Python":
        return list(_python(text))
    header = _HEADERS.get(language)
    if header is None:
        return None
    return list(_braced(header, _RUST_BLANKED if language == "Rust" else _BLANKED, text))


def _python(text: str) -> Iterator[Function]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (ValueError, RecursionError, MemoryError) as error:
        raise SyntaxError(str(error)) from error
    waiting: list[tuple[ast.AST, str]] = [(tree, "")]
    while waiting:
        node, prefix = waiting.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            ends = node.end_lineno or node.lineno
            yield Function(prefix + node.name, node.lineno, ends - node.lineno + 1)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            prefix = f"{prefix}{node.name}."
        waiting.extend((child, prefix) for name in _BLOCKS for child in getattr(node, name, ()))


def _braced(header: re.Pattern[str], blanked: re.Pattern[str], text: str) -> Iterator[Function]:
    plain = blanked.sub(_blank, text)
    breaks = [found.start() for found in re.finditer("\n", plain)]
    open_blocks: list[tuple[str, int] | None] = []
    since = 0
    for found in re.finditer(r"[{};]", plain):
        at = found.start()
        if found[0] == "{":
            open_blocks.append(_named(header, plain, since, at))
        elif found[0] == "}" and open_blocks and (block := open_blocks.pop()) is not None:
            begins, ends = bisect_left(breaks, block[1]), bisect_left(breaks, at)
            yield Function(block[0], begins + 1, ends - begins + 1)
        since = at + 1


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


def _named(header: re.Pattern[str], plain: str, since: int, until: int) -> tuple[str, int] | None:
    since = max(since, until - _MAX_HEADER)
    found = header.search(plain, since, until)
    if found is None:
        return None
    group = next(name for name, value in found.groupdict().items() if value is not None)
    return found[group], found.start(group)

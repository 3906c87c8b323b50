"""Which calls of a program are awaited, and so may run side by side. Reads text; runs nothing.

A tool answers at once where it is called plainly, and with something to await where the program
awaits it: both ways of writing it are right.
"""

import ast
from typing import Final

__all__ = ["Awaits"]

_TAKE_AWAITABLES: Final = frozenset(
    {"gather", "create_task", "ensure_future", "wait", "wait_for", "as_completed", "run"}
)
_PASS_ON: Final = (
    ast.List,
    ast.Tuple,
    ast.Set,
    ast.Dict,
    ast.Starred,
    ast.IfExp,
    ast.ListComp,
    ast.SetComp,
    ast.GeneratorExp,
    ast.DictComp,
    ast.NamedExpr,
)


class Awaits:
    """Tell which calls of `source` are awaited.

    Awaited is what stands behind `await` or is given to `asyncio.gather` and its like, directly,
    in a list or comprehension, or by a name that is used so anywhere.
    """

    def __init__(self, source: str) -> None:
        self._source = source.encode()
        self._spans: frozenset[tuple[int, int]] | None = None
        self._is_plain = "await" not in source and "asyncio" not in source

    def __contains__(self, span: tuple[int, int]) -> bool:
        """Tell whether the call that begins and ends at these bytes is awaited."""
        if self._is_plain:
            return False
        if self._spans is None:
            self._spans = self._found()
        return span in self._spans or self._follows_await(span[0])

    def _follows_await(self, start: int) -> bool:
        return self._source[:start].rstrip(b" \t\n(").endswith(b"await")

    def _found(self) -> frozenset[tuple[int, int]]:
        try:
            tree = ast.parse(self._source)
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return frozenset()  # a newer syntax than this Python's: the text before decides
        reading = _Reading()
        reading.read(tree)
        starts = [0]
        for line in self._source.splitlines(keepends=True):
            starts.append(starts[-1] + len(line))
        return frozenset(
            (
                starts[call.lineno - 1] + call.col_offset,
                starts[(call.end_lineno or 1) - 1] + (call.end_col_offset or 0),
            )
            for call in reading.awaited()
        )


class _Reading:
    """One pass over a tree: what is awaited, what is kept under which name."""

    def __init__(self) -> None:
        self._calls: list[ast.Call] = []
        self._names: set[str] = set()
        self._kept: list[tuple[str, ast.expr]] = []

    def read(self, tree: ast.AST) -> None:
        for node in ast.walk(tree):
            match node:
                case ast.Await(value=value):
                    self._take(value)
                case ast.Call() if _name_of(node.func) in _TAKE_AWAITABLES:
                    for given in node.args:
                        self._take(given)
                case ast.Call(func=ast.Attribute(value=ast.Name(id=name), attr="append")):
                    self._kept += [(name, given) for given in node.args]
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        self._keep(target, value)
                case (
                    ast.For(target=target, iter=value)
                    | ast.comprehension(target=target, iter=value)
                ):
                    self._keep(target, value)
                case _:
                    pass

    def awaited(self) -> list[ast.Call]:
        """Return the awaited calls, with those that are kept under an awaited name."""
        waiting = list(self._kept)
        grown = True
        while grown:
            ready = [each for each in waiting if each[0] in self._names]
            waiting = [each for each in waiting if each[0] not in self._names]
            for _, value in ready:
                self._take(value)
            grown = bool(ready)
        return self._calls

    def _keep(self, target: ast.expr, value: ast.expr) -> None:
        if isinstance(target, ast.Name):
            self._kept.append((target.id, value))
        elif isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            self._kept.append((target.value.id, value))
        elif isinstance(target, ast.Tuple | ast.List):
            parts = value.elts if isinstance(value, ast.Tuple | ast.List) else []
            for part, given in zip(target.elts, parts, strict=False):
                self._keep(part, given)

    def _take(self, value: ast.expr) -> None:
        if isinstance(value, ast.Call):
            self._calls.append(value)
            if isinstance(value.func, ast.Attribute) and value.func.attr in ("values", "items"):
                self._take(value.func.value)
        elif isinstance(value, ast.Name):
            self._names.add(value.id)
        elif isinstance(value, ast.Subscript):
            self._take(value.value)
        elif isinstance(value, _PASS_ON):
            for part in _parts(value):
                self._take(part)


def _parts(value: ast.expr) -> list[ast.expr]:
    """Return the expressions whose values make up that of `value`."""
    match value:
        case ast.ListComp(elt=part) | ast.SetComp(elt=part) | ast.GeneratorExp(elt=part):
            return [part]
        case ast.DictComp(value=part) | ast.Starred(value=part) | ast.NamedExpr(value=part):
            return [part]
        case ast.Dict(values=parts):
            return parts
        case ast.IfExp(body=first, orelse=other):
            return [first, other]
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts):
            return parts
        case _:
            return []


def _name_of(function: ast.expr) -> str:
    match function:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
        case _:
            return ""

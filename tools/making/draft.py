"""Drafts: the Python text of a proposed tool and of its tests, looked at but never run."""

import ast
import keyword
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from guildry.errors import ToolRetry
from guildry.tools.plugs.sayings import Saying
from guildry.tools.plugs.wording import suspicion

__all__ = ["Draft", "Stub"]

_NAME: Final = re.compile(r"[a-z][a-z0-9_]{1,47}")
_MOST_CHARACTERS: Final = 60_000
_MOST_DESCRIPTION: Final = 2_000
_MOST_TESTS: Final = 100
_Function = ast.FunctionDef | ast.AsyncFunctionDef
_PLACED: Final = (
    ast.Import,
    ast.ImportFrom,
    ast.Assign,
    ast.AnnAssign,
    ast.FunctionDef,
    ast.AsyncFunctionDef,
    ast.ClassDef,
)
_EMPTY: Final[dict[str, tuple[object, ...]]] = {
    "bool": (True, False),
    "int": (0,),
    "float": (0.0,),
    "str": ("",),
    "bytes": (b"",),
    "list": ([],),
    "dict": ({},),
}


@dataclass(frozen=True, slots=True)
class Stub:
    """A tool that does nothing: in place of its work it only returns `returns`."""

    returns: str
    source: str


@dataclass(frozen=True, slots=True)
class Draft:
    """A tool as it was proposed.

    Args:
        name: of the tool, and of its one public function.
        description: what it is for; its docstring where it has none.
        source: of the module.
        tests: functions whose names begin with `test_`, each with `assert`s.
    """

    name: str
    description: str
    source: str
    tests: str

    def check(self) -> None:
        """See that the texts are what they have to be.

        Raises:
            ToolRetry: they are not; says where, and what to change.
        """
        if not _NAME.fullmatch(self.name) or keyword.iskeyword(self.name):
            raise ToolRetry(
                f"`name` is {self.name!r}: use 2 to 48 of `a-z`, `0-9` and `_`, a letter first"
            )
        if self.name.startswith("test"):
            raise ToolRetry("`name` begins with `test`: that is how tests are named")
        if not 1 <= len(self.description.strip()) <= _MOST_DESCRIPTION:
            raise ToolRetry(f"`description` takes 1 to {_MOST_DESCRIPTION:,} characters")
        function = self._function()
        _check_function(function)
        said = (("`description`", self.description), ("docstring", ast.get_docstring(function)))
        sayings = [Saying(where, text) for where, text in said if text]
        if fault := suspicion(sayings, {}):
            raise ToolRetry(f"{fault}: say what the tool does, and nothing to whoever reads it")
        _check_tests(_parsed("tests", self.tests))
        try:
            self.documented()
            self.stubs()
        except RecursionError as error:
            raise ToolRetry("`source` is nested too deep: split what is nested") from error

    def documented(self) -> str:
        """Return the source, with the description as docstring where the function has none."""
        module = _parsed("source", self.source)
        function = _public(module, self.name)
        if ast.get_docstring(function):
            return self.source
        words = self.description.strip()
        first = function.body[0]
        above = [each.lineno for each in getattr(first, "decorator_list", ())]
        at = min([first.lineno, *above]) - 1
        lines = _lines(self.source)
        indent = lines[at][: len(lines[at]) - len(lines[at].lstrip())]
        alone = not lines[first.lineno - 1].encode()[: first.col_offset].strip()
        if at > function.lineno - 1 and alone:
            lines.insert(at, f"{indent}{words!r}\n")
            return "".join(lines)
        function.body.insert(0, ast.Expr(ast.Constant(words)))
        return f"{ast.unparse(module)}\n"

    def stubs(self) -> tuple[Stub, ...]:
        """Return stand-ins for the tool that do no work; good tests tell each from the tool."""
        annotation = ast.unparse(self._function().returns or ast.Constant(None))
        kind = annotation.partition("[")[0].rpartition(".")[2]
        return tuple(self._stub(repr(each)) for each in (None, *_EMPTY.get(kind, ())))

    def _stub(self, returns: str) -> Stub:
        module = _parsed("source", self.source)
        function = _public(module, self.name)
        function.body = [ast.Return(ast.parse(returns, mode="eval").body)]
        return Stub(returns, ast.unparse(ast.fix_missing_locations(module)))

    def _function(self) -> _Function:
        return _public(_parsed("source", self.source), self.name)


def _lines(text: str) -> list[str]:
    """Return the lines of a text as Python counts them."""
    return re.findall(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$", text)


def _parsed(what: str, text: str) -> ast.Module:
    if len(text) > _MOST_CHARACTERS:
        raise ToolRetry(f"`{what}` has {len(text):,} characters: use at most {_MOST_CHARACTERS:,}")
    try:
        return ast.parse(text)
    except SyntaxError as error:
        where = f" line {error.lineno}" if error.lineno else ""
        raise ToolRetry(f"`{what}`{where}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError) as error:
        raise ToolRetry(f"`{what}` cannot be read as Python: {error}") from error


def _public(module: ast.Module, name: str) -> _Function:
    for node in module.body:
        is_docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not isinstance(node, _PLACED) and not is_docstring:
            raise ToolRetry(
                f"`source` line {node.lineno}: only imports, constants, functions and classes may"
                " stand outside of functions"
            )
    functions = [each for each in module.body if isinstance(each, _Function)]
    public = [each for each in functions if not each.name.startswith("_")]
    if [each.name for each in public] != [name]:
        there = ", ".join(f"`{each.name}`" for each in public) or "none"
        raise ToolRetry(
            f"`source` has to define one public function, `{name}`, and defines {there}:"
            " let the names of all others begin with `_`"
        )
    return public[0]


def _check_function(function: _Function) -> None:
    given = function.args
    if given.vararg or given.kwarg or given.posonlyargs:
        raise ToolRetry(f"`{function.name}` takes parameters by name: no `*`, `**` or `/`")
    for each in (*given.args, *given.kwonlyargs):
        if each.annotation is None:
            raise ToolRetry(
                f"`source` line {each.lineno}: give `{each.arg}` a type hint, as `{each.arg}: str`"
            )
    if function.returns is None:
        raise ToolRetry(
            f"`source` line {function.lineno}: say what `{function.name}` returns, as `-> str`"
        )
    if function.decorator_list:
        raise ToolRetry(f"`source` line {function.lineno}: leave the decorators out")


def _check_tests(module: ast.Module) -> None:
    tests = list(_tests(module))
    if not tests:
        raise ToolRetry("`tests` has no function whose name begins with `test_`: write some")
    if len(tests) > _MOST_TESTS:
        raise ToolRetry(f"`tests` has {len(tests)} tests: write at most {_MOST_TESTS}")
    for test in tests:
        given = test.args
        if given.args or given.kwonlyargs or given.posonlyargs or given.vararg or given.kwarg:
            raise ToolRetry(
                f"`tests` line {test.lineno}: `{test.name}` takes no parameters, there are no"
                " fixtures"
            )


def _tests(module: ast.Module) -> Iterator[_Function]:
    for node in module.body:
        if isinstance(node, _Function) and node.name.startswith("test_"):
            yield node

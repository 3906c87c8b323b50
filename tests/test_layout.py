"""The rules of the tree, kept true by a test."""

import ast
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import guildry

ROOT = Path(__file__).parent.parent
MAY_IMPORT = {
    "memory": set[str](),
    "tools": {"memory"},
    "teams": {"memory", "tools"},
    "server": {"memory", "tools", "teams"},
}
MODULES = [path for part in MAY_IMPORT for path in sorted((ROOT / part).rglob("*.py"))]
MAX_LINES = {"module": 400, "function": 60}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def parts_imported(source: str) -> set[str]:
    """Return the second component of every `guildry.x` a module imports, however it is spelled."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = "guildry." * (node.level > 1) + (node.module or "")
            names |= {f"{base.rstrip('.')}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("guildry.")}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_a_part_imports_only_the_parts_below_it(path: Path) -> None:
    part = path.relative_to(ROOT).parts[0]
    imported = parts_imported(path.read_text(encoding="utf-8"))

    assert imported & set(MAY_IMPORT) <= MAY_IMPORT[part] | {part}


@pytest.mark.parametrize(
    "line",
    [
        "import guildry.server",
        "import guildry.server.app as app",
        "from guildry import server",
        "from guildry.server import app",
        "from guildry.server.app import build",
        "from .. import server",
        "from ..server.app import build",
    ],
)
def test_every_spelling_of_an_import_is_seen(line: str) -> None:
    assert parts_imported(line) == {"server"}


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_and_functions_fit_on_the_desk(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    functions = [
        node
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]

    assert source.count("\n") <= MAX_LINES["module"]
    assert {
        f.name for f in functions if (f.end_lineno or 0) - f.lineno >= MAX_LINES["function"]
    } == set()


def test_the_links_of_the_package_match_the_folders() -> None:
    links = {
        p.name: p.readlink().as_posix() for p in (ROOT / "src/guildry").iterdir() if p.is_symlink()
    }

    assert links == {part: f"../../{part}" for part in MAY_IMPORT}


def test_nobody_else_owns_the_import_name() -> None:
    assert set(packages_distributions().get("guildry", ["guildry"])) == {"guildry"}
    assert guildry.__file__ is not None


def test_serving_loads_nothing_that_only_some_servers_need() -> None:
    heavy = {"aiohttp", "jsonschema", "sglang", "sqlite_utils", "torch", "typer"}
    code = (
        "import sys, guildry.server.commands.serve, guildry.server.app, guildry.server.surface"
        ", guildry.server.control, guildry.server.stdio;"
        f" print(sorted({heavy!r} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def test_no_part_is_imported_under_a_bare_name() -> None:
    code = f"import sys, guildry.server.app; print({set(MAY_IMPORT)!r} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True
    )

    assert done.stdout.strip() == "set()"

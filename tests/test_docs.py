"""What is written is true: the README, the help, the tree of errors and the public names."""

import ast
import inspect
import re
import shlex
from pathlib import Path

import pytest
import typer.main

from guildry import errors
from guildry.server.commands.app import COMMANDS, build
from guildry.server.commands.reference import TABLES, commands_table, filled, settings_table
from guildry.server.config import ModelSetting, PlugSetting, Settings

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PARTS = ("memory", "tools", "teams", "server")
MODULES = [path for part in PARTS for path in sorted((ROOT / part).rglob("*.py"))]
BLOCKS = re.findall(r"^```(?:console|sh|shell|bash|text)?\n(.*?)^```", README, re.DOTALL | re.M)


def section(title: str) -> str:
    found = re.search(rf"^## {title}\n(.*?)(?=^## |\Z)", README, re.DOTALL | re.M)
    assert found is not None, f"README.md has no section `## {title}`"
    return found[1]


def command_lines() -> list[str]:
    lines = [line.strip().removeprefix("$ ") for block in BLOCKS for line in block.splitlines()]
    return sorted({line for line in lines if line.startswith("guildry ")})


def test_the_tree_in_the_architecture_has_every_module_and_no_other() -> None:
    architecture = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")

    assert TABLES["tree"]() in architecture, "the tree is out of date: `make docs` writes it anew"


@pytest.mark.parametrize("title", ["Commands", "Settings"])
def test_a_table_of_the_readme_is_as_its_source_makes_it(title: str) -> None:
    table = TABLES[title.lower()]()

    assert table in section(title), "the table is out of date: `make docs` writes it anew"


def test_the_tables_name_every_setting_and_every_command() -> None:
    settings, commands = settings_table(), commands_table()

    for model in (Settings, PlugSetting, ModelSetting):
        for name in model.model_fields:
            assert f"\n| `{name}` | " in settings, name
    for name, _, _ in COMMANDS:
        assert f"\n| `guildry {name}` | " in commands, name


def test_only_what_stands_between_the_marks_is_written() -> None:
    text = "before <!-- settings --> between <!-- /settings --> after"

    once = filled(text)

    assert once == (f"before <!-- settings -->\n\n{settings_table()}\n\n<!-- /settings --> after")
    assert filled(once) == once
    assert filled("nothing") == "nothing"


@pytest.mark.parametrize("line", command_lines())
def test_every_command_line_of_the_readme_can_be_typed(line: str) -> None:
    parse(line)


@pytest.mark.parametrize("example", [example for _, _, example in COMMANDS])
def test_every_example_of_the_help_can_be_typed(example: str) -> None:
    parse(example)


def parse(line: str) -> None:
    """Parse a command line as the shell and the command line would, without running it."""
    words = shlex.split(line, comments=True)
    ends = [n for n, word in enumerate(words) if word in {"|", "&&", ";", "&", ">", "2>"}]
    name, *args = words[1 : ends[0] if ends else None]
    if name.startswith("-"):
        assert name in {"--help", "-h", "--version"}
        return
    commands = getattr(typer.main.get_command(build()), "commands")  # noqa: B009 - not typed
    assert name in commands, f"{line!r}: there is no command {name!r}"
    commands[name].make_context(name, args)


def test_the_tree_of_errors_is_as_it_is_drawn() -> None:
    drawn: dict[str, str | None] = {}
    above: list[str] = []
    for line in (errors.__doc__ or "").splitlines():
        found = re.match(r"^([│├└─ ]*)([A-Z]\w+)(?:\s|$)", line)
        if found is None or (not found[1] and found[2] != "GuildryError"):
            continue
        depth = len(found[1]) // 4
        del above[depth:]
        drawn[found[2]] = above[-1] if above else None
        above.append(found[2])

    real = {
        name: None if each is errors.GuildryError else each.__mro__[1].__name__
        for name, each in inspect.getmembers(errors, inspect.isclass)
    }
    assert drawn == real
    assert sorted(real) == errors.__all__


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_the_public_names_of_a_module_are_those_it_names(path: Path) -> None:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    named = [
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        and node.value is not None
        and "__all__" in {ast.unparse(each) for each in targets(node)}
    ]
    if not named:
        if len(tree.body) == 1 and path.name == "__init__.py":
            return
        assert path.parent.name in {"tools", "late_tools"}, "`__all__` is missing"
        assert "demo" in path.parts, "only plugged files need none"
        return

    (public,) = named
    assert len(public) == len(set(public))
    assert set(public) <= defined(tree) | bound(tree)


def targets(node: ast.Assign | ast.AnnAssign) -> list[ast.expr]:
    return [node.target] if isinstance(node, ast.AnnAssign) else node.targets


def defined(tree: ast.Module) -> set[str]:
    """Return the public functions and classes that a module defines."""
    names = {
        node.name
        for node in tree.body
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef)
    }
    return {name for name in names if not name.startswith("_")}


def bound(tree: ast.Module) -> set[str]:
    """Return the other names that a module binds: by import or assignment."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            names |= {ast.unparse(each) for each in targets(node)}
    return names

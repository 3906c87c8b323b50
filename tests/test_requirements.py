"""The manifest of what the protocol demands, and the tests that show it, agree."""

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent
PLACE = re.compile(r"(\d{4}-\d\d-\d\d [a-z/-]+|seps/\d+-[a-z-]+)(#[a-z0-9_-]+)?")
ID = re.compile(r"[a-z]+\.[a-z-]+")


def demanded() -> dict[str, str]:
    """Return what is demanded, by id."""
    text = (TESTS / "requirements.toml").read_text(encoding="utf-8")
    manifest: dict[str, dict[str, str]] = tomllib.loads(text)
    listed = [(id, words) for place in manifest.values() for id, words in place.items()]
    assert len({id for id, _ in listed}) == len(listed), "an id is given twice"
    return dict(listed)


def shown() -> dict[str, list[str]]:
    """Return the tests that show a behaviour, by its id."""
    found: dict[str, list[str]] = {}
    for path in sorted(TESTS.rglob("test_*.py")):
        if "node_modules" in path.parts:
            continue
        for test, id in marks(ast.parse(path.read_text(encoding="utf-8"))):
            found.setdefault(id, []).append(f"{path.relative_to(TESTS)}::{test}")
    return found


def marks(module: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield the tests of a module with each id that they are marked with."""
    for node in module.body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for mark in node.decorator_list:
            if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.requirement":
                for id in map(ast.literal_eval, mark.args):
                    yield node.name, id


def test_every_demand_is_shown_by_a_test() -> None:
    assert sorted(demanded().keys() - shown().keys()) == []


def test_every_marked_test_shows_what_is_demanded() -> None:
    unknown = {id: tests for id, tests in shown().items() if id not in demanded()}

    assert unknown == {}


def test_places_and_ids_are_well_formed() -> None:
    text = (TESTS / "requirements.toml").read_text(encoding="utf-8")

    assert [place for place in tomllib.loads(text) if not PLACE.fullmatch(place)] == []
    assert [id for id in demanded() if not ID.fullmatch(id)] == []

"""Installed packages as plugs: what they name is found without importing any other package."""

import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from guildry.errors import PlugError
from guildry.tools.base import Call, Outcome, Text
from guildry.tools.plugs.board import PlugBoard
from guildry.tools.plugs.entry_points import installed
from guildry.tools.plugs.plug import PlugLimits
from guildry.tools.registry import Catalog

POINTS = """[guildry.plugs]
weather = sky_pkg.tools
whole = sky_pkg.many
given = sky_pkg:folder
line = sky_pkg:line
odd = sky_pkg:odd
broken = sky_pkg:broken
gone = sky_pkg.gone
slow = sky_pkg:slow
"""
PACKAGE = """
from pathlib import Path
from threading import Event


def folder():
    return Path("many")


def line():
    return "no-such-program-x --serve"


def odd():
    return 7


def broken():
    raise RuntimeError("no licence")


def slow():
    Event().wait(60)
"""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Path]:
    """A folder of installed packages, with one package in it."""
    package, about = tmp_path / "sky_pkg", tmp_path / "sky_pkg-1.0.dist-info"
    (package / "many").mkdir(parents=True)
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: sky-pkg\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(POINTS)
    (package / "__init__.py").write_text(PACKAGE)
    tool = 'def NAME() -> str:\n    """Say it."""\n    return "NAME"\n'
    (package / "tools.py").write_text(tool.replace("NAME", "forecast"))
    (package / "many" / "__init__.py").write_text("")
    (package / "many" / "rain.py").write_text(tool.replace("NAME", "rain"))
    sys.path.insert(0, str(tmp_path))
    yield tmp_path
    sys.path.remove(str(tmp_path))
    for name in [name for name in sys.modules if name.partition(".")[0] == "sky_pkg"]:
        del sys.modules[name]


async def test_a_package_names_a_module_a_folder_or_a_callable(site: Path) -> None:
    catalog = Catalog()
    with anyio.fail_after(60):
        async with PlugBoard(catalog) as board:
            report = await board.plug("package:weather")
            tool = catalog.current.get("forecast")
            said = await tool.invoke({}, Call(tool, None))
            await board.reload("weather")
            await board.unplug("weather")
            whole = await board.plug("package:whole")
            kinds = [status.kind for status in board.listing()]
            await board.unplug("whole")
            given = await board.plug("package:given", "mine")
            sources = [status.source for status in board.listing()]

    assert (report.plug, report.tools) == ("weather", ("forecast",))
    assert said == Outcome((Text("forecast"),))
    assert (whole.tools, kinds) == (("rain",), ["python"])
    assert (given.tools, sources) == (("rain",), ["package:given"])


@pytest.mark.parametrize(
    ("name", "word"),
    [
        ("wether", "Did you mean `package:weather`"),
        ("nothing-like-it", "Install the package"),
        ("odd", "gives int"),
        ("broken", "RuntimeError: no licence"),
        ("gone", "no such module"),
        ("line", "no-such-program-x"),
    ],
)
async def test_a_package_that_cannot_be_plugged_says_why(site: Path, name: str, word: str) -> None:
    with anyio.fail_after(60):
        async with PlugBoard(Catalog()) as board:
            with pytest.raises(PlugError, match=word):
                await board.plug(f"package:{name}")

            assert board.listing() == []


async def test_a_package_that_says_nothing_is_given_up(site: Path) -> None:
    limits = PlugLimits(start_s=0.2)
    with anyio.fail_after(60):
        async with PlugBoard(Catalog(), limits=limits) as board:
            with pytest.raises(PlugError, match="say what it offers"):
                await board.plug("package:slow")


def test_installed_packages_are_listed_without_being_imported(site: Path) -> None:
    assert installed()["package:weather"] == "sky_pkg.tools"
    assert "sky_pkg" not in sys.modules

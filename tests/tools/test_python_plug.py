"""Python files as plugs: real files, imported, broken, mended and saved again."""

import sys
import threading
from pathlib import Path

import anyio
import pytest

from guildry.errors import PlugError
from guildry.tools.base import READS, Call, Outcome, Text
from guildry.tools.plugs.plug import Loaded, PlugLimits, Quarantined
from guildry.tools.python.plug import PythonPlug

LIMITS = PlugLimits(start_s=5)


def plug_of(path: Path, limits: PlugLimits = LIMITS) -> PythonPlug:
    return PythonPlug(str(path), "mine", path=path, limits=limits)


async def opened(plug: PythonPlug) -> Loaded:
    with anyio.fail_after(10):
        return await plug.open(lambda: None)


async def ask(loaded: Loaded, name: str) -> str:
    tool = next(tool for tool in loaded.tools if tool.name == name)
    with anyio.fail_after(10):
        outcome: Outcome = await tool.invoke({}, Call(tool, None))
    assert isinstance(outcome.blocks[0], Text)
    return outcome.blocks[0].text


def names(loaded: Loaded) -> list[str]:
    return [tool.name for tool in loaded.tools]


async def test_public_functions_defined_in_a_file_are_its_tools_in_order(tmp_path: Path) -> None:
    file = tmp_path / "words.py"
    file.write_text(
        "from os.path import join\n"
        "from guildry.tools.python import reads\n"
        "class Helper: ...\n"
        "def second() -> str:\n    return 'two'\n"
        "@reads\ndef first() -> str:\n    '''Be first.'''\n    return 'one'\n"
        "def _private() -> None: ...\n"
        "short = lambda: 1\n"
    )
    plug = plug_of(file)

    loaded = await opened(plug)

    assert names(loaded) == ["second", "first"]
    assert loaded.quarantined == ()
    assert loaded.tools[1].effects == READS
    assert await ask(loaded, "first") == "one"
    await plug.close()


async def test_all_names_what_is_public(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("__all__ = ['b']\ndef a() -> None: ...\ndef b() -> None: ...\n")
    plug = plug_of(file)

    assert names(await opened(plug)) == ["b"]
    await plug.close()


async def test_files_of_a_folder_import_each_other_relatively_and_once(tmp_path: Path) -> None:
    (tmp_path / "_shared.py").write_text("loads = []\n")
    (tmp_path / "helper.py").write_text(
        "from ._shared import loads\nloads.append(1)\ndef helped() -> str:\n    return 'helped'\n"
    )
    (tmp_path / "main.py").write_text(
        "from . import helper\nfrom .deep.er import depth\nfrom ._shared import loads\n"
        "def go() -> str:\n    return f'{helper.helped()} {depth} {len(loads)}'\n"
    )
    (tmp_path / "deep").mkdir()
    (tmp_path / "deep" / "__init__.py").write_text("")
    (tmp_path / "deep" / "er.py").write_text("depth = 7\n")
    plug = plug_of(tmp_path)

    loaded = await opened(plug)

    assert names(loaded) == ["helped", "go"]
    assert await ask(loaded, "go") == "helped 7 1"
    await plug.close()


async def test_two_plugs_with_files_of_one_name_do_not_meet(tmp_path: Path) -> None:
    plugs: list[PythonPlug] = []
    for word in ("left", "right"):
        (tmp_path / word).mkdir()
        (tmp_path / word / "json.py").write_text(f"def side() -> str:\n    return '{word}'\n")
        plugs.append(plug_of(tmp_path / word))

    left, right = [await opened(plug) for plug in plugs]

    assert (await ask(left, "side"), await ask(right, "side")) == ("left", "right")
    for plug in plugs:
        await plug.close()


@pytest.mark.parametrize(
    ("source", "line", "words"),
    [
        ("import os\nimport nowhere\n", 2, "ModuleNotFoundError: No module named 'nowhere'"),
        ("def f(:\n", 1, "SyntaxError"),
        ("x = 1\n\n1 / 0\n", 3, "ZeroDivisionError: division by zero"),
        ("import sys\nsys.exit(2)\n", 2, "SystemExit: 2: it ends the process"),
        ("def f():\n    raise ValueError('deep')\nf()\n", 2, "ValueError: deep"),
        ("import beside\n", 1, "write `from . import beside`"),
    ],
)
async def test_a_file_that_does_not_import_is_refused_with_file_line_and_error(
    tmp_path: Path, source: str, line: int, words: str
) -> None:
    (tmp_path / "beside.py").write_text("")
    file = tmp_path / "broken.py"
    file.write_text(source)
    plug = plug_of(file)

    with pytest.raises(PlugError) as caught:
        await opened(plug)

    assert caught.value.source == str(file)
    assert f"{file} line {line}: " in caught.value.reason
    assert words in caught.value.reason
    assert caught.value.cure
    await plug.close()


async def test_a_file_without_a_tool_is_refused_with_an_example(tmp_path: Path) -> None:
    file = tmp_path / "empty.py"
    file.write_text("")
    plug = plug_of(file)

    with pytest.raises(PlugError, match="no public function is defined in it. Define one"):
        await opened(plug)
    await plug.close()


async def test_a_broken_file_of_a_folder_is_quarantined_alone(tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import nowhere\n")
    (tmp_path / "good.py").write_text(
        "def fine() -> str:\n    return 'fine'\ndef variadic(*a) -> None: ...\n"
    )
    plug = plug_of(tmp_path)

    loaded = await opened(plug)

    assert names(loaded) == ["fine"]
    assert loaded.quarantined == (
        Quarantined(
            "bad.py",
            f"{tmp_path}/bad.py line 1: ModuleNotFoundError: No module named 'nowhere'",
        ),
        Quarantined("variadic", "good.py line 3: it takes `*a`: name each parameter"),
    )
    await plug.close()


async def test_an_import_that_takes_too_long_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text("import sys\nsys.modules['guildry_test_gate'].wait()\n")
    (tmp_path / "quick.py").write_text("def quick() -> None: ...\n")
    gate = threading.Event()
    sys.modules["guildry_test_gate"] = gate  # type: ignore[assignment]  # a way in for the file
    plug = plug_of(tmp_path, PlugLimits(start_s=0.2))

    loaded = await opened(plug)
    gate.set()
    del sys.modules["guildry_test_gate"]

    assert names(loaded) == ["quick"]
    assert loaded.quarantined[0].tool == "slow.py"
    assert "took over 0.2 s" in loaded.quarantined[0].reason
    await plug.close()


async def test_a_saved_change_is_read_though_size_and_time_are_the_same(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text("def a() -> str:\n    return 'old'\n")
    plug = plug_of(file)
    before = await opened(plug)
    stat = file.stat()

    file.write_text("def a() -> str:\n    return 'new'\n")
    import os

    os.utime(file, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    after = await plug.reload()

    assert (await ask(before, "a"), await ask(after, "a")) == ("old", "new")
    await plug.close()


async def test_calls_in_flight_end_on_the_module_they_began_on(tmp_path: Path) -> None:
    file = tmp_path / "a.py"
    file.write_text(
        "import anyio\nVERSION = 'old'\ngate = anyio.Event()\nentered = anyio.Event()\n"
        "async def wait() -> str:\n    entered.set()\n    await gate.wait()\n    return VERSION\n"
        "async def open_gate() -> str:\n    await entered.wait()\n    gate.set()\n"
        "    return 'open'\n"
    )
    plug = plug_of(file)
    before = await opened(plug)
    answers: list[str] = []

    async def call() -> None:
        answers.append(await ask(before, "wait"))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as calls:
            calls.start_soon(call)
            file.write_text("async def wait() -> str:\n    return 'new'\n")
            after = await plug.reload()
            answers.append(await ask(after, "wait"))
            await ask(before, "open_gate")

    assert answers == ["new", "old"]
    await plug.close()


async def test_a_broken_save_keeps_the_last_good_version_until_it_is_mended(tmp_path: Path) -> None:
    (tmp_path / "other.py").write_text("def other() -> None: ...\n")
    file = tmp_path / "a.py"
    file.write_text("def a() -> str:\n    return 'good'\n")
    plug = plug_of(tmp_path)
    await opened(plug)

    file.write_text("def a() -> str:\n    return 'bro\n")
    broken = await plug.reload()
    file.write_text("def a() -> str:\n    return 'mended'\n")
    mended = await plug.reload()

    assert names(broken) == ["a", "other"]
    assert await ask(broken, "a") == "good"
    assert broken.quarantined[0].tool == "a.py"
    assert "line 2: SyntaxError" in broken.quarantined[0].reason
    assert "its last good version goes on serving" in broken.quarantined[0].reason
    assert await ask(mended, "a") == "mended"
    assert mended.quarantined == ()
    await plug.close()


async def test_a_removed_file_takes_its_tools_along_and_a_new_one_brings_its_own(
    tmp_path: Path,
) -> None:
    (tmp_path / "a.py").write_text("def a() -> None: ...\n")
    plug = plug_of(tmp_path)
    await opened(plug)

    (tmp_path / "a.py").unlink()
    (tmp_path / "b.py").write_text("def b() -> None: ...\n")
    loaded = await plug.reload()

    assert names(loaded) == ["b"]
    await plug.close()


async def test_closing_forgets_every_module(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("def a() -> None: ...\n")
    finders = list(sys.meta_path)
    plug = plug_of(tmp_path)
    await opened(plug)
    for _ in range(5):
        await plug.reload()
    held = [name for name in sys.modules if name.startswith("guildry_plugged_")]

    await plug.close()

    assert len(held) == 4  # the newest reading and the one before it: package and file
    assert [name for name in sys.modules if name.startswith("guildry_plugged_")] == []
    assert sys.meta_path == finders

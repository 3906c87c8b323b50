"""Saved changes, on a real file system: seen, told once, and served while calls go on."""

import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio

from guildry.tools.base import Call, Text
from guildry.tools.plugs.board import PlugBoard
from guildry.tools.plugs.plug import PlugLimits, Wanted, Watched
from guildry.tools.plugs.watch import Watch
from guildry.tools.registry import Catalog, Change

LIMITS = PlugLimits(start_s=10, close_s=0.5)


class Bell:
    """Count rings, and wait for the next."""

    def __init__(self) -> None:
        self.rings = 0
        self._rung = anyio.Event()

    def ring(self, *_: object) -> None:
        self.rings += 1
        self._rung.set()

    async def wait(self) -> None:
        await self._rung.wait()
        self._rung = anyio.Event()


@asynccontextmanager
async def watching(path: Path, ring: Callable[[], None]) -> AsyncGenerator[Watch]:
    watch = Watch()
    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(watch.run)
            await watch.add([Watched(path)], ring)
            yield watch
            tasks.cancel_scope.cancel()


async def test_each_saved_change_of_a_file_is_told(tmp_path: Path) -> None:
    file, bell = tmp_path / "a.py", Bell()
    file.write_text("1")
    async with watching(file, bell.ring):
        for text in ("22", "333"):
            file.write_text(text)
            await bell.wait()

    assert bell.rings == 2


async def test_a_file_that_an_editor_puts_in_place_of_another_is_told_again_and_again(
    tmp_path: Path,
) -> None:
    file, bell = tmp_path / "a.py", Bell()
    file.write_text("1")
    async with watching(file, bell.ring):
        for text in ("2", "3", "4"):
            (tmp_path / "a.py.tmp").write_text(text)
            os.replace(tmp_path / "a.py.tmp", file)
            await bell.wait()

    assert bell.rings == 3


async def test_files_in_folders_of_a_folder_count_and_foreign_ones_do_not(tmp_path: Path) -> None:
    bell = Bell()
    (tmp_path / "deep").mkdir()
    async with watching(tmp_path, bell.ring):
        (tmp_path / "notes.txt").write_text("nobody cares")
        (tmp_path / "deep" / "a.py").write_text("1")
        await bell.wait()
        (tmp_path / "new").mkdir()
        (tmp_path / "new" / "b.py").write_text("1")
        await bell.wait()
        (tmp_path / "new" / "b.py").write_text("22")
        await bell.wait()

    assert bell.rings == 3


async def test_a_folder_that_goes_away_and_comes_back_is_told(tmp_path: Path) -> None:
    folder, bell = tmp_path / "tools", Bell()
    folder.mkdir()
    (folder / "a.py").write_text("1")
    async with watching(folder, bell.ring):
        (folder / "a.py").unlink()
        folder.rmdir()
        await bell.wait()
        folder.mkdir()
        (folder / "b.py").write_text("1")
        await bell.wait()


async def test_a_folder_that_another_is_put_in_place_of_is_told_of_and_watched(
    tmp_path: Path,
) -> None:
    folder, bell = tmp_path / "tools", Bell()
    folder.mkdir()
    async with watching(folder, bell.ring):
        for content in ("one", "two"):
            (tmp_path / "next").mkdir()
            (tmp_path / "next/a.py").write_text(content)
            folder.rename(tmp_path / f"before {content}")
            (tmp_path / "next").rename(folder)
            await bell.wait()
        (folder / "b.py").write_text("")
        await bell.wait()


async def test_a_folder_that_is_back_at_once_is_still_watched(tmp_path: Path) -> None:
    folder, bell = tmp_path / "tools", Bell()
    folder.mkdir()
    async with watching(folder, bell.ring):
        for name in ("a.py", "b.py"):
            folder.rename(tmp_path / "away")
            (tmp_path / "away").rename(folder)
            (folder / name).write_text("")
            await bell.wait()


async def test_a_folder_that_comes_and_goes_all_the_time_ends_no_watch(tmp_path: Path) -> None:
    folder, bell, gone = tmp_path / "tools", Bell(), tmp_path / "gone"
    folder.mkdir()

    def flicker() -> None:
        for _ in range(10_000):
            folder.rename(gone)
            gone.rename(folder)

    async with watching(folder, bell.ring) as watch:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(anyio.to_thread.run_sync, flicker)
            for _ in range(500):  # each time everything is looked at
                (await watch.add([Watched(folder)], bell.ring))()
        (folder / "a.py").write_text("1")
        await bell.wait()


async def test_what_is_added_while_watching_is_watched_and_what_is_removed_is_not(
    tmp_path: Path,
) -> None:
    first, second = Bell(), Bell()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    async with watching(tmp_path / "a", first.ring) as watch:
        remove = await watch.add([Watched(tmp_path / "b")], second.ring)
        (tmp_path / "b" / "b.py").write_text("1")
        await second.wait()
        remove()
        (tmp_path / "b" / "b.py").write_text("22")
        (tmp_path / "a" / "a.py").write_text("1")
        await first.wait()

    assert (first.rings, second.rings) == (1, 1)


async def ask(catalog: Catalog, name: str) -> str:
    tool = catalog.current.get(name)
    outcome = await tool.invoke({}, Call(tool, None))
    assert isinstance(outcome.blocks[0], Text)
    return outcome.blocks[0].text


def hello(word: str) -> str:
    return f"def hello() -> str:\n    '''Say {word}.'''\n    return {word!r}\n"


async def test_a_save_is_served_and_announced_while_the_server_runs(tmp_path: Path) -> None:
    file, catalog = tmp_path / "greet.py", Catalog()
    file.write_text(hello("old"))
    send, receive = anyio.create_memory_object_stream[Change](10)
    catalog.subscribe(send.send_nowait)
    with send, receive, anyio.fail_after(20):
        async with PlugBoard(catalog, limits=LIMITS) as board:
            await board.plug(str(file))
            await receive.receive()

            file.write_text(hello("renewed") + "def bye() -> None: ...\n")
            change = await receive.receive()
            answer = await ask(catalog, "hello")

    assert (change.plug, change.added, change.changed) == ("greet", ("bye",), ("hello",))
    assert answer == "renewed"


async def test_a_burst_of_saves_is_read_a_few_times_and_the_last_one_wins(tmp_path: Path) -> None:
    catalog, bell = Catalog(), Bell()
    (tmp_path / "greet.py").write_text(hello("word 0"))
    with anyio.fail_after(20):
        async with PlugBoard(catalog, limits=LIMITS) as board:
            await board.plug(str(tmp_path), "burst")
            catalog.subscribe(bell.ring)
            for n in range(1, 101):
                (tmp_path / "greet.py").write_text(hello(f"word {n}"))

            while await ask(catalog, "hello") != "word 100":
                await bell.wait()

    assert bell.rings < 50


async def test_a_broken_save_keeps_the_last_good_version_and_reports_the_file(
    tmp_path: Path,
) -> None:
    file, catalog = tmp_path / "greet.py", Catalog()
    file.write_text(hello("good"))
    with anyio.fail_after(20):
        async with PlugBoard(catalog, limits=LIMITS) as board:
            await board.plug(str(file))
            bell = Bell()
            catalog.subscribe(bell.ring)

            file.write_text("def hello(:\n")
            while not board.listing()[0].quarantined:
                await anyio.lowlevel.checkpoint()
            status, answer = board.listing()[0], await ask(catalog, "hello")
            file.write_text(hello("mended"))
            await bell.wait()
            mended = board.listing()[0]

    assert status.quarantined[0].tool == "greet.py"
    assert "SyntaxError" in status.quarantined[0].reason
    assert (status.state, status.tools, answer) == ("ready", ("hello",), "good")
    assert mended.quarantined == ()


async def test_a_kept_file_that_did_not_import_is_served_once_it_is_mended(tmp_path: Path) -> None:
    file, catalog, bell = tmp_path / "greet.py", Catalog(), Bell()
    file.write_text("1 / 0\n")
    catalog.subscribe(bell.ring)
    with anyio.fail_after(20):
        async with PlugBoard(catalog, limits=LIMITS) as board:
            results = await board.plug_all([Wanted(str(file))])

            file.write_text(hello("at last"))
            await bell.wait()
            answer = await ask(catalog, "hello")

    assert "ZeroDivisionError" in str(results[0])
    assert answer == "at last"

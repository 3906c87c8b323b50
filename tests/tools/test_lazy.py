"""Servers that are known, and started only when they are needed. Servers and database are real."""

import shlex
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import fields
from functools import partial
from pathlib import Path

import anyio
import anyio.lowlevel
import pytest

from guildry.errors import PlugError, ToolFailed
from guildry.memory.manifests import ManifestStore
from guildry.memory.store import Store
from guildry.tools.base import Tool
from guildry.tools.mcp.servers import Servers
from guildry.tools.offers import Prompt, Resource, Template
from guildry.tools.plugs.board import PlugBoard
from guildry.tools.plugs.options import PlugOptions
from guildry.tools.plugs.plug import PlugLimits, PlugState, Wanted
from guildry.tools.plugs.sources import open_source
from guildry.tools.registry import Catalog

from .test_mcp_plug import Changes, Heard, ask, command, http_server, is_alive, said

SERVERS = Path(__file__).parent / "servers"
QUICK = PlugLimits(start_s=10, call_s=20, close_s=0.5, backoff_s=0.01, backoff_max_s=0.1)


class Home:
    """A server of tools that counts its starts, and the database that knows it."""

    def __init__(self, folder: Path, store: Store) -> None:
        self.store = store
        self.catalog = Catalog()
        self.starts = folder / "starts"
        self.names = folder / "names"
        self.names.write_text("one two")
        words = [sys.executable, str(SERVERS / "counting.py"), str(self.starts), str(self.names)]
        self.source = shlex.join(words)

    @property
    def pids(self) -> list[int]:
        if not self.starts.exists():
            return []
        return [int(line) for line in self.starts.read_text().split()]

    @asynccontextmanager
    async def board(
        self,
        *,
        limits: PlugLimits = QUICK,
        is_lazy: bool = True,
        idle_s: float = 600,
        starts_at_once: int = 8,
    ) -> AsyncGenerator[PlugBoard]:
        self.catalog = Catalog()
        servers = Servers(
            ManifestStore(self.store),
            is_lazy=is_lazy,
            idle_s=idle_s,
            starts_at_once=starts_at_once,
        )
        opening = partial(open_source, servers=servers)
        async with PlugBoard(self.catalog, limits=limits, opening=opening) as board:
            yield board


@asynccontextmanager
async def home(folder: Path) -> AsyncGenerator[Home]:
    with anyio.fail_after(60):
        async with Store.open(None) as store:
            yield Home(folder, store)


@asynccontextmanager
async def known_home(folder: Path, options: PlugOptions | None = None) -> AsyncGenerator[Home]:
    """Plug the server once, so that it is known; it runs no more."""
    async with home(folder) as known:
        async with known.board() as board:
            await board.plug(known.source, "up", options=options or PlugOptions())
        yield known


async def until(claim: Callable[[], bool]) -> None:
    while not claim():
        await anyio.lowlevel.checkpoint()


def state(board: PlugBoard, name: str = "up") -> PlugState:
    return next(status.state for status in board.listing() if status.name == name)


async def test_a_known_server_is_served_without_being_started(tmp_path: Path) -> None:
    async with known_home(tmp_path) as known, known.board() as board:
        report = await board.plug(known.source, "up")

        assert report.tools == ("one", "two")
        assert state(board) == "idle"
        assert len(known.pids) == 1


async def test_the_first_call_starts_a_known_server_once_for_many_callers(tmp_path: Path) -> None:
    answers: list[str] = []
    async with known_home(tmp_path) as known, known.board() as board:
        await board.plug(known.source, "up")

        async def call() -> None:
            answers.append(said(await ask(known.catalog, "one")))

        async with anyio.create_task_group() as calls:
            for _ in range(5):
                calls.start_soon(call)

        assert answers == [str(known.pids[1])] * 5
        assert len(known.pids) == 2
        assert state(board) == "ready"


async def test_what_a_known_server_offers_by_now_is_told_once_it_is_started(tmp_path: Path) -> None:
    async with known_home(tmp_path) as known, known.board() as board:
        await board.plug(known.source, "up")
        known.names.write_text("one three")
        changes = Changes(known.catalog)

        await ask(known.catalog, "one")
        change = await changes.next()
        changes.close()

        async with known.board() as later:
            report = await later.plug(known.source, "up")

    assert (change.added, change.removed) == (("three",), ("two",))
    assert report.tools == ("one", "three")


async def test_list_changed_of_a_server_that_was_started_late_is_heard(tmp_path: Path) -> None:
    async with home(tmp_path) as known:
        known.names.write_text("grow")
        async with known.board() as board:
            await board.plug(known.source, "up")
        async with known.board() as board:
            await board.plug(known.source, "up")
            changes = Changes(known.catalog)

            await ask(known.catalog, "grow")
            change = await changes.next()
            changes.close()

    assert change.added == ("grown",)


async def test_an_idle_server_is_stopped_and_the_next_call_starts_it_again(tmp_path: Path) -> None:
    async with home(tmp_path) as known, known.board(idle_s=0.05) as board:
        await board.plug(known.source, "up")
        before = int(said(await ask(known.catalog, "one")))
        await until(lambda: state(board) == "idle" and not is_alive(before))

        after = int(said(await ask(known.catalog, "two")))

        assert before != after
        assert board.listing()[0].error is None


async def test_a_server_with_a_call_in_flight_is_not_stopped(tmp_path: Path) -> None:
    heard = Heard()
    async with home(tmp_path) as known, known.board(idle_s=0.02) as board:
        await board.plug(command("legacy"), "up", options=PlugOptions(lazy=True))
        async with anyio.create_task_group() as calls:
            calls.start_soon(ask, known.catalog, "wait", None, heard)
            await heard.first.wait()
            with anyio.move_on_after(0.2):
                await anyio.Event().wait()

            assert state(board) == "ready"
            calls.cancel_scope.cancel()


async def test_a_server_that_must_not_be_lazy_is_started_though_it_is_known(tmp_path: Path) -> None:
    async with known_home(tmp_path) as known:
        async with known.board(idle_s=0.01) as board:
            await board.plug(known.source, "up", options=PlugOptions(lazy=False))

            assert state(board) == "ready"
        async with known.board(is_lazy=False) as board:
            await board.plug(known.source, "up")

            assert state(board) == "ready"
        async with known.board(is_lazy=False) as board:
            await board.plug(known.source, "up", options=PlugOptions(lazy=True))

            assert state(board) == "idle"


async def test_a_server_with_another_environment_is_not_the_one_that_is_known(
    tmp_path: Path,
) -> None:
    async with known_home(tmp_path, PlugOptions(env={"KEY": "first"})) as known:
        async with known.board() as board:
            await board.plug(known.source, "up", options=PlugOptions(env={"KEY": "second"}))
            assert state(board) == "ready"
        async with known.board() as board:
            await board.plug(known.source, "up", options=PlugOptions(env={"KEY": "first"}))
            assert state(board) == "idle"
        rows = await known.store.read(
            lambda connection: connection.execute("SELECT key, manifest FROM manifests").fetchall()
        )

    assert len(rows) == 2
    assert not any("first" in text or "second" in text for row in rows for text in row)


async def test_a_known_server_that_cannot_be_started_any_more_fails_its_calls_with_the_cure(
    tmp_path: Path,
) -> None:
    async with known_home(tmp_path) as known, known.board() as board:
        await board.plug(known.source, "up")
        known.names.unlink()
        known.starts.unlink()
        known.starts.mkdir()

        with pytest.raises(ToolFailed, match=r"`up` cannot be called now: .* Run the command"):
            await ask(known.catalog, "one")
        failed = state(board)
        known.starts.rmdir()
        known.names.write_text("one two")
        answer = said(await ask(known.catalog, "one"))

        assert failed == "failed"
        assert answer == str(known.pids[-1])
        assert state(board) == "ready"


async def test_a_known_server_that_is_read_anew_is_started(tmp_path: Path) -> None:
    async with known_home(tmp_path) as known, known.board() as board:
        await board.plug(known.source, "up")
        known.names.write_text("three")

        report = await board.reload("up")

        assert report.tools == ("three",)
        assert state(board) == "ready"


async def test_a_known_server_at_a_url_is_reached_at_the_first_call(tmp_path: Path) -> None:
    async with home(tmp_path) as known, http_server() as url:
        async with known.board() as board:
            first = await board.plug(url, "remote")
        async with known.board() as board:
            report = await board.plug(url, "remote")
            standing = state(board, "remote")
            answer = await ask(known.catalog, "add", {"a": 1, "b": 2})

    assert standing == "idle"
    assert report == first
    assert answer.structured == {"result": 3}


async def test_everything_that_a_server_offers_is_the_same_from_its_manifest(
    tmp_path: Path,
) -> None:
    async with home(tmp_path) as known:
        async with known.board() as board:
            await board.plug(command("offering"), "up")
            tools, offers = shown(known.catalog)
        async with known.board() as board:
            await board.plug(command("offering"), "up")

            assert state(board) == "idle"
            assert shown(known.catalog) == (tools, offers)


def shown(catalog: Catalog) -> tuple[list[object], list[object]]:
    """Return all that can be seen of what is offered; of functions, that there is one."""

    def plain(one: Tool | Prompt | Resource | Template) -> object:
        values = (getattr(one, each.name) for each in fields(one))
        return ["function" if callable(value) else value for value in values]

    now = catalog.current
    others: list[Prompt | Resource | Template] = [
        *now.prompts.values(),
        *now.resources.values(),
        *now.templates,
    ]
    return [plain(tool) for tool in now], [plain(each) for each in others]


async def test_a_resource_of_a_known_server_can_be_followed(tmp_path: Path) -> None:
    async with home(tmp_path) as known:
        async with known.board() as board:
            await board.plug(command("telling"), "up")
        async with known.board(idle_s=0.02) as board:
            await board.plug(command("telling"), "up")
            resource = known.catalog.current.resources["note://one"]
            assert resource.follow is not None

            await resource.follow("note://one")
            with anyio.move_on_after(0.1):
                await anyio.Event().wait()

            assert state(board) == "ready"


async def test_only_so_many_servers_start_at_a_time_and_all_do(tmp_path: Path) -> None:
    async with home(tmp_path) as known, known.board(starts_at_once=2) as board:
        reports = await board.plug_all(
            [Wanted(known.source, f"up{n}") for n in range(6)], patience_s=30
        )

        assert not any(isinstance(report, PlugError) for report in reports)
        assert len(known.pids) == 6


async def test_a_call_waits_until_its_server_has_a_turn_to_start(tmp_path: Path) -> None:
    limits = PlugLimits(start_s=4, close_s=0.2)
    async with known_home(tmp_path) as known:
        async with known.board(limits=limits, starts_at_once=1) as board:
            await board.plug(known.source, "up")
            async with anyio.create_task_group() as plugging:

                async def hang() -> None:
                    with pytest.raises(PlugError, match="did not answer within 4 s"):
                        await board.plug(command("hang"), "slow")

                plugging.start_soon(hang)
                await until(lambda: len(board.listing()) == 2)

                assert said(await ask(known.catalog, "one")) == str(known.pids[-1])


async def test_a_plug_that_waits_for_its_turn_to_start_can_be_unplugged(tmp_path: Path) -> None:
    async with home(tmp_path) as known:
        limits = PlugLimits(start_s=30, close_s=0.2)
        async with known.board(limits=limits, starts_at_once=1) as board:
            async with anyio.create_task_group() as plugging:

                async def plug(source: str, name: str) -> None:
                    with pytest.raises(PlugError, match="unplugged meanwhile"):
                        await board.plug(source, name)

                plugging.start_soon(plug, command("hang"), "slow")
                plugging.start_soon(plug, known.source, "up")
                await until(lambda: len(board.listing()) == 2)
                await anyio.lowlevel.checkpoint()
                await board.unplug("up")
                await board.unplug("slow")

            assert known.pids == []


async def test_a_database_that_cannot_be_read_costs_only_the_laziness(tmp_path: Path) -> None:
    async with known_home(tmp_path) as known:
        await known.store.write(lambda connection: connection.execute("DROP TABLE manifests"))
        async with known.board() as board:
            report = await board.plug(known.source, "up")

            assert report.tools == ("one", "two")
            assert state(board) == "ready"

"""The board: sources of every kind come and go while calls are in flight."""

import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import anyio
import pytest

from guildry.errors import PlugError, ToolFailed
from guildry.tools.base import Call, Json, Outcome, Text, Tool
from guildry.tools.plugs.board import PlugBoard
from guildry.tools.plugs.plug import (
    Loaded,
    PlugLimits,
    PlugReport,
    PlugStatus,
    Quarantined,
    Wanted,
    Watched,
)
from guildry.tools.plugs.sources import derive_name
from guildry.tools.registry import Catalog, UnknownTool

CRASH = shlex.join([sys.executable, str(Path(__file__).parent / "servers" / "crash.py")])
QUICK = PlugLimits(start_s=10, close_s=0.5, drain_s=5)


class GatedPlug:
    """A plug of the test's own kind, that opens, answers and closes when it is told to."""

    def __init__(self, name: str, tools: tuple[str, ...] = ("wait",)) -> None:
        self.kind = "gated"
        self.name = name
        self.source = f"gated:{name}"
        self.watched: tuple[Watched, ...] = ()
        self.fault: str | None = None
        self.offered = tools
        self.open_gate, self.answer_gate = anyio.Event(), anyio.Event()
        self.opening, self.called = anyio.Event(), anyio.Event()
        self.events: list[str] = []
        self.error: Exception | None = None
        self.changed: Callable[[], None] = lambda: None

    async def open(self, changed: Callable[[], None]) -> Loaded:
        self.changed = changed
        self.opening.set()
        await self.open_gate.wait()
        return await self.reload()

    async def reload(self) -> Loaded:
        self.events.append("read")
        if self.error is not None:
            raise self.error
        return Loaded(tuple(self._tool(name) for name in self.offered))

    async def close(self) -> None:
        self.events.append("closed")

    def _tool(self, name: str) -> Tool:
        schema: dict[str, Json] = {"type": "object"}
        return Tool(
            name=name, plug=self.name, description="", input_schema=schema, invoke=self._invoke
        )

    async def _invoke(self, arguments: dict[str, Json], call: Call) -> Outcome:
        self.called.set()
        await self.answer_gate.wait()
        self.events.append("answered")
        return Outcome((Text("done"),))


class Gated:
    """Open `gated:NAME` sources."""

    def __init__(self, *plugs: GatedPlug) -> None:
        self.plugs = {plug.source: plug for plug in plugs}

    def __call__(self, source: str, name: str) -> GatedPlug | None:
        return self.plugs.get(source)


def ready(name: str, tools: tuple[str, ...] = ("wait",)) -> GatedPlug:
    plug = GatedPlug(name, tools)
    plug.open_gate.set()
    plug.answer_gate.set()
    return plug


async def ask(catalog: Catalog, name: str) -> Outcome:
    tool = catalog.current.get(name)
    return await tool.invoke({}, Call(tool, None))


def tool_file(path: Path, name: str, word: str = "") -> Path:
    path.write_text(f"def {name}() -> str:\n    return {word or name!r}\n")
    return path


async def test_a_file_that_is_not_there_yet_is_listed_and_plugged_once_it_is_saved(
    tmp_path: Path,
) -> None:
    file = tmp_path / "later.py"
    catalog = Catalog()
    served = anyio.Event()
    catalog.subscribe(lambda _: served.set())
    with anyio.fail_after(30):
        async with PlugBoard(catalog) as board:
            await board.plug_all([Wanted(str(file), "later")])
            (status,) = board.listing()
            file.write_text('def hello() -> str:\n    """Greet."""\n    return "hello"\n')
            await served.wait()

            assert (status.name, status.state) == ("later", "failed")
            assert "there is no such file" in (status.error or "")
            assert list(catalog.current.tools) == ["hello"]


async def test_a_source_is_plugged_listed_called_and_unplugged(tmp_path: Path) -> None:
    catalog = Catalog()
    file = tool_file(tmp_path / "greet.py", "hello")
    with anyio.fail_after(10):
        async with PlugBoard(catalog, limits=QUICK) as board:
            report = await board.plug(str(file))
            listed = board.listing()
            outcome = await ask(catalog, "hello")

            await board.unplug("greet")

            with pytest.raises(UnknownTool):
                catalog.current.get("hello")
            assert board.listing() == []

    assert report == PlugReport("greet", ("hello",))
    assert listed == [PlugStatus("greet", "python", str(file), "ready", ("hello",))]
    assert outcome == Outcome((Text("hello"),))


async def test_relative_paths_are_looked_up_in_the_folder_of_the_board(tmp_path: Path) -> None:
    tool_file(tmp_path / "greet.py", "hello")
    with anyio.fail_after(10):
        async with PlugBoard(Catalog(), folder=tmp_path, limits=QUICK) as board:
            report = await board.plug("greet.py")

    assert report.tools == ("hello",)


async def test_a_name_that_is_taken_is_refused_with_the_cure(tmp_path: Path) -> None:
    file = tool_file(tmp_path / "greet.py", "hello")
    catalog = Catalog()
    with anyio.fail_after(10):
        async with PlugBoard(catalog, limits=QUICK) as board:
            await board.plug(str(file))

            with pytest.raises(PlugError, match="`greet` is there already.*another name"):
                await board.plug(str(file))
            again = await board.plug(str(file), "other place")

            assert [each.name for each in board.listing()] == ["greet", "other_place"]
    assert again == PlugReport("other_place", ("other_place_hello",))


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("no/such/file.py", "there is no such file"),
        ("./nowhere", "there is no such file"),
        ("~nobody-of-this-name/tools", "there is no such file"),
        ("", "it is empty"),
        ("no-such-command " + "long " * 1000, "`no-such-command` is no command"),
        ("say 'unclosed", "it is no command line"),
        ("no-such-command", "`no-such-command` is no command"),
    ],
)
async def test_a_source_that_is_none_is_refused_with_reason_and_cure(
    source: str, reason: str
) -> None:
    with anyio.fail_after(10):
        async with PlugBoard(Catalog(), limits=QUICK) as board:
            with pytest.raises(PlugError) as caught:
                await board.plug(source)

            assert board.listing() == []
    assert reason in caught.value.reason
    assert caught.value.cure


async def test_there_is_nothing_to_unplug_under_a_name_that_is_unknown() -> None:
    plug = ready("a")
    with anyio.fail_after(10):
        async with PlugBoard(Catalog(), openers=[Gated(plug)]) as board:
            await board.plug(plug.source, "a")

            with pytest.raises(PlugError, match="there is no plug of that name. Plugged are: `a`"):
                await board.unplug("b")


async def test_unplugging_withdraws_then_lets_calls_end_then_closes() -> None:
    catalog, plug = Catalog(), GatedPlug("slow")
    plug.open_gate.set()
    outcomes: list[Outcome] = []
    states: list[str] = []
    with anyio.fail_after(10):
        async with PlugBoard(catalog, openers=[Gated(plug)], limits=QUICK) as board:
            await board.plug(plug.source, "slow")
            withdrawn = anyio.Event()
            catalog.subscribe(lambda change: withdrawn.set())

            async def call() -> None:
                outcomes.append(await ask(catalog, "wait"))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(call)
                await plug.called.wait()
                tasks.start_soon(board.unplug, "slow")
                await withdrawn.wait()
                states.append(board.listing()[0].state)
                plug.answer_gate.set()

    assert states == ["closing"]
    assert outcomes == [Outcome((Text("done"),))]
    assert plug.events == ["read", "answered", "closed"]


async def test_draining_has_a_limit_and_a_late_call_of_a_withdrawn_tool_fails() -> None:
    catalog, plug = Catalog(), GatedPlug("stuck")
    plug.open_gate.set()
    limits = PlugLimits(drain_s=0.01)
    with anyio.fail_after(10):
        async with PlugBoard(catalog, openers=[Gated(plug)], limits=limits) as board:
            await board.plug(plug.source, "stuck")
            tool = catalog.current.get("wait")
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ask, catalog, "wait")
                await plug.called.wait()

                await board.unplug("stuck")
                with pytest.raises(ToolFailed, match="`wait` is gone: `stuck` was unplugged"):
                    await tool.invoke({}, Call(tool, None))
                tasks.cancel_scope.cancel()

    assert plug.events == ["read", "closed"]


async def test_one_plug_never_waits_for_another() -> None:
    catalog, slow, quick = Catalog(), GatedPlug("slow"), ready("quick", ("now",))
    states: list[tuple[str, str]] = []
    with anyio.fail_after(10):
        async with PlugBoard(catalog, openers=[Gated(slow, quick)]) as board:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(board.plug, slow.source, "slow")
                await slow.opening.wait()

                await board.plug(quick.source, "quick")
                states += [(each.name, each.state) for each in board.listing()]
                await board.unplug("quick")
                slow.open_gate.set()

    assert states == [("slow", "starting"), ("quick", "ready")]


async def test_a_plug_that_starts_can_be_unplugged() -> None:
    slow = GatedPlug("slow")
    refused: list[PlugError] = []
    with anyio.fail_after(10):
        async with PlugBoard(Catalog(), openers=[Gated(slow)]) as board:

            async def plug() -> None:
                try:
                    await board.plug(slow.source, "slow")
                except PlugError as error:
                    refused.append(error)

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(plug)
                await slow.opening.wait()
                await board.unplug("slow")

            assert board.listing() == []
    assert "unplugged" in str(refused[0])
    assert slow.events == ["closed"]


async def test_a_cancelled_plug_leaves_nothing_behind() -> None:
    slow = GatedPlug("slow")
    with anyio.fail_after(10):
        async with PlugBoard(Catalog(), openers=[Gated(slow)]) as board:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(board.plug, slow.source, "slow")
                await slow.opening.wait()
                tasks.cancel_scope.cancel()

            assert board.listing() == []
    assert slow.events == ["closed"]


async def test_many_sources_are_opened_together_and_served_in_their_order(tmp_path: Path) -> None:
    catalog, first, second = Catalog(), GatedPlug("first", ("a",)), GatedPlug("second", ("b",))
    wanted = [Wanted(first.source, "first"), Wanted("./nowhere"), Wanted(second.source, "second")]
    results: list[PlugReport | PlugError] = []
    with anyio.fail_after(10):
        async with PlugBoard(catalog, openers=[Gated(first, second)]) as board:

            async def plug_all() -> None:
                results.extend(await board.plug_all(wanted))

            async with anyio.create_task_group() as tasks:
                tasks.start_soon(plug_all)
                await first.opening.wait()
                await second.opening.wait()
                second.open_gate.set()
                first.open_gate.set()

    assert [type(each) for each in results] == [PlugReport, PlugError, PlugReport]
    assert results[2] == PlugReport("second", ("b",))
    assert (first.events, second.events) == (["read", "closed"], ["read", "closed"])


async def test_the_order_of_tools_is_that_of_the_sources_whoever_is_ready_first() -> None:
    catalog, first, second = Catalog(), GatedPlug("first", ("a",)), ready("second", ("b",))
    order: list[str] = []
    catalog.subscribe(lambda change: order.append(change.plug))
    with anyio.fail_after(10):
        async with PlugBoard(catalog, openers=[Gated(first, second)]) as board:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(
                    board.plug_all, [Wanted(first.source, "first"), Wanted(second.source, "second")]
                )
                await second.opening.wait()
                await first.opening.wait()
                first.open_gate.set()
            served = list(order)

    assert served == ["first", "second"]


async def test_a_source_that_is_late_does_not_hold_up_the_others_for_ever() -> None:
    catalog, late, quick = Catalog(), GatedPlug("late", ("a",)), ready("quick", ("b",))
    served = anyio.Event()
    names: list[str] = []
    catalog.subscribe(lambda change: served.set())
    with anyio.fail_after(10):
        async with PlugBoard(catalog, openers=[Gated(late, quick)]) as board:
            wanted = [Wanted(late.source, "late"), Wanted(quick.source, "quick")]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(lambda: board.plug_all(wanted, patience_s=0.01))
                await served.wait()
                names += catalog.current.tools
                late.open_gate.set()

    assert names == ["b"]


async def test_a_change_is_served_in_one_step_and_a_burst_is_read_once_more() -> None:
    catalog, plug = Catalog(), ready("live", ("a", "b"))
    with anyio.fail_after(10):
        async with PlugBoard(catalog, openers=[Gated(plug)]) as board:
            await board.plug(plug.source, "live")
            seen = anyio.Event()
            changes: list[tuple[tuple[str, ...], tuple[str, ...]]] = []
            catalog.subscribe(lambda change: changes.append((change.added, change.removed)))
            catalog.subscribe(lambda change: seen.set())

            plug.offered = ("b", "c")
            for _ in range(50):
                plug.changed()
            await seen.wait()
            await board.reload("live")

    assert changes[0] == (("c",), ("a",))
    assert plug.events == ["read", "read", "read", "closed"]


async def test_a_reading_that_fails_keeps_the_last_tools_and_is_reported() -> None:
    catalog, plug = Catalog(), ready("live", ("a",))
    with anyio.fail_after(10):
        async with PlugBoard(catalog, openers=[Gated(plug)]) as board:
            await board.plug(plug.source, "live")

            plug.error = ValueError("no list today")
            with pytest.raises(PlugError, match="no list today"):
                await board.reload("live")
            broken = board.listing()[0]
            plug.error = None
            await board.reload("live")
            mended = board.listing()[0]

    assert (broken.state, broken.tools) == ("ready", ("a",))
    assert broken.error == "ValueError: no list today"
    assert mended.error is None


async def test_a_kept_source_that_fails_stays_listed_and_can_be_opened_later() -> None:
    catalog, plug = Catalog(), ready("later", ("a",))
    plug.error = PlugError("gated:later", "it is not there yet", "Wait")
    with anyio.fail_after(10):
        async with PlugBoard(catalog, openers=[Gated(plug)]) as board:
            with pytest.raises(PlugError):
                await board.plug(plug.source, "later", keep=True)
            failed = board.listing()[0]

            plug.error = None
            report = await board.reload("later")

    assert (failed.state, failed.tools) == ("failed", ())
    assert failed.error == "`gated:later`: it is not there yet. Wait"
    assert report == PlugReport("later", ("a",))
    assert plug.events == ["read", "closed", "read", "closed"]


async def test_a_plug_that_is_ailing_is_listed_so() -> None:
    plug = ready("ill")
    with anyio.fail_after(10):
        async with PlugBoard(Catalog(), openers=[Gated(plug)]) as board:
            await board.plug(plug.source, "ill")

            plug.fault = "it has a cold"
            status = board.listing()[0]

    assert (status.state, status.error) == ("restarting", "it has a cold")


async def test_a_crashing_server_and_a_broken_file_leave_the_rest_at_work(tmp_path: Path) -> None:
    catalog = Catalog()
    (tmp_path / "bad.py").write_text("1 / 0\n")
    good = tool_file(tmp_path / "good.py", "hello")
    with anyio.fail_after(20):
        async with PlugBoard(catalog, limits=QUICK) as board:
            await board.plug(CRASH, "server")
            await board.plug(str(good))
            with pytest.raises(PlugError, match="ZeroDivisionError"):
                await board.plug(str(tmp_path / "bad.py"))
            with pytest.raises(ToolFailed):
                await ask(catalog, "crash")

            assert await ask(catalog, "hello") == Outcome((Text("hello"),))


async def test_leaving_the_board_closes_every_plug_and_keeps_the_error_as_it_is() -> None:
    plugs = [ready("a"), ready("b")]
    with anyio.fail_after(10), pytest.raises(ValueError, match="^of the block$"):
        async with PlugBoard(Catalog(), openers=[Gated(*plugs)]) as board:
            for plug in plugs:
                await board.plug(plug.source, plug.name)
            raise ValueError("of the block")

    assert [plug.events for plug in plugs] == [["read", "closed"]] * 2


def test_a_report_and_a_status_are_json() -> None:
    left_out = (Quarantined("bad", "broken"),)

    assert PlugReport("a", ("x",), left_out).as_json() == {
        "plug": "a",
        "tools": ["x"],
        "quarantined": [{"tool": "bad", "reason": "broken"}],
    }
    assert PlugStatus("a", "mcp", "s", "failed", (), left_out, "why").as_json() == {
        "name": "a",
        "kind": "mcp",
        "source": "s",
        "state": "failed",
        "tools": [],
        "quarantined": [{"tool": "bad", "reason": "broken"}],
        "error": "why",
    }


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("tools/words.py", "words"),
        ("./tools", "tools"),
        ("https://mcp.example.com/mcp", "example"),
        ("https://api.githubcopilot.com/mcp/", "githubcopilot"),
        ("http://127.0.0.1:8000/weather/mcp", "127_0_0_1"),
        ("http://localhost:8000/mcp", "localhost"),
        ("uvx mcp-server-time --local-timezone=UTC", "time"),
        ("/usr/bin/python3.11 -m mcp_server_git --repository .", "git"),
        ("npx -y @modelcontextprotocol/server-everything stdio", "everything"),
        ("npx -y @modelcontextprotocol/server-everything@1.2.3", "everything"),
        ("python server.py", "server"),
        ("/opt/bin/weather-mcp --stdio", "weather"),
        ("docker run -i --rm mcp/fetch", "fetch"),
    ],
)
def test_a_name_is_derived_from_the_source(source: str, name: str) -> None:
    assert derive_name(source, Path("/nowhere")) == name

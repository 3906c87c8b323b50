"""Another version in the place of a plug: nobody ever finds neither of the two."""

import json
import os
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread
from anyio.lowlevel import checkpoint

from guildry.errors import PlugError, ToolFailed, ToolRetry
from guildry.tools.base import Call, Outcome, Text, Tool
from guildry.tools.caller import Caller
from guildry.tools.grants import Grant
from guildry.tools.plugs.board import PlugBoard
from guildry.tools.plugs.plug import Loaded, PlugLimits, Watched
from guildry.tools.registry import Catalog, Change

SERVER = Path(__file__).parent / "servers" / "shifting.py"
QUICK = PlugLimits(start_s=20, close_s=0.5, drain_s=5)
CALLER = Caller(Grant.root("ann"), "ann")


class GatedPlug:
    """A plug of the test's own kind, that opens and answers when it is told to."""

    def __init__(self, source: str) -> None:
        self.kind, self.name, self.source = "gated", "p", source
        self.watched: tuple[Watched, ...] = ()
        self.fault: str | None = None
        self.offered = "wait"
        self.schema: dict[str, Any] = {"type": "object"}
        self.open_gate, self.answer_gate = anyio.Event(), anyio.Event()
        self.opening, self.called = anyio.Event(), anyio.Event()
        self.events: list[str] = []
        self.error: Exception | None = None

    async def open(self, changed: Callable[[], None]) -> Loaded:
        self.opening.set()
        await self.open_gate.wait()
        return await self.reload()

    async def reload(self) -> Loaded:
        self.events.append("read")
        if self.error is not None:
            raise self.error
        name, schema = self.offered, self.schema
        return Loaded(
            (Tool(name=name, plug="p", description="", input_schema=schema, invoke=self._invoke),)
        )

    async def close(self) -> None:
        self.events.append("closed")

    async def _invoke(self, arguments: dict[str, Any], call: Call) -> Outcome:
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


def versions(*names: str) -> list[GatedPlug]:
    plugs = [GatedPlug(f"gated:{name}") for name in names]
    for plug in plugs:
        plug.open_gate.set()
    return plugs


async def call(tool: Tool, **arguments: Any) -> str:
    outcome: Outcome = await tool.invoke(arguments, Call(tool, CALLER))
    (block,) = outcome.blocks
    assert isinstance(block, Text)
    return block.text


async def test_the_old_version_serves_until_the_new_one_does_and_then_ends_its_calls() -> None:
    old, new = versions("v1", "v2")
    new.open_gate = anyio.Event()
    catalog, answers = Catalog(), list[str]()
    seen: list[Change] = []

    async def calling(tool: Tool) -> None:
        answers.append(await call(tool))

    with anyio.fail_after(30):
        async with (
            PlugBoard(catalog, openers=[Gated(old, new)], limits=QUICK) as board,
            anyio.create_task_group() as tasks,
        ):
            await board.plug("gated:v1", "p")
            tasks.start_soon(calling, catalog.current.get("wait"))
            await old.called.wait()
            catalog.subscribe(seen.append)
            tasks.start_soon(board.replace, "p", "gated:v2")
            await new.opening.wait()
            serving = [status.source for status in board.listing()]
            new.open_gate.set()
            while [status.source for status in board.listing()] == serving:
                await checkpoint()
            events = list(old.events)
            new.answer_gate.set()
            second = await call(catalog.current.get("wait"))
            old.answer_gate.set()
            while "closed" not in old.events:
                await checkpoint()
            left = set(catalog.current.tools)

            assert serving == ["gated:v1"]
            assert events == ["read"]
            assert (answers, second) == (["done"], "done")
            assert old.events == ["read", "answered", "closed"]
            assert new.events == ["read", "answered"]
            assert seen == []  # callers see the same tools as before
            assert left == {"wait"}


async def test_a_version_that_cannot_be_opened_changes_nothing() -> None:
    old, new = versions("v1", "v2")
    new.error = PlugError("gated:v2", "it is broken", "Mend it")
    catalog = Catalog()
    with anyio.fail_after(30):
        async with PlugBoard(catalog, openers=[Gated(old, new)], limits=QUICK) as board:
            await board.plug("gated:v1", "p")

            with pytest.raises(PlugError, match="it is broken"):
                await board.replace("p", "gated:v2")

            assert [status.source for status in board.listing()] == ["gated:v1"]
            assert set(catalog.current.tools) == {"wait"}
            assert (old.events, new.events) == (["read"], ["read", "closed"])


async def test_plugging_replaces_where_it_is_told_to_and_plugs_where_there_is_nothing() -> None:
    old, new = versions("v1", "v2")
    catalog = Catalog()
    with anyio.fail_after(30):
        async with PlugBoard(catalog, openers=[Gated(old, new)], limits=QUICK) as board:
            first = await board.plug("gated:v1", "p", replace=True)
            second = await board.plug("gated:v2", "p", replace=True)
            with pytest.raises(PlugError, match="no plug of that name"):
                await board.replace("q", "gated:v2")

            assert first.tools == second.tools == ("wait",)
            assert [status.source for status in board.listing()] == ["gated:v2"]


async def test_what_is_unplugged_meanwhile_is_not_replaced() -> None:
    old, new = versions("v1", "v2")
    new.open_gate = anyio.Event()
    catalog = Catalog()
    with anyio.fail_after(30):
        async with (
            PlugBoard(catalog, openers=[Gated(old, new)], limits=QUICK) as board,
            anyio.create_task_group() as tasks,
        ):
            await board.plug("gated:v1", "p")

            async def replacing() -> None:
                with pytest.raises(PlugError, match="unplugged or replaced meanwhile"):
                    await board.replace("p", "gated:v2")

            tasks.start_soon(replacing)
            await new.opening.wait()
            await board.unplug("p")
            new.open_gate.set()

        assert (old.events, new.events) == (["read", "closed"], ["read", "closed"])
        assert len(catalog.current) == 0


async def test_of_two_replacements_at_a_time_one_wins_and_the_other_is_closed() -> None:
    old, one, two = versions("v1", "v2", "v3")
    one.open_gate = anyio.Event()
    with anyio.fail_after(30):
        async with (
            PlugBoard(Catalog(), openers=[Gated(old, one, two)], limits=QUICK) as board,
            anyio.create_task_group() as tasks,
        ):
            await board.plug("gated:v1", "p")

            async def replacing() -> None:
                with pytest.raises(PlugError, match="replaced meanwhile"):
                    await board.replace("p", "gated:v2")

            tasks.start_soon(replacing)
            await one.opening.wait()
            await board.replace("p", "gated:v3")
            one.open_gate.set()
            while "closed" not in one.events:
                await checkpoint()

            assert [status.source for status in board.listing()] == ["gated:v3"]


async def test_a_call_that_comes_late_goes_to_the_new_version_if_that_takes_the_same() -> None:
    old, new, other = versions("v1", "v2", "v3")
    other.offered = "different"
    for plug in (old, new):
        plug.answer_gate.set()
    catalog = Catalog()
    with anyio.fail_after(30):
        async with PlugBoard(catalog, openers=[Gated(old, new, other)], limits=QUICK) as board:
            await board.plug("gated:v1", "p")
            late = catalog.current.get("wait")
            await board.replace("p", "gated:v2")
            while "closed" not in old.events:
                await checkpoint()

            answer = await call(late)
            await board.replace("p", "gated:v3")
            while "closed" not in new.events:
                await checkpoint()
            with pytest.raises(ToolFailed, match="`wait` is gone: `p` was unplugged"):
                await call(late)

    assert answer == "done"
    assert new.events == ["read", "answered", "closed"]


async def test_a_call_that_comes_late_is_made_anew_where_the_arguments_are_others() -> None:
    old, new = versions("v1", "v2")
    new.schema = {"type": "object", "properties": {"a": {"type": "string"}}}
    catalog = Catalog()
    with anyio.fail_after(30):
        async with PlugBoard(catalog, openers=[Gated(old, new)], limits=QUICK) as board:
            await board.plug("gated:v1", "p")
            late = catalog.current.get("wait")
            await board.replace("p", "gated:v2")
            while "closed" not in old.events:
                await checkpoint()

            with pytest.raises(ToolRetry, match="takes other arguments"):
                await call(late)


async def test_a_version_that_still_has_calls_is_closed_with_the_board() -> None:
    old, new = versions("v1", "v2")
    catalog = Catalog()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            limits = PlugLimits(drain_s=0)
            async with PlugBoard(catalog, openers=[Gated(old, new)], limits=limits) as board:
                await board.plug("gated:v1", "p")
                tasks.start_soon(call, catalog.current.get("wait"))
                await old.called.wait()
                await board.replace("p", "gated:v2")

            assert old.events == ["read", "closed"]
            old.answer_gate.set()


async def test_no_call_is_lost_while_everycome_and_go() -> None:
    every = versions(*(f"v{n}" for n in range(60)))
    for plug in every:
        plug.answer_gate.set()
    catalog, wrong = Catalog(), list[str]()
    over = anyio.Event()

    async def calling() -> None:
        while not over.is_set():
            if await call(catalog.current.get("wait")) != "done":
                wrong.append("no answer")
            await checkpoint()

    with anyio.fail_after(60):
        async with (
            PlugBoard(catalog, openers=[Gated(*every)], limits=QUICK) as board,
            anyio.create_task_group() as tasks,
        ):
            await board.plug("gated:v0", "p")
            for _ in range(8):
                tasks.start_soon(calling)
            for n in range(1, 60):
                await board.replace("p", f"gated:v{n}")
            over.set()
        opened = [plug.events.count("read") for plug in every]
        closed = [plug.events.count("closed") for plug in every]

    assert wrong == []
    assert opened == closed == [1] * 60
    assert sum(plug.events.count("answered") for plug in every) > 59
    assert all("answered" not in plug.events[plug.events.index("closed") :] for plug in every)


async def test_a_server_is_replaced_by_another_while_it_answers(tmp_path: Path) -> None:
    wait: dict[str, Any] = {
        "name": "wait",
        "inputSchema": {"type": "object", "properties": {"path": {}}},
    }
    sources: list[str] = []
    for name in ("v1", "v2"):
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps({"tools": [wait]}), encoding="utf-8")
        os.mkfifo(tmp_path / f"{name}.pipe")
        sources.append(shlex.join([sys.executable, str(SERVER), str(path)]))
    catalog, answers = Catalog(), dict[str, str]()
    begun = {"v1": anyio.Event(), "v2": anyio.Event()}

    async def calling(name: str) -> None:
        tool = catalog.current.get("wait")
        begun[name].set()
        answers[name] = await call(tool, path=str(tmp_path / f"{name}.pipe"))

    def release(name: str) -> None:
        (tmp_path / f"{name}.pipe").write_text("go", encoding="utf-8")

    with anyio.fail_after(60):
        async with (
            PlugBoard(catalog, folder=tmp_path, limits=QUICK) as board,
            anyio.create_task_group() as tasks,
        ):
            await board.plug(sources[0], "p")
            tasks.start_soon(calling, "v1")
            await begun["v1"].wait()
            await board.replace("p", sources[1])
            tasks.start_soon(calling, "v2")
            await begun["v2"].wait()
            await to_thread.run_sync(release, "v2")
            await to_thread.run_sync(release, "v1")

    assert answers == {"v1": "v1: waited", "v2": "v2: waited"}

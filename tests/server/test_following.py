"""Following resources: what is asked of plugs, and what is found out about runs."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import lowlevel

from guildry.errors import ToolFailed
from guildry.memory.runs import RunRecord, RunStore
from guildry.memory.store import Store
from guildry.server.offers.following import Following
from guildry.tools.base import Embedded
from guildry.tools.offers import Offers, Resource, Template
from guildry.tools.registry import Catalog


async def read(uri: str, caller: Any) -> tuple[Embedded, ...]:
    return ()


class Source:
    """A plug whose resources may be followed, as long as it is told so."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fault: Exception | None = None

    async def follow(self, uri: str) -> None:
        self.asked.append(uri)
        if self.fault is not None:
            raise self.fault

    def offers(self) -> Offers:
        one = Resource(uri="test://a", name="a", plug="p", read=read, follow=self.follow)
        any_other = Template(
            uri_template="log://{day}",
            name="log",
            plug="p",
            matches=lambda uri: uri.startswith("log://"),
            read=read,
            follow=self.follow,
        )
        return Offers(resources=(one,), templates=(any_other,))


@pytest.fixture
async def runs() -> Any:
    async with Store.open(None) as store:
        yield RunStore(store)


async def until(true: Any) -> None:
    with anyio.fail_after(10):
        while not true():
            await lowlevel.checkpoint()


async def test_a_plug_is_asked_once_however_many_follow(runs: RunStore) -> None:
    source, catalog, heard = Source(), Catalog(), list[str]()
    catalog.replace("p", (), source.offers())
    following = Following(catalog, runs, heard.append)

    for _ in range(3):
        await following.hold("log://monday")
    following.touched("log://monday")
    for _ in range(3):
        following.release("log://monday")
    following.touched("log://monday")
    await following.hold("log://monday")

    assert source.asked == ["log://monday", "log://monday"]
    assert heard == ["log://monday"]


@pytest.mark.parametrize("fault", [ToolFailed("it does not tell"), RuntimeError("it broke")])
async def test_a_plug_that_refuses_once_it_is_loaded_anew_costs_nobody_else(
    runs: RunStore, fault: Exception
) -> None:
    source, catalog, heard = Source(), Catalog(), list[str]()
    catalog.replace("p", (), source.offers())
    following = Following(catalog, runs, heard.append)
    await runs.create(RunRecord("r1", "team", "t", "task", "p"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(following.run)
        await following.hold("test://a")
        await following.hold("run://r1")
        source.fault = fault
        catalog.replace("p", (), source.offers())
        await until(lambda: len(source.asked) == 2)
        await runs.finish("r1", "done", None, {})
        await until(lambda: heard == ["run://r1"])
        source.fault = None
        catalog.replace("p", (), source.offers())
        await until(lambda: heard == ["run://r1", "test://a"])
        tasks.cancel_scope.cancel()


async def test_a_plug_that_does_not_answer_is_waited_for_within_a_limit(runs: RunStore) -> None:
    async def follow(uri: str) -> None:
        await anyio.sleep_forever()

    catalog = Catalog()
    slow = Resource(uri="test://a", name="a", plug="p", read=read, follow=follow)
    catalog.replace("p", (), Offers(resources=(slow,)))
    following = Following(catalog, runs, lambda uri: None, patience_s=0.05)

    with anyio.fail_after(10), pytest.raises(ToolFailed, match="does not answer"):
        await following.hold("test://a")


async def test_a_run_that_ended_is_told_of_under_both_of_its_names(tmp_path: Path) -> None:
    heard: list[str] = []
    async with Store.open(tmp_path / "guildry.db") as store:
        runs = RunStore(store)
        await runs.create(RunRecord("r1", "team", "t", "task", "p"))
        following = Following(Catalog(), runs, heard.append)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(following.run)
            await following.hold("run://r1/journal")
            await following.hold("run://r1")
            await runs.finish("r1", "done", None, {})
            await until(lambda: len(heard) == 2)
            following.release("run://r1")
            following.release("run://r1/journal")
            following.release("run://never")
            tasks.cancel_scope.cancel()

    assert set(heard) == {"run://r1", "run://r1/journal"}

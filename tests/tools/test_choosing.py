import random
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from guildry.errors import ToolFailed
from guildry.memory.journal import Journal
from guildry.memory.ledger import EffectLedger
from guildry.memory.objects import ObjectStore
from guildry.memory.store import Store
from guildry.tools.base import Call, Effects, Outcome, Result, Text, Tool
from guildry.tools.caller import Caller
from guildry.tools.choosing import Bounds, Candidate, Router
from guildry.tools.dispatch import Dispatch
from guildry.tools.grants import Grant
from guildry.tools.registry import Catalog
from guildry.tools.usage import Usage

NAMES = ("a", "b", "c", "d")
CANDIDATES = [Candidate(name, {}) for name in NAMES]
UNSAID = Effects()


@asynccontextmanager
async def routed(
    folder: Path, tools: list[Tool], usage: Usage, seed: int = 1
) -> AsyncGenerator[tuple[Router, Journal]]:
    async with Store.open(None) as store:
        catalog, journal = Catalog(), Journal(store)
        for each in tools:
            catalog.replace(each.plug, [each])
        objects = ObjectStore(store, folder / "objects")
        dispatch = Dispatch(catalog, objects, journal, EffectLedger(store), usage=usage)
        with anyio.fail_after(20):
            yield Router(dispatch, catalog, usage, random.Random(seed)), journal


def tool(name: str, effects: Effects = UNSAID, *, works: bool = True) -> Tool:
    async def invoke(_: dict[str, Any], __: Call) -> Outcome:
        if not works:
            raise ToolFailed("it is down")
        return Outcome((Text(name),))

    return Tool(
        name=name,
        plug=name,
        description="",
        input_schema={"type": "object"},
        invoke=invoke,
        effects=effects,
        source_name=name,
    )


def noted(usage: Usage, name: str, hits: int, misses: int, duration_s: float, size: int) -> None:
    for n in range(hits + misses):
        usage.note(tool(name), Result("", is_error=n >= hits, size=size), duration_s)


async def test_tools_of_which_nothing_is_known_are_tried_in_the_order_given(tmp_path: Path) -> None:
    for seed in range(20):
        usage = Usage()
        async with routed(tmp_path, [tool(name) for name in NAMES], usage, seed) as (router, _):
            assert router.order(CANDIDATES) == CANDIDATES


async def test_of_tools_that_work_alike_the_faster_and_the_briefer_come_first(
    tmp_path: Path,
) -> None:
    usage = Usage()
    noted(usage, "a", 50, 0, 9.0, 40)
    noted(usage, "b", 50, 0, 0.1, 80_000)
    noted(usage, "c", 50, 0, 0.1, 40)
    noted(usage, "d", 5, 45, 0.1, 40)
    async with routed(tmp_path, [tool(name) for name in NAMES], usage) as (router, _):
        order = [each.tool for each in router.order(CANDIDATES)]

    assert order[0] == "c"
    assert set(order[1:]) == {"a", "b", "d"}


async def test_a_tool_that_seldom_fails_is_still_explored_within_bounds(tmp_path: Path) -> None:
    close, far = Usage(), Usage()
    noted(close, "a", 6, 4, 0.1, 40)
    noted(close, "b", 7, 3, 0.1, 40)
    noted(far, "a", 20, 480, 0.1, 40)
    noted(far, "b", 480, 20, 0.1, 40)
    tools = [tool("a"), tool("b")]
    async with routed(tmp_path, tools, close) as (router, _):
        first = {router.order(CANDIDATES[:2])[0].tool for _ in range(200)}
    async with routed(tmp_path, tools, far) as (router, _):
        sure = {router.order(CANDIDATES[:2])[0].tool for _ in range(200)}

    assert first == {"a", "b"}
    assert sure == {"b"}


async def test_each_call_of_a_route_is_journaled_by_itself(tmp_path: Path) -> None:
    reads = Effects(writes=False)
    tools = [tool("a", reads, works=False), tool("b", reads)]
    async with routed(tmp_path, tools, Usage()) as (router, journal):
        route = await router.call(Caller(Grant.root("me"), "r1"), CANDIDATES[:2])
        entries = await journal.read("r1")

    assert route.tool == "b"
    assert [(each.data["tool"], each.data["status"]) for each in entries] == [
        ("a", "error"),
        ("b", "ok"),
    ]


_EFFECTS = st.builds(Effects, writes=st.booleans(), idempotent=st.booleans())


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.lists(st.tuples(_EFFECTS, st.booleans()), min_size=1, max_size=4), st.integers(1, 4))
def test_whatever_fails_nothing_is_done_twice_and_the_budget_holds(
    tmp_path_factory: Any, made: list[tuple[Effects, bool]], calls: int
) -> None:
    async def run() -> None:
        folder = tmp_path_factory.mktemp("route")
        tools = [
            tool(name, effects, works=works)
            for name, (effects, works) in zip(NAMES, made, strict=False)
        ]
        async with routed(folder, tools, Usage()) as (router, _):
            route = await router.call(
                Caller(Grant.root("me"), "r1"), CANDIDATES[: len(made)], Bounds(calls)
            )
        tried = [each for each in route.attempts if each.ended != "untried"]
        assert len(tried) <= calls
        assert len(route.attempts) == len(made)
        for n, each in enumerate(tried):
            effects, works = made[NAMES.index(each.tool)]
            assert (each.ended == "ok") == works
            is_last = n == len(tried) - 1
            assert is_last or (effects.repeatable and not works)
        assert route.result.is_error == (route.tool is None)

    anyio.run(run)

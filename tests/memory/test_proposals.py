"""Proposals: versions count up for each name, and at most one of them is served."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from itertools import count
from pathlib import Path

import anyio

from guildry.memory.proposals import Proposal, ProposalStore
from guildry.memory.store import Store


@asynccontextmanager
async def proposals(folder: Path) -> AsyncGenerator[ProposalStore]:
    ticks = count(1)
    async with Store.open(folder / "guildry.db") as store:
        with anyio.fail_after(20):
            yield ProposalStore(store, clock=lambda: float(next(ticks)))


async def add(kept: ProposalStore, name: str, principal: str = "ann") -> Proposal:
    return await kept.add(
        name=name,
        principal=principal,
        run="r1",
        description="Does it.",
        source="def it() -> int: return 1",
        tests="def test_it(): assert it() == 1",
        status="waiting",
        verdict={"passed": True},
    )


async def test_each_name_counts_its_own_versions(tmp_path: Path) -> None:
    async with proposals(tmp_path) as kept:
        made = [await add(kept, name) for name in ("a", "b", "a")]

        assert [(each.name, each.version) for each in made] == [("a", 1), ("b", 1), ("a", 2)]
        assert len({each.id for each in made}) == 3
        assert await kept.get("a") == made[2]
        assert await kept.get("a", 1) == made[0]
        assert await kept.get("a", 3) is None
        assert await kept.get("c") is None


async def test_of_a_name_one_version_is_served(tmp_path: Path) -> None:
    async with proposals(tmp_path) as kept:
        first, second, other = [await add(kept, name) for name in ("a", "a", "b")]
        for each in (other, first, second, first):
            await kept.serve(each, by="tests")

        found = {(each.name, each.version): each for each in await kept.listing()}

        assert [found[key].status for key in (("a", 1), ("a", 2), ("b", 1))] == [
            "served",
            "replaced",
            "served",
        ]
        assert found["a", 1].decided_by == "tests"
        assert found["a", 1].decided_at == 7.0


async def test_what_is_rejected_says_by_whom_and_lists_are_by_principal_or_name(
    tmp_path: Path,
) -> None:
    async with proposals(tmp_path) as kept:
        first = await add(kept, "a")
        await add(kept, "b", principal="bob")
        await kept.decide(first, "rejected", "ann")

        mine = await kept.listing(principal="ann")
        named = await kept.listing(name="b")

        assert [(each.name, each.status, each.decided_by) for each in mine] == [
            ("a", "rejected", "ann")
        ]
        assert [each.principal for each in named] == ["bob"]
        assert len(await kept.listing(limit=1)) == 1

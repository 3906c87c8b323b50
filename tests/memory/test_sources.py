"""Plugged sources that outlive the process."""

from pathlib import Path

import anyio

from guildry.memory.sources import Source, SourceStore
from guildry.memory.store import Store


async def test_sources_are_listed_in_the_order_in_which_they_were_first_plugged(
    tmp_path: Path,
) -> None:
    with anyio.fail_after(30):
        async with Store.open(tmp_path / "guildry.db") as store:
            sources = SourceStore(store)
            await sources.add("b", "./tools", {"pinned": True})
            await sources.add("a", "python server.py")
            await sources.add("c", "http://host/mcp", {"env": {"K": "v"}})
            await sources.add("b", "./other")
            removed = [await sources.remove("a"), await sources.remove("a")]
            await sources.add("a", "again")
        async with Store.open(tmp_path / "guildry.db") as store:
            listed = await SourceStore(store).listing()

    assert removed == [True, False]
    assert listed == [
        Source("b", "./other", {}),
        Source("c", "http://host/mcp", {"env": {"K": "v"}}),
        Source("a", "again", {}),
    ]

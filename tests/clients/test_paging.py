"""More tools than one page holds: every client gets all of them, in their order."""

from pathlib import Path
from typing import Any

import pytest
from serving import Place

HERE = Path(__file__).parent


@pytest.mark.parametrize("way", ["sdk-stdio-legacy", "client-http-auto", "python-stdio-auto"])
@pytest.mark.requirement("paging.stable")
async def test_a_long_list_comes_in_pages_that_hold_each_tool_once(
    reach: Any, tmp_path: Path, way: str
) -> None:
    """One of the clients turns the pages itself."""
    place = Place(tmp_path / "home", HERE, ("--plug", "served/crowd.py"))
    async with reach(way, place) as client:
        pages = [await client.call("listTools")]
        while cursor := pages[-1].get("nextCursor"):
            pages.append(await client.call("listTools", {"cursor": cursor}))

    names = [tool["name"] for page in pages for tool in page["tools"]]
    members = [name for name in names if name.startswith("member_")]
    assert members == [f"member_{n:03}" for n in range(600)]
    assert len(names) == len({*names})
    assert len(pages) == (1 if way.startswith("client") else 3)

from typing import Any

import anyio

from guildry.tools.base import Call, Outcome, Tool
from guildry.tools.finding.index import ToolIndex
from guildry.tools.registry import Catalog


async def answer(_: dict[str, Any], __: Call) -> Outcome:
    return Outcome()


def tool(name: str, description: str, **parameters: str) -> Tool:
    return Tool(
        name=name,
        plug="p",
        description=description,
        input_schema={
            "type": "object",
            "properties": {
                key: {"type": "string", "description": text} for key, text in parameters.items()
            },
        },
        invoke=answer,
    )


TOOLS = [
    tool("git_log", "Shows the commit history of a repository."),
    tool("get_current_time", "Get the current time in a timezone.", timezone="An IANA name"),
    tool("convertCurrency", "Turn an amount of money from one currency into another."),
    tool("send_mail", "Send a message.", recipient="Electronic mail address"),
]


async def found(index: ToolIndex, *queries: str, limit: int = 10) -> list[str]:
    with anyio.fail_after(10):
        return [hit.tool.name for hit in await index.search(queries, limit)]


async def test_a_need_in_other_words_finds_its_tool() -> None:
    catalog = Catalog()
    catalog.replace("p", TOOLS)
    index = ToolIndex(catalog)

    assert await found(index, "which commits were made?") == ["git_log"]
    assert await found(index, "what time is it") == ["get_current_time"]
    assert (await found(index, "converting currencies"))[0] == "convertCurrency"
    assert await found(index, "address of the recipient") == ["send_mail"]
    await index.aclose()


async def test_several_needs_share_the_places_in_turn() -> None:
    catalog = Catalog()
    catalog.replace("p", TOOLS)
    index = ToolIndex(catalog)

    names = await found(index, "commit history", "current time", limit=2)

    assert names == ["git_log", "get_current_time"]
    await index.aclose()


async def test_what_fits_nothing_finds_nothing_and_hurts_nobody() -> None:
    catalog = Catalog()
    catalog.replace("p", TOOLS)
    index = ToolIndex(catalog)

    for query in ("xylophone", "", "   ", '"; DROP TABLE tools --', "AND OR NOT NEAR(", "*"):
        assert await found(index, query) == []
    await index.aclose()


async def test_the_index_follows_the_catalog() -> None:
    catalog = Catalog()
    catalog.replace("p", TOOLS)
    index = ToolIndex(catalog)
    assert await found(index, "commit history") == ["git_log"]

    catalog.replace("p", [tool("git_log", "Draws a picture."), tool("paint", "Paint a picture.")])

    assert await found(index, "commit history") == []
    assert set(await found(index, "picture")) == {"git_log", "paint"}
    await index.aclose()


async def test_only_what_is_allowed_is_found() -> None:
    catalog = Catalog()
    catalog.replace("p", TOOLS)
    index = ToolIndex(catalog)

    with anyio.fail_after(10):
        hits = await index.search(["time", "commit"], allowed=["git_log", "not_plugged"])

    assert [hit.tool.name for hit in hits] == ["git_log"]
    await index.aclose()

from dataclasses import replace
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildry.tools.base import READS, Call, Effects, Outcome, Tool
from guildry.tools.finding.choice import Hit, chosen, spread
from guildry.tools.finding.index import ToolIndex
from guildry.tools.finding.tags import tags_of
from guildry.tools.registry import Catalog


async def answer(_: dict[str, Any], __: Call) -> Outcome:
    return Outcome()


def tool(name: str, description: str, /, **parameters: str) -> Tool:
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
    assert (await found(index, "address of the recipient"))[0] == "send_mail"
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


async def test_a_name_written_in_one_word_is_found_by_its_words() -> None:
    catalog = Catalog()
    catalog.replace("p", [*TOOLS, tool("airqualityforecast", "Two days ahead.")])
    index = ToolIndex(catalog)

    assert (await found(index, "quality of the air"))[0] == "airqualityforecast"
    await index.aclose()


async def test_nothing_is_found_where_nothing_fits() -> None:
    catalog = Catalog()
    catalog.replace("p", TOOLS)
    index = ToolIndex(catalog)

    assert await found(index, "purple elephants") == []
    assert await found(index, "purple elephants", "commit history") == ["git_log"]
    await index.aclose()


async def test_what_may_be_shown_is_told_by_names_or_by_a_question_for_each_tool() -> None:
    catalog = Catalog()
    catalog.replace("p", [tool(f"send_{n}", "Send a message to a person.") for n in range(200)])
    index = ToolIndex(catalog)

    def is_150(each: Tool) -> bool:
        return each.name == "send_150"

    async def first(allowed: Any) -> list[str]:
        return [hit.tool.name for hit in await index.search(["send a message"], 3, allowed)]

    assert await first(["send_199", "gone"]) == ["send_199"]
    assert await first(is_150) == ["send_150"]
    assert await first([]) == []
    await index.aclose()


async def test_a_tool_that_has_done_well_goes_before_its_like() -> None:
    catalog = Catalog()
    catalog.replace("p", [tool("mail_a", "Send mail."), tool("mail_b", "Send mail.")])
    index = ToolIndex(catalog, prior=lambda each: 1.0 if each.name == "mail_b" else 0.5)

    assert await found(index, "send mail") == ["mail_b", "mail_a"]
    await index.aclose()


async def test_one_plug_does_not_crowd_out_others_that_come_close() -> None:
    catalog = Catalog()
    many = [tool(f"search_{n}", "Search the web for pages.") for n in range(20)]
    catalog.replace("big", many)
    catalog.replace("small", [tool("search_all", "Search the web for pages."), *TOOLS])
    index = ToolIndex(catalog)

    names = await found(index, "search the web", limit=6)
    assert "search_all" in names
    assert len(names) == 6
    await index.aclose()


def test_a_hit_that_is_clearly_better_gives_way_to_nothing() -> None:
    mine = [Hit(tool(f"a{n}", ""), 1.0) for n in range(6)]
    other = Hit(replace(tool("b", ""), plug="q"), 0.5)

    assert spread([*mine, other], 6) == mine


PLUGS = st.lists(st.tuples(st.sampled_from("pqr"), st.floats(0.0, 1.0)), max_size=30)


@given(PLUGS, st.integers(1, 12))
def test_spreading_loses_no_place_and_makes_up_no_hit(
    drawn: list[tuple[str, float]], limit: int
) -> None:
    hits = [
        Hit(replace(tool(f"t{n}", ""), plug=plug), score)
        for n, (plug, score) in enumerate(sorted(drawn, key=lambda each: -each[1]))
    ]

    taken = spread(hits, limit)

    assert len(taken) == min(limit, len(hits))
    assert {id(hit) for hit in taken} <= {id(hit) for hit in hits}
    assert len({hit.tool.name for hit in taken}) == len(taken)
    assert taken[:1] == hits[:1]


@given(st.lists(st.lists(st.integers(0, 9), max_size=6, unique=True), max_size=4))
def test_the_best_of_each_query_comes_before_the_second_of_any(lists: list[list[int]]) -> None:
    tools = [tool(f"t{n}", "") for n in range(10)]

    taken = chosen([[Hit(tools[n], 1.0) for n in each] for each in lists], 10)

    firsts = list(dict.fromkeys(each[0] for each in lists if each))
    assert [hit.tool.name for hit in taken][: len(firsts)] == [f"t{n}" for n in firsts]


@given(
    st.lists(
        st.tuples(st.sampled_from(["a", "b", "c"]), st.sets(st.integers(0, 7), max_size=5)),
        max_size=8,
    )
)
def test_after_any_changes_the_index_finds_what_a_new_one_would(
    changes: list[tuple[str, set[int]]],
) -> None:
    async def both() -> tuple[list[str], list[str]]:
        catalog = Catalog()
        index = ToolIndex(catalog)
        for plug, held in changes:
            catalog.replace(plug, [tool(f"count_{n}", f"Count the sheep {n}") for n in held])
            await index.search(["sheep"])
        fresh = ToolIndex(catalog)
        names = [await found(each, "count sheep", limit=40) for each in (index, fresh)]
        await index.aclose()
        await fresh.aclose()
        return sorted(names[0]), sorted(names[1])

    old, new = anyio.run(both)

    assert old == new


async def test_a_changed_description_is_searched_anew_and_an_unchanged_one_stays() -> None:
    catalog = Catalog()
    catalog.replace("p", TOOLS)
    index = ToolIndex(catalog)
    await found(index, "mail")

    catalog.replace("p", [replace(TOOLS[3], description="Post a letter."), *TOOLS[:3]])

    assert (await found(index, "letter"))[0] == "send_mail"
    (hit,) = await index.search(["commit history"])
    assert hit.tool is catalog.current.tools["git_log"]
    await index.aclose()


@pytest.mark.parametrize(
    ("effects", "words"),
    [
        (READS, {"reads", "local", "idempotent"}),
        (Effects(), {"writes", "egress", "destructive"}),
        (Effects(idempotent=True, destructive=False), {"writes", "egress", "idempotent"}),
    ],
)
def test_the_effects_of_a_tool_are_tags_of_it(effects: Effects, words: set[str]) -> None:
    made = replace(tool("t", ""), plug="Mail", effects=effects)

    assert tags_of(made, ["Work"]) == {"mail", "work", *words}


@given(st.text(), st.text(), st.dictionaries(st.text(), st.text(), max_size=3))
def test_no_text_of_a_tool_or_of_a_query_breaks_the_search(
    query: str, description: str, parameters: dict[str, str]
) -> None:
    async def searched() -> list[str]:
        catalog = Catalog()
        catalog.replace("p", [*TOOLS, tool("odd", f"{description}\ud800", **parameters)])
        index = ToolIndex(catalog)
        try:
            return await found(index, query, description, "commit history")
        finally:
            await index.aclose()

    assert "git_log" in anyio.run(searched)

from typing import Any

import pytest

from guildry.tools.base import Call, Outcome, Tool
from guildry.tools.registry import Catalog, Change, UnknownTool, tool_name


async def answer(_: dict[str, Any], __: Call) -> Outcome:
    return Outcome()


def tool(name: str, plug: str = "one", description: str = "") -> Tool:
    return Tool(
        name=name,
        plug=plug,
        source_name=name,
        description=description,
        input_schema={"type": "object"},
        invoke=answer,
    )


def test_plugging_appends_and_keeps_the_order_of_what_was_there() -> None:
    catalog = Catalog()
    catalog.replace("one", [tool("b"), tool("a")])

    change = catalog.replace("two", [tool("c", "two")])

    assert list(catalog.current.tools) == ["b", "a", "c"]
    assert change == Change(2, "two", added=("c",))


def test_a_replaced_plug_keeps_the_places_and_names_of_its_tools() -> None:
    catalog = Catalog()
    catalog.replace("one", [tool("a"), tool("b")])
    catalog.replace("two", [tool("c", "two")])

    change = catalog.replace("one", [tool("d"), tool("b", description="new")])

    assert list(catalog.current.tools) == ["b", "c", "d"]
    assert (change.added, change.removed, change.changed) == (("d",), ("a",), ("b",))


@pytest.mark.requirement("tools.names-apart")
def test_a_name_that_another_plug_holds_gets_the_plug_before_it() -> None:
    catalog = Catalog()
    catalog.replace("one", [tool("echo")])
    catalog.replace("two", [tool("echo", "two")])

    names = {each.name: (each.plug, each.source_name) for each in catalog.current}

    assert names == {"echo": ("one", "echo"), "two_echo": ("two", "echo")}


def test_a_name_stays_its_holders_when_the_other_one_leaves() -> None:
    catalog = Catalog()
    catalog.replace("one", [tool("echo")])
    catalog.replace("two", [tool("echo", "two")])
    catalog.withdraw("one")

    catalog.replace("two", [tool("echo", "two", "again")])

    assert list(catalog.current.tools) == ["two_echo"]


def test_a_snapshot_never_changes_under_a_call() -> None:
    catalog = Catalog()
    catalog.replace("one", [tool("a")])
    before = catalog.current

    catalog.withdraw("one")

    assert list(before.tools) == ["a"]
    assert list(catalog.current.tools) == []
    with pytest.raises(TypeError):
        before.tools["b"] = tool("b")  # type: ignore[index]  # the very thing that must fail


def test_listeners_hear_of_changes_that_a_caller_can_see_and_of_no_others() -> None:
    catalog, heard = Catalog(), list[Change]()
    stop = catalog.subscribe(heard.append)
    catalog.replace("one", [tool("a")])
    catalog.replace("one", [tool("a")])
    stop()
    catalog.withdraw("one")

    assert heard == [Change(1, "one", added=("a",))]


def test_an_unknown_tool_is_told_with_the_nearest_name() -> None:
    catalog = Catalog()
    catalog.replace("one", [tool("list_files")])

    with pytest.raises(UnknownTool, match="did you mean `list_files`"):
        catalog.current.get("list_file")


@pytest.mark.parametrize(
    ("given", "name"),
    [("a.b/c", "a_b_c"), ("é", "tool"), ("x" * 80, "x" * 64), ("_a_", "a")],
)
@pytest.mark.requirement("tools.names")
def test_names_are_made_fit_for_every_client(given: str, name: str) -> None:
    assert tool_name(given) == name


@pytest.mark.requirement("tools.names")
def test_names_stay_apart_however_many_plugs_want_one() -> None:
    catalog = Catalog()
    catalog.replace("one", [tool("echo"), tool("two_echo")])

    catalog.replace("two", [tool("echo", "two")])

    assert list(catalog.current.tools) == ["echo", "two_echo", "two_echo_2"]

"""An agent with very many tools: it is shown those that find others, then what it found."""

import json
from typing import Any

from guildry.teams.model import Message, ToolCall, ToolSpec
from guildry.teams.shown import ShownTools

OBJECT: dict[str, Any] = {"type": "object"}


def specs(*names: str) -> tuple[ToolSpec, ...]:
    return tuple(ToolSpec(name, f"Do {name}.", OBJECT) for name in names)


MANY = specs(*(f"tool_{n:02}" for n in range(60)), "find_tools", "read_reference")


def searched(answer: str, name: str = "find_tools") -> list[Message]:
    call = ToolCall("c1", name, "{}")
    return [Message("assistant", "", (call,)), Message("tool", answer, call_id="c1")]


def told(*names: str) -> str:
    return json.dumps({"tools": [{"name": name} for name in names]})


def names(tools: tuple[ToolSpec, ...]) -> list[str]:
    return [tool.name for tool in tools]


def test_few_tools_are_all_shown_and_so_are_many_without_a_way_to_find_them() -> None:
    few, unsearchable = specs("a", "find_tools"), MANY[:60]

    assert ShownTools(few).now == few
    assert ShownTools(unsearchable).now == unsearchable
    assert not ShownTools(few).is_partial


def test_of_very_many_those_are_shown_that_find_others_then_what_was_found_after_them() -> None:
    shown = ShownTools(MANY)

    assert names(shown.now) == ["find_tools", "read_reference"]
    assert shown.is_partial
    assert names(shown.found(searched(told("tool_07", "tool_03", "not_granted")))) == [
        "tool_07",
        "tool_03",
    ]
    assert shown.found(searched(told("tool_03"))) == ()
    assert names(shown.now) == ["find_tools", "read_reference", "tool_07", "tool_03"]


def test_only_what_a_search_answers_counts() -> None:
    shown = ShownTools(MANY)

    for answer in ("no JSON", "[]", '{"tools": 1}', '{"tools": [1]}', "null"):
        assert shown.found(searched(answer)) == ()
    assert shown.found(searched(told("tool_01"), name="other")) == ()
    assert shown.found([Message("user", told("tool_01"))]) == ()

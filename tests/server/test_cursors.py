"""Cursors name places, and nothing else is one."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildry.errors import ToolRetry
from guildry.server.offers.cursors import Place, page_of, place_of


@given(st.sampled_from(["a", "b"]), st.text())
def test_a_cursor_names_the_place_that_it_was_made_of(section: str, key: str) -> None:
    place = Place(section, key)

    assert place_of(str(place), ["a", "b"]) == place


@given(st.text())
def test_any_text_is_refused_or_is_a_cursor_as_it_was_given(text: str) -> None:
    try:
        place = place_of(text, ["a"])
    except ToolRetry as error:
        assert "`cursor`" in str(error)
    else:
        assert str(place) == text


@given(st.text(min_size=1, max_size=40), st.data())
@pytest.mark.requirement("paging.wrong-cursor")
def test_a_changed_cursor_is_refused(key: str, data: st.DataObject) -> None:
    cursor = str(Place("a", key))
    at = data.draw(st.integers(0, len(cursor) - 1))
    other = data.draw(st.characters(codec="ascii").filter(lambda each: each != cursor[at]))

    with pytest.raises(ToolRetry):
        place_of(cursor[:at] + other + cursor[at + 1 :], ["a"])


@pytest.mark.requirement("paging.wrong-cursor")
def test_a_cursor_of_another_list_is_refused() -> None:
    with pytest.raises(ToolRetry, match="pass on what the last page gave"):
        place_of(str(Place("prompts", "x")), ["templates"])


@given(st.sets(st.text(max_size=5)), st.integers(1, 4))
@pytest.mark.requirement("paging.stable")
def test_pages_hold_every_entry_once_and_in_order(keys: set[str], size: int) -> None:
    entries: dict[str, dict[str, Any]] = {key: {"key": key} for key in keys}
    seen: list[str] = []
    cursor: str | None = None
    while True:
        page, cursor = page_of(entries, cursor, "a", size)
        assert len(page) <= size
        seen += [each["key"] for each in page]
        if cursor is None:
            break

    assert seen == sorted(keys)


@pytest.mark.requirement("paging.stable")
def test_what_comes_and_goes_between_two_pages_upsets_nothing_else() -> None:
    entries: dict[str, dict[str, Any]] = {key: {"key": key} for key in "bcdef"}
    first, cursor = page_of(entries, None, "a", 2)
    del entries["c"]
    entries |= {"a": {"key": "a"}, "cc": {"key": "cc"}}

    second, _ = page_of(entries, cursor, "a", 10)

    assert [each["key"] for each in first] == ["b", "c"]
    assert [each["key"] for each in second] == ["cc", "d", "e", "f"]

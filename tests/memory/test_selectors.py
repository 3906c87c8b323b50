"""Selectors, against a plain reading of their definitions."""

from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from guildry.errors import ToolRetry
from guildry.memory.selectors import is_list, is_object, lines_of, select

KEYS = st.text('ab/~0 1#?"é', max_size=4)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda each: st.lists(each, max_size=4) | st.dictionaries(KEYS, each, max_size=4),
    max_leaves=20,
).filter(lambda value: not isinstance(value, str))


def parts(value: Any, pointer: str = "") -> list[tuple[str, Any]]:
    """Return every part of a value with its JSON Pointer, written out from RFC 6901."""
    found = [(pointer, value)]
    if is_object(value):
        for key, each in value.items():
            found += parts(each, f"{pointer}/{key.replace('~', '~0').replace('/', '~1')}")
    if is_list(value):
        for index, each in enumerate(value):
            found += parts(each, f"{pointer}/{index}")
    return found


@given(VALUES)
def test_a_pointer_addresses_every_part_and_nothing_else(value: Any) -> None:
    for pointer, part in parts(value):
        assert select(value, f"#{pointer}") is part
        with pytest.raises(ToolRetry):
            select(value, f"#{pointer}/no such part")


@given(VALUES, st.lists(st.text("ab01/~-", max_size=3), max_size=3))
def test_a_pointer_finds_what_a_plain_reading_finds(value: Any, tokens: list[str]) -> None:
    pointer = "".join(f"/{token.replace('/', '')}" for token in tokens)
    known = dict(parts(value))

    try:
        found = (select(value, f"#{pointer}"),)
    except ToolRetry:
        found = None

    assert found == ((known[pointer],) if pointer in known else None)


@pytest.mark.parametrize(
    ("pointer", "part"),
    [
        ("", None),
        ("/foo", ["bar", "baz"]),
        ("/foo/0", "bar"),
        ("/", 0),
        ("/a~1b", 1),
        ("/c%d", 2),
        ("/e^f", 3),
        ("/g|h", 4),
        ("/i\\j", 5),
        ('/k"l', 6),
        ("/ ", 7),
        ("/m~0n", 8),
    ],
)
def test_the_examples_of_the_rfc_hold(pointer: str, part: Any) -> None:
    document = {
        "foo": ["bar", "baz"],
        "": 0,
        "a/b": 1,
        "c%d": 2,
        "e^f": 3,
        "g|h": 4,
        "i\\j": 5,
        'k"l': 6,
        " ": 7,
        "m~n": 8,
    }

    assert select(document, f"#{pointer}") == (document if part is None else part)


@pytest.mark.parametrize(
    ("selector", "told"),
    [
        ("#/rows/2", "there is no item '2' in `#/rows`, which has items 0 to 1"),
        ("#/rows/-", "there is no item '-' in `#/rows`, which has items 0 to 1"),
        ("#/rows/00", "there is no item '00' in `#/rows`, which has items 0 to 1"),
        ("#/none/0", "there is no item '0' in `#/none`, which is an empty list"),
        ("#/row", "there is no 'row' in `#`, which has the keys 'rows', 'none', 'total'"),
        ("#/total/x", "there is nothing in `#/total`, which is a number: end the pointer there"),
        ("#/rows/0/ok/x", "there is nothing in `#/rows/0/ok`, which is a boolean"),
        ("#/rows/1/x", "there is nothing in `#/rows/1`, which is null"),
        ("#/rows/0/name/x", "there is nothing in `#/rows/0/name`, which is text"),
        ("#/rows/0/empty/x", "there is no 'x' in `#/rows/0/empty`, which has no keys"),
        ("#/a~2", "write `~` as `~0` and a `/` in a key as `~1`"),
        ("?lines=1-2", "`?lines=` is for text, and this is an object with the keys 'rows'"),
        ("?query=rows[", "no JMESPath expression that works here: .*an object with the keys"),
        ("?query=length(total)", "no JMESPath expression that works here"),
        ("rows", "'rows' is no selector: use `#/key/0`"),
    ],
)
def test_a_selector_that_finds_nothing_tells_what_is_there(selector: str, told: str) -> None:
    rows: list[Any] = [{"name": "a", "ok": True, "empty": {}}, None]

    with pytest.raises(ToolRetry, match=told):
        select({"rows": rows, "none": [], "total": 3}, selector)


def test_many_or_long_keys_are_not_all_told() -> None:
    with pytest.raises(ToolRetry) as caught:
        select({f"{number}{'x' * 100}": number for number in range(1_000)}, "#/y")

    assert "and 988 more" in str(caught.value)
    assert len(str(caught.value)) < 700


@pytest.mark.parametrize(
    ("query", "found"),
    [
        ("rows[?total>`10`].id", [2]),
        ("length(rows)", 2),
        ("rows[].missing", []),
        ("missing", None),
    ],
)
def test_a_query_is_jmespath(query: str, found: Any) -> None:
    value = {"rows": [{"id": 1, "total": 5}, {"id": 2, "total": 15}]}

    assert select(value, f"?query={query}") == found


@given(st.lists(st.text("ab \r\t\x0b\u2028"), max_size=8), st.booleans(), st.data())
def test_lines_are_those_between_newlines(
    lines: list[str], ends_with_newline: bool, data: st.DataObject
) -> None:
    text = "\n".join(lines) + "\n" * ends_with_newline
    counted = lines_of(text)
    assume(counted)
    first = data.draw(st.integers(1, len(counted)))
    last = data.draw(st.integers(first, len(counted) + 3))

    assert select(text, f"?lines={first}-{last}") == "\n".join(counted[first - 1 : last])
    assert select(text, f"?lines={first}") == counted[first - 1]
    assert select(text, f"?lines={first}-") == "\n".join(counted[first - 1 :])
    assert "\n".join(counted) + "\n" * text.endswith("\n") == text


@pytest.mark.parametrize(
    ("selector", "told"),
    [
        ("?lines=0-1", "there are no lines '0-1': there are 3 lines, counted from 1"),
        ("?lines=4", "there are no lines '4': there are 3 lines"),
        ("?lines=3-2", "there are no lines '3-2'"),
        ("?lines=a", "'a' is no range of lines: write"),
        ("?lines=-2", "'-2' is no range of lines"),
        ("#/0", "is a JSON Pointer, and this is text of 3 lines: use `\\?lines=1-20` instead"),
        ("?query=a", "is for JSON, and this is text"),
    ],
)
def test_text_has_lines_alone(selector: str, told: str) -> None:
    with pytest.raises(ToolRetry, match=told):
        select("a\nb\nc\n", selector)


@pytest.mark.parametrize("selector", ["", "#"])
@pytest.mark.parametrize("value", ["text", {"a": 1}, [1], None])
def test_an_empty_selector_is_the_whole(selector: str, value: Any) -> None:
    assert select(value, selector) is value


def test_a_list_says_how_long_it_is() -> None:
    with pytest.raises(ToolRetry, match="this is a list of 1,000 items"):
        select([0] * 1_000, "?lines=1-2")

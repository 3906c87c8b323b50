"""Sketches and previews: exact counts, short texts, little work."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildry.memory.sketch import (
    PREVIEW_LENGTH,
    SKETCH_LENGTH,
    describe,
    is_json,
    is_text,
    preview,
    sketch,
)

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda each: st.lists(each, max_size=30) | st.dictionaries(st.text(), each, max_size=30),
    max_leaves=60,
)
WIDE = st.lists(VALUES, max_size=5).map(lambda each: each * 50) | st.dictionaries(
    st.text(min_size=30), VALUES, min_size=10, max_size=30
)


@given(VALUES | WIDE)
def test_a_sketch_and_a_preview_never_exceed_their_bounds(value: Any) -> None:
    for made, bound in ((sketch(value), SKETCH_LENGTH), (preview(value), PREVIEW_LENGTH)):
        assert 0 < len(made) <= bound or value == ""
    content = json.dumps(value).encode()
    for media_type in ("application/json", "text/plain", "text/csv", "image/png", "x" * 500):
        told, begun = describe(content, media_type)
        assert 0 < len(told) <= SKETCH_LENGTH
        assert len(begun) <= PREVIEW_LENGTH


@given(VALUES)
def test_a_sketch_and_a_preview_depend_on_the_value_alone(value: Any) -> None:
    again = json.loads(json.dumps(value))

    assert (sketch(value), preview(value)) == (sketch(again), preview(again))


@given(VALUES.filter(lambda value: not isinstance(value, str)))
def test_a_preview_is_the_beginning_of_the_compact_json(value: Any) -> None:
    whole = json.dumps(value, separators=(",", ":"), ensure_ascii=False)

    if len(whole) <= PREVIEW_LENGTH:
        assert preview(value) == whole
    else:
        assert preview(value) == f"{whole[: PREVIEW_LENGTH - 1]}…"


SHAPES: list[tuple[Any, str | None]] = [
    (
        {"rows": [{"id": 1, "name": "a"}] * 1_200, "total": 1_200},
        "{rows: [1200 x {id: int, name: str}], total: int}",
    ),
    ([], "[]"),
    ({}, "{}"),
    ([1, 2.5, None, True, "x"], "[5 x int | float | null | bool | str]"),
    ([[1, 2], [3]], "[2 x [2 x int] | [1 x int]]"),
    ([{"a": None}, {"a": 1, "b": []}], "[2 x {a: int, b: []}]"),
    ({"with space": {"é": 1}}, '{"with space": {"é": int}}'),
    (3, "int"),
    (None, "null"),
    ("one\ntwo\n", "2 lines, 8 bytes"),
    ("ü", "1 line, 2 bytes"),
    ("", "0 lines, 0 bytes"),
    ([0] * 7 + ["never sampled"] * 7, "[14 x int | str]"),
    ({f"key{n}": 0 for n in range(50)}, None),
]


@pytest.mark.parametrize(("value", "told"), SHAPES)
def test_a_sketch_tells_shapes_and_exact_lengths(value: Any, told: str | None) -> None:
    made = sketch(value)

    assert made == told if told is not None else made.endswith(", … 42 more}")


def test_a_sketch_of_much_looks_less_deep_until_it_fits() -> None:
    value = {
        f"a long key, number {n}": {f"another one, {m}": [m] for m in range(9)} for n in range(9)
    }

    assert sketch(value) == (
        '{"a long key, number 0": {9 keys}, "a long key, number 1": {9 keys},'
        ' "a long key, number 2": {9 keys}, … 6 more}'
    )
    assert sketch({"k" * 31 + str(n): 1 for n in range(9)}).endswith("int, … 8 more}")
    assert sketch([{"x" * 100: {"y" * 100: [[{"z": 1}]]}} for _ in range(3)]) == (
        f'[3 x {{"{"x" * 31}…": {{"{"y" * 31}…": [1 x [1 item]]}}}}]'
    )


class _Counted(list[Any]):
    """A list that counts how many of its items are looked at."""

    looks = 0

    def __iter__(self) -> Any:
        for each in super().__iter__():
            self.looks += 1
            yield each


def test_a_long_list_is_not_walked() -> None:
    value = _Counted([{"id": number} for number in range(100_000)])

    assert sketch(value) == "[100000 x {id: int}]"
    assert preview(value).startswith('[{"id":0},{"id":1},')
    assert value.looks < PREVIEW_LENGTH


@pytest.mark.parametrize(
    ("content", "media_type", "told", "begun"),
    [
        (b'{"a": 1}', "application/json", "{a: int}", '{"a":1}'),
        (b'{"a": 1}', "application/problem+json; charset=utf-8", "{a: int}", '{"a":1}'),
        (b'"text"', "application/json", "str, 4 characters", "text"),
        (b"{broken", "application/json", "1 line, 7 bytes", "{broken"),
        (b"a\nb", "text/plain", "2 lines, 3 bytes", "a\nb"),
        (b"\xff\xfe", "text/plain", "1 line, 2 bytes", "��"),
        (b"x" * 2_000_000, "text/plain", "1 line, 2.0 MB", "x" * 279 + "…"),
        (
            b"id,name\r\n1,a\r\n",
            "text/csv",
            "2 lines, 14 bytes; 2 columns: id, name",
            "id,name\r\n1,a\r\n",
        ),
        (
            b"id\tname\n",
            "text/tab-separated-values",
            "1 line, 8 bytes; 2 columns: id, name",
            "id\tname\n",
        ),
        (b"", "text/csv", "0 lines, 0 bytes", ""),
        (b"a\rb\n", "text/csv", "1 line, 4 bytes", "a\rb\n"),
        (b"\x89PNG" * 14_000, "image/png", "56 KB of image/png", ""),
        (b"1", "", "1 byte of unknown type", ""),
    ],
)
def test_bytes_are_described_by_their_media_type(
    content: bytes, media_type: str, told: str, begun: str
) -> None:
    assert describe(content, media_type) == (told, begun)


def test_a_column_with_a_long_name_is_cut() -> None:
    assert describe(b'"' + b"x" * 200_000, "text/csv")[0].startswith(
        "1 line, 200 KB; 1 column: xxx"
    )


@pytest.mark.parametrize(
    ("media_type", "json_like", "text_like"),
    [
        ("application/json", True, False),
        ("Application/LD+JSON ; q=1", True, False),
        ("text/plain; charset=utf-8", False, True),
        ("TEXT/html", False, True),
        ("image/png", False, False),
    ],
)
def test_media_types_are_told_apart(media_type: str, json_like: bool, text_like: bool) -> None:
    assert (is_json(media_type), is_text(media_type)) == (json_like, text_like)

"""Handles and references, as text and as objects."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildry.memory.references import INLINE_SHAPE, Handle, Reference, parse_handle

KEYS = st.text(string.ascii_letters + string.digits + "_.-", min_size=1, max_size=128)
SELECTORS = st.one_of(
    st.none(),
    st.just("#"),
    st.text().map(lambda text: f"#/{text}"),
    st.text(min_size=1).map(lambda text: f"?lines={text}"),
    st.text(min_size=1).map(lambda text: f"?query={text}"),
)


@given(st.builds(Handle, st.sampled_from(["name", "uri"]), KEYS, SELECTORS))
def test_a_handle_reads_back_as_it_is_written(handle: Handle) -> None:
    assert parse_handle(str(handle)) == handle


@given(st.text())
def test_any_other_text_is_no_handle_or_reads_back_the_same(text: str) -> None:
    for candidate in (text, f"ref:{text}", f"ref://{text}"):
        found = parse_handle(candidate)

        assert found is None or str(found) == candidate


@pytest.mark.parametrize(
    "text",
    ["", "ref", "ref:", "ref://", "reference:x", "ref:a b", "ref:a?other=1", "ref:a#b", " ref:a"],
)
def test_text_that_is_no_handle_is_none(text: str) -> None:
    assert parse_handle(text) is None


def test_a_reference_tells_who_may_read_it_and_how_it_is_written() -> None:
    reference = Reference(
        id="id1",
        name="orders",
        namespace="r1",
        media_type="text/plain",
        size=3,
        digest="sha256:00",
        sketch="1 line",
        preview="abc",
        owner="maker",
        created_at=1.0,
        readers=frozenset({"reader"}),
    )

    assert [reference.readable_by(each) for each in ("maker", "reader", "other")] == [
        True,
        True,
        False,
    ]
    assert reference.as_json() == {
        "reference": "ref:orders",
        "uri": "ref://id1",
        "media_type": "text/plain",
        "size": 3,
        "sketch": "1 line",
        "preview": "abc",
    }
    assert tuple(reference.as_json()) == INLINE_SHAPE

"""Replies: what a person gives, as the question wants it."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildry.errors import ToolRetry
from guildry.tools.asking.questions import Answer, Question
from guildry.tools.asking.replies import checked, reply_to

MAY_I = Question(key="k", kind="approval", message="May I?")


def form(**properties: Any) -> Question:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return Question(key="k", kind="form", message="Which?", schema=schema, id="q1")


@pytest.mark.parametrize(
    ("given", "action"),
    [
        (True, "accept"),
        ("yes", "accept"),
        (" Allow ", "accept"),
        (False, "decline"),
        ("no", "decline"),
        ("Deny", "decline"),
    ],
)
def test_an_approval_is_answered_by_yes_or_no(given: Any, action: str) -> None:
    assert reply_to(MAY_I, given, "ann") == Answer(action, by="ann")  # type: ignore[arg-type]  # one of the three


@pytest.mark.parametrize("given", ["perhaps", 1, {}, None, "" * 3, "x" * 500])
def test_anything_else_is_no_answer_to_an_approval(given: Any) -> None:
    with pytest.raises(ToolRetry, match="give true to allow the call, false to refuse it") as told:
        reply_to(MAY_I, given)

    assert len(str(told.value)) < 200


@pytest.mark.parametrize(
    ("schema", "given", "content"),
    [
        ({"type": "string"}, "3", {"a": "3"}),
        ({"type": "integer"}, "3", {"a": 3}),
        ({"type": "integer"}, "three", {"a": "three"}),
        ({"type": "boolean"}, True, {"a": True}),
        ({"type": "boolean"}, "false", {"a": False}),
        ({}, "3", {"a": "3"}),
        ({"type": "string"}, {"a": "x"}, {"a": "x"}),
        ({"type": "string"}, {"b": 1}, {"b": 1}),
    ],
)
def test_the_only_field_of_a_form_can_be_given_by_itself(
    schema: dict[str, Any], given: Any, content: dict[str, Any]
) -> None:
    assert reply_to(form(a=schema), given) == Answer("accept", content)


def test_a_form_of_several_fields_wants_an_object() -> None:
    with pytest.raises(ToolRetry, match="the answer is 'x': give an object with `a`, `b`"):
        reply_to(form(a={}, b={}), "x")
    with pytest.raises(ToolRetry, match="give an object with no fields"):
        reply_to(form(), "x")


def test_content_counts_only_where_something_was_filled_in() -> None:
    asked = form(a={"type": "integer"})
    accept = Answer("accept", {"a": 1}, "ann")

    assert checked(asked, accept) == accept
    assert checked(asked, Answer("decline", {"a": "x"})) == Answer("decline")
    assert checked(MAY_I, Answer("accept", {"a": "x"})) == Answer("accept")
    with pytest.raises(ToolRetry, match=r"no answer to `q1`: `a` is 'x' \(string\)"):
        checked(asked, Answer("accept", {"a": "x"}))


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    )
)
def test_whatever_is_given_becomes_an_answer_or_is_refused(given: Any) -> None:
    for asked in (MAY_I, form(a={"type": "integer"}), form(a={}, b={})):
        try:
            assert checked(asked, reply_to(asked, given)).action in ("accept", "decline")
        except ToolRetry as refused:
            assert len(str(refused)) < 1_000

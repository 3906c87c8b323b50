"""Frontmatter: what is read from the head of a text, and what is told when it is wrong."""

import json
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildry.tools.skills.frontmatter import FrontmatterError, read_frontmatter

WORDS = st.text("abc xyz:#-[]{}'\"\\é漢&*!|>%@,?\n\t", max_size=20)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.floats(allow_nan=False, allow_infinity=False)
    | WORDS
)
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3)
)


def test_every_field_is_as_it_was_written() -> None:
    text = (
        "---\r\nname: git-workflow\r\ndescription: 'Do this: then that'\r\n"
        'metadata:\r\n  version: "2.1.0"\r\n  tags: [a, b]\r\nempty:\r\n---\r\n# Body\r\n'
    )

    assert read_frontmatter(text) == {
        "name": "git-workflow",
        "description": "Do this: then that",
        "metadata": {"version": "2.1.0", "tags": ["a", "b"]},
        "empty": None,
    }


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("yes", "yes"),
        ("on", "on"),
        ("2026-01-01", "2026-01-01"),
        ("1:30", "1:30"),
        ("1_000", "1_000"),
        ("=", "="),
        ("true", True),
        ("~", None),
        ("0777", 777),
        ("0o17", 15),
        ("0x1F", 31),
        ("-12", -12),
        ("1.5e3", 1500.0),
        (".5", 0.5),
        ("'true'", "true"),
        ("!!str 12", "12"),
    ],
)
def test_plain_words_mean_what_yaml_1_2_says(written: str, value: Any) -> None:
    (read,) = read_frontmatter(f"---\nx: {written}\n---\n").values()

    assert (read, type(read)) == (value, type(value))


def test_a_merge_key_is_a_field_like_any_other() -> None:
    assert read_frontmatter('---\n"<<": {a: 1}\n---') == {"<<": {"a": 1}}


@given(st.dictionaries(WORDS, VALUES, max_size=4))
def test_json_in_a_head_is_read_as_the_same_json(told: dict[str, Any]) -> None:
    head = json.dumps(told, ensure_ascii=False)

    assert read_frontmatter(f"---\n{head}\n---\nbody") == told


@given(st.text())
def test_whatever_is_in_a_head_is_json_or_refused(head: str) -> None:
    try:
        read = read_frontmatter(f"---\n{head}\n---\n")
    except FrontmatterError:
        return

    json.dumps(read, allow_nan=False)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "does not begin with YAML"),
        ("# Title\n---\na: 1\n---\n", "does not begin with YAML"),
        ("---\na: 1\n", "does not begin with YAML"),
        ("---\na: &x 1\nb: *x\n---", "line 2: it uses an anchor"),
        ("---\na: 1\nb: [*x]\n---", "line 3: it uses an anchor"),
        ("---\n- a\n---", "is not a list of fields"),
        ("---\n# nothing\n---", "is not a list of fields"),
        ("---\na: 1\nb: [\n---", "not YAML on line 3"),
        ("---\na: 1\n--- b\n---", "not YAML on line 3"),
        ("---\na: .inf\n---", "'.inf' cannot be said in JSON"),
        ("---\na: 1e999\n---", "cannot be said in JSON"),
        (f"---\na: {'9' * 5000}\n---", "cannot be said in JSON"),
        ("---\na: !!int x\n---", "cannot be said in JSON"),
        ("---\na: " + "[" * 40 + "\n---", "nested deeper than 32"),
        ("---\na: " + "- " * 40 + "\n---", "not YAML on line 2"),
        ("---\na: !!python/object/apply:os.system [ls]\n---", "has the tag"),
        ("---\na: !mine 1\n---", "has the tag '!mine'"),
        ("---\na: !!set {x, y}\n---", "has the tag"),
        ("---\na: 1\na: 2\n---", "line 3: the field 'a' is there twice"),
        ("---\n1: 2\n---", "a name of a field is no text"),
        ("---\n? [a]\n: 2\n---", "a name of a field is no text"),
        ("---\na: \x01\n---", "special characters are not allowed"),
        ("---\na: " + "x" * 70_000 + "\n---", "over 65,536 characters"),
    ],
)
def test_a_wrong_head_is_told_with_its_cure(text: str, told: str) -> None:
    with pytest.raises(FrontmatterError, match=told.replace("[", r"\[")):
        read_frontmatter(text)


def test_a_bomb_of_depth_is_refused_long_before_the_stack_ends() -> None:
    bomb = "{a: " * sys.getrecursionlimit()

    with pytest.raises(FrontmatterError):
        read_frontmatter(f"---\nx: {bomb}\n---\n")

"""JSON with comments: what is put in and taken out, and that nothing else moves."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildry.server.install.jsonc import JsoncError, drop, put, read

PATH = ("mcpServers", "guildry")
ENTRY = {"command": "/bin/guildry", "args": ["serve", "--stdio"]}

GAPS = st.lists(
    st.sampled_from(["", " ", "\n", "\n  ", "\t", "// a note\n", "/* b */", "\r\n", "/* c\n */"]),
    max_size=3,
).map("".join)
KEYS = st.sampled_from(["a", "b", "servers", "mcpServers", 'q"uoted', "漢", ""])
SCALARS = st.sampled_from(
    ["1", "-2.5e3", "true", "null", '"x"', '"// no comment"', r'"\"}\\"', "0"]
)


@st.composite
def objects(draw: Any, depth: int = 2) -> str:
    """Write an object as a person might."""
    text: str = "{" + draw(GAPS)
    keys = draw(st.lists(KEYS, max_size=3, unique=True))
    for n, key in enumerate(keys):
        if depth and (key == "mcpServers" or draw(st.booleans())):
            value = draw(objects(depth=depth - 1))
        else:
            value = draw(SCALARS) if key != "mcpServers" else "{}"
        comma = "," if n + 1 < len(keys) or draw(st.booleans()) else ""
        text += f"{json.dumps(key)}{draw(GAPS)}:{draw(GAPS)}{value}{draw(GAPS)}{comma}{draw(GAPS)}"
    return text + "}"


@st.composite
def documents(draw: Any) -> str:
    """Write a whole file: blanks and comments around an object, or those alone."""
    body: str = draw(objects()) if draw(st.integers(0, 9)) else ""
    begin: str = draw(st.sampled_from(["", "\ufeff"])) + draw(GAPS)
    return begin + body + str(draw(GAPS))


def without(value: Any, *path: str) -> Any:
    """Return a value less what is at `path`, and less what is empty then."""
    key, *rest = path
    value = value or {}
    kept = {name: each for name, each in value.items() if name != key}
    if rest and key in value and (inner := without(value[key], *rest)):
        kept[key] = inner
    return kept


@given(documents())
def test_what_is_put_in_is_there_once_and_all_else_is_as_it_was(text: str) -> None:
    once = put(text, PATH, ENTRY)

    assert read(once)["mcpServers"]["guildry"] == ENTRY
    assert without(read(once), *PATH) == without(read(text), *PATH)
    assert put(once, PATH, ENTRY) == once
    for note in ("// a note", "/* b */", "/* c\n */", "\ufeff"):
        assert once.count(note) == text.count(note)


@given(documents())
def test_what_was_put_in_is_taken_out_and_every_comment_stays(text: str) -> None:
    again = drop(put(text, PATH, ENTRY), PATH)

    assert without(read(again), *PATH) == without(read(text), *PATH)
    assert "guildry" not in again
    for note in ("// a note", "/* b */", "/* c\n */", "\ufeff"):
        assert again.count(note) == text.count(note)


@given(documents(), st.sampled_from(["a", "b", "servers", "mcpServers"]))
def test_any_member_can_be_taken_out_or_changed_alone(text: str, key: str) -> None:
    before: dict[str, Any] = read(text) or {}

    assert read(drop(text, [key])) in ({k: v for k, v in before.items() if k != key}, None)
    assert read(put(text, [key], [1, {"x": None}])) == {**before, key: [1, {"x": None}]}


@given(st.text('{}[]:,"\\/*ab1 \n', max_size=30))
def test_whatever_the_text_is_it_is_read_or_refused_by_line(text: str) -> None:
    try:
        read(text)
    except JsoncError as error:
        assert str(error).startswith(f"line {error.line}, column ")
        with pytest.raises(ValueError):
            json.loads(text)


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists))
def test_plain_json_means_the_same(value: Any) -> None:
    assert read(json.dumps({"v": value}, indent=2)) == {"v": value}


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("", '{\n  "a": {\n    "b": 1\n  }\n}\n'),
        ("// mine\n", '// mine\n{\n  "a": {\n    "b": 1\n  }\n}\n'),
        ('{"x": 1}', '{"x": 1, "a": {"b": 1}}'),
        ('{"a": {}}', '{"a": {"b": 1}}'),
        ('{"a": {"x": 2}}', '{"a": {"x": 2, "b": 1}}'),
        ('{\n\t"x": 1 // why\n}\n', '{\n\t"x": 1, // why\n\t"a": {\n\t\t"b": 1\n\t}\n}\n'),
        ('{\n    "a": {},\n}', '{\n    "a": {\n        "b": 1\n    },\n}'),
        ('{\r\n  "x": 1\r\n}', '{\r\n  "x": 1,\r\n  "a": {\r\n    "b": 1\r\n  }\r\n}'),
        ('{"a": 0,\n "a": {"b": 2}}', '{"a": 0,\n "a": {"b": 1}}'),
        ('{\n  "a": {\n    "x": 2,\n    // end\n  }\n}', None),
    ],
)
def test_the_form_is_that_of_the_text_around_it(text: str, made: str | None) -> None:
    expected = made or '{\n  "a": {\n    "x": 2,\n    // end\n    "b": 1,\n  }\n}'

    assert put(text, ["a", "b"], 1) == expected


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ('{"a": 1, "x": 2}', '{"x": 2}'),
        ('{"x": 2, "a": 1}', '{"x": 2}'),
        ('{ "a": 1 }', "{}"),
        ('{\n  "x": 1,\n  "a": 2,\n}\n', '{\n  "x": 1,\n}\n'),
        ('{\n  "a": 2, // ours\n  "x": 1\n}\n', '{\n  // ours\n  "x": 1\n}\n'),
        ('{\n  // note\n  "a": 2, "x": 1\n}\n', '{\n  // note\n  "x": 1\n}\n'),
        ('{ "x": 1, // note\n  "a": 2 }', '{ "x": 1 // note\n  }'),
        ('{"a": 1, "x": 2, "a": 3}', '{"x": 2}'),
        ('{"x": {"a": 1}}', '{"x": {"a": 1}}'),
        ("", ""),
    ],
)
def test_a_member_goes_with_its_comma_and_its_line(text: str, left: str) -> None:
    assert drop(text, ["a"]) == left


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{", "line 1, column 2: a name in double quotes"),
        ('{\n  "a" 1}', 'line 2, column 7: ":" should be here, after "a"'),
        ('{"a":}', "'}' is where a value should be"),
        ('{"a": ', "the text ends where a value should be"),
        ("{a: 1}", "a name in double quotes"),
        ('{"a": 1}}', "'}' after the end"),
        ('{"a": 1 "b": 2}', '"," or "}" should be here'),
        ("[1 2]", '"," or "]" should be here'),
        ("/* open", "'/' is where a value should be"),
        ('{"a": 01}', "01 is no JSON value"),
        ('{"a": NaN}', "NaN is no JSON value"),
        ('{"a": "x\n"}', "is where a value should be"),
        ("{,}", "a name in double quotes"),
        ("[" * 300, "nested deeper than 200 levels"),
        ("1" * 5000, "is no JSON value"),
    ],
)
def test_what_is_no_json_is_told_with_its_place(text: str, told: str) -> None:
    with pytest.raises(JsoncError) as refused:
        read(text)
    with pytest.raises(JsoncError) as not_put:
        put(text, ["a"], 1)
    with pytest.raises(JsoncError) as not_dropped:
        drop(text, ["a"])

    assert told in str(refused.value)
    assert str(refused.value) == str(not_put.value) == str(not_dropped.value)


def test_what_is_not_there_is_not_taken_out() -> None:
    for path in (["b"], ["b", "c"], ["a", "c"]):
        assert drop('{"a": {}}', path) == '{"a": {}}'
        assert drop("// nothing", path) == "// nothing"


def test_what_is_no_object_is_not_made_one() -> None:
    with pytest.raises(JsoncError, match="line 1, column 1: the whole is no object"):
        put("[]", ["a"], 1)
    with pytest.raises(JsoncError, match="`a` is no object"):
        put('{"a": 3}', ["a", "b"], 1)
    with pytest.raises(JsoncError, match="`a` is no object"):
        drop('{"a": 3}', ["a", "b"])

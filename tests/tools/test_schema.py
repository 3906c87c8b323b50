import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from guildry.errors import ToolRetry
from guildry.tools.base import Call, Outcome, Tool
from guildry.tools.schema import check_arguments, schema_fault, types_wanted

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "limit": {"type": "integer", "minimum": 1},
        "unit": {"enum": ["b", "kb"]},
        "deep": {"type": "object", "properties": {"n": {"type": "number"}}, "required": ["n"]},
    },
    "required": ["path"],
}


async def answer(_: dict[str, Any], __: Call) -> Outcome:
    return Outcome()


def tool(schema: dict[str, Any]) -> Tool:
    return Tool(name="t", plug="p", description="", input_schema=schema, invoke=answer)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "`path` is missing: give a string"),
        ({"path": 3}, "`path` is 3 (integer): give a string"),
        ({"path": "a", "limit": "5"}, "`limit` is '5' (string): give an integer"),
        ({"path": "a", "limit": 0}, "`limit` is 0: it is less than the minimum of 1"),
        ({"path": "a", "unit": "mb"}, "`unit` is 'mb': use one of 'b', 'kb'"),
        ({"path": "a", "deep": {}}, "`deep.n` is missing: give a number"),
        ({"path": "a", "limt": 1}, "'limt' is not an argument of `t`: did you mean `limit`?"),
        (
            {"path": "a", "zzz": 1},
            "'zzz' is not an argument of `t`: it takes `path`, `limit`, `unit`, `deep`",
        ),
    ],
)
def test_a_wrong_argument_is_told_what_to_change(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(ToolRetry) as raised:
        check_arguments(tool(SCHEMA), arguments)

    assert str(raised.value) == f"`t` was not called: {text}"


def test_right_arguments_pass() -> None:
    check_arguments(tool(SCHEMA), {"path": "a", "limit": 5, "unit": "kb", "deep": {"n": 1.5}})


def test_a_tool_that_takes_anything_takes_anything() -> None:
    check_arguments(tool({"type": "object", "additionalProperties": True}), {"whatever": 1})


KINDS = st.sampled_from(["string", "integer", "number", "boolean", "null"])
VALUES = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=3)
)


@given(
    st.dictionaries(st.sampled_from("abc"), KINDS),
    st.frozensets(st.sampled_from("abc")),
    st.dictionaries(st.sampled_from("abcd"), VALUES),
)
@pytest.mark.requirement("schema.dialect")
def test_the_short_way_agrees_with_jsonschema(
    kinds: dict[str, str], required: frozenset[str], arguments: dict[str, Any]
) -> None:
    schema = {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in kinds.items()},
        "required": sorted(required),
        "additionalProperties": False,
    }
    is_right = Draft202012Validator(schema).is_valid(arguments)  # pyright: ignore[reportUnknownMemberType] - untyped there

    try:
        check_arguments(tool(schema), arguments)
        passed = True
    except ToolRetry:
        passed = False

    assert passed == is_right


@pytest.mark.parametrize(
    ("schema", "fault"),
    [
        ([], "not an object"),
        ({"type": "array"}, "type 'array' at its root"),
        ({"type": "object", "properties": {"a": {"type": "strin"}}}, "not valid at"),
        ({"type": "object", "properties": {"a": {"$ref": "http://x/y"}}}, "refers to 'http://x/y'"),
        ({"type": "object", "required": "a"}, "not valid at 'required'"),
    ],
)
@pytest.mark.requirement("schema.unfit")
def test_an_unfit_schema_is_told_why(schema: Any, fault: str) -> None:
    assert fault in (schema_fault(schema) or "")


@pytest.mark.requirement("schema.bounds")
def test_a_schema_of_endless_depth_is_unfit() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100):
        deep = {"type": "object", "properties": {"a": deep}}

    assert "levels" in (schema_fault(deep) or "")


def test_a_recursive_schema_is_fit_and_checked() -> None:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"node": {"$ref": "#/$defs/node"}},
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"next": {"$ref": "#/$defs/node"}, "v": {"type": "integer"}},
            }
        },
    }

    assert schema_fault(schema) is None
    check_arguments(tool(schema), {"node": {"next": {"next": {"v": 1}}}})
    with pytest.raises(ToolRetry, match=r"`node.next.v` is 'x'"):
        check_arguments(tool(schema), {"node": {"next": {"v": "x"}}})


def test_the_types_that_a_schema_takes_are_found_through_unions_and_references() -> None:
    root: dict[str, Any] = {"$defs": {"t": {"type": ["string", "null"]}}}

    assert types_wanted({"$ref": "#/$defs/t"}, root) == {"string", "null"}
    assert types_wanted({"anyOf": [{"type": "array"}, {"const": 1}]}, root) == {"array", "integer"}
    assert types_wanted({"anyOf": [{"type": "array"}, {}]}, root) == frozenset()
    assert types_wanted({}, root) == frozenset()


def test_the_first_uses_may_come_from_many_threads_at_once() -> None:
    """The library imports itself in a circle, which two threads must not walk from two ends."""
    code = """
from threading import Barrier, Thread
from guildry.tools.schema import schema_fault, validator_of
start, found = Barrier(16), []
def use(n):
    start.wait()
    schema = {"type": "object"}
    found.append(schema_fault(schema) is None if n % 2 else validator_of(schema).is_valid({}))
threads = [Thread(target=use, args=(n,)) for n in range(16)]
for each in threads: each.start()
for each in threads: each.join()
print(found.count(True))
"""
    ran = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        for _ in range(3)
    ]

    assert [(each.stdout.strip(), each.stderr) for each in ran] == [("16", "")] * 3

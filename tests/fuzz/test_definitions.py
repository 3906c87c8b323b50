"""Definitions at their worst: what is admitted can be checked against, and nothing is fetched."""

import socket
import threading
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from guildry.errors import ToolRetry
from guildry.tools.base import Call, Outcome, Tool
from guildry.tools.plugs.admission import admit
from guildry.tools.plugs.plug import Loaded
from guildry.tools.plugs.schema_bounds import bounds_fault, is_plainly_right
from guildry.tools.schema import check_arguments, schema_fault

WORDS = [
    "type", "properties", "required", "items", "anyOf", "allOf", "oneOf", "not", "if", "then",
    "enum", "const", "default", "pattern", "patternProperties", "additionalProperties", "format",
    "minimum", "multipleOf", "maxLength", "minItems", "uniqueItems", "$ref", "$defs", "$id",
    "$anchor", "$schema", "$dynamicRef", "definitions", "description", "title", "dependentSchemas",
    "prefixItems", "contains", "propertyNames", "examples", "x-other",
]  # fmt: skip
TEXTS = [
    "string", "object", "array", "integer", "#", "#/$defs/a", "#/properties/a", "#a", "a", "(",
    "^(a+)+$", "http://127.0.0.1:9/x", "https://json-schema.org/draft/2020-12/schema",
    "http://json-schema.org/draft-04/schema#", "\ud800", "",
]  # fmt: skip
leaves = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 3),
    st.floats(allow_nan=True),
    st.sampled_from(TEXTS),
    st.text(max_size=4),
)
names = st.one_of(st.sampled_from(WORDS), st.sampled_from(["a", "b"]))
values = st.recursive(
    leaves,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(names, inner, max_size=4)),
    max_leaves=25,
)
schemas = st.dictionaries(names, values, max_size=5)


async def invoke(arguments: dict[str, Any], call: Call) -> Outcome:
    return Outcome()


def tool(schema: Any, output: Any = None, name: str = "t", description: str = "") -> Tool:
    return Tool(
        name=name,
        plug="p",
        description=description,
        input_schema=schema,
        output_schema=output,
        invoke=invoke,
    )


@given(schemas, st.dictionaries(names, values, max_size=3))
@example({"type": "object", "allOf": [{"$ref": "#"}]}, {})
@example({"type": "object", "properties": {"a": {"$ref": "#/nowhere"}}}, {"a": 1})
@example({"type": "object", "properties": {"a": {"multipleOf": 0}}}, {"a": 1})
@example({"type": "object", "$schema": "http://json-schema.org/draft-04/schema#"}, {"a": 1})
def test_what_is_admitted_can_be_checked_against(schema: Any, arguments: Any) -> None:
    good = tool({"type": "object"}, name="good")

    admitted = admit(Loaded((tool(schema), good)))

    assert "good" in {each.name for each in admitted.tools}
    assert len(admitted.tools) + len(admitted.quarantined) == 2
    for each in admitted.tools:
        try:
            check_arguments(each, arguments)
        except ToolRetry as error:
            assert str(error)


@given(schemas)
def test_what_is_plainly_right_is_right_by_the_schema_of_schemas(schema: Any) -> None:
    if (
        bounds_fault(schema) is None
        and is_plainly_right(schema)
        and schema.get("type")
        in (
            None,
            "object",
        )
    ):
        assert schema_fault(schema) is None


@given(values, st.text(), st.text())
def test_no_definition_breaks_the_admission(schema: Any, name: str, description: str) -> None:
    broken = tool(schema, output=schema, name=name, description=description)

    admitted = admit(Loaded((broken, tool({}, name="good"))))

    assert len(admitted.tools) + len(admitted.quarantined) == 2


def deep(levels: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(levels):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


def laughing(levels: int) -> dict[str, Any]:
    definitions: dict[str, Any] = {
        f"a{n}": {"allOf": [{"$ref": f"#/$defs/a{n + 1}"}] * 2} for n in range(levels)
    }
    root = {"$ref": "#/$defs/a0"}
    return {"type": "object", "$defs": {**definitions, f"a{levels}": {}}, "properties": {"a": root}}


UNBOUNDED: list[tuple[dict[str, Any], str]] = [
    (deep(5_000), "64 levels"),
    ({"type": "object", "properties": {f"p{n}": {} for n in range(50_000)}}, "20000 nodes"),
    ({"type": "object", "description": "x" * 600_000}, "500,000 characters"),
    ({"type": "object", "enum": ["x" * 300_000, "y" * 300_000]}, "500,000 characters"),
    (laughing(40), "steps for one value"),
    ({"type": "object", "$ref": "#"}, "refers to itself without end"),
    ({"type": "object", "properties": {"a": {"$ref": "file:///etc/passwd"}}}, "file:///etc"),
    ({"type": "object", "properties": {"a": {"$ref": "#/$defs/b"}}}, "which is not in it"),
    ({"type": "object", "properties": {"a": {"pattern": r"^(\w+\s?)*$"}}}, "for ever"),
    ({"type": "object", "patternProperties": {"(a*)*b": {}}}, "for ever"),
    ({"type": "object", "properties": {"a": {"pattern": "a" * 3_000}}}, "2,000 characters"),
    ({"type": "object", "properties": {"a": {"pattern": "(" * 400}}}, "/pattern'"),
]


@pytest.mark.parametrize(("schema", "reason"), UNBOUNDED)
def test_a_schema_without_bounds_is_left_out_alone(schema: Any, reason: str) -> None:
    admitted = admit(Loaded((tool(schema), tool({"type": "object"}, name="good"))))

    assert [each.name for each in admitted.tools] == ["good"]
    (left,) = admitted.quarantined
    assert reason in left.reason


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "object", "properties": {"child": {"$ref": "#"}}},
        {"type": "object", "$defs": {"n": {"type": "object", "properties": {"n": {"$ref": "#n"}},
                                           "$anchor": "n"}}, "properties": {"a": {"$ref": "#n"}}},
        {"type": "object", "properties": {"$ref": {"type": "string"}}},
        {"type": "object", "properties": {"a": {"pattern": "^[a-z]+(-[a-z0-9]+)*$"}}},
        {"type": "object", "properties": {"a": {"pattern": r"^([A-Z0-9][A-Z0-9-]*\.)+[A-Z]{2,}$"}}},
        {"type": "object", "properties": {"a": {"prefixItems": [{"type": "string"}]}},
         "$id": "https://example.org/x", "$defs": {"a": True}},
    ],
)  # fmt: skip
def test_what_real_schemas_do_is_admitted(schema: Any) -> None:
    admitted = admit(Loaded((tool(schema, output=schema),)))

    assert admitted.quarantined == ()
    check_arguments(admitted.tools[0], {})


def test_a_schema_of_draft_4_is_checked_as_such() -> None:
    page = {"type": "integer", "minimum": 0, "exclusiveMinimum": True}

    (admitted,) = admit(Loaded((tool({"type": "object", "properties": {"page": page}}),))).tools

    assert admitted.input_schema["$schema"] == "http://json-schema.org/draft-04/schema#"
    check_arguments(admitted, {"page": 1})
    with pytest.raises(ToolRetry, match="`page` is 0"):
        check_arguments(admitted, {"page": 0})


def test_nothing_is_fetched_for_a_schema() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        asked = threading.Event()

        def listen() -> None:
            try:
                server.accept()[0].close()
                asked.set()
            except OSError:  # closed by the test
                pass

        threading.Thread(target=listen, daemon=True).start()
        url = f"http://127.0.0.1:{server.getsockname()[1]}/x"
        for word in ("$ref", "$dynamicRef", "$recursiveRef", "$schema", "$id"):
            for schema in (
                {"type": "object", word: url},
                {"type": "object", "properties": {"a": {word: url, "type": "string"}}},
                {"type": "object", "properties": {"a": {"$id": url, "$ref": "#b"}}},
            ):
                for each in admit(Loaded((tool(schema),))).tools:
                    try:
                        check_arguments(each, {"a": 1})
                    except ToolRetry:
                        pass

        assert not asked.is_set()


def test_a_plug_with_too_many_tools_keeps_as_many_as_there_may_be() -> None:
    offered = tuple(tool({"type": "object"}, name=f"t{n}") for n in range(10_001))

    admitted = admit(Loaded(offered))

    assert len(admitted.tools) == 10_000
    assert [left.reason for left in admitted.quarantined] == ["there are over 10,000: offer fewer"]

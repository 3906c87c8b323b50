"""How tools and results look on the wire."""

import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from guildry.memory.references import INLINE_SHAPE, Reference
from guildry.server.wire import STORED_TOKENS, output_schema, result_to_wire, tool_to_wire
from guildry.tools.base import READS, Call, Embedded, Link, Media, Outcome, Result, Text, Tool
from guildry.tools.results import stored_text

LATEST = "2025-11-25"


def reference(preview: str) -> Reference:
    return Reference(
        id="abcdefghijklmnopqrstuv",
        name="orders_of_the_last_year_by_customer_and_region_with_every_item_12",
        namespace="local",
        media_type="application/vnd.example.orders+json; charset=utf-8",
        size=1_000_000_000,
        digest="sha256:0",
        sketch="{rows: [1200 x {id: int, name: str, price: float, tags: [3 x str]}], total: int}"
        + "…" * 40,
        preview=preview,
        owner="local",
        created_at=0.0,
    )


def stored(preview: str) -> Result:
    kept = reference(preview)
    text = stored_text(kept)
    link = Link(kept.uri, kept.name, kept.media_type, size=kept.size)
    return Result(text, (Text(text), link), references=(kept,), size=kept.size)


@pytest.mark.parametrize("preview", ["x" * 280, '"' * 280, "\n\\" * 140, "é" * 280, ""])
def test_a_stored_answer_costs_at_most_its_limit_whatever_its_preview_holds(preview: str) -> None:
    wire = result_to_wire(stored(preview), LATEST)

    assert len(json.dumps(wire, ensure_ascii=False)) <= STORED_TOKENS * 4
    assert tuple(wire["structuredContent"]) == INLINE_SHAPE
    assert [each["type"] for each in wire["content"]] == ["text", "resource_link"]
    assert preview.startswith(wire["structuredContent"]["preview"])


def test_a_client_from_before_resource_links_gets_text_in_their_place() -> None:
    wire = result_to_wire(stored("abc"), "2025-03-26")

    assert {each["type"] for each in wire["content"]} == {"text"}
    assert "ref://abcdefghijklmnopqrstuv" in wire["content"][1]["text"]


def test_an_answer_of_which_a_part_is_stored_keeps_the_part_that_is_inline() -> None:
    kept = reference("beginning")
    text = f'{stored_text(kept)}\n{{"total":3}}'
    link = Link(kept.uri, kept.name, kept.media_type, size=kept.size)

    wire = result_to_wire(Result(text, (Text(text), link), references=(kept,)), LATEST)

    assert wire["content"][0]["text"] == text
    assert wire["structuredContent"]["uri"] == kept.uri


@pytest.mark.requirement("tools.content")
def test_every_kind_of_block_has_its_form() -> None:
    blocks = (
        Text("hello"),
        Media(b"\x89PNG", "image/png"),
        Media(b"RIFF", "audio/wav"),
        Media(b"%PDF", "application/pdf"),
        Embedded("file:///a", "text/plain", text="inside"),
        Embedded("file:///b", None, data=b"\x00"),
        Link("file:///c", "c", description="there"),
    )

    wire = result_to_wire(Result("hello", blocks), LATEST)

    assert wire == {
        "content": [
            {"type": "text", "text": "hello"},
            {"type": "image", "data": "iVBORw==", "mimeType": "image/png"},
            {"type": "audio", "data": "UklGRg==", "mimeType": "audio/wav"},
            {
                "type": "resource",
                "resource": {
                    "uri": "data:application/pdf",
                    "mimeType": "application/pdf",
                    "blob": "JVBERg==",
                },
            },
            {
                "type": "resource",
                "resource": {"uri": "file:///a", "mimeType": "text/plain", "text": "inside"},
            },
            {"type": "resource", "resource": {"uri": "file:///b", "blob": "AA=="}},
            {"type": "resource_link", "uri": "file:///c", "name": "c", "description": "there"},
        ],
        "isError": False,
    }


@pytest.mark.parametrize(
    ("result", "wire"),
    [
        (Result("", ()), {"content": [], "isError": False}),
        (Result("a", ()), {"content": [{"type": "text", "text": "a"}], "isError": False}),
        (
            Result("no", (Text("no"),), is_error=True),
            {"content": [{"type": "text", "text": "no"}], "isError": True},
        ),
        (
            Result("{}", (Text("{}"),), structured={}, has_structured=True),
            {
                "content": [{"type": "text", "text": "{}"}],
                "isError": False,
                "structuredContent": {},
            },
        ),
        (
            Result("[1]", (Text("[1]"),), structured=[1], has_structured=True),
            {"content": [{"type": "text", "text": "[1]"}], "isError": False},
        ),
    ],
)
def test_a_result_is_told_once(result: Result, wire: dict[str, Any]) -> None:
    assert result_to_wire(result, LATEST) == wire


@pytest.mark.requirement("tools.structured")
def test_the_schema_that_is_told_takes_the_tools_own_answer_and_a_stored_one() -> None:
    schema = {
        "type": "object",
        "properties": {"tree": {"$ref": "#/$defs/node"}},
        "required": ["tree"],
        "$defs": {
            "node": {
                "type": "object",
                "properties": {"children": {"type": "array", "items": {"$ref": "#/$defs/node"}}},
                "required": ["children"],
                "additionalProperties": False,
            }
        },
    }

    told = output_schema(schema)

    assert told is not None
    Draft202012Validator.check_schema(told)
    checks: Any = Draft202012Validator(told)
    valid = checks.is_valid
    assert valid({"tree": {"children": [{"children": []}]}})
    assert valid(reference("abc").as_json())
    assert not valid({"tree": {"children": [{"leaf": 1}]}})
    assert not valid({"reference": "ref:orders"})


def test_a_schema_without_an_object_at_its_root_is_not_told() -> None:
    assert output_schema({"type": "array", "items": {}}) is None


def test_a_tool_is_shown_with_its_effects_as_hints_and_nothing_empty() -> None:
    async def invoke(arguments: dict[str, Any], call: Call) -> Outcome:
        return Outcome()

    tool = Tool(
        name="look",
        plug="mine",
        description="Look.",
        input_schema={"type": "object"},
        invoke=invoke,
        effects=READS,
        annotations={"_meta": {"vendor/key": 1}},
    )

    assert tool_to_wire(tool) == {
        "name": "look",
        "description": "Look.",
        "inputSchema": {"type": "object"},
        "annotations": {
            "readOnlyHint": True,
            "destructiveHint": False,
            "idempotentHint": True,
            "openWorldHint": False,
        },
        "_meta": {"vendor/key": 1},
    }


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('{"a":1,"b":[2]}', "The answer is in `structuredContent`: `a`, `b`."),
        (
            'Found it.\n{"a":1,"b":[2]}',
            "Found it.\nThe answer is in `structuredContent`: `a`, `b`.",
        ),
        ("Something else", "Something else"),
    ],
)
def test_a_structured_answer_goes_once_where_that_is_wanted(text: str, told: str) -> None:
    value = {"a": 1, "b": [2]}
    picture = Media(b"x", "image/png")
    result = Result(text, (Text(text), picture), structured=value, has_structured=True)

    both, once, alone = (result_to_wire(result, LATEST, form) for form in ("both", "once", "text"))

    assert both["content"][0]["text"] == alone["content"][0]["text"] == text
    assert both["structuredContent"] == once["structuredContent"] == value
    assert once["content"] == [{"type": "text", "text": told}, both["content"][1]]
    assert "structuredContent" not in alone


def test_a_structured_answer_with_very_many_members_is_told_in_one_line() -> None:
    value = {f"member_{n}": n for n in range(500)}
    text = json.dumps(value, separators=(",", ":"))
    result = Result(text, (Text(text),), structured=value, has_structured=True)

    once = result_to_wire(result, LATEST, "once")

    assert len(once["content"][0]["text"]) < 250
    assert once["structuredContent"] == value

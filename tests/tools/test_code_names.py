"""How tools look to a program: their names, parameters and stubs, and which calls are awaited."""

import ast
import builtins
import keyword
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildry.tools.base import READS, Call, Outcome, Tool
from guildry.tools.code.awaits import Awaits
from guildry.tools.code.names import function_names, parameters_of
from guildry.tools.code.signatures import signature_of

NAMES = st.from_regex(r"[A-Za-z0-9_-]{1,12}", fullmatch=True) | st.sampled_from(
    ["print", "list", "class", "None", "ref", "a-b", "a_b", "a_b_2", "1st", "_", "open"]
)


async def invoke(arguments: dict[str, Any], call: Call) -> Outcome:
    return Outcome()


def tool(properties: dict[str, Any], *required: str, **more: Any) -> Tool:
    given: dict[str, Any] = {"description": "", **more}
    return Tool(
        name="tool",
        plug="mine",
        input_schema={"type": "object", "properties": properties, "required": list(required)},
        invoke=invoke,
        effects=READS,
        **given,
    )


@given(st.lists(NAMES, unique=True))
def test_each_tool_has_one_function_whose_name_python_takes(names: list[str]) -> None:
    functions = function_names(names)

    assert list(functions.values()) == names
    for function, name in functions.items():
        assert function.isidentifier()
        assert not keyword.iskeyword(function)
        assert function not in dir(builtins)
        if name.isidentifier() and name not in (*keyword.kwlist, *dir(builtins), "ref"):
            assert function == name


def test_names_that_fall_together_are_numbered() -> None:
    assert function_names(["a-b", "a_b", "a+b", "print", "1st"]) == {
        "a_b_2": "a-b",
        "a_b": "a_b",
        "a_b_3": "a+b",
        "print_": "print",
        "_1st": "1st",
    }


KINDS = st.sampled_from(["string", "integer", "number", "boolean", "null", "array", "object", "x"])
SCHEMAS: st.SearchStrategy[Any] = st.recursive(
    st.fixed_dictionaries({}, optional={"type": KINDS, "enum": st.lists(st.text(), max_size=3)}),
    lambda inner: st.fixed_dictionaries(
        {},
        optional={
            "type": KINDS | st.lists(KINDS, min_size=1, max_size=2),
            "items": inner,
            "anyOf": st.lists(inner, max_size=2),
            "properties": st.dictionaries(st.text(max_size=6), inner, max_size=3),
            "required": st.lists(st.text(max_size=6), max_size=2),
            "default": st.none() | st.integers() | st.text(max_size=80),
            "const": st.integers(),
            "$ref": st.sampled_from(["#", "#/properties", "#/$defs/x", "https://x.test/s.json"]),
        },
    ),
    max_leaves=8,
)


@given(st.dictionaries(st.text(max_size=8), SCHEMAS, max_size=5), st.data(), st.text())
def test_every_stub_is_python(properties: dict[str, Any], data: Any, description: str) -> None:
    required: list[str] = [name for name in properties if data.draw(st.booleans())]
    made = tool(
        properties,
        *required,
        description=description,
        output_schema={"type": "object", "properties": properties},
    )
    stub = signature_of(made, "f")

    body = stub if stub.endswith("...") else f"{stub}\n    ..."
    (function,) = ast.parse(body).body
    assert isinstance(function, ast.FunctionDef)
    assert [each.arg for each in function.args.args] == [p.name for p in parameters_of(made)]
    assert len(function.args.defaults) == sum(not p.is_required for p in parameters_of(made))


def test_required_parameters_come_first_and_shapes_are_told() -> None:
    made = tool(
        {
            "limit": {"type": "integer", "default": 10},
            "from": {"type": "string"},
            "filter": {"$ref": "#/$defs/filter"},
            "order": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        },
        "from",
        "filter",
        description='Search """all". And more.',
        output_schema={
            "type": "object",
            "properties": {
                "result": {"type": "array", "items": {"properties": {"id": {"type": "integer"}}}}
            },
        },
    )
    schema = {
        **made.input_schema,
        "$defs": {
            "filter": {
                "type": "object",
                "properties": {"field": {"type": "string"}, "x y": {"type": "number"}},
                "required": ["field"],
            }
        },
    }
    told = signature_of(
        Tool(
            name="t",
            plug="p",
            description=made.description,
            input_schema=schema,
            output_schema=made.output_schema,
            invoke=invoke,
        ),
        "search",
    )

    assert told == (
        "def search(from_: str, filter: dict, limit: int = 10, order: str | None = ...)"
        " -> list[dict]:\n"
        '    """Search \'\'\'all"."""\n'
        '    # filter: {field: str, "x y"?: float}\n'
        "    # returns [{id?: int}]"
    )


@pytest.mark.parametrize(
    ("code", "awaited"),
    [
        ("await f(1)", ["f(1)"]),
        ("x = f(1)\nawait x", ["f(1)"]),
        ("x, y = f(1), g(2)\nawait x", ["f(1)"]),
        ("await asyncio.gather(f(1), *[f(n) for n in r()])", ["f(1)", "f(n)"]),
        ("ts = []\nfor n in r():\n  ts.append(f(n))\nfor t in ts:\n  await t", ["f(n)"]),
        ("d = {k: f(k) for k in r()}\nawait asyncio.gather(*d.values())", ["f(k)"]),
        ("d = {}\nd['a'] = f(1)\nawait d['a']", ["f(1)"]),
        ("t = asyncio.create_task(f(1))\ng(2)\nawait t", ["f(1)"]),
        ("asyncio.run(f('é'))", ["f('é')"]),
        ("await (f(1) if x else g(2))", ["f(1)", "g(2)"]),
        ("rows = f(1)\nfor row in rows:\n  await g(row)", ["g(row)"]),
        ("import asyncio\nf(1)", []),
        ("f(1)\ng(f(2))", []),
        ("f'{f(1)} {'x'}'\nawait f(2)", ["f(2)"]),
    ],
)
def test_calls_are_awaited_where_the_program_awaits_them(code: str, awaited: list[str]) -> None:
    awaits = Awaits(code)
    text = code.encode()

    found = [
        call
        for call in ("f(1)", "g(2)", "f(n)", "f(k)", "f('é')", "g(row)", "r()", "f(2)")
        if (at := text.find(call.encode())) >= 0 and (at, at + len(call.encode())) in awaits
    ]
    assert found == [call for call in found if call in awaited]
    assert set(found) == set(awaited)


@given(st.text(alphabet="awit fgx()[]*,.\n='\"#:\\", max_size=60))
def test_no_text_is_too_odd_to_be_looked_at(code: str) -> None:
    assert isinstance((0, 4) in Awaits(code), bool)


def test_what_is_nested_too_deep_is_decided_by_the_text_before() -> None:
    code = "await f(1)\nx = " + "(" * 3_000 + ")" * 3_000

    assert (6, 10) in Awaits(code)
    assert (20, 30) not in Awaits(code)

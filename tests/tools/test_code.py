"""Programs that a model wrote, through the built-in tools of a real app."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from guildry.server.app import App, open_app
from guildry.server.config import Settings
from guildry.server.surface import build_server
from guildry.tools.asking.board import OpenQuestion
from guildry.tools.asking.questions import Answer
from guildry.tools.base import READS, Call, Effects, Media, Outcome, Result, Text, Tool
from guildry.tools.caller import Caller
from guildry.tools.grants import Grant

pytest.importorskip("pydantic_monty")

TABLE = [{"id": n, "name": f"row {n}", "total": n * 10} for n in range(2_000)]
WRITES = Effects(writes=True, egress=False, destructive=False, idempotent=False)
ME = Caller(Grant.root("local"), "local")

Invoke = Callable[[dict[str, Any], Call], Awaitable[Outcome]]


def tool(name: str, invoke: Invoke, properties: dict[str, Any] | None = None, **more: Any) -> Tool:
    shape = properties or {}
    schema = {
        "type": "object",
        "properties": shape,
        "required": [key for key, each in shape.items() if "default" not in each],
        "additionalProperties": False,
    }
    given: dict[str, Any] = {"plug": "mine", "effects": READS, "description": f"Do {name}.", **more}
    return Tool(name=name, input_schema=schema, invoke=invoke, **given)


async def give_table(arguments: dict[str, Any], call: Call) -> Outcome:
    return Outcome((Text(json.dumps(TABLE)),))


async def count(arguments: dict[str, Any], call: Call) -> Outcome:
    return Outcome((Text(f"{len(arguments['rows'])} rows"),))


async def add(arguments: dict[str, Any], call: Call) -> Outcome:
    return Outcome(
        structured={"result": arguments["a"] + arguments.get("b", 1)}, has_structured=True
    )


TABLES = tool("get-table", give_table)
COUNT = tool("count", count, {"rows": {"type": "array"}})
ADD = tool(
    "add",
    add,
    {"a": {"type": "integer"}, "b": {"type": "integer", "default": 1}},
    output_schema={"type": "object", "properties": {"result": {"type": "integer"}}},
)


@asynccontextmanager
async def opened(folder: Path, *tools: Tool, **settings: Any) -> AsyncGenerator[App]:
    async with open_app(Settings(home=folder / "home", **settings)) as app:
        app.catalog.replace("mine", tools)
        with anyio.fail_after(60):
            await app.ready.wait()
            yield app


async def run(app: App, code: str, caller: Caller = ME, **given: Any) -> Result:
    return await app.dispatch.call(caller, "run_code", {"code": code, **given})


async def value(app: App, code: str, **given: Any) -> Any:
    result = await run(app, code, **given)
    assert not result.is_error, result.text
    return result.structured["result"]


async def test_tools_are_functions_and_the_last_line_is_the_answer(tmp_path: Path) -> None:
    async with opened(tmp_path, ADD, TABLES) as app:
        result = await run(app, "print('adding')\nadd(1, 2) + add(a=3) + add(b=1, a=0)")
        journal = [entry.data for entry in await app.journal.read("local")]

    assert result.structured == {"result": 8, "printed": "adding\n", "calls": 3}
    assert [data["tool"] for data in journal] == ["add", "add", "add", "run_code"]


async def test_a_long_answer_stays_stored_until_it_is_read_in_whole_or_in_parts(
    tmp_path: Path,
) -> None:
    code = """
rows = get_table()
print(rows.reference, rows.sketch)
{
    "counted": count(rows=rows),
    "first": rows.value('#/0'),
    "also": rows.value('/1/id'),
    "dear": rows.value('[?total > `19980`].id'),
    "whole": len(rows.value()),
    "rows": rows,
}
"""
    async with opened(tmp_path, TABLES, COUNT) as app:
        result = await run(app, code)
        later = await value(app, "ref('ref:get-table#/3').value('#/id')")
        given = await value(
            app, "[rows.value('#/5/id'), rows]", references={"rows": "ref:get-table"}
        )

    assert result.structured == {
        "result": {
            "counted": "2000 rows",
            "first": TABLE[0],
            "also": 1,
            "dear": [1999],
            "whole": 2_000,
            "rows": "ref:get-table",
        },
        "printed": "ref:get-table [2000 x {id: int, name: str, total: int}]\n",
        "calls": 2,
    }
    assert later == 3
    assert given == [5, "ref:get-table"]


async def test_a_wrapped_answer_is_the_same_bare_value_whether_it_is_long_or_short(
    tmp_path: Path,
) -> None:
    async def give(arguments: dict[str, Any], call: Call) -> Outcome:
        return Outcome(structured={"result": TABLE[: arguments["n"]]}, has_structured=True)

    schema = {"type": "object", "properties": {"result": {"type": "array"}}}
    give_tool = tool("give", give, {"n": {"type": "integer"}}, output_schema=schema)
    async with opened(tmp_path, give_tool, COUNT) as app:
        short = await value(app, "rows = give(2)\n[len(rows), count(rows)]")
        long = await value(
            app,
            "rows = give(1500)\n[len(rows.value()), rows.value('#/7/id'), count(rows),"
            " rows.value('?query=[9].id')]",
        )

    assert short == [2, "2 rows"]
    assert long == [1_500, 7, "1500 rows", 9]


async def test_awaited_calls_run_side_by_side_and_plain_ones_one_after_another(
    tmp_path: Path,
) -> None:
    began: list[str] = []
    all_began = anyio.Event()

    async def meet(arguments: dict[str, Any], call: Call) -> Outcome:
        began.append(arguments["who"])
        if len(began) == 3:
            all_began.set()
        await all_began.wait()
        return Outcome((Text(arguments["who"].upper()),))

    code = """
import asyncio

async def one(who):
    return await meet(who)

tasks = [meet(who=x) for x in "ab"]
print(await asyncio.gather(*tasks, one("c")))
first = await meet("d")
second = meet("e")
[first, second]
"""
    async with opened(tmp_path, tool("meet", meet, {"who": {"type": "string"}})) as app:
        result = await run(app, code)

    assert result.structured["result"] == ["D", "E"]
    assert result.structured["printed"] == "['A', 'B', 'C']\n"
    assert began[3:] == ["d", "e"]


async def test_awaited_calls_of_one_plug_keep_their_order_when_one_may_write(
    tmp_path: Path,
) -> None:
    at_work: list[str] = []
    overlaps: list[str] = []

    async def write(arguments: dict[str, Any], call: Call) -> Outcome:
        overlaps.extend(at_work)
        at_work.append(arguments["text"])
        await anyio.lowlevel.checkpoint()
        at_work.remove(arguments["text"])
        return Outcome((Text(arguments["text"]),))

    write_tool = tool("write", write, {"text": {"type": "string"}}, effects=WRITES)
    code = "import asyncio\nawait asyncio.gather(*[write(str(n)) for n in range(5)])"
    async with opened(tmp_path, write_tool) as app:
        assert await value(app, code) == ["0", "1", "2", "3", "4"]

    assert overlaps == []


async def test_a_program_has_what_its_caller_was_granted_and_nothing_else(tmp_path: Path) -> None:
    mine = Grant.root("local", tools=("run_code", "add"))
    async with opened(tmp_path, ADD, TABLES) as app:
        caller = Caller(mine, "local")
        allowed = await run(app, "add(1)", caller)
        refused = await run(app, "get_table()", caller)
        forged = await run(app, "ref('ref://' + 'a' * 22)", caller)
        unknown = await run(app, "adds(1)", caller)
        with pytest.raises(Exception, match="run_code"):
            await run(app, "1", Caller(Grant.root("local", tools=("add",)), "local"))

    assert allowed.structured["result"] == 2
    assert "there is no function `get_table` here" in refused.text
    assert "there is no reference" in forged.text
    assert "did you mean `add`" in unknown.text


async def test_an_agents_program_reads_what_the_agent_may_read(tmp_path: Path) -> None:
    grant = ME.grant.narrow("r1/1", tools=("run_code", "get-table"))
    agent = Caller(grant, "r1")
    async with opened(tmp_path, TABLES) as app:
        await app.objects.put(
            b"[1]", media_type="application/json", name="mine", namespace="local", owner="local"
        )
        own = await run(app, "rows = get_table()\n[rows, rows.value('#/0/id')]", agent)
        foreign = await run(app, "ref('ref:mine').value()", agent)
        (kept,) = await app.objects.listing(namespace="r1")

    assert own.structured["result"] == ["ref:get-table", 0]
    assert kept.owner == "r1/1"
    assert "there is no reference 'ref:mine'" in foreign.text


async def test_calls_of_a_program_are_charged_to_its_callers_budget(tmp_path: Path) -> None:
    class Meter:
        calls = 0

        def charge_call(self) -> None:
            self.calls += 1

    meter = Meter()
    async with opened(tmp_path, ADD) as app:
        result = await run(app, "[add(n) for n in range(4)]", Caller(ME.grant, "local", meter))

    assert result.structured == {"result": [1, 2, 3, 4], "calls": 4}
    assert meter.calls == 5


async def test_what_is_wrong_is_told_with_its_line_and_the_cure(tmp_path: Path) -> None:
    async with opened(tmp_path, ADD, TABLES) as app:
        for code, *words in (
            ("x = 1\ny = ad(x)", "line 2: `y = ad(x)`", "did you mean `add`?"),
            ("f = ad", "line 1", "did you mean `add`?"),
            ("add(1, 2, 3)", "add() takes a, b: 3 values were given"),
            ("add(1, a=2)", "`a` twice"),
            ("add()", "`a` is missing"),
            ("add(a=1, c=2)", "'c' is not an argument"),
            ("def f():\n  return 1 / 0\nf()", "line 2 (called from line 3)", "division by zero"),
            ("x = (", "line 1", "EOF"),
            ("yield 1", "this Python has no yield"),
            ("class A(Exception): pass", "this Python has no class inheritance"),
            ("import socket", "No module named 'socket'", "a program has these modules: asyncio"),
            ("get_table()[0]", "not subscriptable", "`.value('#/rows/0')`"),
            ("len(get_table())", "'Ref'", "`.value()`"),
            ("get_table().value('#/x')", "there is no item 'x'"),
            ("get_table().rows()", "it has `value(selector)`"),
            ("list(map(add, [1]))", "in a loop or a comprehension"),
            ("ref(1)", "takes one text such as 'ref:name'"),
            ("x = add(1)\nawait x.y", "line 2"),
            ("run_code(code='1')", "there is no function `run_code` here"),
            ("call_tool('run_code', {'code': '1'})", "a program cannot run another"),
        ):
            result = await run(app, code)
            assert result.is_error, code
            for word in words:
                assert word in result.text, (code, result.text)


async def test_an_error_of_a_tool_can_be_caught_and_what_was_done_is_told(tmp_path: Path) -> None:
    async def refuse(arguments: dict[str, Any], call: Call) -> Outcome:
        return Outcome((Text("the shop is closed"),), is_error=True)

    async def note(arguments: dict[str, Any], call: Call) -> Outcome:
        return Outcome((Text("noted"),))

    tools = tool("refuse", refuse), tool("note", note, effects=WRITES)
    async with opened(tmp_path, *tools) as app:
        caught = await value(
            app, "try:\n    refuse()\nexcept RuntimeError as e:\n    x = str(e)\nx"
        )
        failed = await run(app, "print('hello')\nnote()\nrefuse()")

    assert caught == "the shop is closed"
    assert failed.is_error
    assert "line 3: `refuse()`: RuntimeError: the shop is closed" in failed.text
    assert "made before, and stay done: `note`" in failed.text
    assert "Printed: hello" in failed.text


async def test_every_kind_of_value_comes_out_as_json(tmp_path: Path) -> None:
    code = """
from datetime import date, datetime, timedelta
from decimal import Decimal
from dataclasses import dataclass

@dataclass
class Point:
    x: int
    y: list

[
    (1, 2), {3}, b"ab", {1: None, "b": 2.5}, float("nan"), date(2026, 1, 2),
    datetime(2026, 1, 2, 3), timedelta(seconds=90), Decimal("1.50"), Point(1, [2]),
    ValueError("no"), "\\u00fc", -0.5,
]
"""
    async with opened(tmp_path) as app:
        assert await value(app, code) == [
            [1, 2],
            [3],
            "YWI=",
            {"1": None, "b": 2.5},
            "nan",
            "2026-01-02",
            "2026-01-02T03:00:00",
            90.0,
            "1.50",
            {"x": 1, "y": [2]},
            "no",
            "ü",
            -0.5,
        ]
        assert (await run(app, "x = 1")).structured == {"result": None}


async def test_media_and_texts_reach_a_program_as_references_and_values(tmp_path: Path) -> None:
    async def picture(arguments: dict[str, Any], call: Call) -> Outcome:
        return Outcome((Media(b"\x89PNG", "image/png"),))

    async def both(arguments: dict[str, Any], call: Call) -> Outcome:
        return Outcome((Text("two:"), Media(b"1", "image/png"), Media(b"2", "image/png")))

    async with opened(tmp_path, tool("picture", picture), tool("both", both)) as app:
        one = await value(app, "p = picture()\n[p.media_type, p.size, p.value(), p]")
        many = await value(app, "x = both()\n[x['text'][:4], [r.value() for r in x['references']]]")

    assert one == ["image/png", 4, "iVBORw==", "ref:picture"]
    assert many == ["two:", ["MQ==", "Mg=="]]


async def test_what_a_program_returns_goes_through_the_result_contract(tmp_path: Path) -> None:
    async with opened(tmp_path, TABLES) as app:
        long = await run(app, "[n for n in range(5000)]")
        whole = await run(app, "get_table()")
        again = await value(app, "ref('ref:run_code').value('#/result/4999')")

    assert long.references[0].short == "ref:run_code"
    assert len(long.text) < 1_000
    assert whole.structured == {
        "result": "ref:get-table",
        "sketch": "[2000 x {id: int, name: str, total: int}]",
        "calls": 1,
    }
    assert again == 4_999


async def test_a_person_is_asked_about_a_call_within_a_program(tmp_path: Path) -> None:
    asked: list[OpenQuestion] = []

    async def allow(app: App) -> None:
        for question in await app.board.open(principal="local"):
            asked.append(question)
            await app.board.answer(question.id, Answer("accept", by="local"), principal="local")

    async with opened(tmp_path, ADD, ask_first=["add"]) as app:
        async with anyio.create_task_group() as tasks:

            def hear(question: OpenQuestion, is_open: bool) -> None:
                if is_open:
                    tasks.start_soon(allow, app)

            app.board.listen(hear)
            result = await value(app, "add(1, 2)")
            assert result == 3

    (question,) = [each.question for each in asked]
    assert question.chain[0] == "local"
    assert question.chain[1].startswith("code-")
    assert not question.repeatable


async def test_a_client_runs_a_program_like_any_tool(tmp_path: Path) -> None:
    async with opened(tmp_path, ADD) as app, Client(build_server(app)) as client:
        listed = {each.name for each in (await client.list_tools()).tools}
        result = await client.call_tool("run_code", {"code": "add(20, 22)"})
        wrong = await client.call_tool("run_code", {"code": "ad(1)"})

    assert {"run_code", "code_signatures", "add"} <= listed
    assert result.structured_content == {"result": 42, "calls": 1}
    assert wrong.is_error


async def test_what_untrusted_tools_answered_labels_the_answer_of_the_program(
    tmp_path: Path,
) -> None:
    web = tool("web", give_table, effects=Effects(writes=False, destructive=False))
    async with opened(tmp_path, web) as app:
        read = await run(app, "web().value('#/0/name')")
        unread = await run(app, "1")

    assert "untrusted:mine" in read.labels
    assert "untrusted:mine" not in unread.labels


async def test_signatures_are_short_stubs_of_what_the_caller_may_call(tmp_path: Path) -> None:
    schema = {
        "type": "object",
        "properties": {
            "hits": {
                "type": "array",
                "items": {"type": "object", "properties": {"id": {"type": "integer"}}},
            }
        },
        "required": ["hits"],
    }
    find = tool(
        "find-it",
        add,
        {
            "class": {"enum": ["a", "b"]},
            "x-id": {"type": ["string", "null"], "default": None},
            "tags": {"type": "array", "items": {"type": "string"}, "default": []},
        },
        output_schema=schema,
        description="Find it. Then more.",
    )
    async with opened(tmp_path, ADD, find) as app:
        named = await app.dispatch.call(ME, "code_signatures", {"names": ["find-it", "add"]})
        every = await app.dispatch.call(ME, "code_signatures", {})
        unknown = await app.dispatch.call(ME, "code_signatures", {"names": ["ad"]})

    assert named.text == (
        "def find_it(class_: Literal['a', 'b'], x_id: str | None = None,"
        " tags: list[str] = []) -> dict:\n"
        '    """Find it."""\n'
        "    # returns {hits: [{id?: int}]}\n"
        "def add(a: int, b: int = 1) -> int:\n"
        '    """Do add."""'
    )
    assert "def find_tools(" in every.text
    assert "run_code" not in every.text.replace("`run_code`", "")
    assert "did you mean `add`" in unknown.text


async def test_signatures_that_do_not_fit_are_named_at_least(tmp_path: Path) -> None:
    many = [tool(f"tool-{n}", add, {f"parameter_{m}": {} for m in range(9)}) for n in range(60)]
    async with opened(tmp_path, *many) as app:
        told = await app.dispatch.call(ME, "code_signatures", {})

    assert len(told.text) < 4_000
    assert told.references == ()
    assert "# to be asked for by name: tool_" in told.text


async def test_a_table_goes_through_three_tools_without_passing_the_model(tmp_path: Path) -> None:
    rows = [{"id": n, "name": f"row {n}", "total": n * 10, "tag": "x" * 60} for n in range(1_800)]

    async def give(arguments: dict[str, Any], call: Call) -> Outcome:
        return Outcome((Text(json.dumps(rows)),))

    async def dear(arguments: dict[str, Any], call: Call) -> Outcome:
        kept = [row for row in arguments["rows"] if row["total"] >= arguments["least"]]
        return Outcome((Text(json.dumps(kept)),))

    tools = (
        tool("orders", give),
        tool("dear", dear, {"rows": {"type": "array"}, "least": {"type": "integer"}}),
        COUNT,
    )
    code = "count(rows=dear(rows=orders(), least=9000))"
    async with opened(tmp_path, *tools) as app:
        result = await run(app, code)
        stored = await app.objects.listing(namespace="local")

    by_value = sum(each.size for each in stored) * 2  # read by the model, and written by it
    assert result.structured == {"result": "900 rows", "calls": 3}
    assert by_value > 2_000 * (len(code) + len(result.text))


async def test_without_the_setting_there_are_no_programs(tmp_path: Path) -> None:
    async with opened(tmp_path, code=False) as app:
        assert not {"run_code", "code_signatures"} & set(app.catalog.current.tools)

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import anyio
import pytest

from guildry.errors import BudgetExceeded, ToolFailed
from guildry.memory.journal import Journal
from guildry.memory.ledger import EffectLedger
from guildry.memory.objects import ObjectStore
from guildry.memory.questions import QuestionStore
from guildry.memory.references import INLINE_SHAPE
from guildry.memory.store import Store
from guildry.tools.asking.board import QuestionBoard
from guildry.tools.asking.questions import Answer, Question
from guildry.tools.base import (
    READS,
    REFERENCE_FORMAT,
    Call,
    Effects,
    Embedded,
    Invoke,
    Link,
    Media,
    Outcome,
    Text,
    Tool,
)
from guildry.tools.caller import Caller
from guildry.tools.dispatch import Dispatch, Intent
from guildry.tools.grants import Grant
from guildry.tools.registry import Catalog, UnknownTool
from guildry.tools.results import BYTES_PER_TOKEN, size_of

TABLE = [{"id": n, "name": f"row {n}", "total": n * 10} for n in range(2_000)]


@dataclass
class Gate:
    """Dispatch over a real store, with tools that are functions of their arguments."""

    catalog: Catalog
    objects: ObjectStore
    journal: Journal
    ledger: EffectLedger
    dispatch: Dispatch

    def plug(
        self,
        name: str,
        invoke: Invoke,
        properties: dict[str, Any] | None = None,
        effects: Effects = READS,
        **more: Any,
    ) -> None:
        tool = Tool(
            name=name,
            plug=name,
            description="",
            input_schema={
                "type": "object",
                "properties": properties or {},
                "required": list(properties or {}),
            },
            invoke=invoke,
            effects=effects,
            **more,
        )
        self.catalog.replace(name, [tool])


@asynccontextmanager
async def gate(folder: Path, **options: Any) -> AsyncGenerator[Gate]:
    async with Store.open(folder / "guildry.db") as store:
        catalog = Catalog()
        objects = ObjectStore(store, folder / "objects")
        journal, ledger = Journal(store), EffectLedger(store)
        dispatch = Dispatch(catalog, objects, journal, ledger, **options)
        with anyio.fail_after(20):
            yield Gate(catalog, objects, journal, ledger, dispatch)


@asynccontextmanager
async def asking_gate(
    folder: Path, wait_s: float = 3_600.0, **options: Any
) -> AsyncGenerator[tuple[Gate, QuestionBoard]]:
    async with Store.open(folder / "questions.db") as store:
        board = QuestionBoard(QuestionStore(store), wait_s=wait_s)
        async with gate(folder, board=board, **options) as g:
            yield g, board


ME = Caller(Grant.root("local"), "local")


def child(*tools: str, holder: str = "r1/1", **granted: Any) -> Caller:
    return Caller(Grant.root("local").narrow(holder, tools=tools, **granted), "r1")


async def give_table(_: dict[str, Any], __: Call) -> Outcome:
    return Outcome((Text(json.dumps(TABLE)),))


async def count(arguments: dict[str, Any], _: Call) -> Outcome:
    return Outcome((Text(str(len(arguments["rows"]))),))


async def echo(arguments: dict[str, Any], _: Call) -> Outcome:
    return Outcome((Text(repr(arguments.get("text"))),))


async def test_a_long_answer_is_stored_and_its_name_is_enough_for_the_next_tool(
    tmp_path: Path,
) -> None:
    async with gate(tmp_path) as g:
        g.plug("table", give_table)
        g.plug("count", count, {"rows": {"type": "array"}})

        made = await g.dispatch.call(ME, "table", {})
        counted = await g.dispatch.call(ME, "count", {"rows": "ref:table"})

        assert counted.text == "2000"
        assert size_of(made.text) / BYTES_PER_TOKEN < 200
        assert made.size == len(json.dumps(TABLE))
        assert made.saved_tokens > 10_000
        assert await g.objects.value(made.references[0]) == TABLE
        assert tuple(made.references[0].as_json()) == INLINE_SHAPE


@pytest.mark.parametrize(
    ("schema", "reference", "given"),
    [
        ({"type": "array"}, "ref:table#/0/name", None),
        ({"type": "string"}, "ref:table#/0/name", "row 0"),
        ({"type": "integer"}, "ref:table#/3/total", 30),
        ({"type": "number"}, "ref:table#/3/total", 30),
        ({"type": "string"}, "ref:table#/3/total", "30"),
        ({"type": ["integer", "null"]}, "ref:table?query=[?id==`7`].total | [0]", 70),
        ({"anyOf": [{"type": "object"}]}, "ref:table#/1", TABLE[1]),
        ({}, "ref:table#/1", TABLE[1]),
        ({"type": "string"}, "ref:table#/1", '{"id":1,"name":"row 1","total":10}'),
        ({"type": "string", "format": REFERENCE_FORMAT}, "ref:table", "ref:table"),
        ({"type": "array", "items": {"type": "integer"}}, ["ref:table#/2/total"], [20]),
        ({"type": "string"}, "ref: not one", "ref: not one"),
    ],
)
async def test_a_reference_becomes_what_the_schema_wants(
    tmp_path: Path, schema: dict[str, Any], reference: Any, given: Any
) -> None:
    async with gate(tmp_path) as g:
        g.plug("table", give_table)
        g.plug("show", echo, {"text": schema})
        await g.dispatch.call(ME, "table", {})

        result = await g.dispatch.call(ME, "show", {"text": reference})

        if given is None:
            assert result.is_error
            assert "`text` takes array, and `ref:table#/0/name` is string" in result.text
        else:
            assert result.text == repr(given)


async def test_a_text_becomes_json_where_the_tool_wants_a_list(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        g.plug("count", count, {"rows": {"type": "array"}})
        await g.objects.put(
            b"[1, 2]", media_type="text/plain", name="list", namespace="local", owner="local"
        )

        assert (await g.dispatch.call(ME, "count", {"rows": "ref:list"})).text == "2"


async def test_forged_foreign_and_unknown_references_fail_in_the_same_way(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        g.plug("table", give_table)
        g.plug("count", count, {"rows": {"type": "array"}})
        mine = (await g.dispatch.call(child("table", holder="r1/1"), "table", {})).references[0]
        other = child("count", holder="r1/2")

        told = [
            (await g.dispatch.call(other, "count", {"rows": text})).text.replace(text, "X")
            for text in ("ref:table", "ref:unknown", mine.uri, "ref://" + "A" * 22)
        ]

        assert set(told) == {"there is no reference 'X' here: use one that you were given"}


async def test_what_was_passed_to_a_child_can_be_read_by_it(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        g.plug("table", give_table)
        g.plug("count", count, {"rows": {"type": "array"}})
        made = (await g.dispatch.call(child("table", holder="r1/1"), "table", {})).references[0]
        other = child("count", holder="r1/2", references={made.id}, may_read={made.id})

        assert (await g.dispatch.call(other, "count", {"rows": "ref:table"})).text == "2000"
        assert (await g.dispatch.call(other, "count", {"rows": made.uri})).text == "2000"


@pytest.mark.requirement("tools.access")
async def test_what_was_not_granted_is_unknown_and_what_is_plugged_later_is_not_shown(
    tmp_path: Path,
) -> None:
    async with gate(tmp_path) as g:
        g.plug("echo", echo, {"text": {"type": "string"}})
        g.plug("table", give_table)
        g.plug("rule", echo, scope="admin")

        with pytest.raises(UnknownTool, match="there is no tool 'table' here"):
            await g.dispatch.call(child("echo"), "table", {})
        with pytest.raises(UnknownTool):
            await g.dispatch.call(ME, "nothing", {})
        with pytest.raises(UnknownTool):
            await g.dispatch.call(ME, "rule", {})
        with pytest.raises(UnknownTool):
            await g.dispatch.call(child("rule"), "rule", {})


@pytest.mark.requirement("tools.checked")
async def test_a_wrong_argument_is_told_before_the_tool_runs(tmp_path: Path) -> None:
    ran: list[str] = []

    async def note(arguments: dict[str, Any], _: Call) -> Outcome:
        ran.append(arguments["text"])
        return Outcome()

    async with gate(tmp_path) as g:
        g.plug("note", note, {"text": {"type": "string"}})

        result = await g.dispatch.call(ME, "note", {"txet": "a", "text": 3})

        assert result.is_error
        assert result.text == (
            "`note` was not called: 'txet' is not an argument of `note`: did you mean `text`?;"
            " `text` is 3 (integer): give a string"
        )
        assert ran == []


async def test_a_crash_hides_its_inside_and_a_tools_own_error_is_told(tmp_path: Path) -> None:
    async def crash(_: dict[str, Any], __: Call) -> Outcome:
        raise KeyError("secret-in-a-traceback")

    async def refuse(_: dict[str, Any], __: Call) -> Outcome:
        raise ToolFailed("the shop is closed: come back on Monday")

    async with gate(tmp_path) as g:
        g.plug("crash", crash)
        g.plug("refuse", refuse)

        crashed = await g.dispatch.call(ME, "crash", {})
        refused = await g.dispatch.call(ME, "refuse", {})

        assert crashed.is_error
        assert "KeyError" in crashed.text
        assert "secret" not in crashed.text
        assert refused.text == "the shop is closed: come back on Monday"


async def test_a_call_that_gives_no_answer_is_stopped_and_told(tmp_path: Path) -> None:
    stopped = anyio.Event()

    async def hang(_: dict[str, Any], __: Call) -> Outcome:
        try:
            await anyio.sleep_forever()
        finally:
            stopped.set()
        return Outcome()

    async with gate(tmp_path, call_timeout_s=0.01) as g:
        g.plug("hang", hang)

        result = await g.dispatch.call(ME, "hang", {})

        assert stopped.is_set()
        assert "gave no answer within 0.01 s and was stopped" in result.text


async def test_a_deadline_in_the_grant_ends_a_call_as_well(tmp_path: Path) -> None:
    async def hang(_: dict[str, Any], __: Call) -> Outcome:
        await anyio.sleep_forever()
        return Outcome()

    async with gate(tmp_path) as g:
        g.plug("hang", hang)

        result = await g.dispatch.call(child("hang", deadline=anyio.current_time()), "hang", {})

        assert "gave no answer within 0 s" in result.text


class OneCall:
    """A meter with one call in it."""

    def __init__(self) -> None:
        self.left = 1

    def charge_call(self) -> None:
        if not self.left:
            raise BudgetExceeded("calls", 1, 1)
        self.left -= 1


async def test_a_refused_call_costs_nothing_and_a_spent_budget_refuses(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        g.plug("echo", echo, {"text": {"type": "string"}})
        caller = replace(ME, meter=OneCall())

        refused = await g.dispatch.call(caller, "echo", {})
        served = await g.dispatch.call(caller, "echo", {"text": "a"})
        spent = await g.dispatch.call(caller, "echo", {"text": "a"})

        assert (refused.is_error, served.is_error, spent.is_error) == (True, False, True)
        assert "the budget of 1 calls is spent" in spent.text


async def test_every_call_is_in_the_journal_with_what_came_of_it(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        g.plug("table", give_table)
        g.plug("count", count, {"rows": {"type": "array"}})
        made = await g.dispatch.call(ME, "table", {})
        await g.dispatch.call(ME, "count", {"rows": "ref:table"})
        await g.dispatch.call(ME, "count", {"rows": 1})

        entries = await g.journal.read("local")

        assert [(e.kind, e.data["tool"], e.data["status"]) for e in entries] == [
            ("tool", "table", "ok"),
            ("tool", "count", "ok"),
            ("tool", "count", "refused"),
        ]
        assert entries[0].data["reference"] == made.references[0].id
        assert entries[0].data["saved_tokens"] == made.saved_tokens
        assert list(entries[1].data["read"]) == [made.references[0].id]
        assert entries[1].data["arguments"] == {"rows": "ref:table"}


async def test_a_cancelled_call_is_in_the_journal_too(tmp_path: Path) -> None:
    started = anyio.Event()

    async def hang(_: dict[str, Any], __: Call) -> Outcome:
        started.set()
        await anyio.sleep_forever()
        return Outcome()

    async with gate(tmp_path) as g:
        g.plug("hang", hang)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(g.dispatch.call, ME, "hang", dict[str, Any]())
            await started.wait()
            tasks.cancel_scope.cancel()

        assert [entry.data["status"] for entry in await g.journal.read("local")] == ["cancelled"]


async def test_a_durable_call_that_writes_is_in_the_ledger_before_it_runs(tmp_path: Path) -> None:
    seen: list[int] = []

    async with gate(tmp_path) as g:

        async def pay(_: dict[str, Any], __: Call) -> Outcome:
            seen.append(len(await g.ledger.unsettled("r1")))
            return Outcome((Text("paid"),))

        g.plug("pay", pay, effects=Effects())
        g.plug("look", pay, effects=READS)
        caller = replace(child("pay", "look"), durable=True)

        await g.dispatch.call(caller, "pay", {})
        await g.dispatch.call(caller, "look", {})

        assert seen == [1, 0]
        assert await g.ledger.unsettled("r1") == []


async def test_a_guard_sees_what_the_caller_wrote_and_what_the_tool_gets(tmp_path: Path) -> None:
    seen: list[Intent] = []

    async def guard(intent: Intent) -> None:
        seen.append(intent)
        raise ToolFailed("not today")

    async with gate(tmp_path, guards=[guard]) as g:
        g.plug("count", count, {"rows": {"type": "array"}})
        kept = await g.objects.put(
            b"[1, 2]", media_type="application/json", name="list", namespace="local", owner="local"
        )
        meter = OneCall()
        caller = replace(ME, meter=meter)

        refused = await g.dispatch.call(caller, "count", {"rows": "ref:list"})

        (intent,) = seen
        assert refused.text == "not today"
        assert dict(intent.arguments) == {"rows": "ref:list"}
        assert dict(intent.given) == {"rows": [1, 2]}
        assert (intent.references, intent.tool.name, intent.caller) == ((kept,), "count", caller)
        assert meter.left == 1
        assert [each.data["status"] for each in await g.journal.read("local")] == ["refused"]


async def test_a_tool_asks_and_its_time_stands_still_while_it_waits(tmp_path: Path) -> None:
    """The limit is shorter than what the first answer takes; the second question waits inside."""
    question = Question(key="k", kind="approval", message="Go on?")

    async def careful(_: dict[str, Any], call: Call) -> Outcome:
        said = list[Answer]()

        async def ask() -> None:
            said.append(await call.ask(question))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            tasks.start_soon(ask)
        return Outcome((Text(" ".join(each.by for each in said)),))

    async with asking_gate(tmp_path, wait_s=0.2, call_timeout_s=0.05) as (g, board):
        g.plug("careful", careful)
        told: list[tuple[str, str]] = []
        board.listen(lambda asked, _: told.append((asked.question.tool, asked.question.plug)))

        result = await g.dispatch.call(ME, "careful", {})

        assert result.text == "deadline deadline"
        assert set(told) == {("careful", "careful")}


async def test_a_tool_that_hangs_after_its_question_is_stopped_in_its_own_time(
    tmp_path: Path,
) -> None:
    async def hang(_: dict[str, Any], call: Call) -> Outcome:
        await call.ask(Question(key="k", kind="approval", message="Go on?"))
        await anyio.sleep_forever()
        return Outcome()

    async with asking_gate(tmp_path, wait_s=0.05, call_timeout_s=0.02) as (g, _):
        g.plug("hang", hang)

        result = await g.dispatch.call(ME, "hang", {})

        assert "gave no answer within 0.02 s" in result.text


async def test_the_grants_deadline_goes_on_while_a_tool_asks(tmp_path: Path) -> None:
    async def careful(_: dict[str, Any], call: Call) -> Outcome:
        answer = await call.ask(Question(key="k", kind="approval", message="Go on?"))
        return Outcome((Text(answer.by),))

    async with asking_gate(tmp_path) as (g, board):
        g.plug("careful", careful)
        caller = child("careful", deadline=anyio.current_time() + 0.1)

        result = await g.dispatch.call(caller, "careful", {})

        assert result.text == "deadline" or "gave no answer" in result.text
        assert await board.open() == []


async def test_where_there_is_no_board_nobody_can_be_asked(tmp_path: Path) -> None:
    async def look(_: dict[str, Any], call: Call) -> Outcome:
        return Outcome((Text(str(call.ask)),))

    async with gate(tmp_path) as g:
        g.plug("look", look)

        assert (await g.dispatch.call(ME, "look", {})).text == "None"


async def test_data_and_text_that_say_the_same_reach_a_model_once(tmp_path: Path) -> None:
    async def both(_: dict[str, Any], __: Call) -> Outcome:
        return Outcome((Text('{\n  "n": 1\n}'),), structured={"n": 1}, has_structured=True)

    async def wrapped(_: dict[str, Any], __: Call) -> Outcome:
        return Outcome((Text("hello"),), structured={"result": "hello"}, has_structured=True)

    async def apart(_: dict[str, Any], __: Call) -> Outcome:
        return Outcome((Text("one row"),), structured={"n": 1}, has_structured=True)

    async with gate(tmp_path) as g:
        g.plug("both", both)
        g.plug("wrapped", wrapped)
        g.plug("apart", apart)

        texts = [
            (await g.dispatch.call(ME, name, {})).text for name in ("both", "wrapped", "apart")
        ]

        assert texts == ['{"n":1}', '{"result":"hello"}', 'one row\n{"n":1}']


async def test_only_the_long_part_of_an_answer_is_stored(tmp_path: Path) -> None:
    async def answer(_: dict[str, Any], __: Call) -> Outcome:
        return Outcome((Text("2000 rows"),), structured={"rows": TABLE}, has_structured=True)

    async with gate(tmp_path) as g:
        g.plug("rows", answer)

        result = await g.dispatch.call(ME, "rows", {})

        assert result.text.startswith("2000 rows\n[stored as ref:rows: application/json")
        assert [type(block) for block in result.blocks] == [Text, Link]
        assert await g.objects.select(result.references[0], "#/rows/1/total") == 10


async def test_a_model_gets_an_image_as_a_reference_and_a_client_as_it_is(tmp_path: Path) -> None:
    picture = Media(b"\x89PNG....", "image/png")

    async def draw(_: dict[str, Any], __: Call) -> Outcome:
        return Outcome((Text("drawn"), picture, Embedded("file:///a", text="inside")))

    async with gate(tmp_path) as g:
        g.plug("draw", draw)

        for_model = await g.dispatch.call(ME, "draw", {})
        for_client = await g.dispatch.call(replace(ME, for_model=False), "draw", {})

        assert for_model.text == "drawn\n[image/png, 8 bytes: ref:draw]\ninside"
        assert await g.objects.read(for_model.references[0]) == picture.data
        assert for_client.blocks == (
            Text("drawn"), picture, Embedded("file:///a", text="inside"),
        )  # fmt: skip


async def test_labels_travel_with_what_was_read(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        g.plug("fetch", give_table, effects=replace(READS, egress=True))
        g.plug("copy", give_table, {"rows": {"type": "array"}})
        await g.dispatch.call(ME, "fetch", {})

        copied = await g.dispatch.call(ME, "copy", {"rows": "ref:fetch"})

        assert copied.references[0].labels == {"untrusted:fetch", "plug:copy"}


async def test_concurrent_calls_get_their_own_answers(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        g.plug("echo", echo, {"text": {"type": "string"}})
        answers: dict[int, str] = {}

        async def ask(n: int) -> None:
            answers[n] = (await g.dispatch.call(ME, "echo", {"text": str(n)})).text

        async with anyio.create_task_group() as tasks:
            for n in range(200):
                tasks.start_soon(ask, n)

        assert answers == {n: repr(str(n)) for n in range(200)}


async def test_bytes_are_passed_on_as_base64(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        g.plug("show", echo, {"text": {"type": "string"}})
        await g.objects.put(
            b"\x89PNG", media_type="image/png", name="dot", namespace="local", owner="local"
        )

        assert (await g.dispatch.call(ME, "show", {"text": "ref:dot"})).text == "'iVBORw=='"


async def test_values_of_every_json_type_become_text_where_text_is_wanted(tmp_path: Path) -> None:
    values: list[Any] = [None, True, 1.5, "a", [1], {"b": 2}]
    async with gate(tmp_path) as g:
        g.plug("show", echo, {"text": {"type": "string"}})
        await g.objects.put(
            json.dumps(values).encode(),
            media_type="application/json",
            name="all",
            namespace="local",
            owner="local",
        )

        told = [
            (await g.dispatch.call(ME, "show", {"text": f"ref:all#/{n}"})).text
            for n in range(len(values))
        ]

        assert told == [repr(t) for t in ("null", "true", "1.5", "a", "[1]", '{"b":2}')]


async def test_arguments_of_any_depth_end_in_an_answer(tmp_path: Path) -> None:
    deep: Any = "ref:table"
    for _ in range(200):
        deep = [deep]
    async with gate(tmp_path) as g:
        g.plug("show", echo, {"text": {}})

        assert not (await g.dispatch.call(ME, "show", {"text": deep})).is_error


async def test_an_answer_that_cannot_be_kept_is_told_and_the_next_call_is_served(
    tmp_path: Path,
) -> None:
    async with gate(tmp_path) as g:
        g.plug("table", give_table)
        g.plug("echo", echo, {"text": {"type": "string"}})
        (tmp_path / "objects").mkdir(exist_ok=True)
        (tmp_path / "objects" / "sha256").write_text("a file where a folder should be")
        g.plug("huge", give_huge)

        lost = await g.dispatch.call(ME, "huge", {})
        served = await g.dispatch.call(ME, "echo", {"text": "a"})

        assert lost.is_error
        assert lost.text.startswith("`huge` could not be served: ")
        assert served.text == "'a'"


async def give_huge(_: dict[str, Any], __: Call) -> Outcome:
    return Outcome((Text("x" * 300_000),))


async def test_sizes_are_in_bytes_whatever_the_letters(tmp_path: Path) -> None:
    async with gate(tmp_path) as g:
        g.plug("echo", echo, {"text": {"type": "string"}})

        assert (await g.dispatch.call(ME, "echo", {"text": "é"})).size == len(repr("é").encode())


async def test_half_a_character_in_an_answer_is_replaced_and_the_rest_is_kept(
    tmp_path: Path,
) -> None:
    async def give(arguments: dict[str, Any], _: Call) -> Outcome:
        return Outcome((Text(arguments["text"]),))

    async def give_structured(arguments: dict[str, Any], _: Call) -> Outcome:
        value = {"rows": [arguments["text"]]}
        return Outcome(structured=value, has_structured=True)

    async with gate(tmp_path) as g:
        g.plug("give", give, {"text": {"type": "string"}})
        g.plug("give_structured", give_structured, {"text": {"type": "string"}})
        plain = await g.dispatch.call(ME, "give", {"text": "a\ud83d b \ud83d\ude00"})
        structured = await g.dispatch.call(ME, "give_structured", {"text": "a\ud83d"})

    assert (plain.text, plain.is_error) == ("a\ufffd b \U0001f600", False)
    assert structured.structured == {"rows": ["a\ufffd"]}


async def test_arguments_nested_very_deep_are_answered_and_journaled_in_part(
    tmp_path: Path,
) -> None:
    deep: Any = "bottom"
    for _ in range(300):
        deep = {"a": [deep]}
    async with gate(tmp_path) as g:
        g.plug("echo", echo, {"text": {"type": "string"}, "deep": {}})
        result = await g.dispatch.call(ME, "echo", {"text": "short", "deep": deep})
        (entry,) = await g.journal.read("local")

    assert not result.is_error
    assert "… (nested deeper)" in json.dumps(entry.data, ensure_ascii=False)

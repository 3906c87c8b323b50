"""Functions as tools: what a model reads of them, what they get, what comes of their answers."""

import enum
import functools
import sys
import typing
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from threading import current_thread
from typing import Annotated, Any, Literal

import anyio
import pytest
import structlog.testing
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from guildry.errors import ToolFailed, ToolRetry
from guildry.tools.base import READS, Call, Effects, Json, Link, Media, Outcome, Text, Tool
from guildry.tools.python.functions import UnfitFunction, effects, reads, tool_from
from guildry.tools.python.threads import DaemonThreads
from guildry.tools.schema import schema_fault


def make(function: Callable[..., Any]) -> Tool:
    return tool_from(function, plug="mine", threads=DaemonThreads(4))


async def ask(function: Callable[..., Any], **arguments: Json) -> Outcome:
    tool = make(function)
    with anyio.fail_after(10):
        return await tool.invoke(arguments, Call(tool, None))


class Colour(enum.Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    title: str
    x: int = 0


@dataclass
class Size:
    width: int
    height: int = 1


class PlainRow(typing.TypedDict):
    id: int


class Row(TypedDict):
    id: int
    when: date


def search(
    query: str,
    limit: Annotated[int, Field(ge=1, le=100)] = 10,
    colours: list[Colour] | None = None,
    kind: Literal["fast", "slow"] = "fast",
    *,
    at: Point | None = None,
) -> str:
    """Search the catalogue,
    which is large.

    It is sorted by name.

    Args:
        query: what to look for,
            in any language: `a OR b`.
        limit (int): how many to return.
        at: where to begin.

    Returns:
        limit: not a parameter.
    """
    return f"{query} {limit} {colours} {kind} {at}"


def test_a_function_becomes_a_tool_with_its_words_and_a_closed_schema() -> None:
    tool = make(search)

    assert (tool.name, tool.source_name, tool.plug) == ("search", "search", "mine")
    assert tool.description == "Search the catalogue, which is large."
    assert tool.output_schema is None
    assert tool.input_schema == {
        "type": "object",
        "additionalProperties": False,
        "required": ["query"],
        "properties": {
            "query": {
                "type": "string",
                "description": "what to look for, in any language: `a OR b`.",
            },
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": 100,
                "default": 10,
                "description": "how many to return.",
            },
            "colours": {
                "anyOf": [
                    {"type": "array", "items": {"$ref": "#/$defs/Colour"}},
                    {"type": "null"},
                ],
                "default": None,
            },
            "kind": {"enum": ["fast", "slow"], "type": "string", "default": "fast"},
            "at": {
                "anyOf": [{"$ref": "#/$defs/Point"}, {"type": "null"}],
                "default": None,
                "description": "where to begin.",
            },
        },
        "$defs": {
            "Colour": {"enum": ["red", "blue"], "type": "string"},
            "Point": {
                "type": "object",
                "properties": {
                    "title": {"type": "string"},
                    "x": {"type": "integer", "default": 0},
                },
                "required": ["title"],
            },
        },
    }
    assert schema_fault(tool.input_schema) is None


def test_a_function_without_parameters_and_words_is_still_described() -> None:
    def count_all_words():  # type: ignore[no-untyped-def]  # as a user may write it
        pass

    tool = make(count_all_words)

    assert tool.description == "Count all words."
    assert tool.input_schema == {
        "type": "object",
        "properties": {},
        "additionalProperties": False,
    }


async def test_arguments_arrive_in_the_types_of_the_hints() -> None:
    got: list[object] = []

    def take(
        day: date, folder: Path, tags: set[str], size: Size, colour: Colour = Colour.RED
    ) -> None:
        got.extend([day, folder, tags, size, colour])

    await ask(take, day="2026-11-21", folder="/tmp", tags=["a", "a"], size={"width": 2})

    assert got == [date(2026, 11, 21), Path("/tmp"), {"a"}, Size(2), Colour.RED]


async def test_parameters_may_have_names_that_models_do_not_take() -> None:
    def take(model_config: int, json: int, _hidden: int, self: int) -> list[int]:
        return [model_config, json, _hidden, self]

    outcome = await ask(take, model_config=1, json=2, _hidden=3, self=4)

    assert outcome.blocks == (Text("[1,2,3,4]"),)


async def test_positional_parameters_are_passed_by_position() -> None:
    def take(a: int, b: int = 7, /, c: int = 8) -> list[int]:
        return [a, b, c]

    outcome = await ask(take, a=1, c=3)

    assert outcome.blocks == (Text("[1,7,3]"),)


async def test_an_argument_that_does_not_fit_is_refused_before_the_function_runs() -> None:
    ran: list[date] = []

    def take(day: date) -> None:
        ran.append(day)

    with pytest.raises(ToolRetry, match=r"`take` was not called: `day` is 'soon': input should be"):
        await ask(take, day="soon")

    assert ran == []


@pytest.mark.parametrize(
    ("value", "block"),
    [
        ("words", Text("words")),
        ({"a": [1, 2.5, None]}, Text('{"a":[1,2.5,null]}')),
        (7, Text("7")),
        (None, Text("null")),
        ([Point(title="t")], Text('[{"title":"t","x":0}]')),
        ({"day": date(2026, 1, 2)}, Text('{"day":"2026-01-02"}')),
        (b"\x89PNG\r\n\x1a\n...", Media(b"\x89PNG\r\n\x1a\n...", "image/png")),
        (b"RIFF....WAVEfmt", Media(b"RIFF....WAVEfmt", "audio/wav")),
        (b"\x00", Media(b"\x00", "application/octet-stream")),
        (Link("file:///a", "a"), Link("file:///a", "a")),
    ],
)
async def test_an_answer_becomes_a_block(value: Any, block: Text | Media | Link) -> None:
    def give() -> Any:
        return value

    assert await ask(give) == Outcome((block,))


async def test_a_list_of_blocks_and_an_outcome_are_answers_as_they_are() -> None:
    def blocks() -> list[Text | Media]:
        return [Text("see"), Media(b"1", "image/png")]

    def outcome() -> Outcome:
        return Outcome((Text("no"),), is_error=True)

    assert await ask(blocks) == Outcome((Text("see"), Media(b"1", "image/png")))
    assert await ask(outcome) == Outcome((Text("no"),), is_error=True)


async def test_a_model_a_dataclass_and_a_typed_dictionary_are_structured_answers() -> None:
    def model() -> Point:
        return Point(title="t")

    def data() -> Size:
        return Size(2)

    def row() -> Row:
        return {"id": 1, "when": date(2026, 1, 2)}

    assert make(model).output_schema == {
        "type": "object",
        "properties": {"title": {"type": "string"}, "x": {"type": "integer", "default": 0}},
        "required": ["title"],
    }
    assert make(row).output_schema == {
        "type": "object",
        "properties": {"id": {"type": "integer"}, "when": {"type": "string", "format": "date"}},
        "required": ["id", "when"],
    }
    assert await ask(model) == Outcome(structured={"title": "t", "x": 0}, has_structured=True)
    assert await ask(data) == Outcome(structured={"width": 2, "height": 1}, has_structured=True)
    assert await ask(row) == Outcome(
        structured={"id": 1, "when": "2026-01-02"}, has_structured=True
    )


@pytest.mark.skipif(sys.version_info >= (3, 12), reason="pydantic takes both kinds from 3.12 on")
async def test_a_hint_that_pydantic_cannot_take_leaves_a_plain_answer() -> None:
    def row() -> PlainRow:
        return {"id": 1}

    with structlog.testing.capture_logs() as logs:
        outcome = await ask(row)

    assert outcome == Outcome((Text('{"id":1}'),))
    assert [each["event"] for each in logs] == ["output_schema_left_out"]


async def test_an_answer_against_its_own_hint_fails() -> None:
    def row() -> Row:
        return {"id": "x"}  # type: ignore[typeddict-item]  # wrong on purpose

    with pytest.raises(ToolFailed, match="`row` returned what its own return hint does not allow"):
        await ask(row)


async def test_an_answer_that_is_no_json_fails_with_what_to_return() -> None:
    def give() -> object:
        return object()

    with pytest.raises(ToolFailed, match="`give` returned object, which is no JSON value"):
        await ask(give)


def test_declared_effects_title_name_and_limit_are_taken() -> None:
    @effects(
        writes=True, egress=False, destructive=False, idempotent=True, name="save", timeout_s=5
    )
    def save_it() -> None: ...

    @reads
    def look() -> None: ...

    @reads(title="Look twice")
    def look_again() -> None: ...

    def nothing() -> None: ...

    saved = make(save_it)
    assert (saved.name, saved.timeout_s) == ("save", 5)
    assert saved.effects == Effects(writes=True, egress=False, destructive=False, idempotent=True)
    assert make(look).effects == READS
    assert (make(look_again).effects, make(look_again).title) == (READS, "Look twice")
    assert make(nothing).effects == Effects()


async def test_a_plain_function_runs_in_a_daemon_thread_and_an_async_one_on_the_loop() -> None:
    def plain() -> list[Any]:
        return [current_thread().name, current_thread().daemon]

    async def on_loop() -> str:
        await anyio.lowlevel.checkpoint()
        return current_thread().name

    assert (await ask(plain)).blocks == (Text('["guildry worker",true]'),)
    assert (await ask(on_loop)).blocks == (Text("MainThread"),)


async def test_a_plain_wrapper_around_an_async_function_is_awaited() -> None:
    async def inner(n: int) -> int:
        """Double a number."""
        return 2 * n

    @functools.wraps(inner)
    def wrapper(*args: Any, **kwargs: Any) -> Awaitable[int]:
        return inner(*args, **kwargs)

    assert make(wrapper).description == "Double a number."
    assert (await ask(wrapper, n=4)).blocks == (Text("8"),)


async def test_the_call_is_handed_to_a_parameter_that_asks_for_it() -> None:
    async def who(call: Call, n: int) -> str:
        return f"{call.tool.plug} {n}"

    tool = make(who)

    assert list(tool.input_schema["properties"]) == ["n"]
    assert (await ask(who, n=1)).blocks == (Text("mine 1"),)


async def test_an_error_of_a_tool_reaches_the_model_as_it_is() -> None:
    def refuse() -> None:
        raise ToolRetry("`limit` is 900: pass at most 500")

    with pytest.raises(ToolRetry, match="^`limit` is 900: pass at most 500$"):
        await ask(refuse)


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("bad row 3"), "^`broken` failed: ValueError: bad row 3$"),
        (KeyError(), "^`broken` failed: KeyError$"),
        (SystemExit(3), "^`broken` failed: SystemExit: 3$"),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
async def test_any_other_error_is_told_with_its_type_and_logged(
    error: BaseException, text: str, is_async: bool
) -> None:
    def broken() -> None:
        raise error

    async def broken_on_loop() -> None:
        raise error

    broken_on_loop.__name__ = "broken"
    with structlog.testing.capture_logs() as logs, pytest.raises(ToolFailed, match=text):
        await ask(broken_on_loop if is_async else broken)

    assert [(each["event"], each["tool"]) for each in logs] == [("function_raised", "broken")]


def test_what_cannot_be_a_tool_is_refused_with_the_cure() -> None:
    def variadic(*words: str) -> None: ...

    def keywords(**words: str) -> None: ...

    def yields() -> Iterator[int]:
        yield 1

    async def yields_late() -> AsyncIterator[int]:
        yield 1

    def unknown(x: Any) -> None: ...

    unknown.__annotations__["x"] = "Missing"

    def foreign(x: DaemonThreads) -> None: ...

    def callback(x: Callable[[], int]) -> None: ...

    refused: list[tuple[Callable[..., Any], str]] = [
        (variadic, "it takes `\\*words: str`: name each parameter"),
        (keywords, "it takes `\\*\\*words: str`: name each parameter"),
        (yields, "return a list"),
        (yields_late, "return a list"),
        (unknown, "NameError: name 'Missing' is not defined"),
        (foreign, "use types that JSON can carry"),
        (callback, "use types that JSON can carry"),
    ]
    for function, words in refused:
        with pytest.raises(UnfitFunction, match=words):
            make(function)


async def test_plain_functions_run_side_by_side() -> None:
    from threading import Barrier

    both = Barrier(2)

    def meet() -> str:
        both.wait(5)
        return "met"

    tool = make(meet)
    answers: list[Outcome] = []

    async def one() -> None:
        answers.append(await tool.invoke({}, Call(tool, None)))

    with anyio.fail_after(10):
        async with anyio.create_task_group() as calls:
            calls.start_soon(one)
            calls.start_soon(one)

    assert [each.blocks for each in answers] == [(Text("met"),)] * 2


async def test_a_call_of_a_function_that_never_returns_can_be_cancelled() -> None:
    from threading import Event

    entered, never = anyio.Event(), Event()
    loop = anyio.lowlevel.current_token()

    def hang() -> None:
        anyio.from_thread.run_sync(entered.set, token=loop)
        never.wait()

    async def call() -> None:
        await ask(hang)

    with anyio.fail_after(10):
        async with anyio.create_task_group() as calls:
            calls.start_soon(call)
            await entered.wait()
            calls.cancel_scope.cancel()
    never.set()

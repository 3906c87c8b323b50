"""`call_tool` with alternatives, through the official client."""

import json
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.shared.exceptions import MCPError
from mcp.types import TextContent

from guildry.errors import ToolFailed, ToolProtocolError, ToolRetry
from guildry.server.app import App
from guildry.server.surface import build_server
from guildry.tools.base import READS, Call, Effects, Outcome, Text, Tool
from guildry.tools.caller import Caller
from guildry.tools.grants import Grant

WRITES = Effects(writes=True, egress=False, destructive=False, idempotent=False)
TEXT = {"type": "string"}
SCHEMA = {"type": "object", "properties": {"q": TEXT}, "required": ["q"]}


def tool(
    name: str, answer: Callable[[], Any], effects: Effects = READS, plug: str = "", **more: Any
) -> Tool:
    async def invoke(arguments: dict[str, Any], _: Call) -> Outcome:
        found = answer()
        if isinstance(found, Awaitable):
            await found
        if isinstance(found, dict):
            return Outcome(structured=found, has_structured=True)
        return Outcome((Text(f"{found} {arguments['q']}"),))

    given: dict[str, Any] = {"input_schema": SCHEMA, "description": "", **more}
    return Tool(name=name, plug=plug or name, invoke=invoke, effects=effects, **given)


def down() -> str:
    raise ToolFailed("it is down")


def plug(app: App, *tools: Tool) -> None:
    for each in tools:
        app.catalog.replace(each.plug, [each])


async def call(app: App, **arguments: Any) -> Any:
    async with Client(build_server(app)) as client:
        result = await client.call_tool("call_tool", arguments)
    words = "\n".join(each.text for each in result.content if isinstance(each, TextContent))
    last = words.split("\n")[-1]
    return result.is_error, words, json.loads(last) if last.startswith("{") else None


def ended(told: Any) -> list[tuple[str, str]]:
    return [(each["tool"], each["ended"]) for each in told["route"]]


async def test_another_tool_follows_one_that_failed_and_the_route_is_shown(opened: Any) -> None:
    async with opened() as app:
        plug(app, tool("one", down), tool("two", lambda: "found"))

        is_error, words, told = await call(
            app,
            name="one",
            arguments={"q": "x"},
            alternatives=[{"name": "none"}, {"name": "two", "arguments": {"q": "y"}}],
        )

    assert not is_error
    assert words.startswith("found y\n")
    assert told["tool"] == "two"
    assert ended(told) == [("one", "failed"), ("none", "unknown"), ("two", "ok")]
    assert told["route"][0]["said"] == "it is down"


async def test_a_structured_answer_comes_once_with_its_route_beside_it(opened: Any) -> None:
    made = tool("one", lambda: {"rows": [1, 2]}, output_schema={"type": "object"})
    async with opened() as app:
        plug(app, made, tool("two", down))

        _, words, told = await call(
            app, name="one", arguments={"q": "x"}, alternatives=[{"name": "two"}]
        )

    assert told["answer"] == {"rows": [1, 2]}
    assert words.count("rows") == 1
    assert ended(told) == [("one", "ok"), ("two", "untried")]


async def test_no_other_tool_follows_one_that_may_have_done_something(opened: Any) -> None:
    async with opened() as app:
        plug(app, tool("send", down, WRITES), tool("two", lambda: "sent"))

        is_error, words, told = await call(
            app, name="send", arguments={"q": "x"}, alternatives=[{"name": "two"}]
        )

    assert is_error
    assert words.startswith("it is down")
    assert "may have done something" in words
    assert told["tool"] is None
    assert ended(told) == [("send", "failed"), ("two", "untried")]


async def test_a_tool_that_was_never_reached_may_be_followed_even_if_it_writes(opened: Any) -> None:
    async with opened() as app:
        plug(app, tool("send", down, WRITES), tool("two", lambda: "sent"))

        is_error, words, told = await call(
            app,
            name="send",
            arguments={"q": 3},
            alternatives=[{"name": "two", "arguments": {"q": "y"}}],
        )

    assert not is_error
    assert words.startswith("sent y")
    assert ended(told) == [("send", "refused"), ("two", "ok")]


async def test_a_call_that_a_person_declines_is_not_made_by_another_tool(opened: Any) -> None:
    done: list[str] = []
    async with opened(ask_first=["one"], ask_wait_s=0.05) as app:
        plug(app, tool("one", lambda: done.append("one")), tool("two", lambda: done.append("two")))

        is_error, words, _ = await call(
            app, name="one", arguments={"q": "x"}, alternatives=[{"name": "two"}]
        )

    assert is_error
    assert "was not allowed" in words
    assert done == []


async def test_the_budget_bounds_calls_and_seconds(opened: Any) -> None:
    async with opened() as app:
        plug(app, *(tool(f"t{n}", down) for n in range(5)), tool("hang", anyio.sleep_forever))
        others = [{"name": f"t{n}"} for n in range(1, 5)]

        few = await call(
            app, name="t0", arguments={"q": "x"}, alternatives=others, budget={"calls": 2}
        )
        short = await call(
            app,
            name="hang",
            arguments={"q": "x"},
            alternatives=[{"name": "t1"}],
            budget={"seconds": 0.1},
        )

    assert "the budget of calls is spent" in few[1]
    assert '"tool":"hang","ended":"late"' in short[1]
    assert (
        '"tool":"t1","ended":"failed"' in short[1]
    )  # a hanging tool leaves the others their share


async def test_what_has_worked_is_called_first_and_what_has_not_comes_last(opened: Any) -> None:
    async with opened() as app:
        plug(app, tool("bad", down), tool("good", lambda: "found"), tool("new", lambda: "new"))
        caller = Caller(Grant.root("local"), "local")
        for _ in range(12):
            await app.dispatch.call(caller, "bad", {"q": "x"})
            await app.dispatch.call(caller, "good", {"q": "x"})

        _, _, told = await call(
            app,
            name="bad",
            arguments={"q": "x"},
            alternatives=[{"name": "new"}, {"name": "good"}],
        )

    assert ended(told) == [("good", "ok"), ("new", "untried"), ("bad", "untried")]
    chances = [each["chance"] for each in told["route"]]
    assert chances == sorted(chances, reverse=True)


async def test_equal_tools_of_other_plugs_are_found_where_they_do_no_more(opened: Any) -> None:
    more = {"type": "object", "properties": {"q": TEXT, "z": TEXT}, "required": ["z"]}
    other = {"type": "object", "properties": {"q": {"type": "integer"}}, "required": ["q"]}
    async with opened() as app:
        plug(
            app,
            tool("search", down, plug="a"),
            tool("search", lambda: "wrote", WRITES, plug="b"),
            tool("search", lambda: "more", plug="c", input_schema=more),
            tool("search", lambda: "other", plug="d", input_schema=other),
            tool("seek", lambda: "seek", plug="e"),
            tool("search", lambda: "found", plug="f"),
        )

        _, words, told = await call(app, name="search", arguments={"q": "x"}, alternatives="same")

    assert words.startswith("found x")
    assert ended(told) == [("search", "failed"), ("f_search", "ok")]


async def test_an_agent_chooses_within_its_grant_alone(opened: Any) -> None:
    async with opened() as app:
        plug(
            app,
            tool("search", down, plug="a"),
            tool("search", lambda: "found", plug="b"),
            tool("search", lambda: "secret", plug="c"),
        )
        grant = Grant.root("local").narrow("r1/1", tools=["call_tool", "search", "b_search"])
        agent = Caller(grant, "r1")

        same = await app.dispatch.call(
            agent,
            "call_tool",
            {"name": "search", "arguments": {"q": "x"}, "alternatives": "same"},
        )
        foreign = await app.dispatch.call(
            agent,
            "call_tool",
            {"name": "c_search", "arguments": {"q": "x"}, "alternatives": [{"name": "plug"}]},
        )

    assert same.text.startswith("found x")
    assert "c_search" not in same.text
    assert foreign.is_error
    assert "there is no tool 'c_search' here" in foreign.text


async def test_a_caller_that_is_wrong_is_told_so_and_asked_tools_are_tried_in_turn(
    opened: Any,
) -> None:
    def picky() -> str:
        raise ToolRetry("say which")

    async with opened() as app:
        plug(app, tool("one", picky), tool("two", down))

        is_error, words, _ = await call(
            app, name="one", arguments={"q": "x"}, alternatives=[{"name": "two"}]
        )
        unknown = await call(app, name="nobody", alternatives=[{"name": "no_one"}])

    assert is_error
    assert '"ended":"misused"' in words
    assert unknown[0]
    assert "'nobody'" in unknown[1]


async def test_one_call_without_alternatives_answers_as_the_tool_does(opened: Any) -> None:
    plain = replace(tool("one", lambda: "found"), plug="mine")
    async with opened(plain) as app:
        assert await call(app, name="one", arguments={"q": "x"}) == (False, "found x", None)


async def test_a_protocol_error_is_followed_by_another_tool_unless_the_client_is_to_act(
    opened: Any,
) -> None:
    def refused(code: int) -> Callable[[], Any]:
        def answer() -> str:
            raise ToolProtocolError("upstream said no", code, "no", {"elicitations": []})

        return answer

    async with opened() as app:
        plug(
            app,
            tool("broken", refused(-32603)),
            tool("wrong", refused(-32602)),
            tool("open", refused(-32042)),
            tool("two", lambda: "found"),
        )
        others = [{"name": "wrong"}, {"name": "two"}]

        _, words, told = await call(app, name="broken", arguments={"q": "x"}, alternatives=others)
        first = {"name": "open", "arguments": {"q": "x"}, "alternatives": others[:1]}
        async with Client(build_server(app)) as client:
            with pytest.raises(MCPError) as raised:
                await client.call_tool("call_tool", first)

    assert words.startswith("found x")
    assert ended(told) == [("broken", "failed"), ("wrong", "misused"), ("two", "ok")]
    assert raised.value.error.code == -32042

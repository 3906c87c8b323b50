"""The MCP surface, through the official client, in both protocol eras."""

import json
from dataclasses import replace
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp.types import TextContent

from guildry.memory.references import INLINE_SHAPE
from guildry.server.surface import USER_SCOPES, build_server
from guildry.server.wire import STORED_TOKENS
from guildry.tools.base import Call, Icon, Outcome, Text, Tool

ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])


def text_of(result: Any) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


@ERAS
async def test_a_tool_is_listed_and_called(opened: Any, echo: Tool, era: Any) -> None:
    async with opened(echo) as app, Client(build_server(app), mode=era) as client:
        listed = await client.list_tools()
        result = await client.call_tool("echo", {"text": "hello"})

    assert listed.tools[-1].name == "echo"
    assert (listed.ttl_ms, listed.cache_scope) == (0, "private")
    assert text_of(result) == "hello"
    assert not result.is_error


@ERAS
@pytest.mark.requirement("tools.order")
async def test_the_list_is_the_same_every_time_and_plugging_appends(
    opened: Any, echo: Tool, make_tool: Any, era: Any
) -> None:
    later = make_tool("aardvark", echo.invoke)
    async with opened(echo) as app, Client(build_server(app), mode=era, cache=None) as client:
        first = [tool.name for tool in (await client.list_tools()).tools]
        again = [tool.name for tool in (await client.list_tools()).tools]
        app.catalog.replace("later", [later])
        grown = [tool.name for tool in (await client.list_tools()).tools]

    assert first == again
    assert grown == [*first, "aardvark"]


@ERAS
async def test_beyond_the_limit_only_pinned_tools_are_listed_and_all_can_be_called(
    opened: Any, echo: Tool, make_tool: Any, era: Any
) -> None:
    many = [make_tool(f"tool_{n}", echo.invoke, {"text": {"type": "string"}}) for n in range(5)]
    async with opened(*many, listed_tools=4, pinned=("tool_3",)) as app:
        async with Client(build_server(app), mode=era) as client:
            names = [tool.name for tool in (await client.list_tools()).tools]
            direct = await client.call_tool("tool_1", {"text": "hidden"})
            through = await client.call_tool(
                "call_tool", {"name": "tool_2", "arguments": {"text": "found"}}
            )

    assert [name for name in names if name.startswith("tool_")] == ["tool_3"]
    assert {"find_tools", "describe_tools", "call_tool", "read_reference"} <= set(names)
    assert (text_of(direct), text_of(through)) == ("hidden", "found")


@ERAS
@pytest.mark.requirement("caching.scope")
async def test_a_long_list_comes_in_pages(
    opened: Any, echo: Tool, make_tool: Any, era: Any
) -> None:
    many = [make_tool(f"tool_{n:03}", echo.invoke) for n in range(600)]
    names: list[str] = []
    async with opened(*many, listed_tools=1000) as app:
        async with Client(build_server(app), mode=era) as client:
            cursor: str | None = None
            pages = 0
            while pages == 0 or cursor is not None:
                page = await client.list_tools(cursor=cursor)
                names += [tool.name for tool in page.tools]
                cursor, pages = page.next_cursor, pages + 1
            with pytest.raises(MCPError) as refused:
                await client.list_tools(cursor="elsewhere")

    assert pages == 3
    assert names[-600:] == [tool.name for tool in many]
    assert len(set(names)) == len(names)
    assert refused.value.error.code == -32602


@ERAS
@pytest.mark.requirement("tools.unknown")
async def test_an_unknown_tool_is_a_protocol_error_that_names_the_nearest(
    opened: Any, echo: Tool, era: Any
) -> None:
    async with opened(echo) as app, Client(build_server(app), mode=era) as client:
        with pytest.raises(MCPError, match="did you mean `echo`") as refused:
            await client.call_tool("ehco", {"text": "x"})

    assert refused.value.error.code == -32602


@ERAS
@pytest.mark.requirement("tools.wrong-arguments")
async def test_a_wrong_argument_is_a_result_that_tells_what_to_change(
    opened: Any, echo: Tool, era: Any
) -> None:
    async with opened(echo) as app, Client(build_server(app), mode=era) as client:
        result = await client.call_tool("echo", {"txet": "x"})

    assert result.is_error
    assert "text" in text_of(result)


@ERAS
async def test_a_megabyte_costs_a_model_at_most_300_tokens_and_is_passed_on_by_its_name(
    opened: Any, make_tool: Any, era: Any
) -> None:
    table = {"rows": [{"id": n, "name": f'the "{n}"'} for n in range(40_000)]}

    async def make(arguments: dict[str, Any], call: Call) -> Outcome:
        return Outcome((Text(json.dumps(table)),))

    async def count(arguments: dict[str, Any], call: Call) -> Outcome:
        return Outcome((Text(str(len(arguments["table"]["rows"]))),))

    counting = make_tool("count", count, {"table": {"type": "object"}})
    async with opened(make_tool("make", make), counting) as app:
        async with Client(build_server(app), mode=era) as client:
            result = await client.call_tool("make", {})
            about = result.structured_content
            assert about is not None
            counted = await client.call_tool("count", {"table": about["reference"]})
            by_uri = await client.call_tool("count", {"table": about["uri"]})

    told = {
        "content": [each.model_dump(by_alias=True, exclude_none=True) for each in result.content],
        "structuredContent": about,
    }
    assert tuple(about) == INLINE_SHAPE
    assert about["size"] > 1_000_000
    assert len(json.dumps(told)) <= STORED_TOKENS * 4
    assert [each.type for each in result.content] == ["text", "resource_link"]
    assert (text_of(counted), text_of(by_uri)) == ("40000", "40000")


@ERAS
async def test_what_call_tool_calls_answers_as_if_it_had_been_called_itself(
    opened: Any, make_tool: Any, era: Any
) -> None:
    async def make(arguments: dict[str, Any], call: Call) -> Outcome:
        return Outcome((Text("x" * 50_000),))

    async with opened(make_tool("make", make)) as app:
        async with Client(build_server(app), mode=era) as client:
            result = await client.call_tool("call_tool", {"name": "make"})
            unknown = await client.call_tool("call_tool", {"name": "maek"})

    assert tuple(result.structured_content or {}) == INLINE_SHAPE
    assert unknown.is_error
    assert "did you mean `make`" in text_of(unknown)


@ERAS
@pytest.mark.requirement("tools.structured")
async def test_a_tool_with_an_output_schema_answers_with_a_value_that_clients_can_check(
    opened: Any, make_tool: Any, era: Any
) -> None:
    async def invoke(arguments: dict[str, Any], call: Call) -> Outcome:
        return Outcome(structured={"words": ["w" * arguments["size"]]}, has_structured=True)

    schema = {
        "type": "object",
        "properties": {"words": {"type": "array", "items": {"type": "string"}}},
        "required": ["words"],
    }
    tool = make_tool("words", invoke, {"size": {"type": "integer"}}, schema)
    async with opened(tool) as app, Client(build_server(app), mode=era) as client:
        await client.list_tools()  # the client checks answers against what was listed
        small = await client.call_tool("words", {"size": 3})
        large = await client.call_tool("words", {"size": 30_000})

    assert small.structured_content == {"words": ["www"]}
    assert text_of(small) == '{"words":["www"]}'
    assert tuple(large.structured_content or {}) == INLINE_SHAPE


@ERAS
async def test_a_structured_answer_goes_twice_once_or_as_text_where_none_was_promised(
    opened: Any, make_tool: Any, era: Any
) -> None:
    async def invoke(arguments: dict[str, Any], call: Call) -> Outcome:
        return Outcome(structured={"n": 1}, has_structured=True)

    promised = make_tool("promised", invoke, {}, {"type": "object"})
    through: dict[str, Any] = {"name": "promised", "arguments": {}}
    told: list[tuple[str, Any]] = []
    for setting in ("both", "once"):
        async with (
            opened(promised, make_tool("free", invoke), structured_content=setting) as app,
            Client(build_server(app), mode=era) as client,
        ):
            results = [
                await client.call_tool("promised", {}),
                await client.call_tool("free", {}),
                await client.call_tool("call_tool", through),
            ]
            told += [(text_of(each), each.structured_content) for each in results]

    line = "The answer is in `structuredContent`: `n`."
    text = '{"n":1}'
    assert told[:3] == [(text, {"n": 1}), (text, None), (text, None)]
    assert told[3:] == [(line, {"n": 1}), (text, None), (text, None)]


@ERAS
@pytest.mark.requirement("errors.tell-no-secret")
async def test_what_a_crashed_tool_raised_is_not_told(
    opened: Any, make_tool: Any, era: Any
) -> None:
    async def invoke(arguments: dict[str, Any], call: Call) -> Outcome:
        raise RuntimeError("the password is swordfish")

    async with opened(make_tool("crash", invoke)) as app:
        async with Client(build_server(app), mode=era) as client:
            result = await client.call_tool("crash", {})

    assert result.is_error
    assert "swordfish" not in text_of(result)
    assert "RuntimeError" in text_of(result)


@ERAS
@pytest.mark.requirement("progress.passed-on")
async def test_progress_of_a_tool_reaches_the_client(opened: Any, make_tool: Any, era: Any) -> None:
    heard: list[tuple[float, float | None, str | None]] = []
    all_heard = anyio.Event()

    async def invoke(arguments: dict[str, Any], call: Call) -> Outcome:
        assert call.progress is not None
        for done in (1, 2):
            await call.progress(done, 2, f"step {done}")
        await all_heard.wait()
        return Outcome((Text("done"),))

    async def listen(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, total, message))
        if len(heard) == 2:
            all_heard.set()

    async with opened(make_tool("steps", invoke)) as app:
        async with Client(build_server(app), mode=era) as client:
            with anyio.fail_after(5):
                await client.call_tool("steps", {}, progress_callback=listen)

    assert heard == [(1, 2, "step 1"), (2, 2, "step 2")]


@ERAS
async def test_a_call_that_its_client_gives_up_is_cancelled(
    opened: Any, hang: Any, era: Any
) -> None:
    tool, began, cancelled = hang
    async with opened(tool) as app, Client(build_server(app), mode=era) as client:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.call_tool, "hang")
                await began.wait()
                tasks.cancel_scope.cancel()
            await cancelled.wait()
        entries = await app.journal.read("local")

    assert [entry.data["status"] for entry in entries] == ["cancelled"]


@ERAS
@pytest.mark.requirement("auth.scopes", "tools.list-per-principal")
async def test_what_only_an_administrator_may_do_is_neither_shown_nor_done_for_others(
    opened: Any, era: Any
) -> None:
    async with opened() as app:
        async with Client(build_server(app, scopes=USER_SCOPES), mode=era) as user:
            shown = {tool.name for tool in (await user.list_tools()).tools}
            with pytest.raises(MCPError) as refused:
                await user.call_tool("plug", {"source": "tools.py"})
            around = await user.call_tool(
                "call_tool", {"name": "plug", "arguments": {"source": "tools.py"}}
            )
        async with Client(build_server(app), mode=era) as admin:
            more = {tool.name for tool in (await admin.list_tools()).tools} - shown

    assert more >= {"plug", "unplug", "list_plugs", "list_questions", "answer_question"}
    assert more >= {"list_usage", "suggest_macros"}
    assert refused.value.error.code == -32602
    assert around.is_error


@ERAS
@pytest.mark.requirement("tools.hints")
async def test_the_title_hints_and_icons_of_a_tool_are_passed_on(
    opened: Any, echo: Tool, era: Any
) -> None:
    icons = (Icon("https://example.com/i.png", "image/png", ("16x16", "32x32"), "light"),)
    annotations = {"title": "Say it", "readOnlyHint": True, "_meta": {"example.com/x": 1}}
    tool = replace(echo, title="Echo", icons=icons, annotations=annotations)
    async with opened(tool) as app, Client(build_server(app), mode=era) as client:
        shown = (await client.list_tools()).tools[-1]

    dumped = shown.model_dump(by_alias=True, mode="json", exclude_none=True)
    assert (dumped["name"], dumped["title"], dumped["_meta"]) == (
        "echo",
        "Echo",
        {"example.com/x": 1},
    )
    assert dumped["annotations"] == {
        "title": "Say it",
        "readOnlyHint": True,
        "destructiveHint": False,
        "idempotentHint": True,
        "openWorldHint": False,
    }
    assert dumped["icons"] == [
        {
            "src": "https://example.com/i.png",
            "mimeType": "image/png",
            "sizes": ["16x16", "32x32"],
            "theme": "light",
        }
    ]

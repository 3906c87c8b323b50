"""The built-in tools, through the official client."""

import json
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from mcp.types import TextContent

from guildry.server.app import App, open_app
from guildry.server.config import Settings
from guildry.server.surface import build_server
from guildry.tools.base import Call, Outcome, Text, Tool

TOOLS = '''
def shout(text: str) -> str:
    """Say it in capitals."""
    return text.upper()


def broken(*text: str) -> str:
    """Say nothing of how much it takes."""
    return text[0]
'''


def text_of(result: Any) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


async def read(app: App, **arguments: Any) -> tuple[bool, str]:
    async with Client(build_server(app)) as client:
        result = await client.call_tool("read_reference", arguments)
    return result.is_error, text_of(result)


async def keep(app: App, content: bytes, media_type: str, name: str = "kept") -> str:
    kept = await app.objects.put(
        content, media_type=media_type, name=name, namespace="local", owner="local"
    )
    return kept.short


async def test_tools_are_found_by_what_they_do_in_the_shape_that_was_promised(
    opened: Any, echo: Tool, make_tool: Any
) -> None:
    weather = make_tool("forecast", echo.invoke, {"city": {"type": "string"}})
    async with opened(echo, weather, listed_tools=0) as app:
        async with Client(build_server(app)) as client:
            result = await client.call_tool("find_tools", {"queries": ["forecast for a city"]})
            one = await client.call_tool(
                "find_tools", {"queries": ["forecast", "echo"], "limit": 1}
            )

    assert result.structured_content is not None
    first, *_ = result.structured_content["tools"]
    assert list(first) == ["name", "plug", "tool", "description", "input_schema", "score"]
    assert (first["name"], first["plug"], first["tool"]) == ("forecast", "mine", "forecast")
    assert first["input_schema"] == weather.input_schema
    assert json.loads(text_of(result)) == result.structured_content
    assert one.structured_content is not None
    assert len(one.structured_content["tools"]) == 1


async def test_what_is_found_stays_inline_however_long_the_schemas_are(
    opened: Any, echo: Tool, make_tool: Any
) -> None:
    properties = {
        f"field_{n}": {"type": "string", "description": "A field of the order. " * 20}
        for n in range(20)
    }
    many = [make_tool(f"order_{n}", echo.invoke, properties) for n in range(30)]
    async with opened(*many) as app, Client(build_server(app)) as client:
        result = await client.call_tool("find_tools", {"queries": ["order"], "limit": 20})

    assert result.structured_content is not None
    found = result.structured_content["tools"]
    assert len(found) == 20
    assert len(text_of(result)) <= 4_000
    assert all(set(each) >= {"name", "plug", "tool", "score"} for each in found)


async def test_tools_are_described_whole(opened: Any, echo: Tool, make_tool: Any) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {}}
    other = make_tool("other", echo.invoke, None, schema)
    async with opened(echo, other) as app, Client(build_server(app)) as client:
        result = await client.call_tool("describe_tools", {"names": ["other", "echo", "other"]})
        unknown = await client.call_tool("describe_tools", {"names": ["ecko"]})

    assert result.structured_content is not None
    described = result.structured_content["tools"]
    assert [each["name"] for each in described] == ["other", "echo"]
    assert described[0]["output_schema"] == schema
    assert described[1]["input_schema"] == echo.input_schema
    assert unknown.is_error
    assert "did you mean `echo`" in text_of(unknown)


async def test_a_reference_is_read_by_name_by_uri_and_in_parts(opened: Any) -> None:
    async with opened() as app:
        rows = await keep(app, b'{"rows": [{"id": 7}, {"id": 8}]}', "application/json", "rows")
        log = await keep(app, b"one\ntwo\nthree\n", "text/plain", "log")
        kept = await app.objects.by_name("local", "rows")
        assert kept is not None

        assert await read(app, reference=rows) == (False, '{"rows":[{"id":7},{"id":8}]}')
        assert await read(app, reference=kept.uri) == (False, '{"rows":[{"id":7},{"id":8}]}')
        for selector in ("#/rows/1/id", "/rows/1/id", "?query=rows[1].id", "rows[1].id"):
            assert await read(app, reference=rows, selector=selector) == (False, "8")
        assert await read(app, reference=f"{rows}#/rows/0") == (False, '{"id":7}')
        assert await read(app, reference=log, selector="?lines=2-2") == (False, "two")
        assert await read(app, reference=log, selector="lines=2-2") == (False, "two")


async def test_a_long_value_is_cut_and_says_so(opened: Any) -> None:
    async with opened() as app:
        long = await keep(app, ("é" * 50_000).encode(), "text/plain")
        whole = await read(app, reference=long)
        short = await read(app, reference=long, limit=5)

    assert not whole[0]
    assert 3_000 < len(whole[1].encode()) <= 4_000
    assert "of 50,000 characters are not shown" in whole[1]
    assert short[1].startswith("é" * 5 + "\n… 49,995 of 50,000 characters")


async def test_a_reference_that_cannot_be_read_is_refused_with_the_cure(opened: Any) -> None:
    async with opened() as app:
        rows = await keep(app, b"[1]", "application/json")
        for arguments, words in (
            ({"reference": "kept"}, "ref:name"),
            ({"reference": "ref:gone"}, "no reference"),
            ({"reference": f"{rows}#/0", "selector": "/0"}, "leave `selector` out"),
            ({"reference": rows, "selector": "/5"}, "5"),
            ({"reference": rows, "limit": 0}, "limit"),
        ):
            is_error, text = await read(app, **arguments)
            assert is_error
            assert words in text


async def test_a_source_is_plugged_listed_kept_and_unplugged(opened: Any, tmp_path: Path) -> None:
    source = tmp_path / "later.py"
    source.write_text(TOOLS)
    async with opened() as app, Client(build_server(app), cache=None) as client:
        plugged = await client.call_tool("plug", {"source": str(source), "name": "later"})
        listed = await client.call_tool("list_plugs", {})
        said = await client.call_tool("shout", {"text": "a"})
    async with open_app(Settings(home=tmp_path / "home")) as again:
        with anyio.fail_after(10):
            await again.ready.wait()
        kept = [status.name for status in again.plugs.listing()]
        async with Client(build_server(again)) as client:
            unplugged = await client.call_tool("unplug", {"name": "later"})
            twice = await client.call_tool("unplug", {"name": "later"})
        left = again.plugs.listing(), await again.sources.listing()

    assert plugged.structured_content is not None
    assert plugged.structured_content["plug"] == "later"
    assert plugged.structured_content["tools"] == ["shout"]
    (quarantined,) = plugged.structured_content["quarantined"]
    assert quarantined["tool"].endswith("broken")
    assert listed.structured_content is not None
    (status,) = listed.structured_content["plugs"]
    assert (status["name"], status["state"], status["tools"]) == ("later", "ready", ["shout"])
    assert text_of(said) == "A"
    assert kept == ["later"]
    assert unplugged.structured_content == {"plug": "later"}
    assert twice.is_error
    assert left == ([], [])


async def test_a_source_that_cannot_be_plugged_is_told_with_the_cure(
    opened: Any, tmp_path: Path
) -> None:
    async with opened() as app, Client(build_server(app)) as client:
        result = await client.call_tool("plug", {"source": str(tmp_path / "gone.py")})
        kept = await app.sources.listing()

    assert result.is_error
    assert "gone.py" in text_of(result)
    assert kept == []


async def test_call_tool_tells_an_agent_what_is_stored_in_its_own_words(
    opened: Any, make_tool: Any
) -> None:
    async def make(arguments: dict[str, Any], call: Call) -> Outcome:
        return Outcome((Text("x" * 50_000),))

    async with opened(make_tool("make", make)) as app:
        server = build_server(app)
        async with Client(server) as client:
            await client.list_tools()
        from guildry.tools.caller import Caller
        from guildry.tools.grants import Grant

        caller = Caller(Grant.root("agent", tools=("call_tool", "make")), run="r1")
        result = await app.dispatch.call(caller, "call_tool", {"name": "make"})
        beyond = await app.dispatch.call(caller, "call_tool", {"name": "read_reference"})

    assert "ref:make" in result.text
    assert len(result.text) < 600
    assert beyond.is_error

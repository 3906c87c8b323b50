"""How tools are used: figures that are shown, and macros found in journals, plugged and called."""

import json
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from mcp.types import CallToolResult, TextContent

from guildry.memory.usage import UsageStore
from guildry.server.app import App
from guildry.server.surface import build_server
from guildry.tools.caller import Caller
from guildry.tools.grants import Grant
from guildry.tools.registry import Change

TOOLS = '''
from guildry.tools.python.decorators import effects, reads

IDS = {"tea": 4711, "bread": 815, "fish": 90210, "soup": 31337}


@reads
def search(topic: str) -> list[dict[str, int | str]]:
    """Find articles."""
    return [{"title": f"All of {topic}", "id": IDS[topic]}]


@reads
def fetch(id: int) -> str:
    """Return an article."""
    return f"article {id}\\n" * 2_000


@effects(writes=True)
def keep(text: str, folder: str) -> str:
    """Keep a text."""
    return f"{len(text)} characters are in {folder}"


@reads
def broken() -> str:
    """Fail."""
    raise ValueError("no")
'''


def tool_file(folder: Path) -> str:
    path = folder / "articles.py"
    path.write_text(TOOLS)
    return str(path)


async def work(client: Client, topic: str) -> None:
    """Do what a model does: call one tool after another, each with what the last one answered."""
    rows = json.loads(text_of(await client.call_tool("search", {"topic": topic})))
    fetched = await client.call_tool("fetch", {"id": rows[0]["id"]})
    assert fetched.structured_content is not None
    reference = fetched.structured_content["reference"]
    await client.call_tool("keep", {"text": reference, "folder": "notes"})


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


async def asked(client: Client, tool: str, **arguments: Any) -> Any:
    result = await client.call_tool(tool, arguments)
    assert not result.is_error, result
    return result.structured_content


async def test_a_sequence_that_came_three_times_becomes_a_tool_that_does_it_in_one_call(
    opened: Any, tmp_path: Path
) -> None:
    async with opened() as app, Client(build_server(app), cache=None) as client:
        await asked(client, "plug", source=tool_file(tmp_path))
        for topic in ("tea", "bread"):
            await work(client, topic)
        early = await asked(client, "suggest_macros")
        await work(client, "fish")
        told = await asked(client, "suggest_macros")
        await asked(client, "plug", source="macro:search_then_keep")
        done = await client.call_tool("search_then_keep", {"topic": "soup"})
        again = await asked(client, "suggest_macros")
        entries = await app.journal.read("local")

    assert early["macros"] == []
    (macro,) = told["macros"]
    assert macro["source"] == "macro:search_then_keep"
    assert (macro["support"], macro["saved_calls"]) == (3, 6)
    assert macro["saved_tokens"] > 0
    assert macro["parameters"]["topic"]["type"] == "string"
    assert [each["tool"] for each in macro["steps"]] == ["search", "fetch", "keep"]
    assert macro["steps"][2]["arguments"] == {"text": {"$result": 2}, "folder": "notes"}
    assert text_of(done) == f"{len('article 31337n') * 2_000} characters are in notes"
    assert again["macros"] == []
    calls = [each.data for each in entries if each.kind == "tool"][-5:-1]
    assert [each["tool"] for each in calls] == ["search", "fetch", "keep", "search_then_keep"]
    assert calls[1]["arguments"] == {"id": 31337}
    assert calls[2]["read"] == [calls[1]["reference"]]


async def recipe(app: App, name: str, *steps: dict[str, Any], **parameters: Any) -> None:
    folder = anyio.Path(app.settings.home / "macros")
    await folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps({"name": name, "steps": steps, "parameters": parameters})
    await (folder / f"{name}.json").write_text(text)
    await app.plugs.plug(f"macro:{name}", name)


async def test_a_macro_runs_under_its_callers_grant_and_says_which_step_failed(
    opened: Any, tmp_path: Path
) -> None:
    root = Caller(Grant.root("local"), "local")
    async with opened() as app:
        await app.plugs.plug(tool_file(tmp_path))
        await recipe(
            app,
            "note",
            {"tool": "search", "arguments": {"topic": {"$parameter": "topic"}}},
            {"tool": "fetch", "arguments": {"id": {"$result": 1, "select": "#/0/id"}}},
            topic={"type": "string"},
        )
        await recipe(
            app, "fail", {"tool": "search", "arguments": {"topic": "tea"}}, {"tool": "broken"}
        )
        await recipe(app, "loop", {"tool": "loop"})
        await recipe(app, "gone", {"tool": "nowhere"})
        narrow = Caller(Grant.root("local").narrow("r1/1", tools=["note", "search"]), "r1")

        results = {
            "narrow": await app.dispatch.call(narrow, "note", {"topic": "tea"}),
            "wrong": await app.dispatch.call(root, "note", {"topic": 3}),
            "fail": await app.dispatch.call(root, "fail", {}),
            "loop": await app.dispatch.call(root, "loop", {}),
            "gone": await app.dispatch.call(root, "gone", {}),
        }

    assert all(each.is_error for each in results.values())
    assert "step 2 of 2, `fetch`, cannot be called" in results["narrow"].text
    assert "done before: `search`" in results["narrow"].text
    assert "`topic`" in results["wrong"].text
    assert "step 2 of 2, `broken`, failed" in results["fail"].text
    assert "calls itself" in results["loop"].text
    assert "'nowhere'" in results["gone"].text


async def test_a_reference_that_an_answer_spells_out_is_not_followed_by_a_macro(
    opened: Any, tmp_path: Path
) -> None:
    path = tmp_path / "sly.py"
    path.write_text(
        "def hint() -> str:\n    return 'ref:secret'\n\n\n"
        "def send(text: str) -> str:\n    return text\n"
    )
    root = Caller(Grant.root("local"), "local")
    async with opened() as app:
        await app.plugs.plug(str(path))
        await app.objects.put(
            b"a secret", media_type="text/plain", name="secret", namespace="local", owner="local"
        )
        await recipe(
            app, "leak", {"tool": "hint"}, {"tool": "send", "arguments": {"text": {"$result": 1}}}
        )

        leaked = await app.dispatch.call(root, "leak", {})

    assert leaked.is_error
    assert "is not followed" in leaked.text


async def test_macros_that_are_no_good_are_refused_with_the_cure(opened: Any) -> None:
    async with opened() as app, Client(build_server(app), cache=None) as client:
        folder = app.settings.home / "macros"
        folder.mkdir(parents=True)
        (folder / "bad.json").write_text(
            '{"name": "bad", "steps": [{"tool": "x", "arguments": {"a": {"$result": 1}}}]}'
        )
        (folder / "empty.json").write_text("{")
        told = [
            text_of(await client.call_tool("plug", {"source": f"macro:{name}"}))
            for name in ("bad", "empty", "none", "../../up")
        ]

    assert "name an earlier one" in told[0]
    assert "Mend `" in told[1]
    assert "there is no macro of that name" in told[2]
    assert "there is no macro of that name" in told[3]


async def test_a_macro_is_there_after_a_restart_follows_its_file_and_goes_when_unplugged(
    opened: Any, tmp_path: Path
) -> None:
    root = Caller(Grant.root("local"), "local")
    home = tmp_path / "home"
    async with opened(home=home) as app, Client(build_server(app), cache=None) as client:
        await asked(client, "plug", source=tool_file(tmp_path))
        (home / "macros").mkdir()
        (home / "macros/find.json").write_text(
            '{"name": "find", "steps": [{"tool": "search", "arguments": {"topic": "tea"}}]}'
        )
        await asked(client, "plug", source="macro:find", name="find")
    async with opened(home=home) as app, Client(build_server(app), cache=None) as client:
        first = await app.dispatch.call(root, "find", {})
        changed = anyio.Event()

        def hear(_: Change) -> None:
            if app.catalog.current.get("find").description == "New.":
                changed.set()

        unsubscribe = app.catalog.subscribe(hear)
        (home / "macros/find.json").write_text(
            '{"name": "find", "description": "New.",'
            ' "steps": [{"tool": "search", "arguments": {"topic": "fish"}}]}'
        )
        with anyio.fail_after(20):
            await changed.wait()
        unsubscribe()
        second = await app.dispatch.call(root, "find", {})
        await asked(client, "unplug", name="find")
        gone = "find" not in app.catalog.current.tools

    assert "4711" in first.text
    assert "90210" in second.text
    assert gone


async def test_usage_is_shown_for_tools_and_plugs_and_kept_in_the_home(
    opened: Any, tmp_path: Path
) -> None:
    async with opened() as app, Client(build_server(app), cache=None) as client:
        await asked(client, "plug", source=tool_file(tmp_path))
        for _ in range(3):
            await client.call_tool("search", {"topic": "tea"})
        await client.call_tool("broken", {})
        told = await asked(client, "list_usage")
        only = await asked(client, "list_usage", plug="articles")
        plugs = (await asked(client, "list_plugs"))["plugs"]
        described = (await asked(client, "describe_tools", names=["search", "fetch"]))["tools"]
        app.usage.save()
        rows = await UsageStore(app.store).since(0)

    known = {each["name"]: each for each in told["tools"]}
    assert (known["search"]["calls"], known["search"]["errors"]) == (3, 0)
    assert known["search"]["success"] > 0.7
    assert known["broken"]["errors"] == 1
    assert known["broken"]["success"] < known["search"]["success"]
    assert only["plugs"][0] == next(each for each in told["plugs"] if each["name"] == "articles")
    assert only["plugs"][0]["calls"] == 4
    assert {each["plug"] for each in only["tools"]} == {"articles"}
    assert plugs[0]["usage"]["calls"] == 4
    assert described[0]["usage"]["calls"] == 3
    assert "usage" not in described[1]
    assert {row.tool for row in rows if row.plug == "articles"} == {"search", "broken"}

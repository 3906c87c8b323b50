"""Every official client, on either transport and in each era that it knows, meets one server.

One client for all tests of a way: they share its connection, as the parts of a host do.
"""

from typing import Any

import anyio
import pytest

WAIT_S = 60


def text_of(result: dict[str, Any]) -> str:
    """Return the one text of a result."""
    (block,) = result["content"]
    assert block["type"] == "text", block
    return str(block["text"])


async def call(client: Any, tool: str, /, **arguments: Any) -> dict[str, Any]:
    result: dict[str, Any] = await client.call("callTool", {"name": tool, "arguments": arguments})
    return result


@pytest.mark.requirement("version.discover", "handshake.initialize")
async def test_the_server_says_what_it_is_and_speaks(way: Any, connected: Any) -> None:
    version = connected.hello["connected"]

    expected = "2026-07-28" if way.is_modern else "2025-11-25"
    assert version in (expected, None)  # one of the clients does not tell
    assert {"tools", "resources", "completions"} <= connected.hello["capabilities"].keys()


@pytest.mark.requirement("tools.order")
async def test_tools_are_listed_in_one_order_with_title_and_hints(connected: Any) -> None:
    first = (await connected.call("listTools"))["tools"]
    second = (await connected.call("listTools"))["tools"]

    assert [tool["name"] for tool in first] == [tool["name"] for tool in second]
    echo = next(tool for tool in first if tool["name"] == "echo")
    assert echo["title"] == "Echo a text"
    assert echo["annotations"]["readOnlyHint"] is True
    assert echo["inputSchema"]["required"] == ["text"]


async def test_a_call_is_answered_with_text(connected: Any) -> None:
    assert text_of(await call(connected, "echo", text="grüße 🎉")) == "grüße 🎉"


@pytest.mark.requirement("tools.structured")
async def test_a_structured_answer_fits_the_schema_that_was_listed(connected: Any) -> None:
    result = await call(connected, "add", a=1, b=2)

    assert result["structuredContent"] == {"total": 3}


@pytest.mark.requirement("tools.content")
async def test_a_picture_arrives_whole(connected: Any) -> None:
    result = await call(connected, "picture")

    assert [block["type"] for block in result["content"]] == ["text", "image"]
    assert result["content"][1]["data"] == "R0lGODlh"


@pytest.mark.requirement("tools.failed")
async def test_a_tool_that_fails_answers_what_the_model_reads(connected: Any) -> None:
    result = await call(connected, "fail", why="no paper left")

    assert result["isError"] is True
    assert "no paper left" in text_of(result)


@pytest.mark.requirement("tools.wrong-arguments")
async def test_an_unknown_argument_is_refused_by_name_with_the_nearest_one(connected: Any) -> None:
    result = await call(connected, "echo", txt="a")

    assert result["isError"] is True
    assert "'txt'" in text_of(result)
    assert "`text`" in text_of(result)


@pytest.mark.requirement("tools.unknown")
async def test_an_unknown_tool_is_an_error_of_the_protocol(connected: Any) -> None:
    with pytest.raises(Exception, match="echo") as caught:
        await call(connected, "ecko", text="a")

    assert getattr(caught.value, "code", None) == -32602


@pytest.mark.requirement("paging.wrong-cursor")
async def test_an_unknown_cursor_is_an_error_of_the_protocol(connected: Any) -> None:
    with pytest.raises(Exception, match="cursor") as caught:
        await connected.call("listTools", {"cursor": "nonsense"})

    assert getattr(caught.value, "code", None) == -32602


@pytest.mark.requirement("progress.passed-on")
async def test_progress_comes_while_the_call_goes_on(connected: Any) -> None:
    """The gate is opened by a second call, once the first has told of itself."""
    going: Any = connected.begin("callTool", {"name": "pass_gate", "arguments": {"name": "p"}})

    word = await going.progress()
    await call(connected, "open_gate", name="p")

    assert (word["progress"], word["total"]) == (1, 2)
    assert text_of(await going.result()) == "through"


@pytest.mark.requirement("cancel.stdio")
async def test_a_call_that_is_given_up_is_cancelled_in_the_server(connected: Any) -> None:
    going: Any = connected.begin("callTool", {"name": "wait_for_ever", "arguments": {"name": "c"}})
    await going.progress()

    going.cancel()

    with pytest.raises(Exception):  # noqa: B017 - each client has an error of its own
        await going.result()
    with anyio.fail_after(WAIT_S):
        assert text_of(await call(connected, "pass_gate", name="c")) == "through"


async def test_a_long_answer_is_a_reference_that_can_be_read_and_passed_on(connected: Any) -> None:
    result = await call(connected, "many_words", count=5000)

    (link,) = [block for block in result["content"] if block["type"] == "resource_link"]
    contents = (await connected.call("readResource", {"uri": link["uri"]}))["contents"]
    passed = await call(connected, "echo", text=link["uri"])
    assert contents[0]["text"].endswith("word4999")
    assert any(block["type"] == "resource_link" for block in passed["content"])


@pytest.mark.requirement("tools.list-changed", "tools.list-changed-handshake")
async def test_a_plug_that_comes_while_connected_is_announced_listed_and_callable(
    connected: Any, place: Any, way: Any
) -> None:
    if way.is_modern:
        await connected.listen()

    await place.guildry("plug", "served/late.py")

    await connected.heard("notifications/tools/list_changed")
    tools = (await connected.call("listTools"))["tools"]
    assert "latecomer" in {tool["name"] for tool in tools}
    assert text_of(await call(connected, "latecomer")) == "here I am"


@pytest.mark.requirement("elicitation.handshake")
async def test_a_question_of_a_tool_reaches_the_client_and_its_answer_the_tool(
    connected: Any,
) -> None:
    asked: list[str] = []

    def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
        asked.append(f"{method}: {params['message']}")
        return {"action": "accept", "content": {"name": "Ada"}}

    connected.answer = answer
    result = await call(connected, "ask_name")

    assert asked == ["elicitation/create: Who are you?"]
    assert text_of(result) == "accept: Ada"


@pytest.mark.requirement("elicitation.declined")
async def test_a_question_that_is_declined_reaches_the_tool_as_that(connected: Any) -> None:
    def decline(method: str, params: dict[str, Any]) -> dict[str, Any]:
        return {"action": "decline"}

    connected.answer = decline

    assert text_of(await call(connected, "ask_name")) == "decline: nobody"


@pytest.mark.requirement("sampling.handshake", "roots.handshake")
async def test_the_client_is_asked_for_its_model_and_its_folders(connected: Any) -> None:
    def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "roots/list":
            return {"roots": [{"uri": "file:///srv/work", "name": "work"}]}
        said = {"type": "text", "text": f"{params['maxTokens']} tokens"}
        return {"role": "assistant", "content": said, "model": "m", "stopReason": "endTurn"}

    connected.answer = answer

    assert text_of(await call(connected, "ask_model", text="hello")) == "accept: 20 tokens"
    assert text_of(await call(connected, "ask_folders")) == "accept: file:///srv/work"


@pytest.mark.requirement("prompts.listed")
async def test_prompts_are_listed_filled_in_and_completed(connected: Any) -> None:
    listed = (await connected.call("listPrompts"))["prompts"]
    asked = {"name": "greeting", "arguments": {"name": "Ada"}}
    filled = await connected.call("getPrompt", asked)
    typed = {"name": "name", "value": "Ad"}
    ref = {"type": "ref/prompt", "name": "greeting"}
    completed = await connected.call("complete", {"ref": ref, "argument": typed})

    greeting = next(each for each in listed if each["name"] == "greeting")
    assert greeting["title"] == "Greet somebody"
    assert [(each["name"], each.get("required", False)) for each in greeting["arguments"]] == [
        ("name", True),
        ("tone", False),
    ]
    assert filled["messages"][0]["content"]["text"] == "Write a warm greeting for Ada."
    assert completed["completion"]["values"] == ["Ada", "Adele"]


@pytest.mark.requirement("prompts.wrong")
async def test_a_prompt_without_its_argument_is_an_error_of_the_protocol(connected: Any) -> None:
    with pytest.raises(Exception, match="name") as caught:
        await connected.call("getPrompt", {"name": "greeting", "arguments": {}})

    assert getattr(caught.value, "code", None) == -32602


@pytest.mark.requirement("resources.templates")
async def test_resources_are_listed_and_read_by_uri_and_by_template(connected: Any) -> None:
    resources = (await connected.call("listResources"))["resources"]
    templates = (await connected.call("listResourceTemplates"))["resourceTemplates"]
    read = await connected.call("readResource", {"uri": "note://friday"})
    ref = {"type": "ref/resource", "uri": "note://{day}"}
    typed = {"name": "day", "value": "f"}
    completed = await connected.call("complete", {"ref": ref, "argument": typed})

    assert "Today's note" in {each.get("title") for each in resources}
    assert "note://{day}" in {each["uriTemplate"] for each in templates}
    assert read["contents"][0]["text"] == "nothing on friday"
    assert completed["completion"]["values"] == ["friday"]


@pytest.mark.requirement("errors.retired-codes", "resources.unknown")
async def test_an_unknown_resource_is_an_error_that_names_it(way: Any, connected: Any) -> None:
    with pytest.raises(Exception, match="nowhere://x") as caught:
        await connected.call("readResource", {"uri": "nowhere://x"})

    is_told_as_it_came = not way.is_modern and way.client != "client"  # which has one for both
    assert getattr(caught.value, "code", None) == (-32002 if is_told_as_it_came else -32602)


@pytest.mark.filterwarnings("ignore::mcp.MCPDeprecationWarning")  # of the handshake era alone
@pytest.mark.requirement("listen.updated", "resources.subscribe")
async def test_a_change_of_a_resource_is_told_to_who_follows_it(connected: Any, way: Any) -> None:
    if way.is_modern:
        await connected.listen("note://today")
    else:
        await connected.call("subscribeResource", {"uri": "note://today"})

    await call(connected, "write_note", text="buy milk")

    await connected.heard("notifications/resources/updated")
    read = await connected.call("readResource", {"uri": "note://today"})
    assert read["contents"][0]["text"] == "buy milk"

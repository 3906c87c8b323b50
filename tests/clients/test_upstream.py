"""The reference servers, plugged in behind Guildry: what they offer arrives as they meant it."""

import subprocess
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from connected import CallError, Connected
from serving import PROGRAMS, Place

TOML = """
listed_tools = 1000
startup_wait_s = 60
ask_destructive = "never"

[plugs]
everything = "node {programs}/mcp-server-everything"
filesystem = "node {programs}/mcp-server-filesystem {work}"
git = "mcp-server-git --repository {work}"
time = "mcp-server-time"
fetch = "mcp-server-fetch"

[plugs.memory]
source = "node {programs}/mcp-server-memory"
env = {{ MEMORY_FILE_PATH = "{work}/memory.json" }}
"""


def text_of(result: dict[str, Any]) -> str:
    """Return the texts of a result, joined."""
    return "\n".join(block["text"] for block in result["content"] if block["type"] == "text")


async def call(client: Any, tool: str, /, **arguments: Any) -> dict[str, Any]:
    result: dict[str, Any] = await client.call("callTool", {"name": tool, "arguments": arguments})
    return result


@pytest.fixture(scope="module")
def work(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file under version control."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "note.txt").write_text("remember the milk\n")
    who = ["-c", "user.name=A", "-c", "user.email=a@b.c"]
    for arguments in (["init", "-q"], ["add", "note.txt"], [*who, "commit", "-qm", "First note"]):
        subprocess.run(["git", *arguments], cwd=folder, check=True)
    return folder


@pytest.fixture(scope="module", params=["python-http-auto", "sdk-stdio-legacy"])
async def client(
    request: pytest.FixtureRequest,
    work: Path,
    reach: Any,
    tmp_path_factory: pytest.TempPathFactory,
) -> AsyncGenerator[Connected]:
    """A client of a server with all of them plugged in."""
    folder = tmp_path_factory.mktemp("serving")
    programs = PROGRAMS / "node_modules" / ".bin"
    (folder / "guildry.toml").write_text(TOML.format(programs=programs, work=work))
    async with reach(request.param, Place(folder / "home", folder)) as connected:
        yield connected


@pytest.mark.requirement("tools.hints")
async def test_every_tool_is_listed_with_the_hints_of_its_author(client: Connected) -> None:
    tools = {tool["name"]: tool for tool in (await client.call("listTools"))["tools"]}

    several = {
        "echo",
        "get-sum",
        "read_text_file",
        "read_graph",
        "git_log",
        "convert_time",
        "fetch",
    }
    assert several <= tools.keys()
    assert tools["read_text_file"]["annotations"]["readOnlyHint"] is True
    assert tools["move_file"]["annotations"]["destructiveHint"] is True
    weather, _ = tools["get-structured-content"]["outputSchema"]["anyOf"]  # or a reference to it
    assert weather["required"] == ["temperature", "conditions", "humidity"]


@pytest.mark.requirement("tools.content")
async def test_answers_of_every_kind_arrive_whole(client: Connected) -> None:
    total = await call(client, "get-sum", a=2, b=3)
    image = await call(client, "get-tiny-image")
    weather = await call(client, "get-structured-content", location="Chicago")
    links = await call(client, "get-resource-links", count=3)

    assert "5" in text_of(total)
    assert [block["mimeType"] for block in image["content"] if block["type"] == "image"] == [
        "image/png"
    ]
    assert weather["structuredContent"].keys() == {"temperature", "conditions", "humidity"}
    assert sum(block["type"] == "resource_link" for block in links["content"]) == 3


async def test_files_are_read_and_written(client: Connected, work: Path) -> None:
    read = await call(client, "read_text_file", path=str(work / "note.txt"))
    await call(client, "write_file", path=str(work / "new.txt"), content="new\n")
    outside = await call(client, "read_text_file", path="/etc/hostname")

    assert "remember the milk" in text_of(read)
    assert (work / "new.txt").read_text() == "new\n"
    assert outside["isError"] is True
    assert "allowed" in text_of(outside)


async def test_a_graph_is_kept_from_call_to_call(client: Connected) -> None:
    ada = {"name": "Ada", "entityType": "person", "observations": ["wrote programs"]}
    await call(client, "create_entities", entities=[ada])

    found = await call(client, "search_nodes", query="programs")

    assert "Ada" in text_of(found)


async def test_history_and_time_are_told(client: Connected, work: Path) -> None:
    log = await call(client, "git_log", repo_path=str(work))
    zones = {"source_timezone": "UTC", "target_timezone": "Asia/Tokyo"}
    time = await call(client, "convert_time", time="12:00", **zones)

    assert "First note" in text_of(log)
    assert "21:00" in text_of(time)


async def test_what_a_server_refuses_is_told_in_its_own_words(client: Connected) -> None:
    fetched = await call(client, "fetch", url="http://127.0.0.1:9/")
    unknown = await call(
        client, "convert_time", time="12:00", source_timezone="Nowhere/Else", target_timezone="UTC"
    )

    assert fetched["isError"] is True
    assert "private" in text_of(fetched)
    assert unknown["isError"] is True
    assert "Nowhere/Else" in text_of(unknown)


@pytest.mark.requirement("completion.values")
async def test_prompts_are_listed_filled_in_and_completed(client: Connected) -> None:
    prompts = {each["name"]: each for each in (await client.call("listPrompts"))["prompts"]}
    filled = await client.call(
        "getPrompt", {"name": "args-prompt", "arguments": {"city": "Oslo", "state": "Norway"}}
    )
    reference = {"type": "ref/prompt", "name": "completable-prompt"}
    typed = {"name": "department", "value": "S"}
    completed = await client.call("complete", {"ref": reference, "argument": typed})

    assert {"args-prompt", "completable-prompt", "resource-prompt", "fetch"} <= prompts.keys()
    assert [each["name"] for each in prompts["args-prompt"]["arguments"]] == ["city", "state"]
    assert filled["messages"][0]["content"]["text"] == "What's weather in Oslo, Norway?"
    assert completed["completion"]["values"] == ["Sales", "Support"]


@pytest.mark.requirement("prompts.wrong")
async def test_an_unknown_prompt_and_a_missing_argument_are_errors_of_the_protocol(
    client: Connected,
) -> None:
    wrong: list[dict[str, Any]] = [
        {"name": "args-promt"},
        {"name": "args-prompt", "arguments": {}},
    ]
    for asked in wrong:
        with pytest.raises(CallError) as caught:
            await client.call("getPrompt", asked)
        assert caught.value.code == -32602


async def test_resources_are_listed_and_read_by_uri_and_by_template(client: Connected) -> None:
    resources = (await client.call("listResources"))["resources"]
    templates = (await client.call("listResourceTemplates"))["resourceTemplates"]
    dynamic = await client.call("readResource", {"uri": "demo://resource/dynamic/text/7"})
    static = next(each for each in resources if each["uri"].startswith("demo://"))
    read = await client.call("readResource", {"uri": static["uri"]})

    assert "demo://resource/dynamic/text/{resourceId}" in {
        each["uriTemplate"] for each in templates
    }
    assert dynamic["contents"][0]["text"].startswith("Resource 7")
    assert read["contents"][0]["uri"] == static["uri"]


async def test_a_server_that_asks_is_answered_by_the_client(client: Any) -> None:
    heard: list[str] = []

    def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
        heard.append(method)
        if method == "elicitation/create":
            return {"action": "accept", "content": {"name": "Ada", "check": True}}
        if method == "roots/list":
            return {"roots": [{"uri": "file:///srv/work", "name": "work"}]}
        said = {"type": "text", "text": "an answer"}
        return {"role": "assistant", "content": said, "model": "m", "stopReason": "endTurn"}

    client.answer = answer
    form = await call(client, "trigger-elicitation-request")
    model = await call(client, "trigger-sampling-request", prompt="hello", maxTokens=10)

    assert {"elicitation/create", "sampling/createMessage"} <= {*heard}
    assert "Ada" in text_of(form)
    assert "an answer" in text_of(model)


async def test_progress_of_a_server_reaches_the_client(client: Connected) -> None:
    going = client.begin(
        "callTool",
        {"name": "trigger-long-running-operation", "arguments": {"duration": 0.6, "steps": 3}},
    )

    first = await going.progress()
    done = await going.result()

    assert (first["progress"], first["total"]) == (1, 3)
    assert "completed" in text_of(done)


async def test_nothing_that_they_say_of_themselves_is_held(client: Connected) -> None:
    try:
        told = await call(client, "list_plugs")
    except CallError:
        pytest.skip("clients over HTTP are not told of plugs")

    plugs = told["structuredContent"]["plugs"]
    assert {plug["name"]: plug["quarantined"] for plug in plugs} == {
        name: [] for name in ("everything", "filesystem", "git", "time", "fetch", "memory")
    }

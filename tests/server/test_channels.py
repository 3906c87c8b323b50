"""Clients of the handshake era: asked by requests on their session, and told what they want."""

import json
from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp_types import (
    CreateMessageResult,
    ElicitRequestURLParams,
    ElicitResult,
    EmptyResult,
    SetLevelRequest,
    SetLevelRequestParams,
    TextContent,
)

from guildry.server.surface import build_server
from guildry.tools.asking.questions import Answer, Question
from guildry.tools.base import READS, Call, Outcome, Text, Tool

NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
MESSAGES: Mapping[str, Any] = {
    "maxTokens": 5,
    "messages": [{"role": "user", "content": {"type": "text", "text": "Hi"}}],
}


def asking(*questions: Question) -> Tool:
    async def invoke(arguments: dict[str, Any], call: Call) -> Outcome:
        answers = [await call.ask(question) for question in questions]
        return Outcome((Text(json.dumps([[each.action, each.content] for each in answers])),))

    return Tool(
        name="greet",
        plug="mine",
        description="Ask.",
        input_schema={"type": "object"},
        invoke=invoke,
        effects=READS,
        asks=True,
    )


def text_of(result: Any) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


def said(result: Any) -> Any:
    return json.loads(text_of(result))


async def test_forms_pages_and_models_are_asked_in_turn(opened: Any) -> None:
    heard: list[str | None] = []

    async def elicit(context: Any, params: Any) -> ElicitResult:
        if isinstance(params, ElicitRequestURLParams):
            heard.append(params.elicitation_id)
            return ElicitResult(action="accept")
        return ElicitResult(action="accept", content={"name": "Ada"})

    async def sample(context: Any, params: Any) -> CreateMessageResult:
        return CreateMessageResult(
            role="assistant", model="m", content=TextContent(type="text", text="Roses")
        )

    tool = asking(
        Question(key="user", kind="form", message="Who?", schema=NAME),
        Question(key="page", kind="url", message="Visit", params={"url": "https://a.example"}),
        Question(key="poem", kind="sampling", message="", params=MESSAGES),
        Question(key="where", kind="roots", message=""),
    )
    with anyio.fail_after(60):
        async with (
            opened(tool) as app,
            Client(
                build_server(app),
                mode="legacy",
                elicitation_callback=elicit,
                sampling_callback=sample,
            ) as client,
        ):
            result = await client.call_tool("greet", {})

    user, page, poem, where = said(result)
    assert user == ["accept", {"name": "Ada"}]
    assert page == ["accept", {}]
    assert poem[1]["content"]["text"] == "Roses"
    assert where == ["cancel", {}]
    assert len(heard) == 1
    assert heard[0]


@pytest.mark.requirement("elicitation.checked")
async def test_an_answer_that_does_not_fit_is_asked_again_with_what_is_wrong(opened: Any) -> None:
    heard: list[str] = []

    async def elicit(context: Any, params: Any) -> ElicitResult:
        heard.append(params.message)
        return ElicitResult(action="accept", content={"name": 5 if len(heard) == 1 else "Ada"})

    tool = asking(Question(key="user", kind="form", message="Who?", schema=NAME))
    with anyio.fail_after(60):
        async with opened(tool) as app:
            server = build_server(app)
            async with Client(server, mode="legacy", elicitation_callback=elicit) as client:
                result = await client.call_tool("greet", {})

    assert said(result) == [["accept", {"name": "Ada"}]]
    assert heard[0] == "Who?"
    assert "`name` is 5 (integer): give a string" in heard[1]


@pytest.mark.requirement("elicitation.modes")
async def test_a_form_that_a_client_cannot_show_stays_open_for_others(opened: Any) -> None:
    refused = anyio.Event()

    async def elicit(context: Any, params: Any) -> ElicitResult:
        refused.set()
        raise MCPError(-32000, "no window")

    answers: list[Any] = []
    tool = asking(Question(key="user", kind="form", message="Who?", schema=NAME))
    with anyio.fail_after(60):
        async with opened(tool) as app:
            server = build_server(app)
            async with (
                Client(server, mode="legacy", elicitation_callback=elicit) as client,
                anyio.create_task_group() as tasks,
            ):

                async def call() -> None:
                    answers.append(said(await client.call_tool("greet", {})))

                tasks.start_soon(call)
                await refused.wait()
                (asked,) = await app.board.open()
                await app.board.answer(asked.id, Answer("accept", {"name": "Eve"}))

    assert answers == [[["accept", {"name": "Eve"}]]]


async def test_an_answer_that_never_fits_is_asked_for_a_few_times(opened: Any) -> None:
    heard: list[str] = []

    async def elicit(context: Any, params: Any) -> ElicitResult:
        heard.append(params.message)
        return ElicitResult(action="accept", content={"name": 5})

    answers: list[Any] = []
    tool = asking(Question(key="user", kind="form", message="Who?", schema=NAME))
    with anyio.fail_after(60):
        async with opened(tool) as app:
            server = build_server(app)
            async with (
                Client(server, mode="legacy", elicitation_callback=elicit) as client,
                anyio.create_task_group() as tasks,
            ):

                async def call() -> None:
                    answers.append(said(await client.call_tool("greet", {})))

                tasks.start_soon(call)
                while len(heard) < 3:
                    await anyio.lowlevel.checkpoint()
                (asked,) = await app.board.open()
                await app.board.answer(asked.id, Answer("accept", {"name": "Eve"}))

    assert answers == [[["accept", {"name": "Eve"}]]]
    assert len(heard) == 3


@pytest.mark.parametrize("era", ["auto", "legacy"])
@pytest.mark.requirement("sampling.handshake")
async def test_a_model_is_asked_for_tools_only_where_its_client_has_them(
    opened: Any, era: Any
) -> None:
    async def sample(context: Any, params: Any) -> CreateMessageResult:
        raise AssertionError("it was asked")

    params: dict[str, Any] = {**MESSAGES, "tools": []}
    tool = asking(Question(key="poem", kind="sampling", message="", params=params))
    with anyio.fail_after(60):
        async with opened(tool) as app:
            server = build_server(app)
            async with Client(server, mode=era, sampling_callback=sample) as client:
                result = await client.call_tool("greet", {})

    assert said(result) == [["cancel", {}]]


async def test_a_client_has_no_more_than_its_time_to_answer(opened: Any, make_tool: Any) -> None:
    async def elicit(context: Any, params: Any) -> ElicitResult:
        await anyio.sleep_forever()
        return ElicitResult(action="cancel")

    async def invoke(arguments: dict[str, Any], call: Call) -> Outcome:
        question = Question(key="user", kind="form", message="Who?", schema=NAME)
        answer = await call.caller.channel.ask(question)
        return Outcome((Text(f"{answer.action} by {answer.by}"),))

    with anyio.fail_after(60):
        async with opened(make_tool("greet", invoke), ask_wait_s=0.2) as app:
            server = build_server(app)
            async with Client(server, mode="legacy", elicitation_callback=elicit) as client:
                result = await client.call_tool("greet")

    assert text_of(result) == "cancel by deadline"


async def test_a_model_that_refuses_has_declined(opened: Any) -> None:
    async def sample(context: Any, params: Any) -> CreateMessageResult:
        raise MCPError(-1, "User rejected sampling request")

    tool = asking(Question(key="poem", kind="sampling", message="", params=MESSAGES))
    with anyio.fail_after(60):
        async with opened(tool) as app:
            server = build_server(app)
            async with Client(server, mode="legacy", sampling_callback=sample) as client:
                result = await client.call_tool("greet", {})

    assert said(result) == [["decline", {}]]


async def test_a_question_whose_parameters_are_wrong_is_put_to_nobody(opened: Any) -> None:
    async def sample(context: Any, params: Any) -> CreateMessageResult:
        raise AssertionError("it was asked")

    tool = asking(Question(key="poem", kind="sampling", message="", params={"messages": 5}))
    with anyio.fail_after(60):
        async with opened(tool) as app:
            server = build_server(app)
            async with Client(server, mode="legacy", sampling_callback=sample) as client:
                result = await client.call_tool("greet", {})

    assert said(result) == [["cancel", {}]]


async def test_a_client_that_gives_up_the_call_is_asked_no_longer(opened: Any) -> None:
    asked, given_up = anyio.Event(), anyio.Event()

    async def elicit(context: Any, params: Any) -> ElicitResult:
        asked.set()
        try:
            await anyio.sleep_forever()
        finally:
            given_up.set()
        return ElicitResult(action="cancel")

    tool = asking(Question(key="user", kind="form", message="Who?", schema=NAME))
    with anyio.fail_after(60):
        async with opened(tool) as app:
            server = build_server(app)
            async with Client(server, mode="legacy", elicitation_callback=elicit) as client:
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(client.call_tool, "greet")
                    await asked.wait()
                    tasks.cancel_scope.cancel()
                await given_up.wait()
            while await app.board.open():
                await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_log_messages_go_to_a_client_that_asked_for_them(
    opened: Any, make_tool: Any, era: Any
) -> None:
    heard: list[tuple[str, Any, str | None]] = []

    async def invoke(arguments: dict[str, Any], call: Call) -> Outcome:
        if call.log is None:
            return Outcome((Text("silent"),))
        await call.log("debug", "too little")
        await call.log("warning", {"what": "this"}, "mine")
        await call.log("loud", "no level")
        return Outcome((Text(call.log.level),))

    async def hear(params: Any) -> None:
        heard.append((params.level, params.data, params.logger))

    tool = make_tool("talk", invoke)
    level: Any = "info" if era == "auto" else None
    with anyio.fail_after(60):
        async with opened(tool) as app:
            server = build_server(app)
            async with Client(server, mode=era) as client:
                silent = await client.call_tool("talk", {})
            async with Client(server, mode=era, logging_callback=hear, log_level=level) as client:
                if era == "legacy":
                    request = SetLevelRequest(params=SetLevelRequestParams(level="info"))
                    await client.session.send_request(request, EmptyResult)
                loud = await client.call_tool("talk", {})

    assert (text_of(silent), text_of(loud)) == ("silent", "info")
    assert heard == [("warning", {"what": "this"}, "mine")]

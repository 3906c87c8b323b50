"""The tools by which a client without tasks answers what a run asks, and sees what is open."""

from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import anyio
import pytest
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint
from mcp import Client
from mcp.shared.exceptions import MCPError

from guildry.errors import ToolRetry
from guildry.server.surface import USER_SCOPES, build_server
from guildry.teams.model import Request
from guildry.teams.scripted import ScriptedModel, call
from guildry.teams.team import Solo
from guildry.tools.base import Call, Effects, Outcome, Text, Tool
from guildry.tools.caller import Caller

FORM = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
}
CLERK = Solo(name="clerk", description="Asks.", tools=("wipe",), asks=True)

Ask = Callable[..., Awaitable[Any]]


def asking(*calls: Any) -> ScriptedModel:
    """A model that asks once, all at the same time, then reports what it was told."""

    def program(request: Request) -> Any:
        told = [message.content for message in request.messages if message.role == "tool"]
        return " | ".join(told) if told else list(calls)

    return ScriptedModel(program)


async def wipe(arguments: dict[str, Any], asking: Call) -> Outcome:
    return Outcome((Text("wiped"),))


WIPE = Tool(
    name="wipe",
    plug="mine",
    description="Wipe.",
    input_schema={"type": "object", "properties": {}, "additionalProperties": False},
    invoke=wipe,
    effects=Effects(admits=True),
)


@asynccontextmanager
async def beside() -> AsyncGenerator[TaskGroup]:
    """Have room for tasks at the side of a test."""
    async with anyio.create_task_group() as tasks:
        yield tasks


def asker(client: Client) -> Ask:
    async def ask(tool: str, **arguments: Any) -> Any:
        result = await client.call_tool(tool, arguments)
        return result.content[0].text if result.is_error else result.structured_content  # type: ignore[union-attr]  # a text

    return ask


async def begun(ask: Ask, count: int = 1) -> tuple[str, list[dict[str, Any]]]:
    """Begin a run in the background, and wait until it asks so many questions."""
    run = (await ask("team_clerk", task="Go", background=True))["run"]
    while len(questions := (await ask("run_status", run=run)).get("questions", [])) < count:
        await checkpoint()
    return run, questions


async def ended(ask: Ask, run: str) -> str:
    while (await ask("run_status", run=run))["status"] == "running":
        await checkpoint()
    return cast("str", (await ask("run_result", run=run))["report"])


async def test_a_runs_only_question_is_shown_and_answered(opened: Any) -> None:
    model = asking(call("ask", question="Which folder?"))
    async with opened(models={"scripted": model}) as app:
        app.add_team(CLERK)
        with anyio.fail_after(30):
            async with Client(build_server(app)) as client:
                ask = asker(client)
                run, (question,) = await begun(ask)
                answered = await ask("run_answer", run=run, answer="src")
                report = await ended(ask, run)
                late = await ask("run_answer", run=run, answer="lib")
                after = await ask("run_status", run=run)

    assert (question["kind"], question["tool"]) == ("form", "ask")
    assert question["message"].startswith("Which folder?")
    assert question["chain"] == ["local", run, f"{run}/1"]
    assert answered == {"question": question["question"], "run": run, "action": "accept"}
    assert report == "src"
    assert late == f"run `{run}` asks nothing now: `run_steer` tells its agents something"
    assert "questions" not in after


async def test_of_several_questions_the_answer_names_one(opened: Any) -> None:
    model = asking(call("ask", question="First?"), call("ask", question="Second?", schema=FORM))
    async with opened(models={"scripted": model}) as app:
        app.add_team(CLERK)
        with anyio.fail_after(30):
            async with Client(build_server(app)) as client:
                ask = asker(client)
                run, questions = await begun(ask, 2)
                first, second = sorted(questions, key=lambda each: str(each["message"]))
                unnamed = await ask("run_answer", run=run, answer="x")
                unknown = await ask("run_answer", run=run, question="q0", answer="x")
                plain = await ask("run_answer", run=run, question=second["question"], answer="x")
                wrong = await ask(
                    "run_answer", run=run, question=second["question"], answer={"name": "Ada"}
                )
                nothing = await ask("run_answer", run=run, question=second["question"])
                form = {"name": "Ada", "age": 36}
                await ask("run_answer", run=run, question=second["question"], answer=form)
                await ask("run_answer", run=run, decline=True)
                report = await ended(ask, run)

    for told in (unnamed, unknown):
        assert f"`{first['question']}`: First?" in told
        assert f"`{second['question']}`: Second?" in told
    assert plain == "the answer is 'x': give an object with `name`, `age`"
    assert "`age` is missing: give an integer" in wrong
    assert nothing == "`answer` is missing: give it, or `decline` as true"
    assert second["schema"]["required"] == ["name", "age"]
    assert "The person declined to answer" in report
    assert '{"name":"Ada","age":36}' in report


async def test_a_call_of_an_agent_is_allowed_or_refused_through_its_run(opened: Any) -> None:
    for answer, told in ((True, "wiped"), (False, "it was declined by `local`")):
        async with opened(WIPE, models={"scripted": asking(call("wipe"))}) as app:
            app.add_team(CLERK)
            with anyio.fail_after(30):
                async with Client(build_server(app)) as client:
                    ask = asker(client)
                    run, (question,) = await begun(ask)
                    vague = await ask("run_answer", run=run, answer="perhaps")
                    await ask("run_answer", run=run, answer=answer)
                    report = await ended(ask, run)

        assert (question["kind"], question["tool"], question["plug"]) == (
            "approval",
            "wipe",
            "mine",
        )
        assert "give true to allow the call, false to refuse it" in vague
        assert told in report


async def test_administrators_see_and_answer_the_questions_of_all(opened: Any) -> None:
    async with opened(WIPE) as app:
        results: list[Any] = []
        with anyio.fail_after(30):
            async with (
                Client(build_server(app)) as admin,
                Client(build_server(app, holder="ann", scopes=USER_SCOPES)) as user,
                beside() as tasks,
            ):

                async def call_it() -> None:
                    results.append(await user.call_tool("wipe", {}))

                tasks.start_soon(call_it)
                ask = asker(admin)
                while not (questions := (await ask("list_questions"))["questions"]):
                    await checkpoint()
                for tool in ("list_questions", "answer_question"):
                    with pytest.raises(MCPError, match="there is no tool"):
                        await user.call_tool(tool, {"question": "q0"})
                unknown = await ask("answer_question", question="q0", answer=True)
                id = questions[0]["question"]
                answered = await ask("answer_question", question=id, answer=True)
                again = await ask("answer_question", question=id, answer=True)

    assert [(each["principal"], each["tool"]) for each in questions] == [("ann", "wipe")]
    assert unknown == "there is no open question 'q0': see `list_questions`"
    assert answered == {"question": id, "run": "ann", "action": "accept"}
    assert again == f"there is no open question {id!r}: see `list_questions`"
    assert results[0].content[0].text == "wiped"


async def test_a_foreign_run_cannot_be_answered_and_agents_answer_nothing(opened: Any) -> None:
    model = asking(call("ask", question="Which?"))
    async with opened(models={"scripted": model}) as app:
        app.add_team(CLERK)
        with anyio.fail_after(30):
            async with (
                Client(build_server(app)) as client,
                Client(build_server(app, holder="ben", scopes=USER_SCOPES)) as ben,
            ):
                run, _ = await begun(asker(client))
                foreign = await asker(ben)("run_answer", run=run, answer="x")
                grant = app.orchestrator.find(run).grant.narrow("r9/1", tools=())
                agent = Caller(grant, "r9")
                tool = app.catalog.current.get("run_answer")
                with pytest.raises(ToolRetry, match="there is no run"):  # as for anybody else
                    await tool.invoke({"run": run, "answer": "x"}, Call(tool, agent))
                await asker(client)("run_cancel", run=run)

    assert "there is no run" in foreign


async def test_who_waits_for_a_run_hears_that_it_waits_for_a_person(opened: Any) -> None:
    model = asking(call("ask", question="Which?"))
    words: list[str] = []
    heard = anyio.Event()

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        words.append(message or "")
        if "guildry approve" in words[-1]:
            heard.set()

    async with opened(models={"scripted": model}) as app:
        app.add_team(CLERK)
        with anyio.fail_after(30):
            async with Client(build_server(app)) as client, beside() as tasks:

                async def work() -> None:
                    await client.call_tool("team_clerk", {"task": "Go"}, progress_callback=hear)

                tasks.start_soon(work)
                await heard.wait()
                (asked,) = await app.board.open()
                await asker(client)("run_answer", run=asked.run, answer="src")

    assert f"waits for an answer: `guildry approve {asked.id}`" in words


async def test_the_tools_for_agents_are_not_listed(opened: Any) -> None:
    async with opened() as app, Client(build_server(app)) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}

    assert {"run_answer", "list_questions", "answer_question"} <= names
    assert not {"ask", "spawn"} & names

"""Tasks through the official client: begun, asked for, answered, cancelled, and whose they are."""

import json
import re
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp.client import ClientRequestContext
from mcp.types import ElicitRequestParams, ElicitResult, TextContent
from mcp_types import SubscriptionsAcknowledgedNotification, ToolListChangedNotification

from guildry.errors import ToolFailed, ToolProtocolError
from guildry.memory.runs import RunRecord
from guildry.memory.tasks import INTERRUPTED, TaskRecord, TaskStore
from guildry.server.surface import build_server
from guildry.teams.scripted import ScriptedModel, call
from guildry.teams.team import Solo
from guildry.tools.asking.questions import Answer, Question
from guildry.tools.base import Call, Effects, Outcome, Text, Tool

EXTENSION = "io.modelcontextprotocol/tasks"
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}


async def accept(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
    return ElicitResult(action="accept", content={"name": "Ann"})


def asking(key: str = "name", *, repeatable: bool = False) -> Question:
    return Question(key=key, kind="form", message="Your name?", schema=NAME, repeatable=repeatable)


def answered(task: dict[str, Any]) -> dict[str, Any]:
    """Return what a run answered."""
    told: dict[str, Any] = json.loads(task["result"]["content"][0]["text"])
    return told


def given(name: str) -> dict[str, Any]:
    return {"action": "accept", "content": {"name": name}}


@pytest.fixture
def job(make_tool: Callable[..., Tool]) -> Callable[..., Tool]:
    """Make a tool that is a task where the client takes tasks."""

    def make(name: str, invoke: Any, **about: Any) -> Tool:
        return replace(make_tool(name, invoke), **{"task": "optional", **about})

    return make


@pytest.fixture
def greeting(job: Callable[..., Tool]) -> Tool:
    async def greet(arguments: dict[str, Any], call: Call) -> Outcome:
        return Outcome((Text("hello"),))

    return job("greet", greet)


@pytest.fixture
def naming(job: Callable[..., Tool]) -> Tool:
    async def name(arguments: dict[str, Any], call: Call) -> Outcome:
        answer = await call.ask(asking())
        return Outcome((Text(f"{answer.action} {answer.content.get('name')}"),))

    return job("name", name, asks=True)


async def test_a_call_becomes_a_task_whose_result_is_what_the_call_answers(
    opened: Any, greeting: Tool, with_tasks: Any
) -> None:
    async with opened(greeting) as app, with_tasks(build_server(app)) as client:
        begun = await client.call("greet")
        task = await client.until(begun["taskId"])
        again = await client.get(begun["taskId"])

    assert begun["resultType"] == "task"
    assert begun["status"] in ("working", "completed")
    assert not {"result", "error", "inputRequests", "requestState", "task"} & begun.keys()
    assert re.fullmatch(r"t[a-z2-7]{26}", begun["taskId"])
    assert task["resultType"] == "complete"
    assert task["status"] == "completed"
    assert task["result"] == {
        "content": [{"type": "text", "text": "hello"}],
        "isError": False,
        "resultType": "complete",
    }
    assert isinstance(task["ttlMs"], int) and isinstance(task["pollIntervalMs"], int)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", task["createdAt"])
    assert "requestState" not in task
    assert again == task


@pytest.mark.requirement("extensions.fallback", "tasks.declared")
async def test_a_client_without_the_extension_gets_the_answer_at_once(
    opened: Any, greeting: Tool
) -> None:
    async with opened(greeting) as app, Client(build_server(app)) as client:
        result = await client.call_tool("greet", {})

    assert not result.is_error


@pytest.mark.parametrize("era", ["auto", "legacy"])
@pytest.mark.requirement("extensions.fallback", "tasks.declared")
async def test_a_tool_that_is_a_task_or_nothing_refuses_a_client_without_tasks(
    opened: Any, greeting: Tool, era: Any
) -> None:
    strict = replace(greeting, task="required")
    async with opened(strict) as app, Client(build_server(app), mode=era) as client:
        with pytest.raises(MCPError) as refused:
            await client.call_tool("greet", {})

    assert refused.value.error.code == -32021
    assert refused.value.error.data == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}


@pytest.mark.requirement("extensions.declared")
async def test_the_extension_is_told_to_modern_clients_and_not_to_older_ones(opened: Any) -> None:
    async with opened() as app:
        async with Client(build_server(app)) as client:
            modern = client.server_capabilities
        async with Client(build_server(app), mode="legacy") as client:
            legacy = client.server_capabilities

    assert modern is not None and legacy is not None
    assert (modern.extensions or {})[EXTENSION] == {}
    assert legacy.extensions is None or EXTENSION not in legacy.extensions


@pytest.mark.requirement("tasks.status")
async def test_what_a_tool_did_wrong_is_a_result_and_what_went_wrong_around_it_an_error(
    opened: Any, job: Any, with_tasks: Any
) -> None:
    async def fail(arguments: dict[str, Any], call: Call) -> Outcome:
        raise ToolFailed("no luck")

    async def panic(arguments: dict[str, Any], call: Call) -> Outcome:
        raise ToolProtocolError("it panicked", -32050, "panic", {"at": 7})

    jobs = [job("fail", fail), job("panic", panic)]
    async with opened(*jobs) as app, with_tasks(build_server(app)) as client:
        failed = await client.until(await client.begin("fail"))
        wrong = await client.until(await client.begin("fail", extra=1))
        panicked = await client.until(await client.begin("panic"))

    assert (failed["status"], failed["result"]["isError"]) == ("completed", True)
    assert failed["result"]["content"][0]["text"] == "no luck"
    assert (wrong["status"], wrong["result"]["isError"]) == ("completed", True)
    assert "extra" in wrong["result"]["content"][0]["text"]
    assert (panicked["status"], panicked["statusMessage"]) == ("failed", "panic")
    assert panicked["error"] == {"code": -32050, "message": "panic", "data": {"at": 7}}
    assert "result" not in panicked


@pytest.mark.requirement("tasks.questions")
async def test_a_question_is_shown_until_it_is_answered_and_others_are_passed_over(
    opened: Any, naming: Tool, with_tasks: Any
) -> None:
    async with opened(naming) as app:
        async with with_tasks(build_server(app), elicitation_callback=accept) as client:
            id = await client.begin("name")
            asked = await client.until(id, "input_required")
            ack = await client.update(id, other=given("Eve"))
            still = await client.get(id)
            with pytest.raises(MCPError, match="`inputResponses` does not answer 'name'") as unfit:
                await client.update(id, name={"action": "accept", "content": {"name": 1}})
            await client.update(id, name=given("Ann"))
            ended = await client.until(id)
            late = await client.update(id, name=given("Eve"))

    (key,) = asked["inputRequests"]
    assert key == "name"
    request = asked["inputRequests"][key]
    assert request["method"] == "elicitation/create"
    assert request["params"]["message"] == "Your name?"
    assert request["params"]["requestedSchema"] == NAME
    assert not {"taskId", "status", "result", "error", "inputRequests"} & ack.keys()
    assert ack["resultType"] == late["resultType"] == "complete"
    assert set(still["inputRequests"]) == {"name"}
    assert unfit.value.error.code == -32602
    assert ended["result"]["content"][0]["text"] == "accept Ann"


@pytest.mark.requirement("tasks.questions")
async def test_questions_at_the_same_time_may_be_answered_one_by_one(
    opened: Any, job: Any, with_tasks: Any
) -> None:
    async def both(arguments: dict[str, Any], call: Call) -> Outcome:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call.ask, asking("first"))
            tasks.start_soon(call.ask, asking("last"))
        return Outcome((Text("both"),))

    async with opened(job("both", both, asks=True)) as app:
        async with with_tasks(build_server(app), elicitation_callback=accept) as client:
            id = await client.begin("both")
            task = await client.until(id, "input_required")
            while len(task["inputRequests"]) < 2:
                task = await client.get(id)
            await client.update(id, first=given("Ann"))
            partly = await client.get(id)
            await client.update(id, last=given("Lee"))
            ended = await client.until(id)

    assert (partly["status"], set(partly["inputRequests"])) == ("input_required", {"last"})
    assert ended["result"]["content"][0]["text"] == "both"


async def test_anybody_may_answer_the_question_of_a_task_on_the_board(
    opened: Any, naming: Tool, with_tasks: Any
) -> None:
    async with opened(naming) as app:
        async with with_tasks(build_server(app), elicitation_callback=accept) as client:
            id = await client.begin("name")
            await client.until(id, "input_required")
            (question,) = await app.board.open()
            await app.board.answer(question.id, Answer("accept", {"name": "Bob"}))
            ended = await client.until(id)

    assert ended["result"]["content"][0]["text"] == "accept Bob"


@pytest.mark.requirement("tasks.asked-before")
async def test_what_is_asked_before_anything_is_done_is_asked_before_there_is_a_task(
    opened: Any, job: Any, with_tasks: Any
) -> None:
    async def first(arguments: dict[str, Any], call: Call) -> Outcome:
        answer = await call.ask(asking("user_name", repeatable=True))
        later = await call.ask(asking("later"))
        names = [answer.content["name"], later.content["name"]]
        return Outcome((Text(" and ".join(names)),))

    async with opened(job("first", first, asks=True, task="required")) as app:
        async with with_tasks(build_server(app), elicitation_callback=accept) as client:
            round_1 = await client.call("first")
            answers = {"user_name": ElicitResult(action="accept", content={"name": "Ann"})}
            round_2 = await client.call_with(
                "first", {}, input_responses=answers, request_state=round_1["requestState"]
            )
            asked = await client.until(round_2["taskId"], "input_required")
            await client.update(round_2["taskId"], later=given("Lee"))
            ended = await client.until(round_2["taskId"])

    assert round_1["resultType"] == "input_required"
    assert set(round_1["inputRequests"]) == {"user_name"}
    assert "taskId" not in round_1
    assert round_2["resultType"] == "task"
    assert not {"requestState", "inputRequests"} & round_2.keys()
    assert set(asked["inputRequests"]) == {"later"}
    assert ended["result"]["content"][0]["text"] == "Ann and Lee"


async def test_with_the_first_question_that_is_not_asked_before_all_are_the_tasks(
    opened: Any, job: Any, with_tasks: Any
) -> None:
    async def both(arguments: dict[str, Any], call: Call) -> Outcome:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call.ask, asking("early", repeatable=True))
            tasks.start_soon(call.ask, asking("late"))
        return Outcome((Text("both"),))

    async with opened(job("both", both, asks=True)) as app:
        async with with_tasks(build_server(app), elicitation_callback=accept) as client:
            id = await client.begin("both")
            task = await client.until(id, "input_required")
            while len(task["inputRequests"]) < 2:
                task = await client.get(id)
            await client.update(id, early=given("Ann"), late=given("Lee"))
            ended = await client.until(id)

    assert set(task["inputRequests"]) == {"early", "late"}
    assert ended["result"]["content"][0]["text"] == "both"


async def test_approval_is_asked_before_there_is_a_task(
    opened: Any, greeting: Tool, with_tasks: Any
) -> None:
    destroys = replace(greeting, effects=Effects(admits=True))
    async with opened(destroys) as app:
        async with with_tasks(build_server(app), elicitation_callback=accept) as client:
            asked = await client.call("greet")
            (key,) = asked["inputRequests"]
            answers = {key: ElicitResult(action="accept", content={})}
            begun = await client.call_with(
                "greet", {}, input_responses=answers, request_state=asked["requestState"]
            )
            ended = await client.until(begun["taskId"])

    assert asked["resultType"] == "input_required"
    assert begun["resultType"] == "task"
    assert ended["result"]["content"][0]["text"] == "hello"


@pytest.mark.requirement("tasks.cancelled")
async def test_a_cancelled_task_stops_its_call(opened: Any, hang: Any, with_tasks: Any) -> None:
    tool, began, cancelled = hang
    lasting = replace(tool, task="optional")
    async with opened(lasting) as app, with_tasks(build_server(app)) as client:
        id = await client.begin("hang")
        await began.wait()
        ack = await client.cancel(id)
        stopped = cancelled.is_set()
        task = await client.get(id)
        again = await client.cancel(id)

    assert stopped
    assert {key for key in ack if key != "_meta"} == {"resultType"}
    assert again["resultType"] == ack["resultType"] == "complete"
    assert (task["status"], task["statusMessage"]) == ("cancelled", "cancelled by the client")
    assert not {"result", "error"} & task.keys()


async def test_progress_is_the_message_of_the_task(opened: Any, job: Any, with_tasks: Any) -> None:
    told, go_on = anyio.Event(), anyio.Event()

    async def work(arguments: dict[str, Any], call: Call) -> Outcome:
        assert call.progress is not None
        await call.progress(1, 2, "half done")
        told.set()
        await go_on.wait()
        return Outcome((Text("done"),))

    async with opened(job("work", work)) as app, with_tasks(build_server(app)) as client:
        id = await client.begin("work")
        await told.wait()
        working = await client.get(id)
        go_on.set()
        ended = await client.until(id)

    assert (working["status"], working["statusMessage"]) == ("working", "half done")
    assert "statusMessage" not in ended


@pytest.mark.requirement("tasks.unknown")
async def test_unknown_foreign_and_expired_tasks_fail_alike(
    opened: Any, greeting: Tool, with_tasks: Any
) -> None:
    methods: dict[str, dict[str, Any]] = {
        "tasks/get": {},
        "tasks/update": {"inputResponses": {}},
        "tasks/cancel": {},
    }
    errors: set[tuple[int, str]] = set()
    async with opened(greeting, task_ttl_s=0.001) as app:
        other = build_server(app, holder="eve", scopes=("tools",))
        async with with_tasks(build_server(app)) as client, with_tasks(other) as foreign:
            mine = await client.begin("greet")
            theirs = await foreign.begin("greet")
            for id in (mine, theirs, "t" + "a" * 26):
                for method, params in methods.items():
                    while True:
                        try:
                            await client.ask(method, id, **params)
                        except MCPError as error:
                            message = error.error.message.replace(id, "ID")
                            errors.add((error.error.code, message))
                            break

    assert len(errors) == 1
    ((code, message),) = errors
    assert code == -32602
    assert "there is no task 'ID' here" in message


@pytest.mark.parametrize("id", [None, 7, {"a": 1}])
async def test_a_request_without_a_task_id_is_refused(
    opened: Any, with_tasks: Any, id: Any
) -> None:
    async with opened() as app, with_tasks(build_server(app)) as client:
        with pytest.raises(MCPError, match="`taskId` is missing") as refused:
            await client.get(id)

    assert refused.value.error.code == -32602


@pytest.mark.parametrize("responses", [None, [], "yes"])
async def test_an_update_without_answers_is_refused(
    opened: Any, greeting: Tool, with_tasks: Any, responses: Any
) -> None:
    async with opened(greeting) as app, with_tasks(build_server(app)) as client:
        id = await client.begin("greet")
        with pytest.raises(MCPError, match="`inputResponses` is no object") as refused:
            await client.ask("tasks/update", id, inputResponses=responses)

    assert refused.value.error.code == -32602


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
@pytest.mark.requirement("tasks.declared")
async def test_a_client_that_does_not_declare_tasks_is_told_to(
    opened: Any, with_tasks: Any, method: str
) -> None:
    async with opened() as app, with_tasks(build_server(app), extensions=[]) as client:
        with pytest.raises(MCPError) as refused:
            await client.ask(method, "t1")

    assert refused.value.error.code == -32021
    assert refused.value.error.data == {"requiredCapabilities": {"extensions": {EXTENSION: {}}}}


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
async def test_older_clients_have_no_such_methods(
    opened: Any, with_tasks: Any, method: str
) -> None:
    async with opened() as app, with_tasks(build_server(app), mode="legacy") as client:
        with pytest.raises(MCPError) as refused:
            await client.ask(method, "t1")

    assert refused.value.error.code == -32601


@pytest.mark.parametrize("method", ["tasks/list", "tasks/result"])
@pytest.mark.requirement("tasks.methods-gone")
async def test_the_methods_of_the_first_tasks_are_gone(
    opened: Any, with_tasks: Any, method: str
) -> None:
    async with opened() as app, with_tasks(build_server(app)) as client:
        with pytest.raises(MCPError) as refused:
            await client.ask(method, "t1")

    assert refused.value.error.code == -32601


async def test_a_client_may_have_so_many_tasks_at_work_and_no_more(
    opened: Any, hang: Any, with_tasks: Any
) -> None:
    tool, _, _ = hang
    async with opened(replace(tool, task="optional"), tasks_at_once=2) as app:
        other = build_server(app, holder="eve", scopes=("tools",))
        async with with_tasks(build_server(app)) as client, with_tasks(other) as foreign:
            first = await client.begin("hang")
            await client.begin("hang")
            refused = await client.call("hang")
            await foreign.begin("hang")
            await client.cancel(first)
            freed = await client.call("hang")

    assert (refused["resultType"], refused["isError"]) == ("complete", True)
    assert "2 of your tasks are at work" in refused["content"][0]["text"]
    assert freed["resultType"] == "task"


async def test_a_long_result_is_a_reference_as_everywhere(
    opened: Any, job: Any, with_tasks: Any
) -> None:
    async def write(arguments: dict[str, Any], call: Call) -> Outcome:
        return Outcome((Text("word " * 10_000),))

    async with opened(job("write", write)) as app, with_tasks(build_server(app)) as client:
        ended = await client.until(await client.begin("write"))
        told = ended["result"]["structuredContent"]

    assert told["size"] == 50_000
    assert told["reference"].startswith("ref:")


# Runs -------------------------------------------------------------------------------------------


def team(**about: Any) -> Solo:
    return Solo(name="dig", description="Digs.", **about)


async def test_a_team_is_a_task_and_its_run_has_the_id_that_the_task_names(
    opened: Any, with_tasks: Any
) -> None:
    model = ScriptedModel(["found it"])
    async with opened(models={"scripted": model}) as app:
        name = app.add_team(team())
        async with with_tasks(build_server(app)) as client:
            begun = await client.call(name, task="look", background=True)
            ended = await client.until(begun["taskId"])
            run = begun["_meta"]["guildry/run"]
            record = await app.runs.get(run)

    told = answered(ended)
    assert (told["run"], told["status"], told["report"]) == (run, "done", "found it")
    assert ended["_meta"]["guildry/run"] == run
    assert record is not None
    assert (record.status, record.team) == ("done", "dig")


@pytest.mark.requirement("tasks.cancelled")
async def test_cancelling_a_task_stops_its_run_to_the_last_child(
    opened: Any, hang: Any, with_tasks: Any
) -> None:
    tool, began, cancelled = hang

    async def play(request: Any) -> Any:
        if "spawn" in {each.name for each in request.tools}:
            return call("spawn", task="dig deeper", tools=["hang"])
        return call("hang")

    model = ScriptedModel(play)
    async with opened(tool, models={"scripted": model}) as app:
        name = app.add_team(team(may_spawn=True))
        async with with_tasks(build_server(app)) as client:
            begun = await client.call(name, task="look")
            await began.wait()
            agents = len(next(iter(app.orchestrator.live.values())).live)
            await client.cancel(begun["taskId"])
            stopped = cancelled.is_set()
            task = await client.get(begun["taskId"])
            run = begun["_meta"]["guildry/run"]
            record = await app.runs.get(run)
            live = dict(app.orchestrator.live)

    assert agents == 2
    assert stopped
    assert live == {}
    assert task["status"] == "cancelled"
    assert f"`run_result` tells what run `{run}` left" in task["statusMessage"]
    assert record is not None
    assert record.status == "cancelled"


async def test_what_an_agent_of_the_run_may_not_do_alone_is_asked_as_the_task(
    opened: Any, make_tool: Any, with_tasks: Any
) -> None:
    async def wipe(arguments: dict[str, Any], call: Call) -> Outcome:
        return Outcome((Text("wiped"),))

    model = ScriptedModel([call("wipe"), "done"])
    wiping = replace(make_tool("wipe", wipe), effects=Effects(admits=True))
    async with opened(wiping, models={"scripted": model}) as app:
        name = app.add_team(team())
        async with with_tasks(build_server(app), elicitation_callback=accept) as client:
            id = await client.begin(name, task="look")
            asked = await client.until(id, "input_required")
            ((key, request),) = asked["inputRequests"].items()
            await client.update(id, **{key: {"action": "accept", "content": {}}})
            ended = await client.until(id)

    assert "`wipe`" in request["params"]["message"]
    assert "local → " in request["params"]["message"]
    assert answered(ended)["status"] == "done"
    assert "wiped" in str(model.requests[-1].messages)


async def test_a_message_in_an_update_reaches_the_agents_before_their_next_turn(
    opened: Any, make_tool: Any, with_tasks: Any
) -> None:
    began, go_on = anyio.Event(), anyio.Event()

    async def pause(arguments: dict[str, Any], call: Call) -> Outcome:
        began.set()
        await go_on.wait()
        return Outcome((Text("paused"),))

    model = ScriptedModel([call("pause"), "done"])
    async with opened(make_tool("pause", pause), models={"scripted": model}) as app:
        name = app.add_team(team())
        async with with_tasks(build_server(app)) as client:
            id = await client.begin(name, task="look")
            await began.wait()
            meta = {"guildry/steer": "look on the left"}
            await client.ask("tasks/update", id, inputResponses={}, _meta=meta)
            go_on.set()
            ended = await client.until(id)

    assert answered(ended)["status"] == "done"
    assert "look on the left" in str(model.requests[-1].messages)


async def test_there_is_nobody_to_give_a_message_to_in_a_task_that_is_no_run(
    opened: Any, hang: Any, with_tasks: Any
) -> None:
    tool, _, _ = hang
    async with opened(replace(tool, task="optional")) as app:
        async with with_tasks(build_server(app)) as client:
            id = await client.begin("hang")
            with pytest.raises(MCPError, match="no run of agents"):
                await client.ask(
                    "tasks/update", id, inputResponses={}, _meta={"guildry/steer": "left"}
                )
            with pytest.raises(MCPError, match="empty `guildry/steer`"):
                await client.ask(
                    "tasks/update", id, inputResponses={}, _meta={"guildry/steer": " "}
                )


async def test_a_team_that_is_called_through_call_tool_is_a_task_as_well(
    opened: Any, with_tasks: Any
) -> None:
    async with opened(models={"scripted": ScriptedModel(["found it"])}) as app:
        name = app.add_team(team())
        async with with_tasks(build_server(app)) as client:
            arguments = {"name": name, "arguments": {"task": "look"}}
            ended = await client.until(await client.begin("call_tool", **arguments))

    assert answered(ended)["report"] == "found it"


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_a_client_without_tasks_has_the_same_run_through_tools_and_hears_of_it(
    opened: Any, make_tool: Any, era: Any
) -> None:
    began, go_on = anyio.Event(), anyio.Event()
    heard: list[str | None] = []

    async def pause(arguments: dict[str, Any], call: Call) -> Outcome:
        began.set()
        await go_on.wait()
        return Outcome((Text("paused"),))

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)

    model = ScriptedModel([call("pause"), "first", call("pause"), "second"])
    async with opened(make_tool("pause", pause), models={"scripted": model}) as app:
        name = app.add_team(team())
        async with Client(build_server(app), mode=era) as client:
            with anyio.fail_after(20):
                started = await client.call_tool(name, {"task": "look", "background": True})
                assert isinstance(started.content[0], TextContent)
                handle = json.loads(started.content[0].text)
                await began.wait()
                running = await client.call_tool("run_status", {"run": handle["run"]})
                go_on.set()
                while handle["run"] in app.orchestrator.live:
                    await client.call_tool("run_status", {"run": handle["run"]})
                ended = await client.call_tool("run_result", {"run": handle["run"]})
                await client.call_tool(name, {"task": "again"}, progress_callback=hear)

    assert handle["status"] == "running"
    assert '"running"' in str(running.content)
    assert '"first"' in str(ended.content)
    assert heard


# Other processes --------------------------------------------------------------------------------


@pytest.mark.parametrize("status", ["done", "failed"])
async def test_a_run_that_ended_before_its_process_did_tells_its_result(
    opened: Any, with_tasks: Any, status: Any
) -> None:
    async with opened() as app:
        report: dict[str, Any] = {"report": "found it", "references": []}
        await app.runs.create(
            RunRecord("r1", "team", "dig", "look", "local", status, report=report, process="1:1")
        )
        kept = TaskRecord(
            id="t1", principal="local", tool="team_dig", run="r1", expires_at=9e9, process="1:1"
        )
        await TaskStore(app.store).create(kept)
        async with with_tasks(build_server(app)) as client:
            first = await client.get("t1")
            second = await client.get("t1")

    assert first["status"] == "completed"
    assert first["result"]["isError"] is (status == "failed")
    assert answered(first)["report"] == "found it"
    assert second == first


@pytest.mark.requirement("tasks.restart")
async def test_a_task_that_was_cut_off_says_so(opened: Any, with_tasks: Any) -> None:
    async with opened() as app:
        kept = TaskRecord(
            id="t1", principal="local", tool="dig", run="r1", expires_at=9e9, process="1:1"
        )
        await TaskStore(app.store).create(kept)
        async with with_tasks(build_server(app)) as client:
            task = await client.get("t1")

    assert (task["status"], task["statusMessage"]) == ("failed", INTERRUPTED)
    assert task["error"] == {"code": -32603, "message": INTERRUPTED, "data": {"run": "r1"}}


async def test_a_server_that_stops_says_so_of_its_tasks(
    opened: Any, hang: Any, with_tasks: Any
) -> None:
    tool, began, _ = hang
    model = ScriptedModel([call("hang")])
    async with opened(tool, models={"scripted": model}) as app:
        name = app.add_team(team())
        async with with_tasks(build_server(app)) as client:
            begun = await client.call(name, task="look")
            await began.wait()
    async with opened() as app, with_tasks(build_server(app)) as client:
        task = await client.get(begun["taskId"])
        run = begun["_meta"]["guildry/run"]
        record = await app.runs.get(run)

    assert (task["status"], task["statusMessage"]) == ("failed", INTERRUPTED)
    assert task["error"]["data"] == {"run": run}
    assert record is not None
    assert record.status == "interrupted"


async def test_tasks_of_another_process_are_shown_answered_and_cancelled_here(
    opened: Any, naming: Tool, with_tasks: Any
) -> None:
    async with opened(naming) as one, opened(naming) as other:
        async with (
            with_tasks(build_server(one), elicitation_callback=accept) as here,
            with_tasks(build_server(other), elicitation_callback=accept) as there,
        ):
            id = await here.begin("name")
            await here.until(id, "input_required")
            asked = await there.until(id, "input_required")
            await there.update(id, name=given("Ann"))
            one.tasks.wake()
            answered = await there.until(id)
            second = await here.begin("name")
            await there.cancel(second)
            one.tasks.wake()
            stopped = await there.until(second)

    assert set(asked["inputRequests"]) == {"name"}
    assert answered["result"]["content"][0]["text"] == "accept Ann"
    assert stopped["status"] == "cancelled"


async def test_expired_tasks_are_swept(opened: Any, greeting: Tool, with_tasks: Any) -> None:
    async with opened(greeting, task_ttl_s=0.001) as app:
        async with with_tasks(build_server(app)) as client:
            id = await client.begin("greet")
            with pytest.raises(MCPError):
                while True:
                    await client.get(id)
        await app.tasks.tidy()
        left = await app.store.read(_count)

    assert left == 0


def _count(connection: sqlite3.Connection) -> int:
    (count,) = connection.execute("SELECT count(*) FROM tasks").fetchone()
    return int(count)


# News -------------------------------------------------------------------------------------------


@pytest.mark.requirement("tasks.notifications")
async def test_a_subscription_tells_how_its_tasks_stand_and_each_change(
    opened: Any, naming: Tool, with_tasks: Any
) -> None:
    heard, news = anyio.create_memory_object_stream[dict[str, Any]](100)
    acks: list[Any] = []
    changed: list[Any] = []
    results: list[dict[str, Any]] = []

    async def listen(id: str) -> None:
        results.append(await client.listen([id, "t" + "a" * 26], toolsListChanged=True))

    async def hear(message: Any) -> None:
        if isinstance(message, SubscriptionsAcknowledgedNotification):
            acks.append(message.params.notifications.model_dump(by_alias=True, exclude_none=True))
        elif isinstance(message, ToolListChangedNotification):
            changed.append(message)

    async with opened(naming) as app, heard, news:
        async with (
            with_tasks(
                build_server(app), elicitation_callback=accept, heard=heard, message_handler=hear
            ) as client,
            anyio.create_task_group() as tasks,
        ):
            id = await client.begin("name")
            shown = await client.until(id, "input_required")
            tasks.start_soon(listen, id)
            first = await news.receive()
            await client.update(id, name=given("Ann"))
            told = [await news.receive()]
            while told[-1]["status"] != "completed":
                told.append(await news.receive())
            ended = await client.get(id)
            app.catalog.replace("more", [naming])
            while not changed:
                await client.get(id)
            app.announcer.close()
            while not results:
                await client.get(id)

            assert acks == [{"taskIds": [id], "toolsListChanged": True}]
            assert results[0]["resultType"] == "complete"
            assert "io.modelcontextprotocol/subscriptionId" in first["_meta"]
            assert _same(first) == _same(shown)
            assert _same(told[-1]) == _same(ended)


def _same(task: dict[str, Any]) -> dict[str, Any]:
    """Return what a task says, however it is told."""
    return {key: value for key, value in task.items() if key not in ("_meta", "resultType")}


@pytest.mark.requirement("tasks.notifications")
async def test_a_subscription_to_tasks_is_for_clients_with_tasks(
    opened: Any, with_tasks: Any
) -> None:
    async with opened() as app, with_tasks(build_server(app), extensions=[]) as client:
        with pytest.raises(MCPError) as refused:
            await client.listen(["t1"])

    assert refused.value.error.code == -32021


@pytest.mark.parametrize("ids", ["t1", [7], ["t1"] * 1_001])
async def test_a_subscription_names_its_tasks_in_a_list(
    opened: Any, with_tasks: Any, ids: Any
) -> None:
    async with opened() as app, with_tasks(build_server(app)) as client:
        with pytest.raises(MCPError, match="`taskIds` takes a list") as refused:
            await client.listen(ids)

    assert refused.value.error.code == -32602

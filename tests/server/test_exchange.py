"""Exchanges of the modern era: questions as answers, then the request again with the answers."""

import json
import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client, MCPError
from mcp_types import CallToolResult, ElicitResult, ListRootsResult, TextContent

from guildry.errors import ToolProtocolError
from guildry.server.app import App
from guildry.server.asking.exchange import Exchanges
from guildry.server.http.endpoint import serve_http
from guildry.server.surface import USER_SCOPES, Surface, build_server
from guildry.tools.asking.questions import Answer, Question
from guildry.tools.base import READS, Call, Effects, Invoke, Outcome, Text, Tool

MODERN = "2026-07-28"
CAPABILITIES = "io.modelcontextprotocol/clientCapabilities"
ALL: dict[str, Any] = {"elicitation": {"form": {}, "url": {}}, "sampling": {}, "roots": {}}
NAME = {"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]}
KEY = b"k" * 32
NO = {"action": "decline"}
DESTROYS = Effects(admits=True)


def form(key: str, **changes: Any) -> Question:
    return Question(key=key, kind="form", message=f"What about {key}?", schema=NAME, **changes)


def accepted(name: Any = "Ada") -> dict[str, Any]:
    return {"action": "accept", "content": {"name": name}}


def text_of(result: Any) -> str:
    if isinstance(result, CallToolResult):
        (block,) = result.content
        assert isinstance(block, TextContent)
        return block.text
    (told,) = result["content"]
    return str(told["text"])


def asking(*rounds: tuple[Question, ...], name: str = "greet", **about: Any) -> Tool:
    """Return a tool that asks its questions round by round, and says what it was answered."""

    async def invoke(arguments: dict[str, Any], call: Call) -> Outcome:
        answers: dict[str, Answer] = {}

        async def ask(question: Question) -> None:
            answers[question.key] = await call.ask(question)

        for questions in rounds:
            async with anyio.create_task_group() as tasks:
                for question in questions:
                    tasks.start_soon(ask, question)
        said = {key: [each.action, each.content] for key, each in sorted(answers.items())}
        return Outcome((Text(json.dumps(said)),))

    return Tool(
        name=name,
        plug="mine",
        description="Ask.",
        input_schema={"type": "object", "properties": {"n": {"type": "integer"}}},
        invoke=invoke,
        effects=Effects(writes=False),
        asks=True,
        **about,
    )


class Modern:
    """A client of the modern era that sees every round."""

    def __init__(self, url: str, http: httpx2.AsyncClient, capabilities: Any = ALL) -> None:
        self.url = url
        self._http = http
        self.capabilities = capabilities

    async def request(self, name: str, arguments: Any = None, **changes: Any) -> dict[str, Any]:
        meta = {
            "io.modelcontextprotocol/protocolVersion": MODERN,
            CAPABILITIES: self.capabilities,
        }
        params = {"name": name, "arguments": arguments or {}, "_meta": meta, **changes}
        headers = {
            "Accept": "application/json, text/event-stream",
            "Content-Type": "application/json",
            "MCP-Protocol-Version": MODERN,
            "Mcp-Method": "tools/call",
            "Mcp-Name": name,
        }
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        response = await self._http.post(self.url, content=json.dumps(body), headers=headers)
        text = response.text
        if response.headers["content-type"].startswith("text/event-stream"):
            text = [line for line in text.splitlines() if line.startswith("data: ")][-1][6:]
        answer: dict[str, Any] = json.loads(text)
        return answer

    async def call(self, name: str, arguments: Any = None, **changes: Any) -> dict[str, Any]:
        answer = await self.request(name, arguments, **changes)
        assert "result" in answer, answer
        result: dict[str, Any] = answer["result"]
        return result

    async def again(self, name: str, asked: dict[str, Any], **responses: Any) -> dict[str, Any]:
        return await self.call(name, requestState=asked["requestState"], inputResponses=responses)

    async def refused(self, name: str, arguments: Any = None, **changes: Any) -> tuple[int, str]:
        error = (await self.request(name, arguments, **changes))["error"]
        return error["code"], error["message"]


@asynccontextmanager
async def serving(app: App, surface: Surface | None = None) -> AsyncGenerator[Modern]:
    surface = surface or Surface(app, scopes=USER_SCOPES)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks, httpx2.AsyncClient(timeout=60) as http:
            url = await tasks.start(partial(serve_http, surface, port=0))
            yield Modern(url, http)
            tasks.cancel_scope.cancel()


def tool_of(name: str, invoke: Invoke, effects: Effects = READS) -> Tool:
    return Tool(
        name=name,
        plug="mine",
        description="Do it.",
        input_schema={"type": "object"},
        invoke=invoke,
        effects=effects,
        asks=True,
    )


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await anyio.lowlevel.checkpoint()


@pytest.mark.parametrize("era", ["auto", "legacy"])
@pytest.mark.requirement("mrtr.supported", "stdio.no-requests")
async def test_a_tool_asks_the_official_client(opened: Any, era: Any) -> None:
    heard: list[str] = []

    async def elicit(context: Any, params: Any) -> ElicitResult:
        heard.append(params.message)
        return ElicitResult(action="accept", content={"name": "Ada"})

    async def roots(context: Any) -> ListRootsResult:
        return ListRootsResult.model_validate({"roots": [{"uri": "file:///x"}]})

    tool = asking((form("first"), Question(key="where", kind="roots", message="")), (form("last"),))
    with anyio.fail_after(60):
        async with (
            opened(tool) as app,
            Client(
                build_server(app), mode=era, elicitation_callback=elicit, list_roots_callback=roots
            ) as client,
        ):
            result = await client.call_tool("greet", {})

        assert json.loads(text_of(result)) == {
            "first": ["accept", {"name": "Ada"}],
            "last": ["accept", {"name": "Ada"}],
            "where": ["accept", {"roots": [{"uri": "file:///x"}]}],
        }
        assert heard == ["What about first?", "What about last?"]


@pytest.mark.parametrize("era", ["auto", "legacy"])
async def test_a_tool_asks_the_official_client_over_http(opened: Any, era: Any) -> None:
    async def elicit(context: Any, params: Any) -> ElicitResult:
        return ElicitResult(action="accept", content={"name": "Ada"})

    async with opened(asking((form("one"), form("two")), (form("last"),))) as app:
        async with serving(app) as raw:
            async with Client(raw.url, mode=era, elicitation_callback=elicit) as client:
                result = await client.call_tool("greet", {})

    said = ["accept", {"name": "Ada"}]
    assert json.loads(text_of(result)) == {"one": said, "two": said, "last": said}


@pytest.mark.requirement("mrtr.forms")
async def test_questions_of_one_moment_go_out_together_and_keep_their_forms(opened: Any) -> None:
    sampling: dict[str, Any] = {"messages": [], "maxTokens": 5, "includeContext": "thisServer"}
    tool = asking(
        (
            form("user"),
            Question(key="page", kind="url", message="Visit", params={"url": "https://a.example"}),
            Question(key="poem", kind="sampling", message="", params=sampling),
            Question(key="where", kind="roots", message=""),
        )
    )
    async with opened(tool) as app, serving(app) as client:
        asked = await client.call("greet")
        poem = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "Roses"}}
        done = await client.again(
            "greet",
            asked,
            user=accepted(),
            page={"action": "accept"},
            poem=poem,
            where={"roots": []},
        )

    assert asked["resultType"] == "input_required"
    page = {"mode": "url", "message": "Visit", "url": "https://a.example"}
    question = {"mode": "form", "message": "What about user?", "requestedSchema": NAME}
    assert asked["inputRequests"] == {
        "user": {"method": "elicitation/create", "params": question},
        "page": {"method": "elicitation/create", "params": page},
        "poem": {
            "method": "sampling/createMessage",
            "params": {"messages": [], "maxTokens": 5},
        },
        "where": {"method": "roots/list", "params": {}},
    }
    assert done["resultType"] == "complete"
    assert json.loads(text_of(done)) == {
        "page": ["accept", {}],
        "poem": ["accept", poem],
        "user": ["accept", {"name": "Ada"}],
        "where": ["accept", {"roots": []}],
    }


@pytest.mark.requirement("mrtr.invalid-answers", "mrtr.missing-answers")
async def test_what_is_not_answered_or_not_answered_well_is_asked_again(opened: Any) -> None:
    tool = asking((form("one"), form("two")))
    async with opened(tool) as app, serving(app) as client:
        asked = await client.call("greet")
        nothing = await client.again("greet", asked)
        missing = await client.call("greet", requestState=nothing["requestState"])
        half = await client.again("greet", missing, one=accepted(), three=accepted())
        wrong = await client.again("greet", half, two=accepted(5))
        stale = await client.again("greet", asked, one=accepted("Eve"), two={"action": "decline"})

    assert set(asked["inputRequests"]) == {"one", "two"}
    assert nothing["inputRequests"] == missing["inputRequests"] == asked["inputRequests"]
    assert set(half["inputRequests"]) == {"two"}
    message = wrong["inputRequests"]["two"]["params"]["message"]
    assert message.startswith("What about two?\n\n")
    assert "`name` is 5 (integer): give a string" in message
    assert json.loads(text_of(stale)) == {
        "one": ["accept", {"name": "Ada"}],
        "two": ["decline", {}],
    }


@pytest.mark.requirement("mrtr.unique-keys")
async def test_each_round_has_another_state_and_a_question_that_comes_again_another_key(
    opened: Any,
) -> None:
    tool = asking((form("step"),), (form("step"),))
    async with opened(tool) as app, serving(app) as client:
        first = await client.call("greet")
        second = await client.again("greet", first, step=accepted("one"))
        done = await client.call(
            "greet",
            requestState=second["requestState"],
            inputResponses={"step": accepted("late"), "step#2": accepted("two")},
        )

    assert set(second["inputRequests"]) == {"step#2"}
    assert first["requestState"] != second["requestState"]
    assert json.loads(text_of(done)) == {"step": ["accept", {"name": "two"}]}


@pytest.mark.requirement("mrtr.declared-only")
async def test_a_client_is_asked_only_what_it_declared(opened: Any) -> None:
    tool = asking((Question(key="where", kind="roots", message=""), form("user")))
    async with opened(tool) as app, serving(app) as client:
        client.capabilities = {"elicitation": {}}
        asked = await client.call("greet")
        done = await client.again("greet", asked, user=accepted())
        client.capabilities = {"sampling": {}, "roots": {}}
        only_roots = await client.call("greet")

    assert set(asked["inputRequests"]) == {"user"}
    assert json.loads(text_of(done))["where"] == ["cancel", {}]
    assert set(only_roots["inputRequests"]) == {"where"}


async def test_a_client_that_takes_no_questions_waits_for_others_to_answer(opened: Any) -> None:
    async with opened(asking((form("user"),))) as app, serving(app) as client:
        client.capabilities = {}
        answers: list[dict[str, Any]] = []

        async def call() -> None:
            answers.append(await client.call("greet"))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            while not (waiting := await app.board.open()):
                await anyio.lowlevel.checkpoint()
            assert len(app.exchanges) == 0
            await app.board.answer(waiting[0].id, Answer("accept", {"name": "Eve"}))

    assert json.loads(text_of(answers[0])) == {"user": ["accept", {"name": "Eve"}]}


async def test_answers_may_come_before_their_questions_but_no_approvals(opened: Any) -> None:
    tool = asking((form("user"),), name="greet")
    removed: list[int] = []

    async def remove(arguments: dict[str, Any], call: Call) -> Outcome:
        removed.append(1)
        return Outcome((Text("removed"),))

    remover = tool_of("remove", remove, DESTROYS)
    given = {"user": accepted(), "other": accepted(), "approve:remove": {"action": "accept"}}
    async with opened(tool, remover) as app, serving(app) as client:
        done = await client.call("greet", inputResponses=given)
        wrong = await client.call("greet", inputResponses={"user": accepted(None)})
        asked = await client.call("remove", inputResponses=given)
        was_removed = list(removed)
        approved = await client.again("remove", asked, **{"approve:remove": {"action": "accept"}})

    assert json.loads(text_of(done)) == {"user": ["accept", {"name": "Ada"}]}
    assert set(wrong["inputRequests"]) == {"user"}
    (request,) = asked["inputRequests"].values()
    assert request["params"]["requestedSchema"] == {"type": "object", "properties": {}}
    assert "`remove` of `mine`" in request["params"]["message"]
    assert was_removed == []
    assert (text_of(approved), removed) == ("removed", [1])


@pytest.mark.requirement("mrtr.state-integrity")
async def test_state_that_was_changed_or_is_of_another_call_is_refused(opened: Any) -> None:
    tools = asking((form("user"),)), asking((form("user"),), name="greet2")
    async with opened(*tools) as app, serving(app) as client:
        asked = await client.call("greet", {"n": 1})
        state = asked["requestState"]
        responses = {"user": accepted()}
        errors = [
            await client.refused(name, arguments, requestState=text, inputResponses=responses)
            for name, arguments, text in (
                ("greet", {"n": 1}, f"{state}-TAMPERED"),
                ("greet", {"n": 1}, "x"),
                ("greet", {"n": 2}, state),
                ("greet2", {"n": 1}, state),
            )
        ]
        async with serving(app, Surface(app, holder="ada", scopes=USER_SCOPES)) as other:
            errors.append(await other.refused("greet", {"n": 1}, requestState=state))
        done = await client.call("greet", {"n": 1}, requestState=state, inputResponses=responses)

    assert {code for code, _ in errors} == {-32602}
    assert len({message for _, message in errors}) == 1
    assert done["resultType"] == "complete"


@pytest.mark.requirement("mrtr.once")
async def test_a_call_is_answered_once(opened: Any) -> None:
    async with opened(asking((form("user"),))) as app, serving(app) as client:
        asked = await client.call("greet")
        again = {"requestState": asked["requestState"], "inputResponses": {"user": accepted()}}
        await client.call("greet", **again)

        code, message = await client.refused("greet", **again)

    assert code == -32602
    assert "make the call again without `requestState`" in message


async def test_two_requests_may_wait_for_one_call_and_the_first_to_go_does_not_end_it(
    opened: Any,
) -> None:
    began, go_on = anyio.Event(), anyio.Event()

    async def invoke(arguments: dict[str, Any], call: Call) -> Outcome:
        await call.ask(form("user"))
        began.set()
        await go_on.wait()
        return Outcome((Text("done"),))

    tool = tool_of("slow", invoke)
    answers: list[dict[str, Any]] = []
    async with opened(tool) as app, serving(app) as client:
        asked = await client.call("slow")

        async def wait() -> None:
            answers.append(await client.again("slow", asked, user=accepted()))

        async with anyio.create_task_group() as staying:
            async with anyio.create_task_group() as going:
                going.start_soon(wait)
                await began.wait()
                staying.start_soon(wait)
                await until(lambda: waiting_for(app) == 2)
                going.cancel_scope.cancel()
            await until(lambda: waiting_for(app) == 1)
            go_on.set()

    assert [text_of(each) for each in answers] == ["done"]


def waiting_for(app: App) -> int:
    """Return how many requests wait for the one call that is held."""
    (held,) = app.exchanges._held.values()  # pyright: ignore[reportPrivateUsage]  # nothing else tells
    return held.waiting


async def test_a_call_that_asks_very_much_at_once_is_answered_round_by_round(opened: Any) -> None:
    tool = asking(tuple(form(f"q{n:02}") for n in range(40)))
    async with opened(tool) as app, serving(app) as client:
        asked = await client.call("greet")
        rest = await client.again("greet", asked, **dict.fromkeys(asked["inputRequests"], NO))
        done = await client.again("greet", rest, **dict.fromkeys(rest["inputRequests"], NO))

    assert (len(asked["inputRequests"]), len(rest["inputRequests"])) == (32, 8)
    assert json.loads(text_of(done)) == {f"q{n:02}": ["decline", {}] for n in range(40)}


async def test_a_server_that_stops_tells_the_requests_that_wait(opened: Any) -> None:
    began = anyio.Event()
    told: list[MCPError] = []

    async def invoke(arguments: dict[str, Any], call: Call) -> Outcome:
        began.set()
        await anyio.sleep_forever()
        return Outcome()

    async def roots(context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[])

    tool = asking(())
    tool = replace(tool, invoke=invoke)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            async with opened(tool) as app:
                server = build_server(app)
                ended = anyio.Event()

                async def call() -> None:
                    async with Client(server, list_roots_callback=roots) as client:
                        with pytest.raises(MCPError) as refused:
                            await client.call_tool("greet", {})
                        told.append(refused.value)
                    ended.set()

                tasks.start_soon(call)
                await began.wait()
            await ended.wait()

    assert [each.code for each in told] == [-32603]


async def test_an_answer_from_elsewhere_ends_the_wait_of_a_parked_call(opened: Any) -> None:
    async with opened(asking((form("user"),))) as app, serving(app) as client:
        asked = await client.call("greet")
        (open_question,) = await app.board.open()
        await app.board.answer(open_question.id, Answer("accept", {"name": "Eve"}))

        done = await client.again("greet", asked, user=accepted("Ada"))

    assert json.loads(text_of(done)) == {"user": ["accept", {"name": "Eve"}]}


async def test_an_approval_is_denied_at_its_deadline_and_the_client_is_told(opened: Any) -> None:
    async def remove(arguments: dict[str, Any], call: Call) -> Outcome:
        raise AssertionError("nobody approved")

    tool = tool_of("remove", remove, DESTROYS)
    async with opened(tool, ask_wait_s=1) as app, serving(app) as client:
        asked = await client.call("remove")
        while await app.board.open():
            await anyio.lowlevel.checkpoint()
        done = await client.again("remove", asked, **{"approve:remove": {"action": "accept"}})

    assert done["isError"] is True
    assert "was not called" in text_of(done)


@pytest.mark.requirement("mrtr.no-retry")
async def test_a_client_that_vanishes_while_its_call_is_parked_leaves_nothing(opened: Any) -> None:
    async with opened(asking((form("user"),)), ask_wait_s=0.2) as app, serving(app) as client:
        await client.call("greet")
        was_held = len(app.exchanges)

        await until(lambda: len(app.exchanges) == 0)

        left = await app.board.open()
    assert was_held == 1
    assert left == []


async def test_a_client_that_closes_the_connection_cancels_the_call(
    opened: Any, hang: tuple[Tool, anyio.Event, anyio.Event]
) -> None:
    tool, began, cancelled = hang
    asks_too = tool_of("hang", tool.invoke)
    held = 0
    async with opened(asks_too) as app, serving(app) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.request, "hang")
            await began.wait()
            held = len(app.exchanges)
            tasks.cancel_scope.cancel()
        await cancelled.wait()
        await until(lambda: len(app.exchanges) == 0)

    assert held == 1


async def test_a_client_that_gives_up_the_second_request_cancels_the_call(opened: Any) -> None:
    began, cancelled = anyio.Event(), anyio.Event()

    async def invoke(arguments: dict[str, Any], call: Call) -> Outcome:
        await call.ask(form("user"))
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()
        return Outcome()

    tool = tool_of("slow", invoke)
    async with opened(tool) as app, serving(app) as client:
        asked = await client.call("slow")
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(partial(client.again, "slow", asked, user=accepted()))
            await began.wait()
            tasks.cancel_scope.cancel()
        await cancelled.wait()
        await until(lambda: len(app.exchanges) == 0)
        code, _ = await client.refused("slow", requestState=asked["requestState"])

    assert code == -32602


@pytest.mark.parametrize("bound", [{"most_parked": 2}, {"most_parked_each": 2}])
async def test_no_more_calls_are_kept_than_there_is_room_for_and_the_oldest_goes(
    opened: Any, bound: dict[str, int]
) -> None:
    tool = asking((form("user", repeatable=True),))
    gone, done = (0, ""), list[dict[str, Any]]()
    async with opened(tool) as app, anyio.create_task_group() as tasks:
        few = Exchanges(
            tasks, secret=lambda: KEY, wait_s=60, board=app.board, most_ended=1, **bound
        )
        async with serving(replace(app, exchanges=few)) as client:
            parked = [await client.call("greet") for _ in range(3)]
            await until(lambda: len(few) == 2)
            gone = await client.refused("greet", requestState=parked[0]["requestState"])
            done = [await client.again("greet", each, user=accepted()) for each in parked[1:]]
        tasks.cancel_scope.cancel()

    assert gone[0] == -32602
    assert [each["resultType"] for each in done] == ["complete", "complete"]


async def test_errors_of_the_work_reach_the_request_that_waits(opened: Any) -> None:
    async def crash(arguments: dict[str, Any], call: Call) -> Outcome:
        await call.ask(form("user"))
        raise ToolProtocolError("no", -32021, "Needs sampling", {"requiredCapabilities": {}})

    tool = tool_of("crash", crash)
    async with opened(tool, asking((form("user"),))) as app, serving(app) as client:
        asked = await client.call("crash")
        answer = await client.request(
            "crash", requestState=asked["requestState"], inputResponses={"user": accepted()}
        )
        unknown = await client.refused("gret")

    assert answer["error"] == {
        "code": -32021,
        "message": "Needs sampling",
        "data": {"requiredCapabilities": {}},
    }
    assert unknown == (-32602, "there is no tool 'gret' here: did you mean `greet`?")


async def test_progress_goes_to_the_request_that_waits(opened: Any) -> None:
    heard: list[tuple[float, str | None]] = []

    async def invoke(arguments: dict[str, Any], call: Call) -> Outcome:
        assert call.progress is not None
        await call.progress(1, 3, "begun")
        await call.ask(Question(key="where", kind="roots", message=""))
        await call.progress(2, 3, "going on")
        return Outcome((Text("done"),))

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append((progress, message))

    async def roots(context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[])

    tool = tool_of("go", invoke)
    with anyio.fail_after(60):
        async with opened(tool) as app:
            async with Client(build_server(app), list_roots_callback=roots) as client:
                result = await client.call_tool("go", {}, progress_callback=hear)

    assert isinstance(result.content[0], TextContent)
    assert heard == [(1, "begun"), (2, "going on")]


async def test_log_messages_go_to_the_request_that_waits(opened: Any) -> None:
    heard: list[Any] = []

    async def invoke(arguments: dict[str, Any], call: Call) -> Outcome:
        assert call.log is not None
        await call.log("info", f"begun at {call.log.level}")
        await call.ask(Question(key="where", kind="roots", message=""))
        await call.log("info", "going on")
        return Outcome((Text("done"),))

    async def hear(params: Any) -> None:
        heard.append(params.data)

    async def roots(context: Any) -> ListRootsResult:
        return ListRootsResult(roots=[])

    with anyio.fail_after(60):
        async with opened(tool_of("go", invoke)) as app:
            server = build_server(app)
            async with Client(
                server, list_roots_callback=roots, logging_callback=hear, log_level="info"
            ) as client:
                await client.call_tool("go", {})

    assert heard == ["begun at info", "going on"]


async def test_what_a_parked_call_tells_is_told_to_nobody(opened: Any) -> None:
    told = anyio.Event()

    async def invoke(arguments: dict[str, Any], call: Call) -> Outcome:
        assert call.progress is not None
        await call.ask(form("user"))
        await call.progress(1, 2)
        if call.log is not None:
            await call.log("info", "lost")
        told.set()
        return Outcome((Text("done"),))

    meta = {
        "io.modelcontextprotocol/protocolVersion": MODERN,
        "io.modelcontextprotocol/logLevel": "debug",
        CAPABILITIES: ALL,
    }
    async with opened(tool_of("go", invoke)) as app, serving(app) as client:
        asked = await client.call("go", _meta=meta)
        (waiting,) = await app.board.open()
        await app.board.answer(waiting.id, Answer("accept", {"name": "Eve"}))
        await told.wait()
        done = await client.again("go", asked)

    assert text_of(done) == "done"


PLUG = '''
from pathlib import Path

from guildry.tools.python.decorators import effects


@effects(destructive=True)
def remove(name: str) -> str:
    """Remove something."""
    with Path("removed.txt").open("a", encoding="utf-8") as file:
        file.write(name + "\\n")
    return "removed " + name
'''


@asynccontextmanager
async def process(folder: Path) -> AsyncGenerator[str]:
    """Run `guildry serve` on that home, and give its URL."""
    command = [sys.executable, "-m", "guildry.server", "serve", "--port", "0"]
    environment = {**os.environ, "GUILDRY_CONFIG": str(folder / "guildry.toml")}
    async with await anyio.open_process(command, cwd=folder, env=environment) as server:
        try:
            assert server.stderr is not None
            told = ""
            while '"http_started"' not in told:
                told += (await server.stderr.receive()).decode()
            line = next(each for each in told.splitlines() if '"http_started"' in each)
            yield f"http://127.0.0.1:{json.loads(line)['port']}/mcp"
        finally:
            server.terminate()


def _home(folder: Path) -> None:
    (folder / "mine.py").write_text(PLUG)
    (folder / "guildry.toml").write_text('home = "home"\n[plugs]\nmine = "mine.py"\n')


async def test_an_approval_that_one_process_asks_for_may_be_given_to_another_and_counts_once(
    tmp_path: Path,
) -> None:
    _home(tmp_path)
    approve = {"approve:remove": {"action": "accept"}}
    with anyio.fail_after(120):
        async with (
            httpx2.AsyncClient(timeout=60) as http,
            process(tmp_path) as one,
            process(tmp_path) as two,
        ):
            first, second = Modern(one, http), Modern(two, http)
            asked = await first.call("remove", {"name": "a"})
            retry = {"requestState": asked["requestState"], "inputResponses": approve}
            done = await second.call("remove", {"name": "a"}, **retry)
            late = await first.call("remove", {"name": "a"}, **retry)
            twice = await second.refused("remove", {"name": "a"}, **retry)

    assert text_of(done) == "removed a"
    assert "was not called" in text_of(late)
    assert twice[0] == -32602
    assert (tmp_path / "removed.txt").read_text() == "a\n"


async def test_an_answer_to_a_call_of_another_process_is_passed_on(
    opened: Any, tmp_path: Path
) -> None:
    tool, home = asking((form("user"),)), tmp_path / "shared"
    async with (
        opened(tool, home=home) as app,
        serving(app) as first,
        opened(tool, home=home) as other,
        serving(other) as second,
    ):
        asked = await first.call("greet")
        retry = {"requestState": asked["requestState"], "inputResponses": {"user": accepted(5)}}
        unfit = await second.refused("greet", **retry)
        unknown = await second.refused("greet", requestState=asked["requestState"])
        taken = await second.refused("greet", **{**retry, "inputResponses": {"user": accepted()}})
        done = await first.call("greet", requestState=asked["requestState"])

    assert {unfit[0], unknown[0], taken[0]} == {-32602}
    assert "waits in another process" in unfit[1]
    assert unknown == unfit
    assert "The answer has been taken" in taken[1]
    assert json.loads(text_of(done)) == {"user": ["accept", {"name": "Ada"}]}


async def test_a_call_that_was_refused_by_hand_is_not_begun_anew_by_another_process(
    opened: Any, tmp_path: Path
) -> None:
    async def remove(arguments: dict[str, Any], call: Call) -> Outcome:
        raise AssertionError("a person refused")

    tool, home = tool_of("remove", remove, DESTROYS), tmp_path / "shared"
    async with (
        opened(tool, home=home) as app,
        serving(app) as first,
        opened(tool, home=home) as other,
        serving(other) as second,
    ):
        asked = await first.call("remove")
        (waiting,) = await app.board.open()
        await app.board.answer(waiting.id, Answer("decline"))
        code, message = await second.refused(
            "remove",
            requestState=asked["requestState"],
            inputResponses={"approve:remove": {"action": "accept"}},
        )

    assert code == -32602
    assert "answered elsewhere" in message


@pytest.mark.requirement("mrtr.once")
async def test_of_two_retries_at_once_elsewhere_one_goes_on(opened: Any, tmp_path: Path) -> None:
    removed: list[int] = []

    async def remove(arguments: dict[str, Any], call: Call) -> Outcome:
        removed.append(1)
        return Outcome((Text("removed"),))

    tool, home = tool_of("remove", remove, DESTROYS), tmp_path / "shared"
    answers: list[dict[str, Any]] = []
    async with (
        opened(tool, home=home) as app,
        serving(app) as first,
        opened(tool, home=home) as other,
        serving(other) as second,
    ):
        asked = await first.call("remove")

        async def retry() -> None:
            again = {"approve:remove": {"action": "accept"}}
            state = asked["requestState"]
            answers.append(await second.request("remove", requestState=state, inputResponses=again))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(retry)
            tasks.start_soon(retry)

    assert removed == [1]
    assert len([each for each in answers if "result" in each]) >= 1


async def test_servers_of_two_homes_share_state_by_a_configured_key(
    opened: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_KEY", "5a" * 32)
    tool = asking((form("user", repeatable=True),), (form("more", repeatable=True),))
    settings = {"state_key_env": "STATE_KEY"}
    async with (
        opened(tool, home=tmp_path / "one", **settings) as app,
        serving(app) as first,
        opened(tool, home=tmp_path / "two", **settings) as other,
        serving(other) as second,
    ):
        asked = await first.call("greet")
        more = await second.again("greet", asked, user=accepted())
        done = await first.again("greet", more, more=accepted("Bob"))

    assert set(more["inputRequests"]) == {"more"}
    assert json.loads(text_of(done)) == {
        "more": ["accept", {"name": "Bob"}],
        "user": ["accept", {"name": "Ada"}],
    }

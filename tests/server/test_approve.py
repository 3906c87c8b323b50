"""`guildry approve`: what one process asks, a person answers from another one."""

import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
from anyio.abc import TaskGroup
from anyio.lowlevel import checkpoint
from mcp import Client
from mcp.client.context import ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitResult

from guildry.memory.questions import QuestionStore
from guildry.memory.store import Store
from guildry.server.commands.exits import Exit
from guildry.server.surface import build_server
from guildry.tools.asking.board import QuestionBoard
from guildry.tools.asking.questions import Answer, Question
from guildry.tools.base import Call, Effects, Outcome, Text, Tool
from guildry.tools.caller import Caller
from guildry.tools.grants import Grant

TOOLS = '''
from guildry.tools.python import effects


@effects(destructive=True)
def wipe(name: str) -> str:
    """Wipe something."""
    return f"wiped {name}"
'''


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Home:
    """A folder with a tool that destroys, and the commands at work in it."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GUILDRY_")}
        return {**kept, "GUILDRY_HOME": str(self.folder / "home"), **self.variables}

    def start(self, *args: str) -> Any:
        return anyio.open_process(
            [sys.executable, "-m", "guildry.server", *args], cwd=self.folder, env=self.environment
        )

    async def __call__(self, *args: str) -> Done:
        with anyio.fail_after(60):
            done = await anyio.run_process(
                [sys.executable, "-m", "guildry.server", *args],
                cwd=self.folder,
                env=self.environment,
                check=False,
            )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    @asynccontextmanager
    async def asking(self, *args: str) -> AsyncGenerator[anyio.abc.Process]:
        """Have a process at work that waits for a person."""
        async with await self.start(*args) as process:
            try:
                with anyio.fail_after(60):
                    await heard(process, b"guildry approve")
                yield process
            finally:
                if process.returncode is None:
                    process.kill()

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        async with await self.start("serve", "--port", "0") as server:
            try:
                with anyio.fail_after(60):
                    await heard(server, b"plugs_opened")
                yield
            finally:
                server.terminate()


@asynccontextmanager
async def beside() -> AsyncGenerator[TaskGroup]:
    """Have room for tasks at the side of a test."""
    async with anyio.create_task_group() as tasks:
        yield tasks


async def heard(process: anyio.abc.Process, word: bytes) -> None:
    assert process.stderr is not None
    text = b""
    while word not in text:
        text += await process.stderr.receive()


async def said(process: anyio.abc.Process) -> str:
    assert process.stdout is not None
    with anyio.fail_after(60):
        text = b"".join([chunk async for chunk in process.stdout])
        await process.wait()
    return text.decode()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / "disk.py").write_text(TOOLS)
    (tmp_path / "guildry.toml").write_text('[plugs.disk]\nsource = "disk.py"\n')
    return Home(tmp_path)


async def test_what_a_call_without_a_server_asks_is_listed_and_allowed(home: Home) -> None:
    async with home.asking("call", "wipe", "name=logs") as call:
        listed = await home("approve")
        (question,) = (await home("approve", "--json")).json["questions"]
        allowed = await home("approve", question["question"][:5])
        answer = await said(call)
    nothing = await home("approve")

    head, message, argument = listed.out.splitlines()
    assert head.startswith(f"{question['question']}  approval  asked ")
    assert head.endswith("s left  wipe (disk)  local")
    assert message == "  Allow the call of `wipe` of `disk`? What it changes may be lost."
    assert argument == "    name: logs"
    assert allowed.out == f"{question['question']} is answered: accept\n"
    assert (answer, call.returncode) == ("wiped logs\n", Exit.OK)
    assert nothing.out.startswith("Nothing waits: no server of this home is running")


async def test_what_a_server_asks_is_refused_through_its_socket(home: Home) -> None:
    async with home.serving(), home.asking("call", "wipe", "name=logs", "--json") as call:
        (question,) = (await home("approve", "--json")).json["questions"]
        wrong = await home("approve", question["question"], "--answer", "perhaps")
        denied = await home("approve", question["question"], "--deny", "--json")
        answer = json.loads(await said(call))
        late = await home("approve", question["question"])
        nothing = await home("approve")

    assert (wrong.code, "give true to allow the call" in wrong.err) == (Exit.FAILED, True)
    assert denied.json == {
        "question": question["question"],
        "run": "local",
        "action": "decline",
    }
    assert answer["is_error"]
    assert "it was declined by `local`: call it again only when you are told to" in answer["answer"]
    assert (late.code, "no open question begins with" in late.err) == (Exit.NOT_FOUND, True)
    assert nothing.out == "Nothing waits for an answer.\n"


FORM = Question(
    key="f",
    kind="form",
    message="Who?",
    schema={"type": "object", "properties": {"name": {"type": "string"}}, "required": ["name"]},
)


async def test_forms_are_answered_by_their_fields_or_by_the_only_one(home: Home) -> None:
    ann = Caller(Grant.root("ann"), "ann")
    answers, seen = list[Answer](), list[Done]()
    given = (["--answer", '{"name": "Ada"}'], ["--answer", "Bob"], ["--deny"])
    with anyio.fail_after(120):
        async with Store.open(home.folder / "home" / "guildry.db") as store:
            board = QuestionBoard(QuestionStore(store), wait_s=3_600)

            async def ask() -> None:
                answers.append(await board.ask(ann, FORM))

            async with beside() as tasks:
                for args in given:
                    tasks.start_soon(ask)
                    while not (asked := await board.open()):
                        await checkpoint()
                    id = asked[0].id
                    if not seen:
                        seen.append(await home("approve"))
                        seen.append(await home("approve", id))
                        seen.append(await home("approve", id, "--answer", '{"name": 3}'))
                    await home("approve", id, *args)
                    while len(answers) < given.index(args) + 1:
                        await board.look()

    assert [(each.action, dict(each.content), each.by) for each in answers] == [
        ("accept", {"name": "Ada"}, "local"),
        ("accept", {"name": "Bob"}, "local"),
        ("decline", {}, "local"),
    ]
    listed, bare, wrong = seen
    assert "  Who?" in listed.out.splitlines()
    assert listed.out.splitlines()[-1].startswith('  answer: {"type": "object", "properties"')
    assert (bare.code, "give `--answer` with what it asks for" in bare.err) == (Exit.USAGE, True)
    assert (wrong.code, "`name` is 3 (integer): give a string" in wrong.err) == (1, True)


async def test_the_beginning_of_an_id_must_mean_one_question(home: Home) -> None:
    ann = Caller(Grant.root("ann"), "ann")
    with anyio.fail_after(60):
        async with (
            Store.open(home.folder / "home" / "guildry.db") as store,
            beside() as tasks,
        ):
            board = QuestionBoard(QuestionStore(store), wait_s=3_600)
            tasks.start_soon(board.ask, ann, FORM)
            tasks.start_soon(board.ask, ann, FORM)
            while len(await board.open()) < 2:
                await checkpoint()
            done = await home("approve", "q", "--deny")
            tasks.cancel_scope.cancel()

    assert (done.code, "2 questions begin with 'q'" in done.err) == (Exit.NOT_FOUND, True)


async def test_what_a_killed_process_asked_is_not_open_any_more(home: Home) -> None:
    async with home.asking("call", "wipe", "name=logs") as call:
        call.kill()
        with anyio.fail_after(60):
            await call.wait()
        listed = await home("approve", "--json")
        gone = await home("approve", "q")

    assert listed.json == {"questions": []}
    assert (gone.code, "no server of this home is running" in gone.err) == (Exit.NOT_FOUND, True)


async def test_nobodys_answer_is_a_no_in_time(home: Home) -> None:
    home.variables["GUILDRY_ASK_WAIT_S"] = "0.1"
    done = await home("call", "wipe", "name=logs")

    assert done.code == Exit.FAILED
    assert "nobody allowed it in time: a person allows it where it is asked" in done.err


async def test_what_is_asked_first_is_configured(home: Home) -> None:
    home.variables |= {"GUILDRY_ASK_DESTRUCTIVE": "never"}
    free = await home("call", "wipe", "name=logs")
    home.variables |= {"GUILDRY_ASK_FIRST": "wi*", "GUILDRY_ASK_WAIT_S": "0.1"}
    named = await home("call", "wipe", "name=logs")

    assert free.out == "wiped logs\n"
    assert "needs a person's approval" in named.err


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (("--deny",), "`--deny` and `--answer` are for one question: give its id"),
        (("--answer", "1"), "`--deny` and `--answer` are for one question: give its id"),
        (("q1", "--deny", "--answer", "1"), "exclude each other"),
    ],
)
async def test_options_that_make_no_sense_together_are_refused(
    home: Home, args: tuple[str, ...], told: str
) -> None:
    done = await home("approve", *args)

    assert (done.code, told in done.err) == (Exit.USAGE, True)


async def wiped(arguments: dict[str, Any], call: Call) -> Outcome:
    return Outcome((Text("wiped"),))


WIPE = Tool(
    name="wipe",
    plug="mine",
    description="Wipe.",
    input_schema={"type": "object", "properties": {"name": {"type": "string"}}},
    invoke=wiped,
    effects=Effects(admits=True),
)


@pytest.mark.parametrize("era", ["auto", "legacy"])
@pytest.mark.parametrize(("action", "told"), [("accept", "wiped"), ("decline", "was not called")])
async def test_a_client_that_can_be_asked_allows_its_own_call(
    opened: Any, era: Any, action: Any, told: str
) -> None:
    messages: list[str] = []

    async def elicit(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        messages.append(params.message)
        return ElicitResult(action=action, content={} if action == "accept" else None)

    async with opened(WIPE) as app:
        with anyio.fail_after(30):
            async with Client(build_server(app), mode=era, elicitation_callback=elicit) as client:
                result = await client.call_tool("wipe", {"name": "logs"})

    (message,) = messages
    assert told in result.content[0].text  # type: ignore[union-attr]  # a text
    assert message.startswith("Allow the call of `wipe` of `mine`?")
    assert '"name": "logs"' in message

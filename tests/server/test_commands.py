"""The commands as processes: what they print, what they end with, and that they meet each other."""

import json
import os
import signal
import sqlite3
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import anyio
import anyio.abc
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from guildry.errors import (
    BudgetExceeded,
    ConfigError,
    PlugError,
    ReferenceNotFound,
    RunNotFound,
    StoreCorrupt,
    StoreLocked,
    ToolFailed,
    UsageError,
)
from guildry.memory.runs import RunRecord, RunStore
from guildry.memory.store import Store
from guildry.server.commands.exits import Exit, NotFound, Unreachable, code_of, leaves
from guildry.server.commands.plugging import anchored
from guildry.server.commands.using import parse_arguments

COUNT = '''
def count(word: str, times: int = 1) -> list[str]:
    """Repeat a word."""
    return [word] * times
'''
SOLO = 'name = "one"\ndescription = "Counts."\npattern = "solo"\ntools = ["count"]\n'


@dataclass
class Done:
    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@dataclass
class Place:
    """A folder with a tool, a home, and the commands at work in it."""

    folder: Path
    variables: dict[str, str] = field(default_factory=dict[str, str])

    @property
    def environment(self) -> dict[str, str]:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GUILDRY_")}
        return {**kept, "GUILDRY_HOME": str(self.folder / "home"), **self.variables}

    async def __call__(self, *args: str, stdin: bytes = b"") -> Done:
        with anyio.fail_after(60):
            done = await anyio.run_process(
                [sys.executable, "-m", "guildry.server", *args],
                cwd=self.folder,
                env=self.environment,
                input=stdin,
                check=False,
            )
        return Done(done.returncode, done.stdout.decode(), done.stderr.decode())

    async def start(self, *args: str) -> anyio.abc.Process:
        return await anyio.open_process(
            [sys.executable, "-m", "guildry.server", *args],
            cwd=self.folder,
            env=self.environment,
        )

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        """Have a live server in the background."""
        async with await self.start("serve", "--port", "0") as server:
            assert server.stderr is not None
            text = b""
            with anyio.fail_after(60):
                while b"plugs_opened" not in text:
                    text += await server.stderr.receive()
            yield
            server.terminate()
            with anyio.fail_after(60):
                await server.wait()


@pytest.fixture
def place(tmp_path: Path) -> Place:
    (tmp_path / "count.py").write_text(COUNT)
    return Place(tmp_path)


@dataclass
class Endpoint:
    """A chat endpoint: the first reply of a conversation calls `count`, the second is an answer."""

    url: str = ""
    asked: anyio.Event = field(default_factory=anyio.Event)
    may_answer: anyio.Event = field(default_factory=anyio.Event)

    async def reply(self, request: web.Request) -> web.Response:
        body = await request.json()
        self.asked.set()
        await self.may_answer.wait()
        called = any(message["role"] == "tool" for message in body["messages"])
        call = {"name": "count", "arguments": '{"word": "x", "times": 3}'}
        message: dict[str, Any] = {"role": "assistant", "content": "Three of them."}
        if not called:
            calls = [{"id": "c1", "type": "function", "function": call}]
            message = {"role": "assistant", "content": None, "tool_calls": calls}
        finish = "stop" if called else "tool_calls"
        return web.json_response(
            {
                "choices": [{"index": 0, "message": message, "finish_reason": finish}],
                "usage": {"prompt_tokens": 100, "completion_tokens": 10},
            }
        )


@pytest.fixture
async def endpoint(place: Place) -> AsyncGenerator[Endpoint]:
    (place.folder / "one.toml").write_text(SOLO)
    (place.folder / "guildry.toml").write_text('teams = ["one.toml"]\n[plugs]\nc = "count.py"\n')
    model = Endpoint()
    app = web.Application()
    app.router.add_post("/v1/chat/completions", model.reply)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    model.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    place.variables["GUILDRY_MODELS__TEST__URL"] = model.url
    place.variables["GUILDRY_MODELS__TEST__MODEL"] = "m"
    yield model
    model.may_answer.set()
    await runner.cleanup()


async def test_init_and_doctor_begin_a_folder_that_works(place: Place) -> None:
    made = await place("init", "new", "--json")
    again = await place("init", "new")
    inside = Place(place.folder / "new")
    healthy = await inside("doctor", "--json")
    called = await inside("call", "hello", "name=Ada")

    assert len(made.json["files"]) == 3
    assert (again.code, again.out) == (2, "")
    assert again.err.startswith("guildry: `new` has `guildry.toml`")
    assert (healthy.code, healthy.json["healthy"]) == (0, True), healthy.out
    assert {"plug hello", "team survey"} <= {check["check"] for check in healthy.json["checks"]}
    assert (called.code, called.out) == (0, "Hello, Ada!\n")


async def test_doctor_ends_with_1_where_something_is_broken(place: Place) -> None:
    (place.folder / "guildry.toml").write_text('[plugs]\nx = "no-such-command-anywhere"\n')

    told = await place("doctor")

    assert told.code == 1
    assert "FAILED plug x" in told.out
    assert "→" in told.out


async def test_a_plug_is_kept_for_later_and_unplugged_again(place: Place) -> None:
    plugged = await place("plug", "count.py", "--json")
    called = await place("call", "count", "word=hi", "times=2", "--json")
    taken = await place("plug", "python other.py", "--name", "count")
    removed = await place("unplug", "count")
    missing = await place("unplug", "count", "--json")

    assert plugged.json == {
        "plug": "count",
        "tools": ["count"],
        "quarantined": [],
        "live_servers": 0,
    }
    assert called.json == {"is_error": False, "answer": ["hi", "hi"]}
    assert (taken.code, taken.out) == (1, "")
    assert "a plug named `count` is there already" in taken.err
    assert (removed.code, removed.out) == (0, "count is unplugged.\n")
    assert (missing.code, missing.json["exit_code"]) == (3, 3)


async def test_commands_reach_a_live_server_and_what_they_plug_outlives_it(place: Place) -> None:
    async with place.serving():
        plugged = await place("plug", "./count.py")
        found = await place("find", "repeat a word", "--json")
        tagged = await place("find", "repeat a word", "--tag", "count", "--json")
        elsewhere = await place("find", "repeat a word", "--tag", "other", "--json")
        listed = await place("tools", "--json")
        unknown = await place("call", "cuont")
        wrong = await place("call", "count", '{"word": 1}')
    after = await place("call", "count", "-", stdin=b'{"word": "later"}')

    assert plugged.code == 0
    assert plugged.out.endswith("Plugged into 1 live server(s).\n")
    assert found.json["tools"][0]["name"] == "count"
    assert [tool["name"] for tool in tagged.json["tools"]] == ["count"]
    assert (elsewhere.code, elsewhere.json["tools"]) == (3, [])
    tools = {tool["name"]: tool["plug"] for tool in listed.json["tools"]}
    assert tools["count"] == "count"
    assert tools["find_tools"] == "guildry"
    assert (unknown.code, unknown.out) == (3, "")
    assert "did you mean `count`?" in unknown.err
    assert (wrong.code, wrong.out) == (1, "")
    assert "`word`" in wrong.err
    assert (after.code, json.loads(after.out)) == (0, ["later"])


async def test_a_long_answer_is_a_reference_unless_it_is_wanted_whole(place: Place) -> None:
    await place("plug", "count.py")

    short = await place("call", "count", "word=abcdefgh", "times=2000", "--json")
    full = await place("call", "count", "word=abcdefgh", "times=2000", "--full")

    assert set(short.json["answer"]) >= {"reference", "uri", "sketch"}
    assert json.loads(full.out) == ["abcdefgh"] * 2000


async def test_a_run_is_drawn_recorded_and_shown(place: Place, endpoint: Endpoint) -> None:
    endpoint.may_answer.set()

    ran = await place("run", "one", "Count x three times.")
    told = await place("run", "team_one", "Count x three times.", "--json")
    listed = await place("runs", "--json")
    shown = await place("show", told.json["run"])
    whole = await place("show", told.json["run"][:6], "--json", "--follow")
    unknown = await place("run", "two", "Count.")
    nowhere = await place("show", "r0000000000", "--json")

    assert ran.code == 0
    assert "count ok" in ran.out
    assert "Three of them." in ran.out
    assert "2 turns" in shown.out
    assert (told.code, told.json["status"], told.json["report"]) == (0, "done", "Three of them.")
    assert told.json["usage"]["tool_calls"] == 1
    assert [run["status"] for run in listed.json["runs"]] == ["done", "done"]
    assert "Three of them." in shown.out
    assert [event["kind"] for event in whole.json["events"]].count("tool") == 1
    assert whole.json["agents"][-1]["calls"] == 1
    assert (unknown.code, unknown.out) == (3, "")
    assert "there are `one`" in unknown.err
    assert nowhere.code == 3


async def test_a_run_is_cancelled_from_another_process(place: Place, endpoint: Endpoint) -> None:
    with anyio.fail_after(60):
        async with await place.start("run", "one", "Wait.", "--json") as running:
            await endpoint.asked.wait()
            (run,) = (await place("runs", "--status", "running", "--json")).json["runs"]
            cancelled = await place("cancel", run["run"], "--json")
            assert running.stdout is not None
            told = json.loads(b"".join([chunk async for chunk in running.stdout]))
            code = await running.wait()
    again = await place("cancel", run["run"])

    assert cancelled.json == {"run": run["run"], "status": "cancelled"}
    assert (code, told["status"]) == (1, "cancelled")
    assert again.code == 1
    assert "is over already" in again.err


async def test_an_interrupted_run_ends_with_130_and_is_recorded(
    place: Place, endpoint: Endpoint
) -> None:
    with anyio.fail_after(60):
        async with await place.start("run", "one", "Wait.") as running:
            await endpoint.asked.wait()
            running.send_signal(signal.SIGINT)
            code = await running.wait()
    listed = await place("runs", "--json")

    assert code == 130
    assert [run["status"] for run in listed.json["runs"]] == ["cancelled"]


async def test_a_run_whose_process_serves_no_socket_cannot_be_reached(place: Place) -> None:
    (place.folder / "home").mkdir()
    async with Store.open(place.folder / "home/guildry.db") as store:
        await RunStore(store).create(RunRecord("r1234567890", "team", "one", "Wait.", "local"))

    told = await place("cancel", "r123", "--json")

    assert (told.code, told.json["exit_code"]) == (4, 4)
    assert f"process {os.getpid()}" in told.json["error"]


async def test_a_damaged_database_is_told_in_one_line(place: Place) -> None:
    (place.folder / "home").mkdir()
    (place.folder / "home/guildry.db").write_bytes(b"no database at all" * 500)

    told = await place("runs")

    assert told.code == 1
    assert len(told.err.splitlines()) == 1
    assert str(place.folder / "home/guildry.db") in told.err


def test_each_error_has_its_exit_code() -> None:
    codes = {
        1: (
            PlugError("a", "b", "c"),
            ToolFailed("x"),
            StoreCorrupt("x"),
            BudgetExceeded("x", 1, 1),
        ),
        2: (ConfigError("x"), UsageError("x")),
        3: (NotFound("x"), RunNotFound("x"), ReferenceNotFound("x")),
        4: (Unreachable("x"), StoreLocked("x")),
    }

    for code, errors in codes.items():
        assert [int(code_of(error)) for error in errors] == [code] * len(errors)
    assert [int(code) for code in Exit] == [0, 1, 2, 3, 4, 130]


def test_the_errors_inside_a_group_are_found_however_deep() -> None:
    group = BaseExceptionGroup("a", [ExceptionGroup("b", [OSError(1)]), KeyboardInterrupt()])

    assert [type(leaf) for leaf in leaves(group)] == [OSError, KeyboardInterrupt]
    assert [type(leaf) for leaf in leaves(sqlite3.Error())] == [sqlite3.Error]


def test_arguments_are_json_or_pairs() -> None:
    assert parse_arguments(['{"a": [1]}']) == {"a": [1]}
    assert parse_arguments(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    assert parse_arguments([]) == {}
    for wrong in (["{"], ["[1]"], ["a"], ["=1"], ["a=1", "{}"]):
        with pytest.raises(UsageError):
            parse_arguments(wrong)


@given(st.dictionaries(st.text(min_size=1), st.integers() | st.text()))
def test_any_object_that_json_can_say_arrives_as_it_was(arguments: dict[str, Any]) -> None:
    assert parse_arguments([json.dumps(arguments)]) == arguments


def test_paths_in_a_source_become_absolute_and_nothing_else_does(tmp_path: Path) -> None:
    (tmp_path / "a b.py").write_text("")
    (tmp_path / "git").mkdir()
    (tmp_path / "server.py").write_text("")

    assert anchored("a b.py", tmp_path) == str(tmp_path / "a b.py")
    assert anchored("python server.py --port 1", tmp_path) == (
        f"python {tmp_path / 'server.py'} --port 1"
    )
    assert anchored("mcp-server-git --repository .", tmp_path) == (
        f"mcp-server-git --repository {tmp_path}"
    )
    for same in ("https://host/a.py", "npx -y git", "git status", "it's broken", "no/such/file.py"):
        assert anchored(same, tmp_path) == same


def test_a_source_is_anchored_without_following_links(tmp_path: Path) -> None:
    """The interpreter of a virtual environment is a link, and only as that link is it one."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    (tmp_path / "tools").mkdir()

    assert anchored("bin/python -m thing", tmp_path) == f"{tmp_path}/bin/python -m thing"
    assert anchored("tools", tmp_path) == f"{tmp_path}/tools"
    assert anchored("npx -y thing", tmp_path) == "npx -y thing"
    assert anchored("http://localhost/mcp", tmp_path) == "http://localhost/mcp"

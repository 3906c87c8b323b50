"""`guildry review` and its tools: a person decides what is served, in every process of a home."""

import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint

from guildry.server.app import App, open_app
from guildry.server.commands.exits import Exit
from guildry.server.config import PlugSetting, Settings
from guildry.tools.caller import Caller
from guildry.tools.grants import Grant

BEFORE = 'def one() -> int:\n    """Do it."""\n    return 1\n'
AFTER = 'def one() -> int:\n    """Do something else."""\n    return 1\n'
OTHER = 'def two() -> int:\n    """Count to two."""\n    return 2\n'


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
    """A folder with a file of tools that is pinned, and the commands at work in it."""

    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "mine.py"

    def settings(self) -> Settings:
        plugs = {"mine": PlugSetting(source=str(self.file))}
        return Settings(home=self.folder / "home", folder=self.folder, pin="all", plugs=plugs)

    def start(self, *args: str) -> Any:
        kept = {key: value for key, value in os.environ.items() if not key.startswith("GUILDRY_")}
        return anyio.open_process(
            [sys.executable, "-m", "guildry.server", *args],
            cwd=self.folder,
            env={**kept, "GUILDRY_HOME": str(self.folder / "home")},
        )

    async def __call__(self, *args: str) -> Done:
        with anyio.fail_after(60):
            async with await self.start(*args) as process:
                out, err = "", ""

                async def read() -> None:
                    nonlocal err
                    err = b"".join([chunk async for chunk in process.stderr]).decode()

                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(read)
                    out = b"".join([chunk async for chunk in process.stdout]).decode()
                code = await process.wait()
        return Done(code, out, err)

    @asynccontextmanager
    async def serving(self) -> AsyncGenerator[None]:
        async with await self.start("serve", "--port", "0") as server:
            text = b""
            try:
                with anyio.fail_after(60):
                    while b"plugs_opened" not in text:
                        text += await server.stderr.receive()
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(drain, server)
                    yield
                    tasks.cancel_scope.cancel()
            finally:
                server.terminate()


async def drain(process: Any) -> None:
    async for _ in process.stderr:
        pass


@pytest.fixture
def home(tmp_path: Path) -> Home:
    (tmp_path / "mine.py").write_text(BEFORE + OTHER)
    config = 'pin = "all"\n[plugs.mine]\nsource = "mine.py"\n'
    (tmp_path / "guildry.toml").write_text(config)
    return Home(tmp_path)


async def test_what_has_changed_is_shown_and_approved_without_a_server(home: Home) -> None:
    first = await home("tools")
    home.file.write_text(AFTER + OTHER)
    changed = await home("tools")
    shown = await home("review")
    approved = await home("review", "--approve", "mine:one")
    nothing = await home("review")
    served = await home("tools", "--json")

    assert "left out" not in first.out
    assert "! mine: `one` is left out: held: it has changed" in changed.out
    assert "! mine: 1 definition(s) are held: see `guildry review`" in changed.out
    head, reason, *rest, cure = shown.out.splitlines()
    assert head.startswith("mine:one  ")
    assert reason == "  it has changed since it was approved (description)"
    assert '    - "description": "Do it.",' in rest
    assert '    + "description": "Do something else.",' in rest
    assert cure.startswith("Approve with `guildry review --approve PLUG:TOOL`")
    assert (approved.code, approved.out) == (Exit.OK, "mine: approved one\n")
    assert nothing.out == "Nothing is held.\n"
    assert {"one", "two"} <= {tool["name"] for tool in served.json["tools"]}


async def test_what_a_server_holds_is_decided_through_its_socket(home: Home) -> None:
    async with home.serving():
        home.file.write_text(AFTER + OTHER)
        held: list[Any] = []
        while not held:
            held = (await home("review", "--json")).json["held"]
        rejected = await home("review", "--reject", "mine", "--json")
        listed = await home("review")
        again = await home("review", "--approve", "mine")
        approved = await home("review", "--approve", "mine:one")
        served = await home("tools", "--json")

    assert [(each["plug"], each["tool"]) for each in held] == [("mine", "one")]
    assert rejected.json == {"decided": [{"plug": "mine", "verdict": "reject", "tools": ["one"]}]}
    assert "(rejected by local)" in listed.out
    assert (again.code, "nothing of 'mine' is held" in again.err) == (Exit.NOT_FOUND, True)
    assert approved.out == "mine: approved one\n"
    assert "one" in {tool["name"] for tool in served.json["tools"]}


async def test_what_is_wrong_with_a_decision_is_said(home: Home) -> None:
    await home("tools")

    unknown = await home("review", "--approve", "mine:one")
    nameless = await home("review", "--reject", ":one")
    forgotten = await home("review", "--forget", "mine")
    twice = await home("review", "--forget", "mine")

    assert (unknown.code, "nothing of 'mine:one' is held" in unknown.err) == (Exit.NOT_FOUND, True)
    assert (nameless.code, "':one' names no plug" in nameless.err) == (Exit.USAGE, True)
    assert forgotten.out.startswith("mine: 2 pins dropped")
    assert twice.code == Exit.NOT_FOUND


async def call(app: App, name: str, **arguments: Any) -> Any:
    caller = Caller(Grant.root("ann", scopes=frozenset({"tools", "admin"})), "ann")
    result = await app.dispatch.call(caller, name, arguments)
    return result.text if result.is_error else result.structured


async def test_a_decision_is_heard_in_the_other_processes_of_the_home(home: Home) -> None:
    with anyio.fail_after(60):
        async with open_app(home.settings()) as one, open_app(home.settings()) as other:
            for app in (one, other):
                await app.ready.wait()
            home.file.write_text(AFTER + OTHER)
            for app in (one, other):
                while "one" in app.catalog.current.tools:
                    await checkpoint()
            (held,) = (await call(one, "review_tools"))["held"]

            digests = {"one": held["digest"]}
            done = await call(one, "approve_tools", plug="mine", tools=["one"], digests=digests)
            here = "one" in one.catalog.current.tools
            while "one" not in other.catalog.current.tools:
                await checkpoint()
            late = await call(one, "reject_tools", plug="mine")

    assert (held["plug"], held["tool"]) == ("mine", "one")
    assert done == {"plug": "mine", "verdict": "approve", "tools": ["one"]}
    assert here
    assert late.startswith("nothing of that is held of 'mine' (held is something of no plug)")


async def test_who_may_not_administer_the_server_decides_nothing(home: Home) -> None:
    with anyio.fail_after(60):
        async with open_app(home.settings()) as app:
            caller = Caller(Grant.root("ben", scopes=frozenset({"tools", "teams"})), "ben")
            found: list[str] = []
            for name in ("review_tools", "approve_tools", "reject_tools"):
                try:
                    await app.dispatch.call(caller, name, {"plug": "mine"})
                except Exception as error:
                    found.append(type(error).__name__)

    assert found == ["UnknownTool"] * 3

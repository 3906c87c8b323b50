"""The app: the parts together, from opening to closing, with a model that plays a program."""

from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from guildry.errors import ConfigError, StoreCorrupt
from guildry.memory.runs import RunRecord
from guildry.server.app import open_app
from guildry.server.config import PlugSetting, Settings
from guildry.server.surface import USER_SCOPES, build_server
from guildry.teams.messages import Report, Task
from guildry.teams.run import Run
from guildry.teams.scripted import ScriptedModel, call
from guildry.teams.team import Solo
from guildry.tools.base import Outcome, Tool
from guildry.tools.grants import Limits

ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])
TOOLS = '''
def shout(text: str) -> str:
    """Say it in capitals."""
    return text.upper()
'''
TEAM = """
name = "criers"
description = "Cry a text out."
pattern = "solo"
tools = ["echo"]
"""


async def test_configured_plugs_and_teams_are_served_in_their_order_and_failures_alone(
    opened: Any, tmp_path: Path
) -> None:
    for name in ("zebra", "ant"):
        (tmp_path / f"{name}.py").write_text(TOOLS.replace("shout", name))
    (tmp_path / "teams").mkdir()
    (tmp_path / "teams/criers.toml").write_text(TEAM)
    (tmp_path / "broken.py").write_text("def (")
    plugs = {
        name: PlugSetting(source=str(tmp_path / f"{name}.py"))
        for name in ("zebra", "broken", "gone", "ant")
    }
    async with opened(plugs=plugs, teams=(tmp_path / "teams",)) as app:
        names = [tool.name for tool in app.catalog.current if tool.plug != "guildry"]
        listed = app.plugs.listing()
        states = {status.name: status.state for status in listed if status.name != "gone"}

    assert names == ["zebra", "ant", "team_criers"]
    assert states == {
        "zebra": "ready",
        "broken": "failed",
        "ant": "ready",
        "criers": "ready",
    }


async def test_a_call_that_comes_before_its_plug_is_open_waits_for_it(tmp_path: Path) -> None:
    (tmp_path / "slow.py").write_text(f"import time\n\ntime.sleep(0.3)\n{TOOLS}")
    plugs = {"slow": PlugSetting(source=str(tmp_path / "slow.py"))}
    with anyio.fail_after(20):
        async with open_app(Settings(home=tmp_path / "home", plugs=plugs)) as app:
            assert not app.ready.is_set()
            async with Client(build_server(app)) as client:
                result = await client.call_tool("shout", {"text": "a"})

    assert result.content[0].model_dump()["text"] == "A"


async def test_a_plug_that_takes_too_long_does_not_hold_the_listing_up(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(f"import time\n\ntime.sleep(3)\n{TOOLS}")
    plugs = {"stuck": PlugSetting(source=str(tmp_path / "stuck.py"))}
    settings = Settings(home=tmp_path / "home", plugs=plugs, startup_wait_s=0.05, drain_s=0)
    with anyio.fail_after(20):
        async with open_app(settings) as app:
            async with Client(build_server(app)) as client:
                names = {tool.name for tool in (await client.list_tools()).tools}
                assert not app.ready.is_set()

    assert "find_tools" in names
    assert "shout" not in names


async def test_runs_of_a_process_that_is_gone_are_closed_at_the_next_start(
    opened: Any, tmp_path: Path
) -> None:
    async with opened() as app:
        record = RunRecord(
            id="r1", kind="team", team="t", task="x", principal="local", process="1:0"
        )
        await app.runs.create(record)
    async with opened() as again:
        with anyio.fail_after(10):
            async for entry in again.journal.follow("r1"):
                assert (entry.kind, entry.agent) == ("stop", "r1")
        closed = await again.runs.get("r1")

    assert closed is not None
    assert closed.status == "interrupted"


async def test_a_damaged_database_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home/guildry.db").write_bytes(b"SQLite format 3\x00" + b"garbage" * 1_000)

    with pytest.raises(StoreCorrupt, match=r"guildry\.db"):
        async with open_app(Settings(home=tmp_path / "home")):
            raise AssertionError


async def test_the_configured_model_is_the_one_that_teams_use(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9/v1"
    async with open_app(Settings(home=tmp_path / "home", model=url)) as app:
        assert app.orchestrator.model() is app.models[url]
    async with open_app(Settings(home=tmp_path / "none")) as app:
        with pytest.raises(ConfigError):
            app.orchestrator.model()


@ERAS
async def test_a_team_works_through_the_endpoint_and_says_how_far_it_is(
    opened: Any, echo: Tool, era: Any
) -> None:
    heard: list[str | None] = []
    model = ScriptedModel([call("echo", text="hello"), "The echo says hello."])

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(message)

    async with opened(echo, models={"scripted": model}) as app:
        name = app.add_team(Solo(name="criers", description="Cry.", tools=("echo",)))
        async with Client(build_server(app, scopes=USER_SCOPES), mode=era) as client:
            listed = {tool.name for tool in (await client.list_tools()).tools}
            with anyio.fail_after(10):
                result = await client.call_tool(name, {"task": "Cry."}, progress_callback=hear)
            told = result.structured_content
            assert told is not None
            status = await client.call_tool("run_status", {"run": told["run"]})
            again = await client.call_tool("run_result", {"run": told["run"]})
            late = await client.call_tool("run_steer", {"run": told["run"], "message": "stop"})

    assert name == "team_criers"
    assert {"team_criers", "delegate", "run_status"} <= listed
    assert "spawn" not in listed
    assert list(told) == ["run", "status", "report", "references", "usage"]
    assert (told["status"], told["report"]) == ("done", "The echo says hello.")
    assert told["usage"]["tool_calls"] == 1
    assert any("criers" in (message or "") for message in heard)
    assert status.structured_content is not None
    assert status.structured_content["status"] == "done"
    assert again.structured_content is not None
    assert {**again.structured_content, "reason": None} == {
        **told,
        "usage": again.structured_content["usage"],
        "reason": None,
    }
    assert late.is_error


@ERAS
async def test_giving_up_a_team_call_stops_every_agent_and_every_call(
    opened: Any, make_tool: Any, era: Any
) -> None:
    began: list[int] = []
    ended: list[int] = []
    all_began, all_ended = anyio.Event(), anyio.Event()

    async def hang(arguments: dict[str, Any], _: Any) -> Outcome:
        began.append(arguments["n"])
        if len(began) == 3:
            all_began.set()
        try:
            await anyio.sleep_forever()
        finally:
            ended.append(arguments["n"])
            if len(ended) == 3:
                all_ended.set()
        return Outcome()

    model = ScriptedModel([[call("hang", n=n) for n in range(3)]])
    tool = make_tool("hang", hang, {"n": {"type": "integer"}})
    async with opened(tool, models={"scripted": model}) as app:
        app.add_team(Solo(name="stuck", description="Hang.", tools=("hang",)))
        async with Client(build_server(app), mode=era) as client:
            with anyio.fail_after(10):
                async with anyio.create_task_group() as tasks:
                    tasks.start_soon(client.call_tool, "team_stuck", {"task": "Hang."})
                    await all_began.wait()
                    tasks.cancel_scope.cancel()
                await all_ended.wait()
                while app.orchestrator.live:
                    await anyio.lowlevel.checkpoint()
        (record,) = await app.runs.listing()

    assert sorted(ended) == [0, 1, 2]
    assert record.status == "cancelled"


class Patient:
    """A team that waits for what it is told."""

    name = "patient"
    description = "Wait."
    tools: tuple[str, ...] = ()
    default_limits = Limits()

    async def work(self, run: Run, task: Task) -> Report:
        await anyio.sleep_forever()
        return Report("done", "")


async def test_a_run_in_the_background_is_steered_and_cancelled(opened: Any) -> None:
    async with opened(models={"scripted": ScriptedModel([])}) as app:
        app.add_team(Patient())
        async with Client(build_server(app)) as client:
            begun = await client.call_tool("team_patient", {"task": "Wait.", "background": True})
            assert begun.structured_content is not None
            run = {"run": begun.structured_content["run"]}
            steered = await client.call_tool("run_steer", {**run, "message": "left"})
            live = await client.call_tool("run_status", run)
            with anyio.fail_after(10):
                cancelled = await client.call_tool("run_cancel", run)
            unknown = await client.call_tool("run_status", {"run": "r0"})
        said = [
            entry.data["body"]
            for entry in await app.journal.read(run["run"])
            if entry.kind == "message"
        ]

    assert begun.structured_content["status"] == "running"
    assert not steered.is_error
    assert live.structured_content is not None
    assert live.structured_content["status"] == "running"
    assert cancelled.structured_content is not None
    assert cancelled.structured_content["status"] == "cancelled"
    assert unknown.is_error
    assert said == ["left"]


async def test_a_run_in_the_background_is_interrupted_when_the_server_ends(
    opened: Any, tmp_path: Path
) -> None:
    async with opened(models={"scripted": ScriptedModel([])}) as app:
        app.add_team(Patient())
        async with Client(build_server(app)) as client:
            begun = await client.call_tool("team_patient", {"task": "Wait.", "background": True})
    assert begun.structured_content is not None
    async with opened() as again:
        record = await again.runs.get(begun.structured_content["run"])

    assert record is not None
    assert record.status == "interrupted"


async def test_a_team_that_is_published_again_replaces_itself(opened: Any) -> None:
    async with opened() as app:
        app.add_team(Solo(name="criers", description="First."))
        app.add_team(Solo(name="criers", description="Second."))
        tools = app.catalog.current.of("guildry")

    assert [each.description for each in tools if each.name.startswith("team_")] == ["Second."]

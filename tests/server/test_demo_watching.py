"""A run is drawn while it goes on, and its report is read whole, both as any client could."""

import io
import json
from pathlib import Path
from typing import Any

import anyio
from mcp import Client
from rich.console import Console

from guildry.server.app import open_app
from guildry.server.config import PlugSetting, Settings
from guildry.server.demo.program import survey
from guildry.server.demo.session import HERE
from guildry.server.demo.tree import agents_of
from guildry.server.demo.watching import draw_live, journal_of, report_text
from guildry.server.surface import build_server
from guildry.teams.model import Request
from guildry.teams.scripted import Reply, ScriptedModel


class Screen(io.StringIO):
    """A terminal that says when a text was first drawn on it."""

    def __init__(self, awaited: str) -> None:
        super().__init__()
        self.drawn = anyio.Event()
        self._awaited = awaited

    def write(self, text: str) -> int:
        if self._awaited in text:
            self.drawn.set()
        return super().write(text)


async def test_the_tree_is_drawn_while_the_team_works_and_the_report_is_read_whole(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "some"
    folder.mkdir()
    for n in range(40):
        name = f"a_file_with_a_name_that_is_quite_a_lot_longer_than_most_{n:02}.py"
        (folder / name).write_text(f"def f_{n}():\n    return {n}\n")
    screen = Screen("✓ duplicates")
    joined: list[str] = []

    async def program(request: Request) -> Reply:
        reply = survey(request)
        if isinstance(reply, str) and '"duplicates"' in reply and '"totals"' in reply:
            await screen.drawn.wait()
            joined.append(reply)
        return reply

    sources = {
        "survey_tools": HERE / "tools",
        "late": HERE / "late_tools",
        "survey": HERE / "survey.toml",
    }
    plugs = {name: PlugSetting(source=str(path)) for name, path in sources.items()}
    settings = Settings(home=tmp_path / "home", plugs=plugs, sync=False)
    begun = anyio.Event()

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        begun.set()

    answer: dict[str, Any] = {}
    console = Console(file=screen, force_terminal=True, width=80, color_system=None)
    with anyio.fail_after(60):
        async with (
            open_app(settings, models={"scripted": ScriptedModel(program)}) as app,
            Client(build_server(app)) as client,
        ):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(draw_live, client, console, begun)
                task = {"task": f"Survey the folder {json.dumps(str(folder))}."}
                called = await client.call_tool("team_survey", task, progress_callback=heard)
                answer = called.structured_content or {}
                tasks.cancel_scope.cancel()
            text = await report_text(client, answer)
            agents = agents_of(await journal_of(client, answer["run"]))

    assert answer["status"] == "done"
    assert [text] == joined
    assert len(text) > 2_000 > len(answer["report"]) - 1
    assert {agent.state for agent in agents} == {"done"}

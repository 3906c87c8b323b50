"""`run` and `demo`: a team at work in this process, drawn as a live tree."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from guildry.errors import ToolFailed
from guildry.server.commands.arguments import AsJson, Config, Home, taking
from guildry.server.commands.exits import Exit, NotFound
from guildry.server.commands.options import LIVE, flags_of
from guildry.server.commands.perform import perform, write

if TYPE_CHECKING:
    from rich.console import Console

    from guildry.server.app import App
    from guildry.server.config import Settings
    from guildry.server.surface import Surface

__all__ = ["demo", "run"]

_WRAP_UP_S: Final = 10.0


def _run(team: str, task: str, as_json: bool, **given: Any) -> None:
    """Have a team do a task here, and draw its agents as they work."""
    work = partial(_work, team, task, as_json)
    raise typer.Exit(perform(work, flags_of(given), as_json=as_json))


run = taking(
    LIVE,
    _run,
    ("team", Annotated[str, typer.Argument(help="Name of the team.")], ...),
    ("task", Annotated[str, typer.Argument(help="What is to be done, in quotes.")], ...),
    ("as_json", AsJson, False),
)
"""The command `run`: its options are those of `LIVE`."""


async def _work(team: str, task: str, as_json: bool, settings: "Settings") -> int:
    import anyio
    from rich.console import Console

    from guildry.server.app import open_app
    from guildry.server.control import serve_control
    from guildry.server.surface import Surface

    code = Exit.FAILED
    async with open_app(settings) as app, anyio.create_task_group() as tasks:
        surface = Surface(app)
        await tasks.start(serve_control, surface, settings.home)
        run_id = await _begin(surface, team, task)
        try:
            await _follow(app, run_id, None if as_json else Console())
        except anyio.get_cancelled_exc_class():
            with anyio.CancelScope(shield=True), anyio.move_on_after(_WRAP_UP_S):
                await app.orchestrator.cancel(run_id)
            raise
        code = await _tell(app, run_id, as_json)
        tasks.cancel_scope.cancel()
    return code


async def _begin(surface: "Surface", team: str, task: str) -> str:
    """Start the run, and return its id.

    Raises:
        NotFound: there is no such team.
        ToolFailed: it cannot begin.
    """
    app = surface.app
    await app.settled()
    name = f"team_{team.removeprefix('team_')}"
    teams = [each for each in app.catalog.current.tools if each.startswith("team_")]
    if name not in teams:
        there = ", ".join(f"`{each.removeprefix('team_')}`" for each in teams) or "none"
        raise NotFound(f"there is no team {team!r}: there are {there}. Name team files in `teams`")
    arguments = {"task": task, "background": True}
    result = await app.dispatch.call(surface.caller, name, arguments)
    if result.is_error:
        raise ToolFailed(result.text)
    return str(result.structured["run"])


async def _follow(app: "App", run_id: str, console: "Console | None") -> None:
    """Wait for the end of a run, drawing it meanwhile where there is a console."""
    from guildry.server.console import watch

    entries = app.journal.follow(run_id)
    if console is not None:
        await watch(entries, console)
        return
    async for _ in entries:
        pass


async def _tell(app: "App", run_id: str, as_json: bool) -> Exit:
    from rich.console import Console

    from guildry.server.console import show_report

    live = app.orchestrator.live.get(run_id)
    if live is not None:
        await live.ended.wait()
    record = await app.runs.get(run_id)
    if record is None:
        raise NotFound(f"run {run_id!r} has left no record: see the log above")
    report = record.report or {}
    if as_json:
        told = {"run": run_id, **report, "status": record.status, "usage": record.usage}
        write(json.dumps(told, ensure_ascii=False, default=str))
    else:
        write(f"{run_id} is {record.status}: {report.get('reason', '')}")
        show_report(Console(), report, record.usage)
    return Exit.OK if record.status == "done" else Exit.FAILED


def demo(
    path: Annotated[Path, typer.Argument(help="A folder or a git repository.")] = Path(),
    model: Annotated[
        str | None, typer.Option(help="A configured model, or a URL; scripted if left out.")
    ] = None,
    home: Home = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Show it all on real input, without a model."""
    work = partial(_demo, path, model, as_json)
    flags = {"home": home, "config": config, "model": model}
    raise typer.Exit(perform(work, flags, as_json=as_json))


async def _demo(path: Path, model: str | None, as_json: bool, settings: "Settings") -> int:
    from rich.console import Console

    from guildry.server.demo.demo import demo as show_all

    return await show_all(path, model, settings, Console(), as_json=as_json)

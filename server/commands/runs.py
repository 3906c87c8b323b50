"""`runs`, `show` and `cancel`: what ran, what came of it, and how to stop it."""

import json
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from time import localtime, strftime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guildry.errors import RunError, RunNotFound, ToolError, UsageError
from guildry.server.commands.arguments import AsJson, Config, Home
from guildry.server.commands.exits import Exit
from guildry.server.commands.perform import perform, write

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from guildry.memory.runs import RunRecord, RunStore
    from guildry.memory.store import Store
    from guildry.server.config import Settings

__all__ = ["cancel", "runs", "show"]

_STATUSES = ("running", "done", "partial", "failed", "cancelled", "interrupted")

RunId = Annotated[str, typer.Argument(help="The run's id; its beginning is enough.")]


def runs(
    limit: Annotated[int, typer.Option(min=1, help="Number of runs to list.")] = 20,
    status: Annotated[str | None, typer.Option(help=f"Only: {', '.join(_STATUSES)}.")] = None,
    home: Home = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List the runs of this home, the newest first."""
    flags = {"home": home, "config": config}
    raise typer.Exit(perform(partial(_runs, limit, status, as_json), flags, as_json=as_json))


async def _runs(limit: int, status: Any, as_json: bool, settings: "Settings") -> int:
    from guildry.memory.runs import RunStore
    from guildry.server.console import plain
    from guildry.server.offers.resources import run_json

    if status is not None and status not in _STATUSES:
        raise UsageError(f"`--status` is {status!r}: give one of {', '.join(_STATUSES)}")
    async with _kept(settings) as store:
        records = await RunStore(store).listing(limit=limit, status=status)
    if as_json:
        write(json.dumps({"runs": [run_json(record) for record in records]}, ensure_ascii=False))
        return Exit.OK
    for record in records:
        began = strftime("%Y-%m-%d %H:%M:%S", localtime(record.started_at))
        head = f"{record.id}  {began}  {record.status:<11}  {record.team:<16}"
        write(f"{head}  {plain(record.task, 60)}")
    if not records:
        write('No runs yet: start one with `guildry run TEAM "task"`.')
    return Exit.OK


def show(
    run: RunId,
    follow: Annotated[bool, typer.Option("--follow", help="Stay until the run ends.")] = False,
    home: Home = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Show a run: the tree of its agents, its report and what it cost."""
    flags = {"home": home, "config": config}
    raise typer.Exit(perform(partial(_show, run, follow, as_json), flags, as_json=as_json))


async def _show(run: str, follow: bool, as_json: bool, settings: "Settings") -> int:
    from guildry.memory.journal import Journal
    from guildry.memory.runs import RunStore
    from guildry.server.console import RunTree, show_report, watch
    from guildry.server.offers.resources import run_json

    async with _kept(settings) as store:
        records, journal = RunStore(store), Journal(store)
        record = await _find(records, run)
        if follow and record.status == "running" and not as_json:
            await watch(journal.follow(record.id), _console())
        elif follow and record.status == "running":
            async for _ in journal.follow(record.id):
                pass
        record = await records.get(record.id) or record
        entries = await journal.read(record.id)
    tree = RunTree()
    for entry in entries:
        tree.fold(entry)
    if as_json:
        told = {**run_json(record), "agents": tree.as_json(), "events": list(map(asdict, entries))}
        write(json.dumps(told, ensure_ascii=False, default=str))
        return Exit.OK
    console = _console()
    write(f"{record.id}  {record.team}  {record.status}")
    console.print(tree.render() if console.is_terminal else tree.text(), markup=False)
    show_report(console, record.report or {}, record.usage or tree.usage)
    return Exit.OK


def cancel(run: RunId, home: Home = None, config: Config = None, as_json: AsJson = False) -> None:
    """Stop a run that is at work, with all its agents and their calls."""
    flags = {"home": home, "config": config}
    raise typer.Exit(perform(partial(_cancel, run, as_json), flags, as_json=as_json))


async def _cancel(run: str, as_json: bool, settings: "Settings") -> int:
    from guildry.memory.runs import RunStore
    from guildry.server.commands.door import open_live

    async with _kept(settings) as store:
        records = RunStore(store)
        record = await _find(records, run)
        if record.status != "running":
            raise RunError(f"run `{record.id}` is over already: it is {record.status}")
        pid = int(record.process.partition(":")[0])
        refusal: ToolError | None = None
        async with open_live(settings, pid) as door:
            try:
                await door.ask("run_cancel", {"run": record.id})
            except ToolError as error:  # it may end with the run, before it has answered
                refusal = error
        record = await records.get(record.id) or record
        if refusal is not None and record.status == "running":
            raise refusal
    if as_json:
        write(json.dumps({"run": record.id, "status": record.status}))
    else:
        write(f"{record.id} is {record.status}")
    return Exit.OK


@asynccontextmanager
async def _kept(settings: "Settings") -> "AsyncGenerator[Store]":
    """Open what is kept; runs of processes that are gone are marked as interrupted first."""
    from guildry.memory.runs import RunStore
    from guildry.memory.store import Store

    async with Store.open(settings.database) as store:
        await RunStore(store).interrupt_orphans()
        yield store


async def _find(records: "RunStore", run: str) -> "RunRecord":
    """Return the run of that id, or the only one whose id begins so.

    Raises:
        RunNotFound: there is none, or several.
    """
    record = await records.get(run)
    if record is not None:
        return record
    near = [each for each in await records.listing(limit=1_000) if each.id.startswith(run)]
    if len(near) == 1:
        return near[0]
    what = f"{len(near)} runs begin with {run!r}" if near else f"there is no run {run!r} here"
    raise RunNotFound(f"{what}: see `guildry runs`")


def _console() -> Any:
    from rich.console import Console

    return Console()

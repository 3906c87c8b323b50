"""`guildry demo`: a real server, foreign MCP servers and a team survey a folder."""

import importlib.util
import json
import shutil
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Final

import anyio

from guildry.errors import GuildryError, RunError, UsageError
from guildry.memory.events import Entry
from guildry.server.commands.exits import leaves
from guildry.server.demo.replay import recorded, replay
from guildry.server.demo.report import Report, missing_parts, read_report, untraced
from guildry.server.demo.session import (
    HERE,
    answered,
    configuration,
    connected,
    list_names,
    plug_while_connected,
)
from guildry.server.demo.shown import object_of
from guildry.server.demo.tree import agents_of, draw
from guildry.server.demo.watching import draw_live, journal_of, report_text

if TYPE_CHECKING:
    from mcp import Client
    from rich.console import Console

    from guildry.server.config import ModelSetting, Settings

__all__ = ["demo"]

_NEEDED: Final = ("mcp_server_git", "mcp_server_time")
_TEAM: Final = "team_survey"
_SCRIPTED_S: Final = 120.0
_MODEL_S: Final = 900.0


@dataclass(slots=True)
class _Survey:
    """What one survey has come to."""

    path: Path
    model: str
    limit_s: float
    console: "Console"
    sources: dict[str, int] = field(default_factory=dict[str, int])
    late: list[str] = field(default_factory=list[str])
    run: str = ""
    status: str = ""
    entries: list[Entry] = field(default_factory=list[Entry])
    report: Report = field(default_factory=dict[str, Any])
    figures: dict[str, Any] = field(default_factory=dict[str, Any])

    def told(self) -> dict[str, Any]:
        """Return the survey as a program reads it."""
        total, foreign = self.traced()
        return {
            "path": str(self.path),
            "model": self.model,
            "run": self.run,
            "status": self.status,
            "complete": not self.faults(),
            "faults": self.faults(),
            "plugs": self.sources,
            "plugged_while_connected": self.late,
            "report": self.report,
            "figures": self.figures,
            "traced": {"figures": total, "not_from_a_tool": foreign},
        }

    def traced(self) -> tuple[int, list[str]]:
        """Return how many figures the report has, and those that came from no tool."""
        calls = [each.data for each in self.entries if each.kind == "tool"]
        return untraced(self.report, (str(c["text"]) for c in calls if c["status"] == "ok"))

    def faults(self) -> list[str]:
        """Return why the report is not complete; empty when it is."""
        faults: list[str] = []
        if self.status != "done":
            faults.append(f"the run ended as `{self.status}`")
        if missing := missing_parts(self.report):
            faults.append(f"the report lacks {', '.join(f'`{name}`' for name in missing)}")
        if foreign := self.traced()[1]:
            shown = ", ".join(foreign[:5])
            faults.append(f"{len(foreign)} figures came from no tool, such as {shown}")
        return faults


async def demo(
    path: Path,
    model: str | None,
    settings: "Settings",
    console: "Console",
    *,
    as_json: bool = False,
) -> int:
    """Survey a folder with a team of agents behind a real server; return the exit code.

    Args:
        path: the folder.
        model: a configured name or the URL of a model; a script plays it where there is none.
        settings: where a configured model is found. The server has a home of its own.
        console: where the report is shown.
        as_json: write one JSON object to standard output and show nothing else.
    """
    try:
        with anyio.fail_after(_MODEL_S + _SCRIPTED_S):
            survey = await _surveyed(path, model, settings, _quiet() if as_json else console)
    except (Exception, BaseExceptionGroup, SystemExit) as error:
        if any(isinstance(leaf, SystemExit) for leaf in leaves(error)):
            return 0  # rich leaves so when whoever read the output went away
        text = _foreseen(error)
        if text is None:
            raise
        if as_json:
            _write({"complete": False, "error": text})
        sys.stderr.write(f"guildry demo: {text}\n")
        return 1
    faults = survey.faults()
    if as_json:
        _write(survey.told())
    if faults:
        sys.stderr.write(f"guildry demo: the report is not complete: {'; '.join(faults)}\n")
    return 1 if faults else 0


def _foreseen(error: BaseException) -> str | None:
    """Return what to tell of an error that belongs to nobody's defect here, else None."""
    from mcp.shared.exceptions import MCPError

    for leaf in leaves(error):
        if isinstance(leaf, GuildryError | MCPError):
            return str(leaf)
        if isinstance(leaf, TimeoutError):
            return "it took too long and was stopped"
    return None


def _quiet() -> "Console":
    from rich.console import Console

    return Console(quiet=True)


def _write(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
    sys.stdout.flush()


async def _surveyed(
    path: Path, model: str | None, settings: "Settings", console: "Console"
) -> _Survey:
    """Start the server, have the team work, and show what came of it."""
    root = _checked(path)
    async with AsyncExitStack() as stack:
        folder = tempfile.TemporaryDirectory(prefix="guildry-demo-", ignore_cleanup_errors=True)
        home = Path(stack.enter_context(folder))
        setting, name = await stack.enter_async_context(_model(settings, model))
        config = home / "guildry.toml"
        config.write_text(configuration(home, root, setting), encoding="utf-8")
        limit_s = _SCRIPTED_S if name == "scripted" else _MODEL_S
        survey = _Survey(root, name, limit_s, console)
        console.print(f"[bold]Surveying[/] {_plain(root)}", highlight=False)
        started = perf_counter()
        key = setting.api_key()
        variables = {setting.api_key_env: key} if setting.api_key_env and key else {}
        client = await stack.enter_async_context(connected(config, variables))
        await _meet(survey, client, perf_counter() - started)
        await _work(survey, client)
        await _measure(survey, client)
        _show(survey)  # while the server is still up: closing it takes a moment
    return survey


def _checked(path: Path) -> Path:
    """Return the folder to survey, once it and what the demo needs are there."""
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the demo plugs in {' and '.join(f'`{name}`' for name in missing)}, which is not"
            " installed: run `pip install 'guildry[demo]'`"
        )
    if shutil.which("git") is None:
        raise UsageError("`git` is not on the PATH, and mcp-server-git needs it: install git")
    root = path.expanduser().absolute()
    if not root.is_dir():
        what = "is a file" if root.exists() else "is not there"
        raise UsageError(f"`{root}` {what}: give the path of a folder")
    try:
        str(root).encode()
        next(root.iterdir(), None)
    except (OSError, UnicodeEncodeError) as error:
        raise UsageError(f"{str(root)!r} cannot be surveyed ({error}): give another") from error
    return root.resolve()


@asynccontextmanager
async def _model(
    settings: "Settings", model: str | None
) -> AsyncGenerator[tuple["ModelSetting", str]]:
    """Yield the model that was asked for or is configured, or a script that plays one."""
    from guildry.server.config import ModelSetting

    chosen = settings.default_model
    if model is not None:
        known = settings.models.get(model)
        if known is None and not model.startswith(("http://", "https://")):
            names = ", ".join(f"`{name}`" for name in settings.models) or "none is configured"
            raise UsageError(f"`--model` is {model!r}: give a URL, or a name ({names})")
        chosen = known or ModelSetting(url=model)
    if chosen is not None:
        yield chosen, chosen.url
        return
    from guildry.server.demo.endpoint import MODEL, scripted_endpoint
    from guildry.server.demo.program import survey

    async with scripted_endpoint(survey) as url:
        yield ModelSetting(url=url, model=MODEL), "scripted"


async def _meet(survey: _Survey, client: "Client", started_s: float) -> None:
    """See what is plugged, and plug one more source over the open connection."""
    before = await list_names(client)
    console = survey.console
    console.print(
        f"  server   `guildry serve --stdio`, ready in {started_s:.1f} s,"
        f" MCP {client.protocol_version}",
        highlight=False,
    )
    for plug in (await answered(client, "list_plugs", {}))["plugs"]:
        if plug["state"] != "ready" or not plug["tools"]:
            why = plug["error"] or f"it is {plug['state']} with {len(plug['tools'])} tools"
            raise RunError(f"`{plug['name']}` cannot be used: {why}")
        survey.sources[plug["name"]] = len(plug["tools"])
    plugged = ", ".join(f"{name} {count}" for name, count in survey.sources.items())
    console.print(f"  plugged  {plugged} tools", highlight=False, markup=False)
    survey.late = await plug_while_connected(client, HERE / "late_tools")
    console.print(
        f"  plugged while connected, and announced: {', '.join(survey.late)}"
        f" ({len(before)} → {len(before) + len(survey.late)} tools listed)\n",
        highlight=False,
        markup=False,
    )


async def _work(survey: _Survey, client: "Client") -> None:
    """Call the team, with the tree of its run on the screen while it works."""
    task = f"Survey the folder {json.dumps(str(survey.path), ensure_ascii=False)}."
    begun = anyio.Event()

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        begun.set()

    answer: dict[str, Any] = {}
    said = ""
    async with anyio.create_task_group() as tasks:
        if survey.console.is_terminal and not survey.console.quiet:
            tasks.start_soon(draw_live, client, survey.console, begun)
        called = await client.call_tool(
            _TEAM, {"task": task}, read_timeout_seconds=survey.limit_s, progress_callback=heard
        )
        answer = object_of(called.structured_content)
        said = " ".join(getattr(block, "text", "") for block in called.content)
        tasks.cancel_scope.cancel()
    if "run" not in answer:
        raise RunError(f"the team could not begin: {said[:500]}")
    survey.run, survey.status = answer["run"], answer["status"]
    survey.entries = await journal_of(client, survey.run)
    survey.report = read_report(await report_text(client, answer))
    agents = agents_of(survey.entries)
    if not survey.report and survey.status != "done":
        raise RunError(f"run {survey.run} is {survey.status}: {answer.get('reason', '')[:500]}")
    survey.console.print(draw(f"run {survey.run}: {survey.status}", agents))


async def _measure(survey: _Survey, client: "Client") -> None:
    """Work out what the run cost, and make its calls once more, one after another."""
    from guildry.teams.accounting import account

    accounts = account(survey.entries)
    calls = recorded(survey.entries)
    again_s = await replay(client, calls, survey.limit_s)
    replies_s = sum(each.data["duration_s"] for each in survey.entries if each.kind == "model")
    survey.figures = {
        "tokens_sent": accounts.prompt_tokens,
        "tokens_by_value": accounts.by_value_prompt_tokens,
        "wall_s": round(accounts.wall_s, 3),
        "one_by_one_s": round(again_s + replies_s, 3),
        "tool_calls_again_s": round(again_s, 3),
        "replies_s": round(replies_s, 3),
        "requests": accounts.requests,
        "calls": len(calls),
        "agents": len(agents_of(survey.entries)),
    }


def _plain(value: object) -> str:
    from rich.markup import escape

    return escape("".join(each if each.isprintable() else "?" for each in str(value)))


def _show(survey: _Survey) -> None:
    from guildry.server.demo.render import shown_figures, shown_report

    console = survey.console
    console.print()
    for part in shown_report(survey.report):
        console.print(part)
    total, foreign = survey.traced()
    share = f"{total - len(foreign)} of the {total}" if foreign else f"All {total}"
    console.print(
        f"{share} figures above were answered by tools of the run.", style="dim", highlight=False
    )
    console.print(shown_figures(survey.figures))

"""`init` and `doctor`: a folder to begin from, and what is missing."""

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from guildry.server.commands.arguments import AsJson, Config, Home
from guildry.server.commands.exits import Exit
from guildry.server.commands.perform import perform, write

if TYPE_CHECKING:
    from guildry.server.config import Settings
    from guildry.server.doctor import Finding

__all__ = ["doctor", "init"]

_MARKS: Final = {"ok": "ok", "absent": "--", "warning": "!", "failed": "FAILED"}


def init(
    folder: Annotated[Path, typer.Argument(help="Where; made if it is not there.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """Write a folder to begin from: settings, a tool, a team."""
    raise typer.Exit(perform(partial(_init, folder, as_json), None, as_json=as_json))


async def _init(folder: Path, as_json: bool, _: "Settings") -> int:
    import anyio.to_thread

    from guildry.server.init import create

    files = await anyio.to_thread.run_sync(create, folder)
    if as_json:
        write(json.dumps({"folder": str(folder), "files": [str(file) for file in files]}))
        return Exit.OK
    write("\n".join(f"wrote {file}" for file in files))
    change = "" if folder == Path() else f"cd {folder} && "
    write(f"Next: {change}guildry doctor && guildry call hello name=you")
    return Exit.OK


def doctor(home: Home = None, config: Config = None, as_json: AsJson = False) -> None:
    """Say what is there, what is missing, and the command that mends it."""
    work = partial(_doctor, config, as_json)
    raise typer.Exit(perform(work, {"home": home, "config": config}, as_json=as_json))


async def _doctor(config: str | None, as_json: bool, settings: "Settings") -> int:
    from guildry.server.doctor import examine, is_healthy

    findings = await examine(settings, config=config)
    healthy = is_healthy(findings)
    if as_json:
        checks = [finding.as_json() for finding in findings]
        write(json.dumps({"healthy": healthy, "checks": checks}))
    else:
        write("\n".join(_line(finding) for finding in findings))
        write("All is well." if healthy else "Something is wrong: see FAILED above.")
    return Exit.OK if healthy else Exit.FAILED


def _line(finding: "Finding") -> str:
    line = f"{_MARKS[finding.status]:<7}{finding.check:<14} {finding.detail}"
    return f"{line}\n{'':<22}→ {finding.cure}" if finding.cure else line

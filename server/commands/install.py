"""`install` and `uninstall`: Guildry as a server in a client's own configuration."""

import json
import os
import re
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from guildry.errors import UsageError
from guildry.server.commands.arguments import AsJson, Config, Home
from guildry.server.commands.exits import Exit
from guildry.server.commands.perform import perform, write

if TYPE_CHECKING:
    from guildry.server.config import Settings
    from guildry.server.install.clients import Client, Machine, Platform, Scope
    from guildry.server.install.installed import Edit

__all__ = ["install", "uninstall"]

_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_URL: Final = re.compile(r"https?://[^\s/]+\S*")
_VARIABLES: Final = ("APPDATA", "XDG_CONFIG_HOME", "CLAUDE_CONFIG_DIR", "CODEX_HOME")
_OWN_VARIABLES: Final = ("GUILDRY_HOME",)

_Client = Annotated[
    str,
    typer.Argument(
        metavar="CLIENT",
        help="claude-desktop, claude-code, vscode, cursor, codex, gemini-cli, zed or mcp-json.",
    ),
]
_File = Annotated[
    str | None, typer.Argument(metavar="[PATH]", help="The file, for mcp-json.", show_default=False)
]
_Name = Annotated[str, typer.Option("--name", help="What the client calls the server.")]
_Scope = Annotated[
    str, typer.Option("--scope", metavar="SCOPE", help="user, or project: this folder only.")
]
_DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the change, write nothing.")]


def install(
    client: _Client,
    path: _File = None,
    name: _Name = "guildry",
    http: Annotated[
        str | None, typer.Option("--http", metavar="URL", help="Served there, not started by it.")
    ] = None,
    stdio: Annotated[
        bool, typer.Option("--stdio", help="Started by the client (default).")
    ] = False,
    scope: _Scope = "user",
    dry_run: _DryRun = False,
    force: Annotated[
        bool, typer.Option("--force", help="Write even if the client is not on this machine.")
    ] = False,
    home: Home = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Write Guildry into an MCP client's own configuration."""
    flags = {"home": home, "config": config}

    async def work(_: "Settings") -> int:
        from anyio import to_thread

        if stdio and http:
            raise UsageError("`--stdio` and `--http` exclude each other: give one of them")
        reach = _reach(scope)
        chosen, machine, file = _chosen(client, path, name, reach)
        edit = await to_thread.run_sync(partial(_installing, chosen, file, name, http, flags))
        if edit.before is None and not force:
            folder = machine.folder if reach == "project" else file.parent
            if path is None and reach == "user":
                folder = chosen.folder(machine)
            _check_there(chosen, folder)
        return await to_thread.run_sync(
            partial(_finish, edit, chosen, name, True, dry_run, as_json)
        )

    raise typer.Exit(perform(work, flags, as_json=as_json))


def uninstall(
    client: _Client,
    path: _File = None,
    name: _Name = "guildry",
    scope: _Scope = "user",
    dry_run: _DryRun = False,
    as_json: AsJson = False,
) -> None:
    """Take Guildry out of an MCP client's configuration again."""

    async def work(_: "Settings") -> int:
        from anyio import to_thread

        from guildry.server.install.installed import removed

        chosen, _machine, file = _chosen(client, path, name, _reach(scope))
        edit = await to_thread.run_sync(partial(removed, file, chosen, name))
        return await to_thread.run_sync(
            partial(_finish, edit, chosen, name, False, dry_run, as_json)
        )

    raise typer.Exit(perform(work, None, as_json=as_json))


def _chosen(
    client: str, path: str | None, name: str, scope: "Scope"
) -> "tuple[Client, Machine, Path]":
    """Return the client, the machine, and the file that names the client's servers."""
    from guildry.server.config import variables
    from guildry.server.install.clients import Machine, client_named

    if not _NAME.fullmatch(name):
        raise UsageError(f"`--name` is {name!r}: give 1 to 64 of `A-Z a-z 0-9 _ -`")
    chosen = client_named(client)
    machine = Machine(_platform(), Path.home(), Path.cwd(), variables(*_VARIABLES))
    if path is None:
        return chosen, machine, chosen.file(machine, scope)
    if chosen.user is not None:
        raise UsageError(f"{chosen.title} keeps its own file: leave {path!r} out")
    if scope != "user":
        raise UsageError("`--scope` is told by the path of the file: leave it out")
    return chosen, machine, Path(os.path.abspath(os.path.expanduser(path)))


def _reach(scope: str) -> "Scope":
    if scope == "user":
        return "user"
    if scope == "project":
        return "project"
    raise UsageError(f"`--scope` is {scope!r}: give `user` or `project`")


def _platform() -> "Platform":
    if sys.platform == "win32":
        return "windows"
    return "macos" if sys.platform == "darwin" else "linux"


def _installing(
    client: "Client", file: Path, name: str, url: str | None, flags: dict[str, str | None]
) -> "Edit":
    from guildry.server.install.installed import added

    if url is not None and not _URL.fullmatch(url):
        raise UsageError(f"`--http` is {url!r}: give a URL, such as `http://127.0.0.1:8765/mcp`")
    entry = client.entry(url=url) if url else client.entry(command=_command(flags))
    return added(file, client, name, entry)


def _command(flags: dict[str, str | None]) -> tuple[str, ...]:
    """Return the command line that serves what is served here, from whatever folder."""
    from guildry.server.config import find_file, variables

    program = Path(sys.executable).with_name("guildry.exe" if os.name == "nt" else "guildry")
    start = (str(program),) if program.is_file() else (sys.executable, "-m", "guildry.server")
    home = flags["home"] or variables(*_OWN_VARIABLES).get("GUILDRY_HOME")
    config = find_file(flags, cwd=Path.cwd())
    given = ["--home", os.path.abspath(os.path.expanduser(home))] if home else []
    given += ["--config", str(config)] if config else []
    return (*start, "serve", "--stdio", *given)


def _check_there(client: "Client", folder: Path) -> None:
    if folder.is_dir():
        return
    if client.user is None:
        raise UsageError(f"there is no folder `{folder}`: make it, or give `--force`")
    raise UsageError(
        f"{client.title} is not on this machine, or was never started: there is no `{folder}`."
        " Start it once, or give `--force`"
    )


def _finish(
    edit: "Edit", client: "Client", name: str, is_in: bool, dry_run: bool, as_json: bool
) -> int:
    from guildry.server.install.installed import write as write_edit

    backup = write_edit(edit) if edit.is_needed and not dry_run else None
    verb = "is in" if is_in else "is out of"
    if as_json:
        told = {
            "client": client.name,
            "name": name,
            "file": str(edit.file),
            "changes": edit.is_needed,
            "written": edit.is_needed and not dry_run,
            "backup": None if backup is None else str(backup),
            "diff": edit.diff(),
        }
        write(json.dumps(told, ensure_ascii=False))
    elif not edit.is_needed:
        write(f"Nothing to do: `{name}` {verb} {edit.file} already.")
    elif dry_run:
        write(f"{edit.diff()}\nNothing was written.")
    else:
        kept = "" if backup is None else f" The file before is {backup.name}, beside it."
        write(f"`{name}` {verb} {edit.file}.{kept}")
        if is_in:
            write(client.after)
    return Exit.OK

"""The whole command line: which command is which function, with an example of each."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any, Final

import typer

from guildry import __version__
from guildry.server.commands import (
    approve,
    embed,
    install,
    plugging,
    reviewing,
    runs,
    setup,
    teams,
    tokens,
    using,
)
from guildry.server.commands.arguments import taking
from guildry.server.commands.exits import EXITS_HELP
from guildry.server.commands.options import SERVE
from guildry.server.commands.perform import write
from guildry.server.commands.serve import serve

__all__ = ["COMMANDS", "build", "run"]


def _serve(**given: Any) -> None:
    """Serve all tools and teams as one MCP endpoint."""
    raise typer.Exit(serve({name: value for name, value in given.items() if value}))


COMMANDS: Final[tuple[tuple[str, Callable[..., None], str], ...]] = (
    ("serve", taking(SERVE, _serve), "guildry serve --stdio"),
    ("demo", teams.demo, "guildry demo ."),
    ("init", setup.init, "guildry init my-tools"),
    ("run", teams.run, 'guildry run survey "What is in this folder?"'),
    ("install", install.install, "guildry install claude-code"),
    ("uninstall", install.uninstall, "guildry uninstall claude-code"),
    ("plug", plugging.plug, "guildry plug tools/hello.py"),
    ("unplug", plugging.unplug, "guildry unplug hello"),
    ("tools", using.tools, "guildry tools --json"),
    ("find", using.find, 'guildry find "current time" "list commits"'),
    ("call", using.call, "guildry call hello name=Ada"),
    ("runs", runs.runs, "guildry runs --limit 5"),
    ("show", runs.show, "guildry show r1a2b3c4d5e"),
    ("cancel", runs.cancel, "guildry cancel r1a2b3c4d5e"),
    ("approve", approve.approve, "guildry approve q1a2b3c4d5"),
    ("review", reviewing.review, "guildry review --approve time:now"),
    ("token", tokens.token, "guildry token new ada --scopes tools"),
    ("embed", embed.embed, "guildry embed"),
    ("doctor", setup.doctor, "guildry doctor"),
)
"""The commands: name, function and example."""


def run(args: Sequence[str]) -> int:
    """Run one command line and return its exit code."""
    try:
        build()(args=list(args), prog_name="guildry")
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    return 0


def build() -> typer.Typer:
    """Return the application with all commands."""
    app = typer.Typer(
        name="guildry",
        help="Guildry: every tool behind one endpoint, and teams of agents that use them.",
        epilog=EXITS_HELP,
        no_args_is_help=True,
        add_completion=False,
        rich_markup_mode=None,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["--help", "-h"]},
    )
    app.callback()(_top)
    for name, function, example in COMMANDS:
        app.command(name, epilog=f"Example: {example}")(function)
    return app


def _version(wanted: bool) -> None:
    if wanted:
        write(f"guildry {__version__}")
        raise typer.Exit


def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass

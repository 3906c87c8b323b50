"""What the flags of `plug` say of a plug: the keys of `[plugs.NAME]`, as JSON. Expands nothing."""

from collections.abc import Sequence
from typing import Annotated, Any

import typer

from guildry.errors import ConfigError

__all__ = [
    "CallTimeout",
    "CallsAtOnce",
    "Env",
    "Headers",
    "Idle",
    "Labels",
    "Lazy",
    "Network",
    "Read",
    "Replace",
    "Sandbox",
    "Tags",
    "Trust",
    "Write",
    "confined",
    "pairs",
    "said_of",
]

Env = Annotated[
    list[str] | None,
    typer.Option(
        "--env",
        metavar="NAME=VALUE",
        help="A variable of its process; `NAME` or `NAME=$OTHER` takes Guildry's at each start.",
    ),
]
Headers = Annotated[
    list[str] | None,
    typer.Option(
        "--header",
        metavar="NAME=VALUE",
        help="An HTTP header for a URL; `Bearer $NAME` takes Guildry's variable at each start.",
    ),
]
Lazy = Annotated[
    bool | None,
    typer.Option("--lazy/--no-lazy", help="Start it at its first call, and stop it when idle."),
]
Idle = Annotated[
    float | None, typer.Option("--idle-s", help="Seconds without a call until it is stopped.")
]
CallsAtOnce = Annotated[
    int | None, typer.Option("--calls-at-once", help="Calls in flight at a time; others wait.")
]
CallTimeout = Annotated[
    float | None, typer.Option("--call-timeout-s", help="Seconds that one call may take.")
]
Trust = Annotated[
    str | None, typer.Option("--trust", metavar="own|pinned", help="How far it is trusted.")
]
Labels = Annotated[list[str] | None, typer.Option("--label", help="Where its answers come from.")]
Tags = Annotated[
    list[str] | None, typer.Option("--tag", help="A word by which `find_tools` chooses it.")
]
Replace = Annotated[
    bool, typer.Option("--replace", help="Take the place of the plug `--name`, without a gap.")
]
Sandbox = Annotated[bool, typer.Option("--sandbox", help="Confine its process.")]
Network = Annotated[
    bool, typer.Option("--network", help="Confined, it may still reach the network.")
]
Read = Annotated[
    list[str] | None, typer.Option("--read", help="A path that it may read, confined.")
]
Write = Annotated[
    list[str] | None, typer.Option("--write", help="A folder that it may change, confined.")
]


def said_of(**flags: Any) -> dict[str, Any]:
    """Return the flags that were given, by the names of the keys."""
    return {name: value for name, value in flags.items() if value not in (None, [], {})}


def pairs(flag: str, given: Sequence[str] | None) -> dict[str, str]:
    """Return `NAME=VALUE` words by name. A name alone stands for the variable of that name.

    Raises:
        ConfigError: a word has no name, or a header no value.
    """
    found: dict[str, str] = {}
    for word in given or ():
        name, sign, value = word.partition("=")
        if not name.strip() or (not sign and flag == "--header"):
            raise ConfigError(f"`{flag}` is {word!r:.40}: give `NAME=VALUE`")
        found[name.strip()] = value.strip() if sign else f"${name.strip()}"
    return found


def confined(
    sandbox: bool, network: bool, read: Sequence[str] | None, write: Sequence[str] | None
) -> dict[str, Any] | None:
    """Return how the process is confined, or None where nothing was said of it."""
    told = said_of(network=network or None, read=list(read or ()), write=list(write or ()))
    return told if sandbox or told else None

"""The options that settings are given by: defined once, read in two ways.

`quick` reads the well-formed arguments of `guildry serve` without a command-line library, so that
a client that starts the server pays nothing for it. The library reads all else from the same table.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

__all__ = ["COMMON", "CONFIG", "HOME", "LIVE", "SERVE", "Flags", "Option", "flags_of", "quick"]

Flags = dict[str, object]
"""What was given on the command line, by the names of the settings."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option.

    Args:
        flag: as it is typed, such as `--log-level`.
        help: one line.
        metavar: what its value is called; None for a switch.
        many: it may be given more than once.
    """

    flag: str
    help: str
    metavar: str | None = None
    many: bool = False

    @property
    def name(self) -> str:
        """The name of the setting, or of the argument, that it fills."""
        return self.flag.removeprefix("--").replace("-", "_")


HOME: Final = Option("--home", "Folder of the state; default: the user's data folder.", "FOLDER")
CONFIG: Final = Option("--config", "Configuration file; default: ./guildry.toml.", "FILE")
COMMON: Final = (HOME, CONFIG)
LIVE: Final = (
    Option("--plug", "Plug this source in as well; repeatable.", "[NAME=]SOURCE", many=True),
    Option("--model", "Model that teams use: a configured name, or a URL.", "MODEL"),
    Option("--set", "Set any setting, such as `run_depth=2`; repeatable.", "KEY=VALUE", many=True),
    Option("--log-level", "debug, info, warning or error.", "LEVEL"),
    *COMMON,
)
SERVE: Final = (
    Option("--stdio", "Speak MCP on standard input and output instead of HTTP."),
    Option("--host", "Address of the HTTP endpoint.", "ADDRESS"),
    Option("--port", "TCP port of the HTTP endpoint; 0 takes any.", "PORT"),
    *LIVE,
)


def quick(options: Sequence[Option], args: Sequence[str]) -> Flags | None:
    """Return what `args` give, or None where they are not plainly well-formed."""
    known = {option.flag: option for option in options}
    given: Flags = {}
    rest = list(args)
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        option = known.get(flag)
        if option is None or (option.metavar is None and equals):
            return None
        if option.metavar is None:
            given[option.name] = True
            continue
        if not equals:
            if not rest or rest[0].startswith("--"):
                return None
            value = rest.pop(0)
        if option.many:
            before = given.get(option.name, ())
            given[option.name] = (*before, value) if isinstance(before, tuple) else (value,)
        else:
            given[option.name] = value
    return given


def flags_of(given: Flags) -> Flags:
    """Return the settings in what was given: `--plug` becomes the setting `plugs`."""
    flags = {key: value for key, value in given.items() if key not in {"plug", "stdio"}}
    sources = given.get("plug")
    if isinstance(sources, tuple | list) and sources:
        plugs: dict[str, dict[str, str]] = {}
        for text in map(str, sources):  # pyright: ignore[reportUnknownArgumentType]
            name, source = _named(text)
            plugs[_free(name, plugs)] = {"source": source}
        flags["plugs"] = plugs
    return flags


def _named(text: str) -> tuple[str, str]:
    """Split `NAME=SOURCE`; a source without a name is called after what it is."""
    from guildry.tools.plugs.sources import derive_name

    named = re.fullmatch(r"([A-Za-z][A-Za-z0-9_-]*)=(.+)", text, re.DOTALL)
    return (named[1], named[2]) if named is not None else (derive_name(text, Path.cwd()), text)


def _free(name: str, taken: dict[str, dict[str, str]]) -> str:
    return next(
        free
        for free in (name, *(f"{name}_{n}" for n in range(2, len(taken) + 3)))
        if free not in taken
    )

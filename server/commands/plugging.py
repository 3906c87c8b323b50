"""`plug` and `unplug`: at once in every live server of this home, and at each later start."""

import json
import os
import re
import shlex
from contextlib import AsyncExitStack, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from guildry.errors import PlugError, ToolError
from guildry.server.commands import plug_options as given
from guildry.server.commands.arguments import AsJson, Config, Home
from guildry.server.commands.exits import Exit, NotFound
from guildry.server.commands.perform import perform, write

if TYPE_CHECKING:
    from guildry.server.config import Settings

__all__ = ["anchored", "plug", "unplug"]


def plug(
    source: Annotated[str, typer.Argument(help="A path, a URL, or a command line in quotes.")],
    name: Annotated[
        str | None, typer.Option(help="What it is called; derived if left out.")
    ] = None,
    replace: given.Replace = False,
    env: given.Env = None,
    header: given.Headers = None,
    lazy: given.Lazy = None,
    idle_s: given.Idle = None,
    calls_at_once: given.CallsAtOnce = None,
    call_timeout_s: given.CallTimeout = None,
    trust: given.Trust = None,
    label: given.Labels = None,
    tag: given.Tags = None,
    sandbox: given.Sandbox = False,
    network: given.Network = False,
    read: given.Read = None,
    write_to: given.Write = None,
    home: Home = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Plug a source of tools in, now and at every later start."""

    async def work(settings: "Settings") -> int:
        said = given.said_of(
            env=given.pairs("--env", env),
            headers=given.pairs("--header", header),
            lazy=lazy,
            idle_s=idle_s,
            calls_at_once=calls_at_once,
            call_timeout_s=call_timeout_s,
            trust=trust,
            labels=label,
            tags=tag,
        )
        if (confined := given.confined(sandbox, network, read, write_to)) is not None:
            said["sandbox"] = confined
        arguments = {"source": anchored(source, Path.cwd()), "name": name, "options": said}
        told = {key: value for key, value in arguments.items() if value}
        return await _plug(told | ({"replace": True} if replace else {}), as_json, settings)

    flags = {"home": home, "config": config}
    raise typer.Exit(perform(work, flags, as_json=as_json))


async def _plug(arguments: dict[str, Any], as_json: bool, settings: "Settings") -> int:
    """Plug into one live server, which tells the others; they follow at once."""
    from guildry.server.commands.door import every_live

    async with AsyncExitStack() as stack:
        doors = await every_live(settings, stack)
        report = (
            await doors[0].ask("plug", arguments) if doors else await _try(settings, **arguments)
        )
    live = len(doors)
    if as_json:
        write(json.dumps({**report, "live_servers": live}, ensure_ascii=False))
        return Exit.OK
    kind, names = "tool", report["tools"]
    if skills := report.get("skills"):
        kind, names = "skill", skills
    write(f"{report['plug']}: {len(names)} {kind}(s): {', '.join(names)}")
    for left in report["quarantined"]:
        write(f"! `{left['tool']}` is left out: {left['reason']}")
    write(f"Plugged into {live} live server(s)." if live else "The next `guildry serve` has it.")
    return Exit.OK


async def _try(
    settings: "Settings",
    *,
    source: str,
    name: str | None = None,
    options: dict[str, Any] | None = None,
    replace: bool = False,
) -> dict[str, Any]:
    """Open a source once, to see that it works and what it has; and keep it for the next start."""
    from guildry.memory.pins import PinStore
    from guildry.memory.sources import SourceStore
    from guildry.memory.store import Store
    from guildry.server.by_hand import plug_started
    from guildry.server.opening import opening_of
    from guildry.server.peers import Peers
    from guildry.server.plug_settings import setting_of
    from guildry.tools.macros.plug import macros
    from guildry.tools.macros.shelf import MacroShelf
    from guildry.tools.plugs.board import PlugBoard
    from guildry.tools.plugs.plug import PlugLimits
    from guildry.tools.plugs.review import Reviewer
    from guildry.tools.plugs.sources import derive_name
    from guildry.tools.registry import Catalog, tool_name
    from guildry.tools.skills.plug import skill_folders

    wanted = tool_name(name or derive_name(source, settings.folder))
    setting = setting_of(wanted, source, options or {})
    async with Store.open(settings.database) as store:
        sources = SourceStore(store)
        kept = {each.name: each.source for each in await sources.listing() if not replace}
        taken = {**kept, **{n: plug.source for n, plug in settings.plugs.items()}}.get(wanted)
        if taken is not None and taken != source:
            raise PlugError(
                source,
                f"a plug named `{wanted}` is there already, from `{taken}`",
                "Give this one another name with `--name`, or unplug that one first",
            )
        limits = PlugLimits(drain_s=0)
        shelf = MacroShelf(settings.home / "macros")
        openers = [macros(shelf, None, Catalog()), skill_folders(settings.folder)]
        async with PlugBoard(
            Catalog(),
            openers=openers,
            folder=settings.folder,
            limits=limits,
            opening=opening_of(settings, store),
            review=Reviewer(PinStore(store), Catalog(), pin=settings.pin),
        ) as board:
            said = setting.expanded(wanted).options()
            report = await plug_started(board, source, wanted, said)
        await sources.add(report.plug, source, setting.said())
    Peers(settings.home).tell("plugs")
    return report.as_json()


def unplug(
    name: Annotated[str, typer.Argument(help="Name of the plug; `guildry tools` shows it.")],
    home: Home = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Take a source of tools out, now and for every later start."""
    flags = {"home": home, "config": config}
    raise typer.Exit(perform(partial(_unplug, name, as_json), flags, as_json=as_json))


async def _unplug(name: str, as_json: bool, settings: "Settings") -> int:
    from guildry.memory.sources import SourceStore
    from guildry.memory.store import Store
    from guildry.server.commands.door import every_live
    from guildry.server.peers import Peers

    async with AsyncExitStack() as stack:
        holders = [
            door
            for door in await every_live(settings, stack)
            if any(plug["name"] == name for plug in (await door.ask("list_plugs", {}))["plugs"])
        ]
        for door in holders:
            with suppress(ToolError):  # another server was told meanwhile, and has done it
                await door.ask("unplug", {"name": name})
        live = len(holders)
        async with Store.open(settings.database) as store:
            kept = await SourceStore(store).remove(name)
        Peers(settings.home).tell("plugs")
    if name in settings.plugs:
        raise PlugError(
            settings.plugs[name].source,
            f"`{name}` is configured, so that the next start has it again",
            f"Remove `[plugs.{name}]` from guildry.toml",
        )
    if not live and not kept:
        raise NotFound(f"there is no plug {name!r} here: see `guildry tools`")
    if as_json:
        write(json.dumps({"unplugged": name, "live_servers": live}))
    else:
        write(f"{name} is unplugged.")
    return Exit.OK


def anchored(source: str, cwd: Path) -> str:
    """Return a source with its relative paths made absolute: a server may run in another folder."""
    if re.match(r"https?://", source, re.IGNORECASE):
        return source
    whole = cwd / Path(source).expanduser()
    if os.path.exists(whole):
        return os.path.abspath(whole)  # links stay: the Python of a venv is one
    try:
        words = shlex.split(source)
    except ValueError:
        return source
    found = [_anchored_word(word, cwd) for word in words]
    return source if found == words else shlex.join(found)


def _anchored_word(word: str, cwd: Path) -> str:
    """Make one word of a command line absolute, where it is a path that is there."""
    looks = "/" in word or word in {".", ".."} or re.search(r"\.[a-z]+$", word)
    path = cwd / word
    is_path = looks and not word.startswith("-") and path.exists()
    return os.path.abspath(path) if is_path else word

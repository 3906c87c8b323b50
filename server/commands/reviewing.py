"""`review`: which definitions are held, what differs in them, and the decision of a person."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from guildry.errors import UsageError
from guildry.server.commands.arguments import AsJson, Config, Home
from guildry.server.commands.exits import Exit, NotFound
from guildry.server.commands.perform import perform, write

if TYPE_CHECKING:
    from guildry.server.commands.door import Door
    from guildry.server.config import Settings
    from guildry.tools.plugs.review import Reviewer

__all__ = ["review"]

_SHOWN_CHARACTERS = 400


def review(
    approve: Annotated[
        list[str] | None,
        typer.Option(metavar="PLUG[:TOOL]", help="Serve it from now on; may be repeated."),
    ] = None,
    reject: Annotated[
        list[str] | None,
        typer.Option(metavar="PLUG[:TOOL]", help="Never serve it as it is; may be repeated."),
    ] = None,
    forget: Annotated[
        str | None,
        typer.Option(metavar="PLUG", help="Drop its pins: what it offers next is first seen."),
    ] = None,
    home: Home = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List the tool definitions that wait for a person, or decide about them."""
    work = partial(_review, approve or [], reject or [], forget, as_json)
    raise typer.Exit(perform(work, {"home": home, "config": config}, as_json=as_json))


async def _review(
    approve: list[str],
    reject: list[str],
    forget: str | None,
    as_json: bool,
    settings: "Settings",
) -> int:
    async with _reached(settings) as way:
        held = await way.held()
        done = [await way.decide("approve", *_chosen(text, held)) for text in approve]
        done += [await way.decide("reject", *_chosen(text, held)) for text in reject]
        if forget is not None:
            done.append(await way.forget(forget))
    if as_json:
        write(json.dumps({"decided": done} if done else {"held": held}, ensure_ascii=False))
    elif done:
        _tell(done)
    else:
        _list(held)
    return Exit.OK


@dataclass(frozen=True, slots=True)
class _Way:
    """How what is held is reached: through a live server, or where it is kept."""

    reviewer: "Reviewer"
    door: "Door | None"

    async def held(self) -> list[dict[str, Any]]:
        """Return what is held, as `review_tools` answers it."""
        if self.door is None:
            return await self.reviewer.told()
        found: list[dict[str, Any]] = (await self.door.ask("review_tools", {}))["held"]
        return found

    async def decide(
        self, verdict: Literal["approve", "reject"], plug: str, digests: dict[str, str]
    ) -> dict[str, Any]:
        """Decide about exactly what was read just now."""
        tools = sorted(digests)
        if self.door is None:
            from guildry.server.parts import LOCAL

            names = await self.reviewer.decide(verdict, plug, tools, LOCAL, digests)
        else:
            given = {"plug": plug, "tools": tools, "digests": digests}
            names = (await self.door.ask(f"{verdict}_tools", given))["tools"]
        return {"plug": plug, "verdict": verdict, "tools": names}

    async def forget(self, plug: str) -> dict[str, Any]:
        """Drop what is known of a plug."""
        dropped = await self.reviewer.forget(plug)
        if not dropped:
            raise NotFound(f"nothing is pinned or held of {plug!r}: see `guildry tools`")
        return {"plug": plug, "verdict": "forget", "tools": [], "pins": dropped}


@asynccontextmanager
async def _reached(settings: "Settings") -> AsyncGenerator[_Way]:
    from guildry.memory.pins import PinStore
    from guildry.memory.store import Store
    from guildry.server.commands.door import open_live_door
    from guildry.server.peers import Peers
    from guildry.tools.plugs.review import Reviewer
    from guildry.tools.registry import Catalog

    decided = partial(Peers(settings.home).tell, "pins")
    async with open_live_door(settings) as door, Store.open(settings.database) as store:
        yield _Way(Reviewer(PinStore(store), Catalog(), decided=decided), door)


def _chosen(text: str, held: list[dict[str, Any]]) -> tuple[str, dict[str, str]]:
    """Return the plug that was named, and the digests of what is held of it by tool.

    Raises:
        UsageError: no plug is named.
        NotFound: nothing of that is held.
    """
    plug, _, tool = text.partition(":")
    if not plug:
        raise UsageError(f"{text!r} names no plug: give `PLUG` or `PLUG:TOOL`")
    found = {
        each["tool"]: each["digest"]
        for each in held
        if each["plug"] == plug
        and (each["tool"] == tool if tool else each.get("rejected_by") is None)
    }
    if not found:
        raise NotFound(f"nothing of {text!r} is held: see `guildry review`")
    return plug, found


def _tell(done: list[dict[str, Any]]) -> None:
    for each in done:
        if each["verdict"] == "forget":
            write(f"{each['plug']}: {each['pins']} pins dropped; what it offers next is first seen")
            continue
        word = "approved" if each["verdict"] == "approve" else "rejected"
        write(f"{each['plug']}: {word} {', '.join(each['tools']) or 'nothing: it has changed'}")


def _list(held: list[dict[str, Any]]) -> None:
    from guildry.server.console import plain

    for each in held:
        by = f"  (rejected by {plain(each['rejected_by'])})" if each.get("rejected_by") else ""
        write(f"{plain(each['plug'])}:{plain(each['tool'], 300)}  {each['digest'][:8]}{by}")
        write(f"  {plain(each['reason'], _SHOWN_CHARACTERS)}")
        for line in str(each["diff"]).splitlines():
            write(f"    {_plain(line)}")
    if not held:
        write("Nothing is held.")
    elif any(not each.get("rejected_by") for each in held):
        write("Approve with `guildry review --approve PLUG:TOOL`, refuse with `--reject`.")


def _plain(line: str) -> str:
    """Return a line of a difference without control characters, its indentation kept."""
    text = "".join(each if each.isprintable() else " " for each in line)
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"

"""A run as a client sees it through the run's resources: its journal, live, and its report."""

import json
import re
from typing import TYPE_CHECKING, Any, Final

import anyio

from guildry.errors import RunError
from guildry.memory.events import Entry
from guildry.server.demo.shown import list_of, object_of
from guildry.server.demo.tree import agents_of, draw

if TYPE_CHECKING:
    from mcp import Client
    from rich.console import Console

__all__ = ["draw_live", "journal_of", "report_text"]

_FRAME_S: Final = 0.25
_WHOLE: Final = re.compile(r"whole in (ref:[A-Za-z0-9_.-]+)\]$")


async def journal_of(client: "Client", run: str) -> list[Entry]:
    """Return the journal of a run until now."""
    lines = (await _text_of(client, f"run://{run}/journal")).splitlines()
    return [Entry(**json.loads(line)) for line in lines if line]


async def report_text(client: "Client", answer: dict[str, Any]) -> str:
    """Return the text of a team's report; a long one is behind a reference that its end names.

    Args:
        client: connected to the server of the run.
        answer: what the team's tool answered.
    """
    text: str = answer["report"]
    named = _WHOLE.search(text)
    if named is None:
        return text
    record = json.loads(await _text_of(client, f"run://{answer['run']}"))
    kept = list_of(object_of(record["report"]).get("references"))
    references = [object_of(each) for each in (*answer["references"], *kept)]
    uri = next((each["uri"] for each in references if each["reference"] == named[1]), None)
    return text if uri is None else await _text_of(client, uri)


async def draw_live(client: "Client", console: "Console", begun: anyio.Event) -> None:
    """Draw the tree of the server's one run, again and again, until cancelled.

    Args:
        client: connected to the server of the run.
        console: a terminal.
        begun: set once the run has begun.
    """
    from rich.live import Live

    await begun.wait()
    run = await _running(client)
    with Live(console=console, auto_refresh=False, transient=True) as live:
        while True:
            agents = agents_of(await journal_of(client, run))
            live.update(draw(f"run {run}", agents), refresh=True)
            await anyio.sleep(_FRAME_S)


async def _running(client: "Client") -> str:
    cursor: str | None = None
    while True:
        page = await client.list_resources(cursor=cursor, cache_mode="bypass")
        for entry in page.resources:
            if str(entry.uri).startswith("run://"):
                return entry.name
        cursor = page.next_cursor
        if cursor is None:
            raise RunError("the run that was begun is not among the resources")


async def _text_of(client: "Client", uri: str) -> str:
    read = await client.read_resource(uri, cache_mode="bypass")
    return "".join(getattr(part, "text", "") for part in read.contents)

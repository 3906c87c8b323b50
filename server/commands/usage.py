"""`tools --usage`: how often, how well and how fast each tool has answered."""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from guildry.server.commands.exits import Exit
from guildry.server.commands.perform import write

if TYPE_CHECKING:
    from guildry.server.config import Settings

__all__ = ["show_usage"]

_HEAD: Final = ("tool", "plug", "calls", "errors", "success", "mean", "p95", "slowest", "tokens")
_KEYS: Final = ("calls", "errors", "success", "mean_s", "p95_s", "slowest_s", "answer_tokens")


async def show_usage(as_json: bool, settings: "Settings") -> int:
    """Print the figures of every tool that was called, the plugs after them."""
    from guildry.server.commands.door import open_door

    async with open_door(settings) as door:
        await door.client.list_tools()  # waits for plugs that are still starting
        told = await door.ask("list_usage", {})
    if as_json:
        write(json.dumps(told, ensure_ascii=False))
        return Exit.OK
    if not told["tools"]:
        write("No tool was called in the last 90 days.")
        return Exit.OK
    rows = [_row(each, each["name"], each["plug"]) for each in told["tools"]]
    rows += [_row(each, "(all)", each["name"]) for each in told["plugs"]]
    for line in _columns([_HEAD, *rows]):
        write(line)
    return Exit.OK


def _row(figures: Mapping[str, Any], tool: str, plug: str) -> tuple[str, ...]:
    return (tool, plug, *(_cell(key, figures.get(key)) for key in _KEYS))


def _cell(key: str, value: float | None) -> str:
    if value is None:
        return "-"
    if key == "success":
        return f"{value:.0%}"
    return f"{value:g} s" if key.endswith("_s") else f"{value:,}"


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    from guildry.server.console import plain

    widths = [min(40, max(map(len, column))) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            f"{plain(cell, 40):<{width}}" if n < 2 else f"{cell:>{width}}"
            for n, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]

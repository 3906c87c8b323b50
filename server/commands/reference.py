"""The tables of the README, made from their sources: `python -m guildry.server.commands.reference`.

Each stands between `<!-- name -->` and `<!-- /name -->`.
"""

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from guildry.server.commands.app import COMMANDS
from guildry.server.commands.exits import EXITS_HELP
from guildry.server.config import ModelSetting, PlugSetting, Settings

__all__ = ["TABLES", "commands_table", "filled", "settings_table"]


def commands_table() -> str:
    """Return the commands, what each does and an example, and the exit codes."""
    rows = ["| command | what it does | example |", "|---|---|---|"]
    for name, function, example in COMMANDS:
        line = (function.__doc__ or "").strip().split("\n", 1)[0]
        rows.append(f"| `guildry {name}` | {line} | `{example}` |")
    return "\n".join([*rows, "", f"{EXITS_HELP} `--help` shows the options of a command."])


def settings_table() -> str:
    """Return the settings with their defaults, and the keys of plugs and models."""
    rows = ["| setting | default | what it is |", "|---|---|---|", *_rows(Settings)]
    for head, model in (("[plugs.NAME]", PlugSetting), ("[models.NAME]", ModelSetting)):
        rows += ["", f"| key of `{head}` | default | what it is |", "|---|---|---|", *_rows(model)]
    return "\n".join(rows)


def _rows(model: type[BaseModel]) -> list[str]:
    return [
        f"| `{name}` | {_default(name, about.is_required(), about.default)} | {about.description} |"
        for name, about in model.model_fields.items()
    ]


def _default(name: str, required: bool, default: object) -> str:
    if required:
        return "needed"
    if name in {"home", "folder"}:
        return "see right" if name == "folder" else "the user's data folder"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, int | float):
        return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"
    return f"`{default}`" if isinstance(default, str) and default else "none"


TABLES: Final[dict[str, Callable[[], str]]] = {
    "commands": commands_table,
    "settings": settings_table,
}
"""The tables by the names of their marks."""


def filled(text: str) -> str:
    """Return `text` with every table brought up to date between its marks."""
    for name, table in TABLES.items():
        start, end = f"<!-- {name} -->", f"<!-- /{name} -->"
        before, mark, after = text.partition(start)
        if mark:
            _, ended, rest = after.partition(end)
            text = f"{before}{start}\n\n{table()}\n\n{end}{rest if ended else after}"
    return text


if __name__ == "__main__":
    for name in sys.argv[1:]:
        file = Path(name)
        file.write_text(filled(file.read_text(encoding="utf-8")), encoding="utf-8")

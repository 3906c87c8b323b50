"""Generated parts of the docs, made from their sources: see `make docs`.

Each stands between `<!-- name -->` and `<!-- /name -->`.
"""

import ast
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from pydantic import BaseModel

from guildry.server.commands.app import COMMANDS
from guildry.server.commands.exits import EXITS_HELP
from guildry.server.config import ModelSetting, PlugSetting, Settings
from guildry.server.http.settings import HttpSetting, JwtSetting

__all__ = ["TABLES", "commands_table", "filled", "settings_table", "tree"]

_ROOT: Final = Path(__file__).resolve().parents[2]
_PARTS: Final = {
    "src/guildry": "the package: errors, and links to the four parts",
    "memory": "what is kept",
    "tools": "what can be called",
    "teams": "who works",
    "server": "who is served",
}
_COLUMN: Final = 28
_TABLES: Final[tuple[tuple[str, type[BaseModel]], ...]] = (
    ("[plugs.NAME]", PlugSetting),
    ("[models.NAME]", ModelSetting),
    ("[http]", HttpSetting),
    ("[http.jwt]", JwtSetting),
)


def commands_table() -> str:
    """Return the commands, what each does and an example, and the exit codes."""
    rows = ["| command | what it does | example |", "|---|---|---|"]
    for name, function, example in COMMANDS:
        line = (function.__doc__ or "").strip().split("\n", 1)[0]
        rows.append(f"| `guildry {name}` | {line} | `{example}` |")
    return "\n".join([*rows, "", f"{EXITS_HELP} `--help` shows the options of a command."])


def settings_table() -> str:
    """Return the settings with their defaults, and the keys of plugs, models and the endpoint."""
    rows = ["| setting | default | what it is |", "|---|---|---|", *_rows(Settings)]
    for head, model in _TABLES:
        rows += ["", f"| key of `{head}` | default | what it is |", "|---|---|---|", *_rows(model)]
    return "\n".join(rows)


def _rows(model: type[BaseModel]) -> list[str]:
    return [
        f"| `{name}` | {_default(name, about.is_required(), about.default)} | {about.description} |"
        for name, about in sorted(
            model.model_fields.items(), key=lambda each: _is_group(model, each[0])
        )
    ]


def _is_group(model: type[BaseModel], name: str) -> bool:
    """Tell whether a setting comes from a group of them: these follow the others."""
    return name not in vars(model).get("__annotations__", {})


def _default(name: str, required: bool, default: object) -> str:
    if required:
        return "needed"
    if name in {"home", "folder"}:
        return "see right" if name == "folder" else "the user's data folder"
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if isinstance(default, int | float):
        return f"`{default:g}`" if isinstance(default, float) else f"`{default}`"
    if isinstance(default, tuple) and default:
        return ", ".join(f"`{each}`" for each in default)  # pyright: ignore[reportUnknownVariableType]
    return f"`{default}`" if isinstance(default, str) and default else "none"


def tree() -> str:
    """Return every module of the checkout with the first sentence of its docstring."""
    lines: list[str] = []
    for part, about in _PARTS.items():
        lines += ["", f"{part}/".ljust(_COLUMN) + about, *_modules(_ROOT / part, 1)]
    return "\n".join(["```text", *lines[1:], "```"])


def _modules(folder: Path, depth: int) -> Iterator[str]:
    margin = "  " * depth
    for path in sorted(folder.iterdir()):
        if path.suffix == ".py" and path.name != "__init__.py":
            said = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
            yield f"{margin}{path.name}".ljust(_COLUMN) + said.split("\n\n")[0].replace("\n", " ")
    for path in sorted(folder.iterdir()):
        if path.is_dir() and not path.is_symlink() and any(path.glob("*.py")):
            yield f"{margin}{path.name}/"
            yield from _modules(path, depth + 1)


TABLES: Final[dict[str, Callable[[], str]]] = {
    "commands": commands_table,
    "settings": settings_table,
    "tree": tree,
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

"""The shelf: the macros of a home, as files, and those that were suggested last."""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from guildry.tools.macros.recipe import Recipe
from guildry.tools.registry import tool_name

__all__ = ["PREFIX", "MacroShelf"]

PREFIX: Final = "macro:"
"""How the sources of macros begin."""

_MAX_BYTES: Final = 1_000_000


class MacroShelf:
    """Keep recipes in a folder: `NAME.json` for each that was taken, others in one more file.

    What it does to files blocks: call it in a thread.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._suggested = folder / "suggested" / "suggestions.json"

    def path(self, name: str) -> Path:
        """Return the file of a macro, whether it is there or not."""
        return self._folder / f"{tool_name(name)}.json"

    def suggest(self, recipes: Sequence[Recipe]) -> None:
        """Keep recipes that may be taken; forgets those that were suggested before.

        Raises:
            OSError: the folder cannot be written.
        """
        _write(self._suggested, json.dumps([each.model_dump() for each in recipes]))

    def take(self, name: str) -> Recipe:
        """Return the macro of that name; one that was only suggested is kept from now on.

        Raises:
            FileNotFoundError: there is none.
            OSError: its file cannot be read.
            ValueError: its file holds no recipe.
        """
        path = self.path(name)
        if path.is_file():
            return _read(path)
        for each in self._suggestions():
            if each.name == name:
                _write(path, each.as_text())
                return each
        raise FileNotFoundError(name)

    def taken(self) -> list[Recipe]:
        """Return the macros that were taken, less those whose files hold none."""
        found: list[Recipe] = []
        for path in sorted(self._folder.glob("*.json")):
            try:
                found.append(_read(path))
            except (OSError, ValueError):  # the plug that it belongs to says what is wrong
                continue
        return found

    def drop(self, source: str) -> None:
        """Keep the macro of a source, such as `macro:NAME`, no longer."""
        self.path(source.removeprefix(PREFIX)).unlink(missing_ok=True)

    def _suggestions(self) -> list[Recipe]:
        try:
            kept = json.loads(self._suggested.read_text(encoding="utf-8"))
            return [Recipe.model_validate(each) for each in kept]
        except (OSError, ValueError):
            return []


def _read(path: Path) -> Recipe:
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError(f"it has over {_MAX_BYTES:,} bytes")
    return Recipe.of(path.read_text(encoding="utf-8"))


def _write(path: Path, text: str) -> None:
    """Replace a file at once, so that nobody reads half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)

"""The shelf: files of the tools that were made, each version in a folder of its own."""

from pathlib import Path
from typing import Final

__all__ = ["Shelf"]

_FOLDER: Final = "made"


class Shelf:
    """Keep the files of made tools in a home folder. Blocks: call it in a thread."""

    def __init__(self, home: Path) -> None:
        self._folder = home.absolute() / _FOLDER

    def put(self, name: str, version: int, source: str) -> Path:
        """Write the file of one version, which is never another one later, and return its path.

        Raises:
            OSError: it cannot be written.
        """
        path = self._folder / name / str(version) / f"{name}.py"
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(source, encoding="utf-8", newline="")
        part.replace(path)
        return path

    def holds(self, source: str) -> bool:
        """Tell whether a plug's source is a file of this shelf."""
        return Path(source).is_relative_to(self._folder)

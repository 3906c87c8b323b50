"""Which files a folder holds, by git where there is git and by walking where there is none."""

import os
import stat
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Final

from guildry.errors import ToolFailed

__all__ = [
    "GIT",
    "Listed",
    "Reader",
    "Row",
    "folder",
    "git_fault",
    "git_output",
    "git_root",
    "list_folder",
    "many",
]

Row = dict[str, str | int]
"""One row of a table: a value of each column by name."""

GIT: Final = (
    "git",
    "--no-pager",
    "--no-optional-locks",
    "-c",
    "core.fsmonitor=false",
    "-c",
    "core.quotepath=off",
    "-c",
    "log.showSignature=false",
)
"""A git that runs nothing which the repository's own configuration names."""

_HISTORIES: Final = frozenset({".git", ".hg", ".svn"})
_GIT_S: Final = 20.0


@dataclass(frozen=True, slots=True)
class Listed:
    """The files of a folder, sorted by path, and what was left out of them."""

    rows: list[Row]
    source: str
    note: str


def folder(path: str) -> Path:
    """Return `path` as a folder that is there.

    Raises:
        ToolFailed: there is no such folder, or it cannot be read.
    """
    found = Path(path).expanduser()
    if not found.is_dir() or not os.access(found, os.R_OK | os.X_OK):
        raise ToolFailed(f"{path!r} is not a folder that can be read: pass the path of one")
    return found.resolve()


def git_output(root: Path, *arguments: str) -> bytes | None:
    """Return what git says in `root`, or None where it fails, is missing or takes too long."""
    try:
        done = subprocess.run(
            [*GIT, "-C", str(root), *arguments],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_GIT_S,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout


def git_fault(root: Path) -> str:
    """Return why git does not read a folder that has a `.git`, or nothing where all is well."""
    if not os.path.lexists(root / ".git"):
        return ""
    try:
        asked = [*GIT, "-C", str(root), "rev-parse", "--show-toplevel"]
        done = subprocess.run(
            asked, capture_output=True, stdin=subprocess.DEVNULL, timeout=_GIT_S, check=False
        )
    except (OSError, subprocess.SubprocessError) as error:
        return f"git cannot read it: {error}"
    said = done.stderr.decode("utf-8", "replace").strip().splitlines()
    return (
        f"git cannot read it: {said[0] if said else 'it says nothing'}" if done.returncode else ""
    )


def git_root(root: Path) -> Path | None:
    """Return the repository whose tracked files `root` holds, or None."""
    top = git_output(root, "rev-parse", "--show-toplevel")
    if not top:
        return None
    found = Path(os.fsdecode(top.rstrip(b"\n")))
    if found != root and not git_output(root, "ls-files", "-z", "--cached", "--", "."):
        return None
    return found


def list_folder(root: Path, max_files: int, seconds: float) -> Listed:
    """List the regular files below `root`; symbolic links are never followed."""
    names = _git_names(root) if git_root(root) is not None else None
    ends = time.monotonic() + seconds
    rows: list[Row] = []
    links = 0
    bounded = ""
    for name in _walk(root) if names is None else names:
        if len(rows) >= max_files or time.monotonic() > ends:
            bounded = f"only the first {many(len(rows), 'file')} found are listed"
            break
        try:
            found = os.lstat(os.path.join(os.fsencode(root), name))
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode):
            rows.append({"path": name.decode("utf-8", "replace"), "bytes": found.st_size})
        links += stat.S_ISLNK(found.st_mode)
    rows.sort(key=lambda row: str(row["path"]))
    skipped = f"{many(links, 'symbolic link')} not followed" if links else ""
    note = "; ".join(part for part in (bounded, skipped) if part)
    return Listed(rows, "walk" if names is None else "git ls-files", note)


def _git_names(root: Path) -> list[bytes] | None:
    listed = git_output(root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
    return sorted({name for name in listed.split(b"\0") if name}) if listed is not None else None


def _walk(root: Path) -> Iterator[bytes]:
    start = os.fsencode(root)
    for where, folders, names in os.walk(start, followlinks=False):
        folders[:] = sorted(each for each in folders if os.fsdecode(each) not in _HISTORIES)
        links = (each for each in folders if os.path.islink(os.path.join(where, each)))
        for name in (*sorted(names), *links):
            yield os.path.relpath(os.path.join(where, name), start)


class Reader:
    """Read listed files within bounds, and say at the end what was not read.

    Args:
        root: the folder; nothing outside it is opened, whatever a row says.
        max_file_bytes: larger files are passed over.
        max_bytes: of all files together.
        seconds: for all files together.
    """

    def __init__(self, root: Path, *, max_file_bytes: int, max_bytes: int, seconds: float) -> None:
        self._root = root
        self._max_file_bytes = max_file_bytes
        self._left = max_bytes
        self._ends = time.monotonic() + seconds
        self._is_inside = lru_cache(maxsize=4096)(self._resolves_inside)
        self.large = 0
        self.unreadable = 0
        self.late = 0

    def contents(self, rows: list[Row]) -> Iterator[tuple[Row, bytes]]:
        """Yield each row whose file could be read, with its bytes."""
        for done, row in enumerate(rows):
            size = int(row.get("bytes", 0))
            if size > self._max_file_bytes:
                self.large += 1
                continue
            if size > self._left or time.monotonic() > self._ends:
                self.late = len(rows) - done
                return
            content = self._read(str(row.get("path", "")))
            if content is None:
                self.unreadable += 1
                continue
            self._left -= len(content)
            yield row, content

    def _resolves_inside(self, parent: str) -> bool:
        resolved = Path(os.path.realpath(parent))
        return resolved == self._root or self._root in resolved.parents

    def _read(self, name: str) -> bytes | None:
        full = os.path.join(self._root, name)
        if os.path.basename(name) in ("", "..") or not self._is_inside(os.path.dirname(full)):
            return None
        try:
            handle = os.open(full, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except (OSError, ValueError):
            return None
        with open(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return None
            return file.read(self._max_file_bytes)

    def note(self) -> str:
        """Return what was not read and why, or nothing."""
        megabytes = self._max_file_bytes / 1_000_000
        parts = (
            (self.large, f"over {megabytes:g} MB not read"),
            (self.unreadable, "could not be read"),
            (self.late, "left out: the bound on time or bytes was reached"),
        )
        return "; ".join(f"{many(count, 'file')} {what}" for count, what in parts if count)


def many(count: int, noun: str) -> str:
    """Return a count with its noun."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"

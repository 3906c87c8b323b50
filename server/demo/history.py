"""What git remembers of a folder: how often its files changed, and who wrote it when."""

import os
import re
import subprocess
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Final

import anyio
from anyio.abc import Process

from guildry.server.demo.listing import GIT, Row

__all__ = ["Changes", "Commit", "commits_in", "read_changes"]

_ENTRY: Final = re.compile(
    r"^Commit: (?P<hash>[0-9a-f]{40,64})\nAuthor: (?P<author>[^\n]*)\nDate: "
    r"(?P<date>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d[+-]\d\d:\d\d)\n"
    r"Message: ",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class Commit:
    """One entry of a log."""

    author: str
    at: datetime


def commits_in(log: str) -> Iterator[Commit]:
    """Yield the commits of a log as `git_log` of mcp-server-git writes it, newest first."""
    for found in _ENTRY.finditer(log):
        yield Commit(found["author"].strip() or "(no name)", datetime.fromisoformat(found["date"]))


@dataclass(slots=True)
class Changes:
    """How often each file changed in the newest commits."""

    commits: int = 0
    touched: Counter[str] = field(default_factory=Counter[str])
    added: defaultdict[str, int] = field(default_factory=lambda: defaultdict[str, int](int))
    deleted: defaultdict[str, int] = field(default_factory=lambda: defaultdict[str, int](int))
    is_cut: bool = False

    def rows(self) -> list[Row]:
        """Return a row a file, most often changed first."""
        order = sorted(
            self.touched,
            key=lambda path: (-self.touched[path], -self.added[path] - self.deleted[path], path),
        )
        return [
            {
                "path": path,
                "commits": self.touched[path],
                "added": self.added[path],
                "deleted": self.deleted[path],
            }
            for path in order
        ]

    def take(self, record: bytes) -> None:
        """Count one NUL-ended record of `git log -z --numstat --format=%x01`."""
        record = record.lstrip(b"\n")
        if record == b"\x01":
            self.commits += 1
            return
        fields = record.split(b"\t", 2)
        if len(fields) != 3:
            return
        path = fields[2].decode("utf-8", "replace")
        self.touched[path] += 1
        self.added[path] += int(fields[0]) if fields[0].isdigit() else 0
        self.deleted[path] += int(fields[1]) if fields[1].isdigit() else 0


async def read_changes(root: Path, max_commits: int, seconds: float) -> Changes:
    """Read what the newest commits changed below `root`, merges apart, until time is up."""
    command = [*GIT, "-C", os.fspath(root), "log", f"--max-count={max_commits}", "--no-merges"]
    command += ["--no-renames", "--no-ext-diff", "--no-textconv", "--no-color", "--relative"]
    command += ["-z", "--numstat", "--format=%x01", "--", "."]
    changes = Changes()
    quiet = subprocess.DEVNULL
    async with await anyio.open_process(command, stdin=quiet, stderr=quiet) as process:
        with anyio.move_on_after(seconds) as scope:
            await _take_all(process, changes)
        changes.is_cut = scope.cancelled_caught
        if process.returncode is None:
            process.kill()
    return changes


async def _take_all(process: Process, changes: Changes) -> None:
    rest = b""
    assert process.stdout is not None
    async for chunk in process.stdout:
        *records, rest = (rest + chunk).split(b"\0")
        for record in records:
            changes.take(record)
    changes.take(rest)
    await process.wait()

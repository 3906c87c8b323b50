"""Saved changes: tell who was loaded from a file that it has been saved.

What counts is the state of the files (time, size, inode), not the events: nothing is lost between
two looks, and a write that leaves a file as it was wakes nobody.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import anyio
import anyio.lowlevel
import structlog
from anyio import to_thread

from guildry.tools.plug import Watched

__all__ = ["Watch"]

log = structlog.get_logger()

_QUIET_MS: Final = 20
_BURST_MS: Final = 200
_MAX_FOLDERS: Final = 200
_RETRY_S: Final = 1.0

State = dict[str, tuple[int, int, int]]


@dataclass(eq=False)
class _Watcher:
    watched: Sequence[Watched]
    changed: Callable[[], None]
    seen: State


class Watch:
    """Watch the files of any number of plugs with one operating-system watcher."""

    def __init__(self) -> None:
        self._watchers: list[_Watcher] = []
        self._moved = anyio.Event()

    async def add(
        self, watched: Sequence[Watched], changed: Callable[[], None]
    ) -> Callable[[], None]:
        """Call `changed` after each saved change from now on. Returns the way to stop it."""
        watcher = _Watcher(watched, changed, await to_thread.run_sync(_state, watched))
        self._watchers.append(watcher)
        self._moved.set()

        def remove() -> None:
            self._watchers.remove(watcher)
            self._moved.set()

        return remove

    async def run(self) -> None:
        """Watch until cancelled."""
        while True:
            while not self._watchers:
                await self._moved.wait()
                self._moved = anyio.Event()
            moved = self._moved = anyio.Event()
            folders = await to_thread.run_sync(_folders, self._all())
            async with anyio.create_task_group() as following:
                following.start_soon(self._follow, folders, moved)
                try:
                    # The watcher is set up in the first step of that task: what was saved while
                    # there was none is seen by this look.
                    await anyio.lowlevel.checkpoint()
                    await self._look(folders, moved)
                    await moved.wait()
                finally:
                    moved.set()  # ends the watcher's thread, which cancelling alone would not

    async def _follow(self, folders: frozenset[str], moved: anyio.Event) -> None:
        """Look after each burst of events in `folders`, until `moved`."""
        import watchfiles

        awatch: Any = cast("Any", watchfiles).awatch  # its type is not complete
        events = awatch(
            *folders,
            watch_filter=None,
            debounce=_BURST_MS,
            step=_QUIET_MS,
            stop_event=moved,
            recursive=False,
            ignore_permission_denied=True,
        )
        try:
            async for _ in events:
                await self._look(folders, moved)
        except (OSError, RuntimeError) as error:  # a folder is gone, or no watches are left
            log.warning("watch_failed", error=str(error), retry_s=_RETRY_S)
            with anyio.move_on_after(_RETRY_S):
                await moved.wait()
            moved.set()

    async def _look(self, folders: frozenset[str], moved: anyio.Event) -> None:
        """Tell each whose files are not as they were, and notice folders that came or went."""
        for watcher in tuple(self._watchers):
            state = await to_thread.run_sync(_state, watcher.watched)
            if state != watcher.seen and watcher in self._watchers:
                watcher.seen = state
                watcher.changed()
        if await to_thread.run_sync(_folders, self._all()) != folders:
            moved.set()

    def _all(self) -> list[Watched]:
        return [each for watcher in self._watchers for each in watcher.watched]


def _state(watched: Sequence[Watched]) -> State:
    found: State = {}
    for each in watched:
        for path in _files(each):
            try:
                status = os.stat(path)
            except OSError:
                continue
            found[path] = (status.st_mtime_ns, status.st_size, status.st_ino)
    return found


def _files(watched: Watched) -> Iterator[str]:
    if not watched.path.is_dir():
        yield str(watched.path)
        return
    for folder in _tree(watched.path):
        with os.scandir(folder) as entries:
            yield from (entry.path for entry in entries if entry.name.endswith(watched.suffix))


def _tree(root: Path) -> Iterator[str]:
    """Yield a folder and the folders in it, less the hidden ones and caches; at most 200."""
    waiting = [str(root)]
    for _ in range(_MAX_FOLDERS):
        if not waiting:
            return
        folder = waiting.pop(0)
        try:
            with os.scandir(folder) as entries:
                inner = [entry.path for entry in entries if _counts(entry)]
        except OSError:
            continue
        yield folder
        waiting.extend(sorted(inner))


def _counts(entry: "os.DirEntry[str]") -> bool:
    hidden = entry.name.startswith(".") or entry.name == "__pycache__"
    return not hidden and entry.is_dir(follow_symlinks=False)


def _folders(watched: Sequence[Watched]) -> frozenset[str]:
    """Return the folders whose events tell of `watched`; of what is missing, the nearest parent.

    A file is watched through its folder: most editors save by putting a new file in its place.
    """
    found: set[str] = set()
    for each in watched:
        path = each.path if each.path.is_dir() else each.path.parent
        while not path.is_dir() and path != path.parent:
            path = path.parent
        found.update(_tree(path) if path == each.path else (str(path),))
    return frozenset(found)

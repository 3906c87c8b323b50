"""Saved changes: tell who was loaded from a file that it has been saved.

What counts is the state of the files (time, size, inode), not the events: nothing is lost between
two looks, and a write that leaves a file as it was wakes nobody.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, cast

import anyio
import anyio.lowlevel
import structlog
from anyio import to_thread

from guildry.tools.plugs.plug import Watched

__all__ = ["Watch"]

log = structlog.get_logger()

_QUIET_MS: Final = 20
_BURST_MS: Final = 200
_MAX_FOLDERS: Final = 200
_RETRY_S: Final = 1.0

State = dict[str, tuple[int, int, int]]
"""Of each file: its time, size and inode."""

Folders = dict[str, int]
"""Of each watched folder: its inode, or 0 where it is watched for a folder in it alone."""


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

    async def _follow(self, folders: Folders, moved: anyio.Event) -> None:
        """Look after each burst of events in `folders`, until `moved`."""
        import watchfiles

        inner = {path for path, inode in folders.items() if inode}

        def counts(_: object, path: str) -> bool:
            return path in folders or os.path.dirname(path) in inner

        awatch: Any = cast("Any", watchfiles).awatch  # its type is not complete
        happened = awatch(
            *folders,
            watch_filter=counts,
            debounce=_BURST_MS,
            step=_QUIET_MS,
            stop_event=moved,
            recursive=False,
            ignore_permission_denied=True,
        )
        try:
            async for events in happened:
                await self._look(folders, moved)
                if any(path in folders for _, path in events):
                    moved.set()  # moved away, and perhaps back: its own watch has ended
        except (OSError, RuntimeError) as error:  # a folder is gone, or no watches are left
            log.warning("watch_failed", error=str(error), retry_s=_RETRY_S)
            with anyio.move_on_after(_RETRY_S):
                await moved.wait()
            moved.set()

    async def _look(self, folders: Folders, moved: anyio.Event) -> None:
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
    if not os.path.isdir(watched.path):
        yield str(watched.path)
        return
    for folder in _tree(watched.path):
        with suppress(OSError), os.scandir(folder) as entries:  # it may be gone by now
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


def _folders(watched: Sequence[Watched]) -> Folders:
    """Return the folders whose events tell of `watched`; of what is missing, the nearest parent.

    A file is watched through its folder: most editors save by putting a new file in its place.
    A folder is watched through its parent as well, for another may be put in its place.
    """
    found: Folders = {}
    for each in watched:
        is_folder = os.path.isdir(each.path)
        path = each.path if is_folder else each.path.parent
        while not os.path.isdir(path) and path != path.parent:
            path = path.parent
        for inner in _tree(path) if is_folder else (str(path),):
            found[inner] = _inode(inner)
        if is_folder:
            found.setdefault(str(path.parent), 0)
    return found


def _inode(path: str) -> int:
    try:
        return os.stat(path).st_ino
    except OSError:
        return -1

"""Server processes: lines in, lines out, and nothing left behind. Knows no protocol.

Each process leads a session of its own, and the whole of its group is killed when it is closed. A
guard, a shell that waits on a pipe, does the same should this process be killed itself.
"""

import os
import signal
import subprocess
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from glob import glob
from pathlib import Path
from typing import Final

import anyio
import anyio.abc
import structlog
from anyio import to_thread

__all__ = ["ServerProcess", "inherited_environment", "launch"]

log = structlog.get_logger()

MAX_LINE_BYTES: Final = 64 * 1024 * 1024
_CHUNK: Final = 65_536
_POLL_S: Final = 0.02
_SHOWN_CHARACTERS: Final = 500
_LOGGED_LINES: Final = 200
_LOGGED_PER_S: Final = 5.0
_KEPT_LINES: Final = 20
_INHERITED: Final = (
    *("HOME", "LANG", "LC_ALL", "LC_CTYPE", "LOGNAME", "PATH", "SHELL", "TERM", "TMPDIR", "TZ"),
    *("USER", "SYSTEMROOT", "TEMP", "TMP", "APPDATA", "USERPROFILE", "PATHEXT"),
)
_ENDED: Final = (
    anyio.EndOfStream,
    anyio.ClosedResourceError,
    anyio.BrokenResourceError,
    OSError,
)
_GUARD: Final = 'read -r _; kill -KILL "-$0"'
"""Waits for a line that never comes; the pipe closes when this process is gone."""


def inherited_environment() -> dict[str, str]:
    """Return the variables that every server process gets; secrets of ours are not among them."""
    return {name: value for name in _INHERITED if (value := os.environ.get(name)) is not None}


class _StderrLog:
    """Pass a server's stderr to the log: 200 lines at once, then 5 a second; count the rest."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._room = float(_LOGGED_LINES)
        self._at = anyio.current_time()
        self._dropped = 0
        self.last: deque[str] = deque(maxlen=_KEPT_LINES)

    def add(self, line: bytes) -> None:
        """Take one line."""
        text = line.decode(errors="replace").rstrip()[:_SHOWN_CHARACTERS]
        if not text:
            return
        self.last.append(text)
        now = anyio.current_time()
        self._room = min(_LOGGED_LINES, self._room + (now - self._at) * _LOGGED_PER_S)
        self._at = now
        if self._room < 1:
            self._dropped += 1
            return
        self._room -= 1
        extra = {"dropped_before": self._dropped} if self._dropped else {}
        self._dropped = 0
        log.info("server_stderr", plug=self._name, line=text, **extra)


@dataclass(eq=False)
class ServerProcess:
    """A running server. `receive` gives its lines, `send` takes ours.

    Args:
        pid: of the process, and of its group and session.
        last_words: the newest lines of its stderr, at most 20.
    """

    _process: anyio.abc.Process
    last_words: deque[str]
    _lines: deque[bytes] = field(default_factory=deque[bytes])
    _partial: list[bytes] = field(default_factory=list[bytes])
    _partial_bytes: int = 0

    @property
    def pid(self) -> int:
        """The id of the process, which is that of its group too."""
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        """How it ended, or None while it runs."""
        return self._process.returncode

    async def send(self, line: bytes) -> None:
        """Write one line, its newline included.

        Raises:
            anyio.BrokenResourceError: it reads no more.
            anyio.ClosedResourceError: it was closed here.
        """
        stdin = self._process.stdin
        assert stdin is not None
        try:
            await stdin.send(line)
        except OSError as error:
            raise anyio.BrokenResourceError from error

    async def receive(self) -> bytes:
        """Return the next line of stdout, without its newline.

        Raises:
            anyio.EndOfStream: there are no more, or one is over 64 MiB long.
        """
        stdout = self._process.stdout
        assert stdout is not None
        while not self._lines:
            try:
                chunk = await stdout.receive(_CHUNK)
            except (anyio.ClosedResourceError, anyio.BrokenResourceError, OSError):
                raise anyio.EndOfStream from None
            self._take(chunk)
        return self._lines.popleft()

    def _take(self, chunk: bytes) -> None:
        head, *rest = chunk.split(b"\n")
        self._partial.append(head)
        self._partial_bytes += len(head)
        if self._partial_bytes > MAX_LINE_BYTES:
            log.error("server_line_too_long", pid=self.pid, max_bytes=MAX_LINE_BYTES)
            raise anyio.EndOfStream
        if rest:
            self._lines.append(b"".join(self._partial))
            self._lines.extend(rest[:-1])
            self._partial = [rest[-1]]
            self._partial_bytes = len(rest[-1])


@asynccontextmanager
async def launch(
    command: Sequence[str], *, name: str, env: Mapping[str, str], cwd: Path, close_s: float
) -> AsyncGenerator[ServerProcess]:
    """Run a command for as long as the block runs; after it, its whole process group is gone.

    Ending takes at most three times `close_s`: stdin is closed, then SIGTERM, then SIGKILL.

    Args:
        command: the words of it.
        name: what the log calls it.
        env: variables besides the inherited few.
        cwd: where it runs.
        close_s: how long each step of ending it may take.

    Raises:
        OSError: it cannot be started.
    """
    process, guard = await _start(command, {**inherited_environment(), **env}, cwd)
    stderr = _StderrLog(name)
    try:
        async with anyio.create_task_group() as reading:
            reading.start_soon(_read_stderr, process, stderr)
            reading.start_soon(_end_with_process, process, close_s)
            try:
                yield ServerProcess(process, stderr.last)
            finally:
                with anyio.CancelScope(shield=True):
                    await _stop(process, close_s)
                reading.cancel_scope.cancel()
    finally:
        guard.kill()
        guard.wait()
        if guard.stdin is not None:
            guard.stdin.close()


async def _start(
    command: Sequence[str], env: Mapping[str, str], cwd: Path
) -> "tuple[anyio.abc.Process, subprocess.Popen[bytes]]":
    """Start a process and its guard; a start that is cancelled halfway would leave them behind."""
    with anyio.CancelScope(shield=True):
        process = await anyio.open_process(list(command), env=env, cwd=cwd, start_new_session=True)
        try:
            return process, await to_thread.run_sync(_start_guard, process.pid)
        except OSError:
            _signal(process.pid, signal.SIGKILL)
            await process.aclose()
            raise
    raise AssertionError("a shielded start was cancelled")


def _start_guard(group: int) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        ["/bin/sh", "-c", _GUARD, str(group)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


async def _read_stderr(process: anyio.abc.Process, stderr: _StderrLog) -> None:
    partial = b""
    with suppress(*_ENDED):
        assert process.stderr is not None
        while True:
            *lines, partial = (partial + await process.stderr.receive(_CHUNK)).split(b"\n")
            for line in lines:
                stderr.add(line)
            partial = partial[-_CHUNK:]
    stderr.add(partial)


async def _end_with_process(process: anyio.abc.Process, close_s: float) -> None:
    """End stdout with the process, though a child of it may still hold the pipe."""
    await process.wait()
    await anyio.sleep(close_s / 4)  # what it wrote last may be on its way
    if process.stdout is not None:
        await process.stdout.aclose()


async def _drain(stream: anyio.abc.ByteReceiveStream | None) -> None:
    """Read what nobody wants, so that a server that is ending does not block on a full pipe."""
    with suppress(*_ENDED, RuntimeError):
        while stream is not None:
            await stream.receive(_CHUNK)


async def _stop(process: anyio.abc.Process, close_s: float) -> None:
    async with anyio.create_task_group() as draining:
        draining.start_soon(_drain, process.stdout)
        with suppress(*_ENDED):
            if process.stdin is not None:
                await process.stdin.aclose()
        with anyio.move_on_after(close_s):
            await process.wait()
        for number in (signal.SIGTERM, signal.SIGKILL):
            if not _signal(process.pid, number):
                break
            with anyio.move_on_after(close_s):
                await _group_gone(process.pid)
        draining.cancel_scope.cancel()
    with anyio.move_on_after(close_s) as reaping:
        await process.aclose()
    if reaping.cancelled_caught:
        log.error("process_not_reaped", pid=process.pid)


async def _group_gone(group: int) -> None:
    while _signal(group, 0) and not _all_dead(group):  # noqa: ASYNC110 - nothing tells of the end of a group
        await anyio.sleep(_POLL_S)


def _all_dead(group: int) -> bool:
    """Tell whether all members of a group are dead, though nobody has reaped them.

    In a container the first process may never reap what is left to it; elsewhere than on Linux
    such a group looks alive until the limit.
    """
    states: list[str] = []
    for stat in glob("/proc/[0-9]*/stat"):
        with suppress(OSError), open(stat, encoding="utf-8", errors="replace") as file:
            state, _, member_of = file.read().rpartition(")")[2].split()[:3]
            if member_of == str(group):
                states.append(state)
    return bool(states) and set(states) <= {"Z", "X"}


def _signal(group: int, number: int) -> bool:
    """Signal a process group; tell whether there still was one."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    except PermissionError:  # a member under another user; or, on macOS, one not yet reaped
        pass
    return True

"""Server processes: lines in, lines out, and nothing left behind. Knows no protocol.

Each process has a supervisor, which ends it with all that came of it: when it is closed, and when
this process ends, however it ends.
"""

import os
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Final

import anyio
import anyio.abc
import structlog
from anyio import to_thread

from guildry.tools.plugs.options import SandboxOptions, SandboxPolicy
from guildry.tools.redaction import HIDDEN
from guildry.tools.sandbox.confinement import Confined, confined, wanted_sandbox
from guildry.tools.sandbox.supervision import Supervised, start

__all__ = ["ServerProcess", "inherited_environment", "launch"]

log = structlog.get_logger()

MAX_LINE_BYTES: Final = 64 * 1024 * 1024
_CHUNK: Final = 65_536
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
        text = HIDDEN.cut(line.decode(errors="replace").rstrip(), _SHOWN_CHARACTERS)
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
        is_confined: whether it runs in a sandbox.
        notes: what it cannot see there though its command names it, or why there is no sandbox.
        fault: why nothing more is read of it, where that is not its end.
    """

    _process: anyio.abc.Process
    pid: int
    last_words: deque[str]
    is_confined: bool = False
    notes: tuple[str, ...] = ()
    fault: str | None = None
    _lines: deque[bytes] = field(default_factory=deque[bytes])
    _partial: list[bytes] = field(default_factory=list[bytes])
    _partial_bytes: int = 0

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
            self.fault = f"it wrote a line of over {MAX_LINE_BYTES >> 20} MiB"
            raise anyio.EndOfStream
        if rest:
            self._lines.append(b"".join(self._partial))
            self._lines.extend(rest[:-1])
            self._partial = [rest[-1]]
            self._partial_bytes = len(rest[-1])


@asynccontextmanager
async def launch(
    command: Sequence[str],
    *,
    name: str,
    env: Mapping[str, str],
    cwd: Path,
    close_s: float,
    sandbox: SandboxOptions | None = None,
    policy: SandboxPolicy = "auto",
) -> AsyncGenerator[ServerProcess]:
    """Run a command for as long as the block runs; after it, nothing that came of it is left.

    Ending takes at most three times `close_s`: stdin is closed, then SIGTERM, then SIGKILL.

    Args:
        command: the words of it.
        name: what the log calls it.
        env: variables besides the inherited few.
        cwd: where it runs.
        close_s: how long each step of ending it may take.
        sandbox: how it is confined; None: it is not, unless the policy demands it.
        policy: whether it is confined, and whether it may run where it cannot be.

    Raises:
        OSError: it cannot be started.
        SandboxError: it cannot be confined as it must be.
    """
    wanted = wanted_sandbox(sandbox, policy)
    begun, shelter = await _begin(command, name, env, cwd, wanted, policy)
    process, stderr = begun.process, _StderrLog(name)
    try:
        async with anyio.create_task_group() as reading:
            reading.start_soon(_read_stderr, process, stderr)
            reading.start_soon(_end_with_process, process, close_s)
            try:
                yield ServerProcess(
                    process, begun.pid, stderr.last, shelter.is_confined, shelter.notes
                )
            finally:
                with anyio.CancelScope(shield=True):
                    await _stop(begun, close_s)
                reading.cancel_scope.cancel()
    finally:
        await begun.end(close_s)


async def _begin(
    command: Sequence[str],
    name: str,
    env: Mapping[str, str],
    cwd: Path,
    sandbox: SandboxOptions | None,
    policy: SandboxPolicy,
) -> tuple[Supervised, Confined]:
    variables = {**inherited_environment(), **env}
    if sandbox is None:
        plain = Confined(tuple(command), (), variables, is_confined=False)
        return await start(command, env=variables, cwd=cwd), plain
    confine = partial(confined, command, sandbox, cwd=cwd, env=variables, policy=policy)
    shelter = await to_thread.run_sync(confine)
    log.info(
        "server_confined" if shelter.is_confined else "server_not_confined",
        plug=name,
        notes=list(shelter.notes),
    )
    begun = await start(shelter.inner, env=shelter.env, cwd=cwd, limits=shelter.limits)
    return begun, shelter


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


async def _stop(begun: Supervised, close_s: float) -> None:
    """Let a server end by itself, then ask it to; what is left after that is killed."""
    process = begun.process
    async with anyio.create_task_group() as draining:
        draining.start_soon(_drain, process.stdout)
        with suppress(*_ENDED):
            if process.stdin is not None:
                await process.stdin.aclose()
        with anyio.move_on_after(close_s) as patience:
            await process.wait()
        if patience.cancelled_caught:
            begun.ask()
            with anyio.move_on_after(close_s):
                await process.wait()
        draining.cancel_scope.cancel()

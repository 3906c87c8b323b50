"""Commands under supervision: started, asked to end, and ended with all that came of them.

Knows no sandbox and no lines: what a command may do is said by whoever starts it.
"""

import os
import socket
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import anyio
import anyio.abc
import structlog

from guildry.tools.sandbox.confinement import supervised

__all__ = ["Supervised", "start"]

log = structlog.get_logger()

_START_S: Final = 20.0
_END_S: Final = 2.0
_REPORT_BYTES: Final = 64


class Supervised:
    """A command that runs, with its supervisor. Both end when this process does, however it ends.

    `pid` is that of the command, and of its group and session.

    Args:
        process: the supervisor; its pipes are those of the command, and so is its exit.
        control: the socket over which the supervisor is told to end it.
    """

    def __init__(self, process: anyio.abc.Process, control: socket.socket) -> None:
        self.process = process
        self.pid = 0
        self._control = control

    async def report(self, program: str) -> int:
        """Return the id of the command's process, once it has been started.

        Raises:
            OSError: it cannot be started.
        """
        with anyio.move_on_after(_START_S):
            await anyio.wait_readable(self._control)
            report = self._control.recv(_REPORT_BYTES).decode().strip()
            if report.startswith("S"):
                return int(report[1:])
            if report.startswith("E"):
                number = int(report[1:])
                raise OSError(number, os.strerror(number), program)
            raise OSError("its supervisor ended at once")
        raise OSError(f"its supervisor did not start it within {_START_S:g} s")

    def ask(self) -> None:
        """Ask every process of the command to end (SIGTERM)."""
        self._say(b"T")

    def kill(self) -> None:
        """Kill every process of the command."""
        self._say(b"K")

    def _say(self, word: bytes) -> None:
        with suppress(OSError):
            self._control.send(word)

    async def end(self, limit_s: float = _END_S) -> None:
        """Kill what is left of the command, wait for its end, and close what belongs to it.

        Args:
            limit_s: how long that may take before the supervisor is killed, too.
        """
        with anyio.CancelScope(shield=True):
            self.kill()
            with anyio.move_on_after(limit_s) as patience:
                await self.process.wait()
            if patience.cancelled_caught:
                log.error("process_not_ended", pid=self.pid)
                with suppress(ProcessLookupError):
                    self.process.kill()
            self._control.close()
            with anyio.move_on_after(limit_s):
                await self.process.aclose()


async def start(
    command: Sequence[str], *, env: Mapping[str, str], cwd: Path, limits: Sequence[str] = ()
) -> Supervised:
    """Start a command under supervision, its standard streams being pipes.

    Args:
        command: its words.
        env: every variable that it gets.
        cwd: where it runs.
        limits: as `Confined.limits`.

    Raises:
        OSError: it cannot be started.
    """
    begun = await _spawn(command, env, cwd, limits)
    try:
        begun.pid = await begun.report(command[0])
    except BaseException:
        await begun.end()
        raise
    return begun


async def _spawn(
    command: Sequence[str], env: Mapping[str, str], cwd: Path, limits: Sequence[str]
) -> Supervised:
    """Start a supervisor; a start that is cancelled halfway would leave it behind."""
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    whole = supervised(command, limits, control=theirs.fileno())
    with anyio.CancelScope(shield=True), theirs:
        try:
            process = await anyio.open_process(
                whole, env=env, cwd=cwd, start_new_session=True, pass_fds=(theirs.fileno(),)
            )
        except BaseException:
            ours.close()
            raise
        return Supervised(process, ours)
    raise AssertionError("a shielded start was cancelled")

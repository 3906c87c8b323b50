"""Commands run to their end: with what goes in, what came out, and an end to their patience.

A command that is cancelled, or that is over its time or its output, is killed with all that came of
it before the answer is given.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Literal

import anyio
import anyio.abc
from anyio import to_thread

from guildry.tools.plugs.options import SandboxOptions, SandboxPolicy
from guildry.tools.sandbox.confinement import Confined, confined
from guildry.tools.sandbox.supervision import Supervised, start

__all__ = ["Ended", "run_confined"]

_CHUNK: Final = 65_536


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended.

    Args:
        code: its exit code; negative: the signal that killed it.
        stdout: what it wrote, as far as there was room.
        stderr: what it complained about, as far as there was room.
        cut: why it was ended: its time was over, or it wrote too much; None: by itself.
        is_confined: whether a sandbox was around it.
        notes: what it could not see, or why there was no sandbox.
    """

    code: int
    stdout: bytes
    stderr: bytes
    cut: Literal["time", "output"] | None
    is_confined: bool
    notes: tuple[str, ...]


class _Room:
    """How much more a command may write, both streams together."""

    def __init__(self, output_bytes: int) -> None:
        self.left = output_bytes
        self.spent = anyio.Event()

    def take(self, chunk: bytes) -> bytes:
        kept = chunk[: self.left]
        self.left -= len(kept)
        if len(kept) < len(chunk):
            self.spent.set()
        return kept


async def run_confined(
    command: Sequence[str],
    options: SandboxOptions,
    *,
    cwd: Path,
    env: Mapping[str, str],
    stdin: bytes = b"",
    wall_s: float,
    output_bytes: int,
    policy: SandboxPolicy = "auto",
) -> Ended:
    """Run a command confined, to its end.

    Args:
        command: its words.
        options: what it may do.
        cwd: where it runs.
        env: every variable that it gets.
        stdin: what it reads.
        wall_s: how long it may take.
        output_bytes: how much it may write.
        policy: whether it is confined, and whether it may run where it cannot be.

    Raises:
        OSError: it cannot be started.
        SandboxError: it cannot be confined as it must be.
    """
    if policy == "off":
        shelter = Confined(tuple(command), (), env, False, ("`sandbox` is `off`",))
    else:
        confine = partial(confined, command, options, cwd=cwd, env=env, policy=policy)
        shelter = await to_thread.run_sync(confine)
    begun = await start(shelter.inner, env=shelter.env, cwd=cwd, limits=shelter.limits)
    try:
        out, errors, cut = await _watched(begun, stdin, wall_s, _Room(output_bytes))
    finally:
        await begun.end()
    code = begun.process.returncode
    return Ended(-9 if code is None else code, out, errors, cut, shelter.is_confined, shelter.notes)


async def _watched(
    begun: Supervised, stdin: bytes, wall_s: float, room: _Room
) -> tuple[bytes, bytes, Literal["time", "output"] | None]:
    process = begun.process
    out, errors = bytearray(), bytearray()
    with anyio.move_on_after(wall_s) as patience:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_feed, process, stdin)
            tasks.start_soon(_kill_when, room.spent, begun)
            async with anyio.create_task_group() as reading:
                reading.start_soon(_gather, process.stdout, out, room)
                reading.start_soon(_gather, process.stderr, errors, room)
            await process.wait()
            tasks.cancel_scope.cancel()
    if room.spent.is_set():
        return bytes(out), bytes(errors), "output"
    return bytes(out), bytes(errors), "time" if patience.cancelled_caught else None


async def _feed(process: anyio.abc.Process, stdin: bytes) -> None:
    assert process.stdin is not None
    with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError, OSError):
        if stdin:
            await process.stdin.send(stdin)
        await process.stdin.aclose()


async def _kill_when(spent: anyio.Event, begun: Supervised) -> None:
    await spent.wait()
    begun.kill()


async def _gather(stream: anyio.abc.ByteReceiveStream | None, into: bytearray, room: _Room) -> None:
    assert stream is not None
    with suppress(anyio.EndOfStream, anyio.ClosedResourceError, anyio.BrokenResourceError):
        while True:
            into += room.take(await stream.receive(_CHUNK))

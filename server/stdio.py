"""MCP on standard input and output. Where these are pipes or sockets, without a thread hop.

From the start of serving, descriptor 0 is the null device and descriptor 1 is standard error, so
that what a tool or its children print never reaches the wire.
"""

import os
import signal
import stat
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, TextIO

import anyio

from guildry.server.lines import serve_lines
from guildry.server.pipe import Pipe

if TYPE_CHECKING:
    from guildry.server.surface import Surface

__all__ = ["Files", "claimed", "serve_stdio"]


async def serve_stdio(surface: "Surface", wire: "Pipe | Files") -> None:
    """Serve the client at the other end of standard input and output, as `claimed` gave them.

    Ends when the client closes its side, or at SIGTERM or SIGINT; calls in flight then have a
    moment to end.
    """
    stop = anyio.Event()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_stop_at_signal, stop)
        if isinstance(wire, Pipe):
            await serve_lines(surface, wire, stop=stop)
        else:
            await _serve_slowly(surface, wire, stop)
        tasks.cancel_scope.cancel()


async def _stop_at_signal(stop: anyio.Event) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async for _ in signals:
            stop.set()


async def _serve_slowly(surface: "Surface", files: "Files", stop: anyio.Event) -> None:
    """Serve files, which an event loop cannot watch, by the SDK's own threads."""
    from mcp.server.stdio import stdio_server

    async def end() -> None:
        await stop.wait()
        tasks.cancel_scope.cancel()

    wrapped = anyio.wrap_file(files.reading), anyio.wrap_file(files.writing)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(end)
        async with stdio_server(*wrapped) as (reading, writing):
            options = surface.server.create_initialization_options()
            await surface.server.run(reading, writing, options)
        tasks.cancel_scope.cancel()


@dataclass(frozen=True, slots=True)
class Files:
    """The wire where an event loop cannot watch it."""

    reading: TextIO
    writing: TextIO


@contextmanager
def claimed() -> Generator[Pipe | Files]:
    """Yield the wire on private descriptors, and point 0 and 1 elsewhere for good.

    To be entered before anything of a user is imported: what a tool prints, first or last, must not
    reach the wire.
    """
    sys.stdout.flush()
    watched = _can_be_watched(0) and _can_be_watched(1)
    shared = os.isatty(1) or _is_same(1, 2)
    blocking = os.get_blocking(0), os.get_blocking(1)
    reading, writing = os.dup(0), os.dup(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    os.dup2(2, 1)
    if not watched:
        with (
            os.fdopen(reading, "r", encoding="utf-8", errors="replace") as taken,
            os.fdopen(writing, "w", encoding="utf-8") as given,
        ):
            yield Files(taken, given)
        return
    if not os.isatty(reading):
        os.set_blocking(reading, False)
    if not shared:
        os.set_blocking(writing, False)
    try:
        yield Pipe(reading, writing, shared=shared)
    finally:
        os.set_blocking(reading, blocking[0])
        os.set_blocking(writing, blocking[1])
        os.close(reading)
        os.close(writing)


def _can_be_watched(descriptor: int) -> bool:
    if sys.platform == "win32":
        return False
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or os.isatty(descriptor)


def _is_same(one: int, other: int) -> bool:
    """Tell whether both write to one file: making one non-blocking would change the other."""
    try:
        return os.path.sameopenfile(one, other)
    except OSError:
        return False

"""`guildry serve`: the one command that must start fast. Imports no command-line library."""

import gc
import sys
from contextlib import AsyncExitStack
from functools import partial
from typing import TYPE_CHECKING, Final

from guildry.server.commands.exits import Exit
from guildry.server.commands.options import Flags, flags_of
from guildry.server.commands.perform import perform

if TYPE_CHECKING:
    from guildry.server.app import App
    from guildry.server.config import Settings

__all__ = ["serve"]

_M_MMAP_THRESHOLD: Final = -3
_LARGE_BYTES: Final = 64 * 1024


def serve(given: Flags) -> int:
    """Serve until the client is gone or the process is asked to end; return the exit code."""
    work = partial(_serve, stdio=bool(given.get("stdio")))
    return perform(work, flags_of(given), serving=True)


async def _serve(settings: "Settings", *, stdio: bool) -> int:
    import anyio

    from guildry.server.app import open_app
    from guildry.server.control import serve_control
    from guildry.server.stdio import claimed, serve_stdio
    from guildry.server.surface import Surface

    async with AsyncExitStack() as stack:
        wire = stack.enter_context(claimed()) if stdio else None
        app = await stack.enter_async_context(open_app(settings))
        async with anyio.create_task_group() as tasks:
            surface = Surface(app)
            await tasks.start(serve_control, surface, settings.home)
            _collect_from_here()
            _map_large_blocks()
            if wire is not None:
                await serve_stdio(surface, wire)
            else:
                await _serve_http(app)
            tasks.cancel_scope.cancel()
    return Exit.OK


def _collect_from_here() -> None:
    """Collect garbage again (`main` stopped it), and never look at what was imported."""
    gc.freeze()
    gc.enable()


def _map_large_blocks() -> None:
    """Have glibc give back each large block by itself, so that a long life tears no holes.

    Left alone, its threshold grows with the blocks it frees, and large buffers end up among the
    small ones that outlive them (mallopt(3), M_MMAP_THRESHOLD). Other allocators are left alone.
    """
    if sys.platform != "linux":
        return
    import ctypes

    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _LARGE_BYTES)


async def _serve_http(app: "App") -> None:
    import anyio

    from guildry.server.http.endpoint import serve_http
    from guildry.server.surface import USER_SCOPES, Surface

    settings = app.settings
    serve = partial(
        serve_http,
        Surface(app, scopes=USER_SCOPES),
        host=settings.host,
        port=settings.port,
        drain_s=settings.drain_s,
        setting=settings.http,
        fast=settings.fast,
    )
    async with anyio.create_task_group() as tasks:
        url = await tasks.start(serve)
        if sys.stderr.isatty():
            sys.stderr.write(f"guildry: serving at {url} (Ctrl-C ends it)\n")

"""The control socket: how the command line reaches a server that is running.

Each serving process listens on `<home>/servers/<pid>.sock`, for its own user alone. The socket
speaks the same MCP as stdio, with the scope `admin`.
"""

import hashlib
import os
import socket
import stat
import tempfile
from collections.abc import AsyncGenerator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import anyio
import structlog

from guildry.errors import UsageError
from guildry.server.lines import serve_lines
from guildry.server.pipe import Pipe

if TYPE_CHECKING:
    from anyio.abc import TaskStatus
    from mcp.client._transport import TransportStreams

    from guildry.server.surface import Surface

__all__ = ["connect", "connections", "own_folder", "serve_control", "socket_folder"]

log = structlog.get_logger()

_MAX_PATH: Final = 100
_CONNECT_S: Final = 2.0


def socket_folder(home: Path) -> Path:
    """Return where the servers of `home` listen: in it, or nearer the root if its path is long.

    The kernel takes at most about 100 bytes for the path of a socket.
    """
    folder = home / "servers"
    if len(os.fsencode(folder)) + len("/1234567.sock") <= _MAX_PATH:
        return folder
    digest = hashlib.sha256(os.fsencode(home.absolute())).hexdigest()[:16]
    return Path(tempfile.gettempdir()) / f"guildry-{os.getuid()}" / digest


async def serve_control(
    surface: "Surface", home: Path, *, task_status: "TaskStatus[Path]" = anyio.TASK_STATUS_IGNORED
) -> None:
    """Serve every client that connects to this process's socket, until cancelled.

    Raises:
        UsageError: the folder of the socket is not this user's own.
    """
    path = own_folder(socket_folder(home)) / f"{os.getpid()}.sock"
    _remove(path)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.setblocking(False)
        listener.bind(str(path))
        path.chmod(0o600)
        listener.listen()
        try:
            async with anyio.create_task_group() as tasks:
                task_status.started(path)
                while True:
                    await anyio.wait_readable(listener)
                    with suppress(OSError):  # it left before it was taken
                        tasks.start_soon(_serve, surface, listener.accept()[0])
        finally:
            _remove(path)


async def _serve(surface: "Surface", client: socket.socket) -> None:
    with client:
        client.setblocking(False)
        await serve_lines(surface, Pipe(client.fileno(), client.fileno()), grace_s=0)


def connect(home: Path) -> "AbstractAsyncContextManager[TransportStreams] | None":
    """Return a transport to a live server of `home`, or None when there is none.

    The newest server is taken. Sockets that nobody listens on any more are removed.
    """
    for path in _newest_first(socket_folder(home)):
        if _answers(path):
            return _transport(path)
        _remove(path)
    return None


def connections(home: Path) -> "dict[int, AbstractAsyncContextManager[TransportStreams]]":
    """Return transports to every live server of `home` by process id, the newest first."""
    return {
        int(path.stem): _transport(path)
        for path in _newest_first(socket_folder(home))
        if path.stem.isdigit() and _answers(path)
    }


def _newest_first(folder: Path) -> Iterator[Path]:
    def started(path: Path) -> float:
        with suppress(OSError):
            return path.stat().st_mtime
        return 0.0

    yield from sorted(folder.glob("*.sock"), key=started, reverse=True)


def _answers(path: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(_CONNECT_S)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True


@asynccontextmanager
async def _transport(path: Path) -> "AsyncGenerator[TransportStreams]":
    from mcp.shared.message import SessionMessage
    from mcp_types import jsonrpc_message_adapter

    with anyio.fail_after(_CONNECT_S):
        client = await anyio.connect_unix(path)
    arriving, received = anyio.create_memory_object_stream[SessionMessage | Exception](16)
    sent, leaving = anyio.create_memory_object_stream[SessionMessage](0)

    async def read() -> None:
        rest = b""
        async with arriving:
            with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
                async for chunk in client:
                    *lines, rest = (rest + chunk).split(b"\n")
                    for line in lines:
                        message = jsonrpc_message_adapter.validate_json(line, by_name=False)
                        await arriving.send(SessionMessage(message))

    async def write() -> None:
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            async for item in leaving:
                text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
                await client.send(text.encode() + b"\n")

    async with client, received, sent, leaving, anyio.create_task_group() as tasks:
        tasks.start_soon(read)
        tasks.start_soon(write)
        yield received, sent
        tasks.cancel_scope.cancel()


def own_folder(folder: Path) -> Path:
    """Make a folder that only this user can look into, and return it.

    Raises:
        UsageError: it is somebody else's.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    about = folder.lstat()
    if not stat.S_ISDIR(about.st_mode) or about.st_uid != os.getuid():
        raise UsageError(
            f"`{folder}` belongs to somebody else: remove it, or choose another home with `--home`"
        )
    folder.chmod(0o700)
    return folder


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()

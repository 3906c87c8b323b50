"""The HTTP endpoint: Streamable HTTP at `/mcp`, on this machine only, for both protocol eras.

Plain tool calls go through the lean lane and get a JSON answer; the SDK serves all else. Requests
are checked here only as far as the lane needs; whatever it will not take, the SDK judges.
"""

import errno
import signal
import socket
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

import anyio
import structlog
import uvicorn
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings

from guildry.errors import UsageError
from guildry.server.front import Front

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.abc import TaskStatus

    from guildry.server.surface import Surface

__all__ = ["serve_http"]

log = structlog.get_logger()

_NAMES: Final = ("127.0.0.1", "localhost", "[::1]")
_BACKLOG: Final = 512


async def serve_http(
    surface: "Surface",
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    drain_s: float = 10.0,
    sdk_sees_s: float = 600.0,
    task_status: "TaskStatus[str]" = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until SIGTERM or SIGINT, or until cancelled. Started with the URL once it listens.

    Calls in flight at a signal have `drain_s` seconds to end. For `sdk_sees_s` see `Front`.

    Raises:
        UsageError: the address is not this machine's own, or the port is taken.
    """
    listener = _listen(host, port)
    bound = int(listener.getsockname()[1])
    hosts = frozenset(f"{name}:{bound}" for name in _NAMES) | frozenset(
        _NAMES if bound == 80 else ()
    )
    manager = StreamableHTTPSessionManager(surface.server, security_settings=_security(hosts))
    front = Front(surface, manager, hosts, sdk_sees_s=sdk_sees_s)
    server = _Server(
        uvicorn.Config(
            front,
            lifespan="off",
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            backlog=_BACKLOG,
            timeout_graceful_shutdown=1,
        )
    )
    ending = anyio.Event()
    async with anyio.create_task_group() as tasks:
        await tasks.start(_run, manager, front, ending)
        await tasks.start(_stop_at_signal, surface, front, drain_s, ending, server)
        task_status.started(f"http://{_shown(host)}:{bound}/mcp")
        log.info("http_started", host=host, port=bound)
        await server.serve_until_told(listener)
        tasks.cancel_scope.cancel()
    log.info("http_stopped", port=bound)


async def _run(
    manager: StreamableHTTPSessionManager,
    front: Front,
    ending: anyio.Event,
    *,
    task_status: "TaskStatus[None]",
) -> None:
    """Keep the SDK's sessions until `ending` is set; their open streams end with them."""
    async with manager.run(), anyio.create_task_group() as tasks:
        tasks.start_soon(front.watch.run)
        task_status.started()
        await ending.wait()
        tasks.cancel_scope.cancel()


async def _stop_at_signal(
    surface: "Surface",
    front: Front,
    drain_s: float,
    ending: anyio.Event,
    server: "_Server",
    *,
    task_status: "TaskStatus[None]",
) -> None:
    with anyio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        task_status.started()
        async for _ in signals:
            break
        log.info("http_stopping", calls=front.in_flight, drain_s=drain_s)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(_cancel_at_signal, signals, tasks.cancel_scope)
            with anyio.move_on_after(drain_s):
                await front.drain()
            tasks.cancel_scope.cancel()
    surface.app.announcer.close()
    ending.set()
    server.should_exit = True


async def _cancel_at_signal(
    signals: "AsyncIterator[signal.Signals]", scope: anyio.CancelScope
) -> None:
    """Wait no longer at a second signal."""
    async for _ in signals:
        scope.cancel()


class _Server(uvicorn.Server):
    """Uvicorn's server, with the signals left to us."""

    async def serve_until_told(self, listener: socket.socket) -> None:
        """Serve on `listener` until `should_exit` is set."""
        try:
            await self._serve([listener])
        except BaseException:
            with anyio.CancelScope(shield=True):
                self.force_exit = True
                if self.started:
                    await self.shutdown([listener])
            raise
        finally:
            listener.close()


def _listen(host: str, port: int) -> socket.socket:
    if not _is_loopback(host):
        raise UsageError(
            f"`host` is {host!r}: clients are not authenticated, so only this machine's own"
            " addresses can be served, such as `127.0.0.1` or `::1`"
        )
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol is named for asyncio, which turns Nagle's delay off only where it is.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
    except OSError as error:
        listener.close()
        taken = error.errno == errno.EADDRINUSE
        why = "is taken" if taken else f"cannot be used ({error.strerror})"
        raise UsageError(
            f"`port` {port} on {host} {why}: choose another with `--port`, or 0 for any"
        ) from error
    listener.setblocking(False)
    return listener


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def _security(hosts: frozenset[str]) -> TransportSecuritySettings:
    """Return the SDK's guard against web pages that reach for local servers (DNS rebinding)."""
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=True,
        allowed_hosts=sorted(hosts),
        allowed_origins=sorted(f"http://{host}" for host in hosts),
    )

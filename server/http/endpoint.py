"""The HTTP endpoint: Streamable HTTP at `/mcp`, for both protocol eras.

Plain tool calls go through the lean lane and get a JSON answer; the SDK serves all else. Here are
the socket, the signals and the order in which things end.
"""

import errno
import signal
import socket
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
import structlog
import uvicorn

from guildry.errors import ConfigError, UsageError
from guildry.server.http.asgi import Watch
from guildry.server.http.auth import Auth
from guildry.server.http.front import PATH, Front
from guildry.server.http.identity import Identity
from guildry.server.http.names import Names
from guildry.server.http.routes import Routes
from guildry.server.http.settings import HttpSetting, check
from guildry.server.http.tenant import Tenant
from guildry.server.http.tenants import Tenants
from guildry.server.http.wire import Slowness, protocol
from guildry.server.parts import LOCAL

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from anyio.abc import TaskStatus

    from guildry.server.surface import Surface

__all__ = ["serve_http"]

log = structlog.get_logger()

_BACKLOG: Final = 512
_PUBLIC: Final = "public"
_DEFAULT: Final = HttpSetting()


async def serve_http(
    surface: "Surface",
    *,
    host: str = "127.0.0.1",
    port: int = 8765,
    drain_s: float = 10.0,
    setting: HttpSetting = _DEFAULT,
    fast: bool = True,
    sdk_sees_s: float | None = None,
    task_status: "TaskStatus[str]" = anyio.TASK_STATUS_IGNORED,
) -> None:
    """Serve until SIGTERM or SIGINT, or until cancelled. Started with the URL once it listens.

    Calls in flight at a signal have `drain_s` seconds to end.

    Args:
        surface: what is served to callers of this machine, where none need to authenticate.
        host: address to listen on.
        port: TCP port; 0 takes any.
        drain_s: seconds that calls in flight get at the end.
        setting: who may call, and how much.
        fast: whether the parser of the extra `fast` is used where it is installed.
        sdk_sees_s: see `Tenant`.

    Raises:
        ConfigError: settings contradict each other, or name a file that cannot be used.
        UsageError: the address may not be served so, or the port is taken.
    """
    check(setting, host)
    auth = await Auth.open(setting) if setting.authenticates else None
    if setting.tls_certificate is not None:
        await anyio.to_thread.run_sync(_check_tls, setting)
    listener = await _listen(host, port)
    bound = int(listener.getsockname()[1])
    watch = Watch()
    make = partial(_tenant, surface, setting, watch, sdk_sees_s)
    tenants = Tenants(make, setting)
    routes = Routes(surface if auth is None else _public(surface), auth, setting)
    front = Front(tenants, auth, Names(setting, _shown(host), bound), routes, setting)
    server = _Server(_config(front, setting, fast=fast))
    ending = anyio.Event()
    async with anyio.create_task_group() as tasks:
        await tasks.start(_keep, tenants, auth, watch, ending)
        await tasks.start(_stop_at_signal, surface, front, drain_s, ending, server)
        tasks.start_soon(Slowness(server.server_state, setting.slow_client_s).run)
        scheme = "https" if setting.tls else "http"
        task_status.started(f"{scheme}://{_shown(host)}:{bound}{PATH}")
        log.info("http_started", host=host, port=bound, authenticates=setting.authenticates)
        await server.serve_until_told(listener)
        tasks.cancel_scope.cancel()
    log.info("http_stopped", port=bound)


def _tenant(
    surface: "Surface",
    setting: HttpSetting,
    watch: Watch,
    sdk_sees_s: float | None,
    identity: Identity,
) -> Tenant:
    """Return the tenant of a caller. Without authentication there is one, with our surface."""
    if identity.principal != LOCAL:
        kind = type(surface)
        surface = kind(surface.app, holder=identity.principal, scopes=identity.scopes)
    return Tenant(surface, setting, watch, sdk_sees_s=sdk_sees_s)


def _public(surface: "Surface") -> "Surface":
    """Return what anybody may see: that there is a server, and nothing in it."""
    return type(surface)(surface.app, holder=_PUBLIC, scopes=())


def _config(front: Front, setting: HttpSetting, *, fast: bool) -> uvicorn.Config:
    return uvicorn.Config(
        front,
        http=protocol(setting.max_header_bytes, fast=fast),
        lifespan="off",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=setting.behind_proxy,
        backlog=_BACKLOG,
        limit_concurrency=setting.max_connections,
        timeout_keep_alive=setting.keep_alive_s,
        timeout_graceful_shutdown=1,
        h11_max_incomplete_event_size=setting.max_header_bytes,
        ssl_certfile=setting.tls_certificate,
        ssl_keyfile=setting.tls_key,
    )


async def _keep(
    tenants: Tenants,
    auth: Auth | None,
    watch: Watch,
    ending: anyio.Event,
    *,
    task_status: "TaskStatus[None]",
) -> None:
    """Keep the callers, with their sessions and streams, until `ending` is set."""
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(watch.run)
        await tasks.start(tenants.run)
        if auth is not None:
            tasks.start_soon(auth.run, tenants.end)
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


async def _listen(host: str, port: int) -> socket.socket:
    family, address = await _resolved(host, port)
    # The protocol is named for asyncio, which turns Nagle's delay off only where it is.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if address[0] == "::":
        with suppress(OSError):  # every address, those of IPv4 as well
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
    try:
        listener.bind(address)
        listener.listen(_BACKLOG)  # whoever is told of the address may come before uvicorn does
    except OSError as error:
        listener.close()
        taken = error.errno == errno.EADDRINUSE
        why = "is taken" if taken else f"cannot be used ({error.strerror})"
        raise UsageError(
            f"`port` {port} on {host} {why}: choose another with `--port`, or 0 for any"
        ) from error
    listener.setblocking(False)
    return listener


async def _resolved(host: str, port: int) -> tuple[int, Any]:
    """Return the family and the address of a host."""
    if host == "localhost":
        return socket.AF_INET, ("127.0.0.1", port)
    try:
        found = await anyio.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
    except OSError as error:
        raise UsageError(f"`host` is {host!r}, which no address is known for") from error
    return found[0][0], found[0][4]


def _check_tls(setting: HttpSetting) -> None:
    """Load the certificate once, so that what is wrong is told before anything is served."""
    import ssl

    try:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(str(setting.tls_certificate), str(setting.tls_key))
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"`http.tls_certificate` and `http.tls_key` cannot be used ({error.strerror}): give a"
            " certificate chain and its private key, both PEM"
        ) from error


def _shown(host: str) -> str:
    return f"[{host}]" if ":" in host else host

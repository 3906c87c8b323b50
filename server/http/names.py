"""The names of the HTTP endpoint: which hosts and origins requests may give. Knows headers only.

A web page that a browser was led to must not reach a server on this machine by a name of its own
(DNS rebinding), and only the pages that are configured may read what is answered.
"""

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from guildry.server.http.asgi import respond
from guildry.server.http.identity import Refused

if TYPE_CHECKING:
    from starlette.types import Message, Send

    from guildry.server.http.settings import HttpSetting

__all__ = ["LOOPBACK", "Names"]

LOOPBACK: Final = ("127.0.0.1", "localhost", "[::1]")
"""What this machine calls itself."""

_EVERYWHERE: Final = {"0.0.0.0", "[::]"}
_PORTS: Final = {"http": 80, "https": 443}
_MAX_AGE_S: Final = b"600"
_TAKES: Final = (
    b"accept, authorization, content-type, last-event-id, mcp-method, mcp-name,"
    b" mcp-protocol-version, mcp-session-id"
)
_EXPOSES: Final = b"mcp-protocol-version, mcp-session-id, retry-after, www-authenticate"
_PARAM: Final = re.compile(rb"mcp-param-[!#$%&'*+.^_`|~0-9a-z-]+")


class Names:
    """Tell which hosts and origins requests may name.

    Args:
        setting: what was configured.
        host: what is listened on, as it stands in a URL.
        port: the port there.
    """

    def __init__(self, setting: "HttpSetting", host: str, port: int) -> None:
        self._is_open = bool(setting.public_url)
        names = {*LOOPBACK, *({host} - _EVERYWHERE)}
        hosts = {f"{name}:{port}" for name in names}
        if port in _PORTS.values():
            hosts |= names
        self._any_port = {each[:-2] for each in setting.allowed_hosts if each.endswith(":*")}
        for each in setting.allowed_hosts:
            hosts |= {each} if re.search(r":\d+$", each) else {each, f"{each}:{port}"}
        own = {f"{scheme}://{each}" for each in hosts for scheme in _PORTS}
        if setting.public_url:
            parts = urlsplit(setting.public_url)
            hosts |= {parts.netloc.lower(), f"{parts.hostname}:{_port(parts.scheme, parts.port)}"}
            own.add(f"{parts.scheme}://{parts.netloc.lower()}")
        self._takes_any = "*" in setting.allowed_hosts
        self._hosts = frozenset(each.lower().encode() for each in hosts)
        self._foreign = frozenset(each.encode() for each in setting.allowed_origins)
        self._own = frozenset(each.lower().encode() for each in own)

    def check(self, headers: Mapping[bytes, bytes], *, is_public: bool = False) -> None:
        """Refuse a request that names another host, or that another page sent.

        Raises:
            Refused: 421 for the host, 403 for the origin.
        """
        host = headers.get(b"host", b"")
        if host not in self._hosts and not self._takes(host):
            raise Refused(421, "", "The header `Host` names another server")
        origin = headers.get(b"origin")
        if origin is None or origin in self._foreign or origin in self._own:
            return
        if not (is_public and self._is_open):
            raise Refused(403, "", "The header `Origin` names a page that may not call")

    def _takes(self, host: bytes) -> bool:
        name, _, port = host.decode("latin-1").lower().rpartition(":")
        return (
            self._takes_any
            or host.lower() in self._hosts
            or (port.isdigit() and name in self._any_port)
        )

    def is_foreign(self, origin: bytes) -> bool:
        """Tell whether an origin that may call is another page's."""
        return origin not in self._own

    def telling(self, origin: bytes, send: "Send") -> "Send":
        """Return a `send` that lets the page read what is answered."""
        headers = [
            (b"access-control-allow-origin", origin if origin in self._foreign else b"*"),
            (b"access-control-expose-headers", _EXPOSES),
            (b"vary", b"origin"),
        ]

        async def told(event: "Message") -> None:
            if event["type"] == "http.response.start":
                event = {**event, "headers": [*event.get("headers", ()), *headers]}
            await send(event)

        return told

    async def answer_preflight(self, headers: Mapping[bytes, bytes], send: "Send") -> None:
        """Answer a browser that asks which requests it may send."""
        await respond(
            send,
            204,
            b"",
            (b"access-control-allow-methods", b"DELETE, GET, POST"),
            (b"access-control-allow-headers", _taken(headers)),
            (b"access-control-max-age", _MAX_AGE_S),
        )


def _taken(headers: Mapping[bytes, bytes]) -> bytes:
    """Return the headers that a page may send: ours, and those that repeat an argument."""
    asked = headers.get(b"access-control-request-headers", b"").lower().split(b",")
    repeated: Iterable[bytes] = (name.strip() for name in asked)
    return b", ".join([_TAKES, *(name for name in repeated if _PARAM.fullmatch(name))])


def _port(scheme: str, port: int | None) -> int:
    return port or _PORTS[scheme]

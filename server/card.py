"""The server card (SEP-2127): what a client may know of this server before it connects.

It names no tools, prompts or resources: those depend on who asks.
"""

import re
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from mcp_types.version import KNOWN_PROTOCOL_VERSIONS

from guildry.server.instructions import DESCRIPTION

if TYPE_CHECKING:
    from guildry.server.surface import Surface

__all__ = ["namespace_of", "server_card"]

_SCHEMA: Final = "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json"
_OUTSIDE_NAME: Final = re.compile(r"[^a-zA-Z0-9.-]+")
_MAX_NAMESPACE: Final = 190


def server_card(surface: "Surface", url: str) -> dict[str, Any]:
    """Return the card of the server whose endpoint is at `url`."""
    info = surface.server.server_info.model_dump(by_alias=True, mode="json", exclude_none=True)
    remote = {
        "type": "streamable-http",
        "url": url,
        "supportedProtocolVersions": list(KNOWN_PROTOCOL_VERSIONS),
    }
    return {
        "$schema": _SCHEMA,
        "name": f"{namespace_of(url)}/{info['name']}",
        "version": info["version"],
        "title": info["title"],
        "description": DESCRIPTION,
        "icons": info["icons"],
        "remotes": [remote],
    }


def namespace_of(url: str) -> str:
    """Return the host of a URL with its parts in the order of a reverse domain name."""
    host = urlsplit(url).hostname or "localhost"
    try:
        if ip_address(host).is_loopback:
            host = "localhost"
    except ValueError:
        host = ".".join(reversed(host.split(".")))
    return _OUTSIDE_NAME.sub("-", host)[:_MAX_NAMESPACE].strip("-.") or "localhost"

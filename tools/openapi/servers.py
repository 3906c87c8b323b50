"""Where an API is served: base URLs of a document, fixed before any call. Sends nothing.

A document from the public network cannot name a server on this machine or in its network, unless
whoever plugs it gives that server's URL.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final
from urllib.parse import SplitResult, urljoin, urlsplit, urlunsplit

from guildry.tools.base import Json
from guildry.tools.openapi.document import Unfit
from guildry.tools.schema import as_list, as_object

__all__ = ["SERVER_URL", "Base", "base_of", "is_inner", "is_inner_address", "origin_of"]

SERVER_URL: Final = "SERVER_URL"
"""The variable among a plug's `env` that holds the base URL, in place of the document's."""

_VARIABLE: Final = re.compile(r"\{([^{}]{1,100})\}")
_VALUE: Final = re.compile(r"[A-Za-z0-9._~:/-]{0,300}")
_INNER_NAMES: Final = (".localhost", ".local", ".internal", ".home.arpa")


@dataclass(frozen=True, slots=True)
class Base:
    """A base URL, without a slash at its end.

    Args:
        url: as requests begin.
        fenced: its host must be on the public network, for nobody here has named it.
    """

    url: str
    fenced: bool = False


def base_of(levels: tuple[Json, ...], document_url: str | None, env: Mapping[str, str]) -> Base:
    """Return the base URL of an operation.

    Args:
        levels: `servers` of the operation, its path and the document, in this order.
        document_url: where the document came from; None for a file.
        env: values of server variables, and `SERVER_URL`.

    Raises:
        Unfit: there is none that may be used.
    """
    if given := env.get(SERVER_URL):
        return Base(_checked(given, f"`env.{SERVER_URL}`"))
    servers = next((found for each in levels if (found := as_list(each))), [{"url": "/"}])
    reasons: list[str] = []
    for server in servers[:20]:
        try:
            return _base(as_object(server) or {}, document_url, env)
        except Unfit as error:
            reasons.append(str(error))
    raise Unfit(reasons[0])


def _base(server: Mapping[str, Json], document_url: str | None, env: Mapping[str, str]) -> Base:
    variables = as_object(server.get("variables")) or {}

    def value(match: re.Match[str]) -> str:
        said = as_object(variables.get(match[1])) or {}
        found = env.get(match[1], str(said.get("default", "")))
        allowed = [str(each) for each in as_list(said.get("enum"))]
        if not _VALUE.fullmatch(found) or (allowed and found not in allowed):
            raise Unfit(f"`{found!r:.60}` is no value for the server variable `{match[1]}`")
        return found

    url = _VARIABLE.sub(value, str(server.get("url", "")).strip())
    if document_url is not None:
        url = urljoin(document_url, url)
    elif not re.match(r"[a-z][a-z0-9+.-]*:", url, re.IGNORECASE):
        raise Unfit(f"the document names no server: give its URL as `env.{SERVER_URL}`")
    url = _checked(url, "the server of the document")
    is_public = document_url is not None and not is_inner(urlsplit(document_url).hostname or "")
    if is_public and is_inner(urlsplit(url).hostname or ""):
        raise Unfit(
            f"the document comes from {origin_of(document_url or '')} and names {url[:200]}, which"
            f" is not on the public network: give the URL as `env.{SERVER_URL}` if that is meant"
        )
    return Base(url, fenced=is_public)


def _checked(url: str, what: str) -> str:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise Unfit(f"{what} is {url[:200]!r}, which is no URL ({error})") from None
    if parts.scheme.lower() not in ("http", "https") or not parts.hostname:
        raise Unfit(f"{what} is {url[:200]!r}: give a URL with http or https")
    if "@" in parts.netloc:
        raise Unfit(f"{what} holds a user or a password: give credentials as `headers` or `env`")
    if parts.query or parts.fragment or re.search(r"[\x00-\x20\x7f\\{}]", url):
        raise Unfit(f"{what} is {url[:200]!r}: give it without query, fragment, spaces and braces")
    return urlunsplit((parts.scheme.lower(), parts.netloc, parts.path.rstrip("/"), "", ""))


def origin_of(url: str) -> str:
    """Return scheme, host and port of a URL, by which two are compared."""
    parts: SplitResult = urlsplit(url)
    port = parts.port or {"http": 80, "https": 443}.get(parts.scheme.lower())
    return f"{parts.scheme.lower()}://{(parts.hostname or '').rstrip('.')}:{port}"


def is_inner(host: str) -> bool:
    """Tell whether a host, by its name alone, is this machine or in its network."""
    name = host.lower().rstrip(".")
    try:
        return is_inner_address(ip_address(name.partition("%")[0]))
    except ValueError:
        is_number = re.fullmatch(r"[0-9.]+|0x[0-9a-f.x]+", name)  # other spellings of addresses
        return name == "localhost" or name.endswith(_INNER_NAMES) or bool(is_number)


def is_inner_address(address: IPv4Address | IPv6Address) -> bool:
    """Tell whether an address is not on the public network."""
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return not (mapped or address).is_global

"""Requests over HTTP: within limits, repeated where that does no harm, never led to another host.

aiohttp is imported when the first request is made. Knows no document and no tool.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from ipaddress import ip_address
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urljoin, urlsplit

import anyio

from guildry import __version__
from guildry.tools.openapi.operations import Sent
from guildry.tools.openapi.servers import is_inner_address, origin_of

if TYPE_CHECKING:
    import aiohttp

__all__ = ["Answer", "HttpClient", "HttpFault"]

_ATTEMPTS: Final = 3
_FIRST_WAIT_S: Final = 0.3
_LONGEST_WAIT_S: Final = 30.0
_CONNECT_S: Final = 10.0
_REDIRECTS: Final = 5
_BUSY: Final = frozenset({429, 502, 503, 504})
_LEADING: Final = frozenset({301, 302, 303, 307, 308})
_CHUNK: Final = 65_536


class HttpFault(Exception):
    """Report a request that got no answer, in words for whoever made it."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. Names of headers are in small letters."""

    status: int
    reason: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def media_type(self) -> str:
        """What the body is, without parameters; empty where it is not said."""
        return self.headers.get("content-type", "").partition(";")[0].strip().lower()


class _Repeat(Exception):
    """An attempt failed in a way that another may not."""

    def __init__(self, reason: str, after_s: float | None, answer: Answer | None = None) -> None:
        super().__init__(reason)
        self.after_s = after_s
        self.answer = answer


class HttpClient:
    """Send requests over one pool of connections.

    Args:
        silence_s: the longest wait for an answer to begin or go on.
        max_bytes: the longest body of an answer.
        at_once: requests in flight at a time; None sets no limit.
    """

    def __init__(self, *, silence_s: float, max_bytes: int, at_once: int | None = None) -> None:
        self._silence_s = silence_s
        self._max_bytes = max_bytes
        self._turns = None if at_once is None else anyio.CapacityLimiter(at_once)
        self._sessions: dict[bool, aiohttp.ClientSession] = {}

    async def send(self, sent: Sent, *, repeatable: bool, fenced: bool = False) -> Answer:
        """Send a request and return the answer, whatever its status.

        Args:
            sent: the request.
            repeatable: it may be sent again where it may have arrived already.
            fenced: its host must be on the public network.

        Raises:
            HttpFault: there is no answer, or one that is too long or leads to another host.
        """
        if self._turns is None:
            return await self._sent(sent, repeatable, fenced)
        async with self._turns:
            return await self._sent(sent, repeatable, fenced)

    async def close(self) -> None:
        """Close the connections."""
        while self._sessions:
            await self._sessions.popitem()[1].close()

    async def _sent(self, sent: Sent, repeatable: bool, fenced: bool) -> Answer:
        attempt = 1
        while True:
            try:
                return await self._followed(sent, fenced)
            except _Repeat as fault:
                wait_s = _FIRST_WAIT_S * 2.0**attempt * (0.5 + random.random() / 2)
                wait_s = wait_s if fault.after_s is None else fault.after_s
                if not repeatable or attempt >= _ATTEMPTS or wait_s > _LONGEST_WAIT_S:
                    if fault.answer is not None:
                        return fault.answer
                    raise HttpFault(str(fault)) from None
            attempt += 1
            await anyio.sleep(wait_s)

    async def _followed(self, sent: Sent, fenced: bool) -> Answer:
        """Send a request, and follow where the same host leads it."""
        for _ in range(_REDIRECTS):
            answer = await self._answered(sent, fenced)
            where = answer.headers.get("location")
            if answer.status not in _LEADING or where is None:
                return answer
            target = urljoin(sent.url, where)
            if not _is_same_host(sent.url, target):
                raise HttpFault(
                    f"it leads to another host, {urlsplit(target).netloc[:200]!r}, which is not"
                    " followed: plug that one if it is meant"
                )
            if answer.status in (307, 308) or sent.method in ("GET", "HEAD"):
                sent = replace(sent, url=target)
            elif answer.status == 303:
                sent = replace(sent, url=target, method="GET", body=None)
            else:
                return answer
        raise HttpFault(f"it leads on more than {_REDIRECTS} times")

    async def _answered(self, sent: Sent, fenced: bool) -> Answer:
        import aiohttp
        from yarl import URL

        session = self._session(fenced)
        try:
            url = URL(sent.url, encoded=True)
            async with session.request(
                sent.method, url, headers=sent.headers, data=sent.body, allow_redirects=False
            ) as response:
                body = await self._body(response)
                headers = {name.lower(): value for name, value in response.headers.items()}
                answer = Answer(response.status, response.reason or "", headers, body)
        except TimeoutError:
            raise _Repeat(f"it was silent for {self._silence_s:g} s", None) from None
        except aiohttp.ClientConnectorDNSError as error:
            raise HttpFault(f"its host cannot be found ({error.os_error})") from None
        except (aiohttp.InvalidURL, ValueError) as error:
            raise HttpFault(f"the request cannot be written ({error})") from None
        except (aiohttp.ClientError, OSError) as error:
            raise _Repeat(f"{str(error) or type(error).__name__}", None) from None
        if answer.status in _BUSY:
            after_s = _retry_after(answer.headers.get("retry-after"))
            raise _Repeat(f"it answered {answer.status}", after_s, answer)
        return answer

    async def _body(self, response: "aiohttp.ClientResponse") -> bytes:
        body = bytearray()
        async for chunk in response.content.iter_chunked(_CHUNK):
            body += chunk
            if len(body) > self._max_bytes:
                raise HttpFault(
                    f"its answer is over {self._max_bytes:,} bytes: ask for less, such as a page"
                )
        return bytes(body)

    def _session(self, fenced: bool) -> "aiohttp.ClientSession":
        import aiohttp

        session = self._sessions.get(fenced)
        if session is None:
            resolver: Any = _resolver() if fenced else None
            session = self._sessions[fenced] = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0, resolver=resolver),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers={"User-Agent": f"Guildry/{__version__}"},
                skip_auto_headers=("Content-Type",),
                timeout=aiohttp.ClientTimeout(
                    total=None, connect=_CONNECT_S, sock_read=self._silence_s
                ),
                trust_env=False,
            )
        return session


def _resolver() -> Any:
    """Return what finds the addresses of hosts, and refuses those that are not public."""
    import aiohttp

    class Public(aiohttp.ThreadedResolver):
        async def resolve(self, host: str, *more: Any, **named: Any) -> list[Any]:
            found = await super().resolve(host, *more, **named)
            for each in found:
                if is_inner_address(ip_address(each["host"].partition("%")[0])):
                    raise OSError(f"{host} is at {each['host']}, not on the public network")
            return found

    return Public()


def _is_same_host(url: str, target: str) -> bool:
    """Tell whether a redirect stays where it was, or goes to the same host over TLS."""
    try:
        before, after = urlsplit(url), urlsplit(target)
        if origin_of(url) == origin_of(target):
            return "@" not in after.netloc
        plain = (before.scheme, before.port or 80) == ("http", 80)
        secured = (after.scheme, after.port or 443) == ("https", 443)
    except ValueError:
        return False
    return plain and secured and before.hostname == after.hostname and "@" not in after.netloc


def _retry_after(value: str | None) -> float | None:
    """Return the seconds that a `Retry-After` header asks for: a number or a date (RFC 9110)."""
    text = (value or "").strip()
    if text.isascii() and text.isdigit():
        return float(text[:9])
    try:
        at = parsedate_to_datetime(text)
    except (ValueError, TypeError):
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())

"""ChatModel: any endpoint that speaks OpenAI-style chat completions. Knows HTTP, not the wire.

aiohttp is imported when the first request is made.
"""

import random
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from io import BytesIO
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit, urlunsplit

import anyio
import structlog

from guildry.errors import ConfigError, ModelRejected, ModelReplyError, ModelUnavailable
from guildry.teams.chat_wire import EndpointError, StreamReader, encode_request, read_completion
from guildry.teams.model import Completion, Request

if TYPE_CHECKING:
    import aiohttp

__all__ = ["ChatModel"]

log = structlog.get_logger()

_PATH: Final = "/chat/completions"
_DIRECT_BYTES: Final = 1_000_000
_MAX_EXCERPT: Final = 300
_DRAIN_S: Final = 1.0
_CURES: Final = {
    401: "Check the API key",
    403: "Check the API key and what it may use",
    404: "Check the URL and the name of the model",
    405: "Check the URL",
    413: "Send less: pass large values by reference",
}


class _Retry(Exception):
    """An attempt failed in a way that another may not."""

    def __init__(self, reason: str, after_s: float | None = None) -> None:
        super().__init__(reason)
        self.after_s = after_s


@dataclass(frozen=True, slots=True)
class _Waits:
    """How long to wait before another attempt."""

    first_s: float
    longest_s: float
    jitter: Callable[[], float]

    def before(self, attempt: int, after_s: float | None) -> float:
        """Return the pause before `attempt` (from 1): doubled each time, with jitter."""
        pause = min(self.longest_s, self.first_s * 2.0 ** (attempt - 1))
        return max(pause * (0.5 + self.jitter() / 2), after_s or 0.0)


class ChatModel:
    """Complete requests at an OpenAI-style endpoint. Safe to call from many tasks at once.

    All calls share one pool of kept-alive connections. A request is streamed only where somebody
    listens; after a lost connection the text streams again from its beginning.

    Args:
        url: of the server, with or without `/v1` or the whole `/v1/chat/completions`.
        model: what the endpoint calls the model.
        api_key: sent as a bearer token; never shown in an error or a log.
        context_tokens: how many tokens it may be sent at once.
        timeout_s: longest silence: before the first byte of a reply and between its parts.
        connect_timeout_s: longest wait for a connection.
        retries: further attempts after 429, 5xx, connection loss and time-out.
        headers: sent with each request.
        extra: further members of each request body, such as SGLang's own.
        first_wait_s: pause before the second attempt; doubled before each further one.
        longest_wait_s: longest pause; an endpoint that asks for more is given up.
        max_reply_bytes: longest answer that is read.
        jitter: a number from 0 to 1 for each pause: half of a pause is fixed, half is multiplied.
        sleep: waits a number of seconds.

    Raises:
        ConfigError: `url` is not an HTTP URL.
    """

    def __init__(
        self,
        url: str,
        model: str,
        *,
        api_key: str | None = None,
        context_tokens: int = 32_000,
        timeout_s: float = 120.0,
        connect_timeout_s: float = 10.0,
        retries: int = 4,
        headers: Mapping[str, str] | None = None,
        extra: Mapping[str, Any] | None = None,
        first_wait_s: float = 0.5,
        longest_wait_s: float = 60.0,
        max_reply_bytes: int = 64 * 1024 * 1024,
        jitter: Callable[[], float] = random.random,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self._url = _endpoint(url)
        self._shown = _shown(self._url)
        self._model = model
        self._context_tokens = context_tokens
        self._api_key = api_key
        self._timeout_s = timeout_s
        self._connect_timeout_s = connect_timeout_s
        self._retries = retries
        self._headers = {"Content-Type": "application/json", **(headers or {})}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        self._extra = _members(extra or {})
        self._waits = _Waits(first_wait_s, longest_wait_s, jitter)
        self._max_reply_bytes = max_reply_bytes
        self._sleep = sleep
        self._session: aiohttp.ClientSession | None = None

    @property
    def name(self) -> str:
        """What the journal calls this model: the endpoint's own name for it."""
        return self._model

    @property
    def context_tokens(self) -> int:
        """How many tokens it may be sent at once."""
        return self._context_tokens

    def __repr__(self) -> str:
        return f"ChatModel({self._shown!r}, {self._model!r})"

    async def complete(
        self, request: Request, *, on_text: Callable[[str], None] | None = None
    ) -> Completion:
        """Return the model's reply.

        Raises:
            ModelUnavailable: connection loss, time-out, 429 or 5xx after every retry.
            ModelRejected: any other 4xx.
            ModelReplyError: the endpoint's answer is not a chat completion.
        """
        stream = on_text is not None
        body = encode_request(self._model, request, stream=stream, extra=self._extra)
        attempt = 0
        while True:
            try:
                return await self._attempt(body, request, on_text)
            except ModelReplyError as error:
                raise ModelReplyError(self._told(str(error))) from None
            except _Retry as failure:
                attempt += 1
                pause = self._waits.before(attempt, failure.after_s)
                if attempt > self._retries or pause > self._waits.longest_s:
                    raise self._given_up(failure, attempt) from failure.__cause__
                reason = self._told(str(failure))
                log.info("model_call_retried", attempt=attempt, pause_s=pause, reason=reason)
            await self._sleep(pause)

    async def aclose(self) -> None:
        """Close every connection."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    async def _attempt(
        self, body: bytes, request: Request, on_text: Callable[[str], None] | None
    ) -> Completion:
        import aiohttp

        session = self._open()
        # aiohttp warns of a large body in one piece, which would hold up the loop
        data = body if len(body) < _DIRECT_BYTES else BytesIO(body)
        try:
            async with session.post(self._url, data=data, allow_redirects=False) as response:
                if response.status != 200:
                    raise await self._refusal(response)
                if response.content_type == "text/event-stream":
                    return await self._stream(response, request, on_text)
                reply = self._read(await self._whole(response), request)
        except EndpointError as error:
            raise self._failure(error.status, str(error), None) from None
        except TimeoutError as error:
            what = (
                "no connection" if isinstance(error, aiohttp.ConnectionTimeoutError) else "silence"
            )
            limit = self._connect_timeout_s if what == "no connection" else self._timeout_s
            raise _Retry(f"{what} for {limit:g} s") from error
        except (aiohttp.ClientError, OSError) as error:
            raise _Retry(str(error) or type(error).__name__) from error
        if on_text is not None and reply.text:
            on_text(reply.text)
        return reply

    def _read(self, body: bytes, request: Request) -> Completion:
        try:
            return read_completion(body, request)
        except ModelReplyError:  # it shows the beginning of the body: the key leaves before the cut
            key = (self._api_key or "").encode()
            if not key or key not in body:
                raise
            return read_completion(body.replace(key, b"***"), request)

    async def _stream(
        self,
        response: "aiohttp.ClientResponse",
        request: Request,
        on_text: Callable[[str], None] | None,
    ) -> Completion:
        import aiohttp

        reader = StreamReader()

        def tell(text: str) -> None:
            if text and on_text is not None:
                on_text(text)

        size = 0
        try:
            async for chunk in response.content.iter_any():
                size += len(chunk)
                self._bound(size)
                tell(reader.feed(chunk))
                if reader.done:
                    break
            with anyio.move_on_after(_DRAIN_S):  # a connection that was read to its end is kept
                await response.content.readany()
        except (aiohttp.ClientError, OSError):  # OSError: a time-out as well
            if not reader.ended:
                raise
        tell(reader.close())
        if not reader.ended:
            raise _Retry("the stream ended before the reply did")
        return reader.completion(request)

    async def _whole(self, response: "aiohttp.ClientResponse") -> bytes:
        if response.content_length is not None:
            self._bound(response.content_length)
            return await response.read()
        body = bytearray()
        async for chunk in response.content.iter_any():
            body += chunk
            self._bound(len(body))
        return bytes(body)

    def _bound(self, size: int) -> None:
        if size > self._max_reply_bytes:
            raise ModelReplyError(f"its answer is over {self._max_reply_bytes:,} bytes")

    async def _refusal(self, response: "aiohttp.ClientResponse") -> Exception:
        text = (await response.content.read(4 * _MAX_EXCERPT)).decode("utf-8", "replace")
        after_s = _retry_after(response.headers.get("Retry-After"))
        return self._failure(response.status, text, after_s)

    def _failure(self, status: int, text: str, after_s: float | None) -> Exception:
        excerpt = " ".join(self._without_key(text).split())[:_MAX_EXCERPT]
        if status == 429 or status >= 500:
            return _Retry(f"it answered {status}: {excerpt}", after_s)
        if status < 400:
            return ModelRejected(
                self._told(f"it answered {status}: give the URL that it leads to"), status
            )
        cure = _CURES.get(status, "The request itself is wrong, so it was not repeated")
        return ModelRejected(self._told(f"it answered {status}: {excerpt}. {cure}"), status)

    def _given_up(self, failure: _Retry, attempts: int) -> ModelUnavailable:
        times = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        asked = failure.after_s or 0.0
        if asked > self._waits.longest_s:
            cure = f"It asks to wait {asked:g} s: try again then"
        else:
            cure = "Check that the server runs and that the URL is right, or raise `timeout_s`"
        return ModelUnavailable(self._told(f"no reply after {times}: {failure}. {cure}"))

    def _told(self, text: str) -> str:
        """Return an error's text, with the endpoint and without the key."""
        return f"model `{self._model}` at `{self._shown}`: {self._without_key(text)}"

    def _without_key(self, text: str) -> str:
        return text.replace(self._api_key, "***") if self._api_key else text

    def _open(self) -> "aiohttp.ClientSession":
        import aiohttp

        if self._session is None or self._session.closed:
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60.0),
                cookie_jar=aiohttp.DummyCookieJar(),
                headers=self._headers,
                timeout=aiohttp.ClientTimeout(
                    total=None, connect=self._connect_timeout_s, sock_read=self._timeout_s
                ),
            )
        return self._session


def _endpoint(url: str) -> str:
    """Return the URL of chat completions for whatever part of it was given."""
    parts = urlsplit(url.strip())
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"{_shown(url)!r} is not the URL of a model: give one such as `http://localhost:30000/v1`"
        )
    path = parts.path.rstrip("/")
    if not path.endswith(_PATH):
        path = (path or "/v1") + _PATH
    return urlunsplit((parts.scheme, parts.netloc, path, parts.query, ""))


def _shown(url: str) -> str:
    """Return `url` without what may be secret: its user, its password and its query."""
    parts = urlsplit(url)
    return urlunsplit((parts.scheme, parts.netloc.rpartition("@")[2], parts.path, "", ""))


def _members(extra: Mapping[str, Any]) -> bytes:
    import json

    return json.dumps(dict(extra)).encode()[1:-1] + b"," if extra else b""


def _retry_after(value: str | None) -> float | None:
    """Return the seconds that a `Retry-After` header asks for: a number or a date (RFC 9110)."""
    if value is None:
        return None
    text = value.strip()
    if text.replace(".", "", 1).isdigit():
        return float(text)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return max(0.0, (at - datetime.now(UTC)).total_seconds())

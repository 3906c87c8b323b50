"""The streams that an MCP client reads and writes, over the lines of a process or around others.

They note what was seen, take broken definitions out of listings on their way, and say with each
request what the caller behind it can be asked.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Self

import anyio
import structlog

from guildry.tools.mcp.errands import current_errand
from guildry.tools.mcp.pace import Pace
from guildry.tools.mcp.wire import LISTS, sift_listing

if TYPE_CHECKING:
    from types import TracebackType

    from mcp.shared.message import SessionMessage

    from guildry.tools.plugs.plug import Quarantined
    from guildry.tools.process import ServerProcess

__all__ = ["LineReader", "LineWriter", "Seen", "SiftedReader", "StampedWriter"]

log = structlog.get_logger()

_GARBAGE_LINES: Final = 1000
_LOGGED_GARBAGE: Final = 5
_SHOWN_BYTES: Final = 80
_ASKING: Final = frozenset({"tools/call", "prompts/get", "resources/read"})


class Seen:
    """What has come over one connection."""

    def __init__(self) -> None:
        self.messages = 0
        self.garbage = 0
        self.requested = 0
        self.answered = 0
        self.sample = ""
        self.ended = False
        self.version: str | None = None
        self.listed: list[str] = []
        self.left_out: list[Quarantined] = []

    def sift(self, item: "SessionMessage | Exception") -> "SessionMessage | Exception":
        """Count a message; of a listing, take out what is not fit for it."""
        from mcp_types import JSONRPCResponse

        self.messages += 1
        message = None if isinstance(item, Exception) else item.message
        if self.version is None or not isinstance(message, JSONRPCResponse):
            return item
        result = message.result
        for key in LISTS:
            if isinstance(result.get(key), list) and "content" not in result:
                sifted, left_out = sift_listing(result, key, self.version)
                if key == "tools":
                    self.listed += [definition["name"] for definition in sifted["tools"]]
                self.left_out += left_out
                message.result = sifted
        return item

    def is_unasked(self, item: "SessionMessage | Exception") -> bool:
        """Tell whether a message answers none of our requests. Counts those that do."""
        from mcp_types import JSONRPCError, JSONRPCResponse

        if isinstance(item, Exception):
            return True
        if isinstance(item.message, JSONRPCResponse | JSONRPCError):
            self.answered += 1
            return self.answered > self.requested
        return True

    def litter(self, plug: str, line: bytes) -> None:
        """Note a line of stdout that is no message.

        Raises:
            anyio.EndOfStream: nothing else has come for a thousand lines.
        """
        self.garbage += 1
        self.sample = self.sample or line[:_SHOWN_BYTES].decode(errors="replace").strip()
        if self.garbage <= _LOGGED_GARBAGE:
            log.warning(
                "stdout_garbage", plug=plug, line=line[:_SHOWN_BYTES].decode("utf-8", "replace")
            )
        if self.garbage >= _GARBAGE_LINES and not self.messages:
            raise anyio.EndOfStream


class _Stream:
    """What a stream is besides its messages."""

    async def aclose(self) -> None:
        """Leave closing to whoever opened what lies below."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: "type[BaseException] | None",
        exc_val: BaseException | None,
        exc_tb: "TracebackType | None",
    ) -> bool | None:
        await self.aclose()
        return None


class _Reader(_Stream):
    """A stream of messages that calls `ended` once there are no more, with the reason if known."""

    def __init__(self, plug: str, seen: Seen, ended: Callable[[str | None], None]) -> None:
        self._plug = plug
        self._seen = seen
        self._ended = ended
        self._pace = Pace(plug)
        self._size_bytes = 0

    async def receive(self) -> "SessionMessage | Exception":
        """Return the next message.

        Raises:
            anyio.EndOfStream: there are no more.
        """
        try:
            item = await self._next()
            unasked = self._seen.is_unasked(item)
            await self._pace.heard(unasked=unasked, size_bytes=self._size_bytes)
            return self._seen.sift(item)
        except anyio.EndOfStream:
            self._seen.ended = True
            self._ended(self._why())
            raise

    async def _next(self) -> "SessionMessage | Exception":
        raise NotImplementedError

    def _why(self) -> str | None:
        """Return why there are no more messages, where that is known."""
        return None

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> "SessionMessage | Exception":
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None


class LineReader(_Reader):
    """Read messages from the stdout of a process, one a line, with no task between."""

    def __init__(
        self, plug: str, process: "ServerProcess", seen: Seen, ended: Callable[[str | None], None]
    ) -> None:
        super().__init__(plug, seen, ended)
        self._process = process

    async def _next(self) -> "SessionMessage | Exception":
        from mcp.shared.message import SessionMessage
        from mcp_types import jsonrpc_message_adapter

        while True:
            line = await self._process.receive()
            self._size_bytes = len(line)
            if not line.strip():
                continue
            try:
                return SessionMessage(jsonrpc_message_adapter.validate_json(line, by_name=False))
            except ValueError:
                self._seen.litter(self._plug, line)
                await self._pace.heard(unasked=True, size_bytes=len(line))

    def _why(self) -> str | None:
        return self._process.fault


class LineWriter(_Stream):
    """Write messages to the stdin of a process, one a line."""

    def __init__(self, process: "ServerProcess", seen: Seen) -> None:
        self._process = process
        self._seen = seen

    async def send(self, item: "SessionMessage", /) -> None:
        """Write one message.

        Raises:
            anyio.BrokenResourceError: the process reads no more.
        """
        _stamp(item, self._seen)
        text = item.message.model_dump_json(by_alias=True, exclude_unset=True)
        await self._process.send(text.encode() + b"\n")


def _stamp(item: "SessionMessage", seen: Seen) -> None:
    """Count a request; with one of the modern era, declare what its caller can be asked."""
    from mcp_types import CLIENT_CAPABILITIES_META_KEY, JSONRPCRequest

    message, errand = item.message, current_errand()
    seen.requested += isinstance(message, JSONRPCRequest)
    if errand is None or not isinstance(message, JSONRPCRequest) or message.method not in _ASKING:
        return
    meta: dict[str, Any] = (message.params or {}).get("_meta", {})
    if CLIENT_CAPABILITIES_META_KEY in meta:
        meta[CLIENT_CAPABILITIES_META_KEY] = errand.capabilities()


class StampedWriter(_Stream):
    """Write messages to another stream of them."""

    def __init__(self, inner: Any, seen: Seen) -> None:
        self._inner = inner
        self._seen = seen

    async def send(self, item: "SessionMessage", /) -> None:
        """Write one message.

        Raises:
            anyio.BrokenResourceError: nobody reads it any more.
        """
        _stamp(item, self._seen)
        await self._inner.send(item)

    async def aclose(self) -> None:
        """Close the stream below."""
        await self._inner.aclose()


class SiftedReader(_Reader):
    """Read messages from another stream of them."""

    def __init__(
        self, plug: str, inner: Any, seen: Seen, ended: Callable[[str | None], None]
    ) -> None:
        super().__init__(plug, seen, ended)
        self._inner = inner

    @property
    def last_context(self) -> Any:
        """The context in which the newest message was sent, where the stream below has one."""
        return getattr(self._inner, "last_context", None)

    async def _next(self) -> "SessionMessage | Exception":
        item: SessionMessage | Exception = await self._inner.receive()
        return item

    async def aclose(self) -> None:
        """Close the stream below."""
        await self._inner.aclose()

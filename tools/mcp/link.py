"""One life of a connection to an MCP server: what it saw, and how it ended. Starts nothing."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final, cast

import anyio

from guildry.errors import GuildryError
from guildry.tools.mcp.manifest import Endpoint
from guildry.tools.mcp.streams import Seen
from guildry.tools.redaction import HIDDEN

if TYPE_CHECKING:
    from mcp.client import Client

    from guildry.tools.process import ServerProcess

__all__ = ["Link", "leaf", "post_mortem", "reason_of", "unfit"]

_SAID_CHARACTERS: Final = 300


class Link:
    """One life of a connection, from its start to its end."""

    def __init__(self) -> None:
        self.seen = Seen()
        self._client: Client | None = None
        self.process: ServerProcess | None = None
        self.calls = 0
        self.used_at = anyio.current_time()
        self.started = False
        self.is_probed = False
        self.is_resting = False
        self.reason: str | None = None
        self.end = anyio.Event()
        self.over = anyio.Event()

    @property
    def is_live(self) -> bool:
        """Whether requests can be sent over it."""
        return self.started and not self.end.is_set()

    def finish(self, reason: str | None = None) -> None:
        """End the connection; the first reason given is kept."""
        self.reason = self.reason or reason
        self.end.set()

    def rest(self) -> None:
        """End it because nobody needs it now."""
        self.is_resting = True
        self.end.set()

    @contextmanager
    def used(self) -> Generator[None]:
        """Count a request, so that the server is not stopped under it."""
        self.calls += 1
        try:
            yield
        finally:
            self.calls -= 1
            self.used_at = anyio.current_time()

    @property
    def client(self) -> "Client":
        """The client of a connection that has started."""
        assert self._client is not None
        return self._client

    def start(self, client: "Client") -> None:
        """Take the client of a connection that is ready."""
        self._client, self.started = client, True
        self.seen.version = client.protocol_version
        self.used_at = anyio.current_time()


def leaf(error: BaseException) -> BaseException:
    """Return the first error in a group of groups of them."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def reason_of(error: Exception, endpoint: Endpoint) -> str:
    """Say why a connection could not be made or kept."""
    first, command = leaf(error), endpoint.command
    if isinstance(first, GuildryError):
        return str(first)
    if isinstance(first, FileNotFoundError) and command:
        return f"`{command[0]}` is no command that can be found"
    if isinstance(first, OSError) and command:
        return f"it cannot be started ({first.strerror or first})"
    return f"the connection failed ({type(first).__name__}: {first})"


def post_mortem(link: Link, endpoint: Endpoint) -> tuple[str, str]:
    """Say how a connection ended, and what to do about it. Tells no secret that is known."""
    reason, cure = _told(link, endpoint)
    return HIDDEN.clean(reason), cure


def _told(link: Link, endpoint: Endpoint) -> tuple[str, str]:
    process, seen = link.process, link.seen
    reason = link.reason
    if reason is None and process is not None and process.returncode is not None:
        code = process.returncode
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        reason = f"the server {how}"
    reason = reason or "the connection was lost"
    if process is not None and process.last_words:
        reason += f"; its last words: {process.last_words[-1]!r}"
    if endpoint.url is not None:
        return reason, "Check that the server runs and that the path is right (often `/mcp`)"
    if seen.garbage and not seen.messages:
        reason += f"; it writes what is no MCP to stdout: {seen.sample!r}"
        return reason, "A stdio server may write only messages to stdout: send its logs to stderr"
    if process is None:
        return reason, "Install it, or name the program that runs it: `node server.js`"
    if process.notes:
        return reason, "; ".join(process.notes)
    return reason, "Run the command in a terminal to see why, then plug it again"


def unfit(error: Exception) -> str:
    """Say what is wrong with an answer, in the words of the first complaint about it."""
    from pydantic import ValidationError

    first = leaf(error)
    if not isinstance(first, ValidationError):
        return next(iter(str(first).splitlines()), type(first).__name__)[:_SAID_CHARACTERS]
    complaint = first.errors(include_url=False, include_input=False, include_context=False)[0]
    where = ".".join(str(each) for each in complaint["loc"])
    return f"`{where}`: {complaint['msg']}" if where else complaint["msg"]

"""Channels to clients that wait for a call: how they are asked, and how they are told.

`SessionChannel` is that of the handshake era, where a server sends requests of its own.
"""

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast, get_args

import anyio
import structlog
from mcp_types import (
    LOG_LEVEL_META_KEY,
    LoggingLevel,
    LoggingMessageNotification,
    LoggingMessageNotificationParams,
    server_request_adapter,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import BaseModel, ConfigDict, ValidationError

from guildry.server.announce import connection_of
from guildry.server.asking.inputs import UnfitAnswer, answer_of, client_takes, request_of
from guildry.server.methods.logging import LEVEL_STATE
from guildry.tools.asking.questions import Answer, Channel, Question, QuestionKind
from guildry.tools.base import Json, Log
from guildry.tools.redaction import HIDDEN

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext

__all__ = ["ClientLog", "Contact", "Send", "SessionChannel", "log_of"]

log = structlog.get_logger()

Send = Callable[[float, float | None, str | None], Awaitable[None]]
"""Send a word of progress: done, total, message."""

_ATTEMPTS: Final = 3
_LEVELS: Final[tuple[str, ...]] = get_args(LoggingLevel)


@dataclass(frozen=True, slots=True)
class Contact:
    """The client that waits for a piece of work.

    Args:
        channel: asks it, or None where it can be asked nothing.
        progress: tells it how far the work has come, if it wants to know.
        log: sends it log messages, or None where it wants none.
    """

    channel: Channel | None
    progress: Send
    log: Log | None = None


class ClientLog:
    """Send log messages with the answer to one request. Satisfies `guildry.tools.base.Log`."""

    def __init__(self, context: "ServerRequestContext[Any, Any]", level: str) -> None:
        self._session = context.session
        self._request = context.request_id
        self._level = level

    @property
    def level(self) -> str:
        """The least level that the client wants."""
        return self._level

    async def __call__(self, level: str, data: Json, logger: str | None = None) -> None:
        """Send a message, unless its level is none that the client wants."""
        if level not in _LEVELS[_LEVELS.index(self._level) :]:
            return
        params = LoggingMessageNotificationParams(
            level=cast("LoggingLevel", level), data=HIDDEN.value(data), logger=logger
        )
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            message = LoggingMessageNotification(params=params)
            await self._session.send_notification(message, self._request)


def log_of(context: "ServerRequestContext[Any, Any]") -> ClientLog | None:
    """Return where log messages go, or None for a client that has not asked for any."""
    if context.protocol_version in MODERN_PROTOCOL_VERSIONS:
        meta: Mapping[str, Any] = context.meta or {}
        level = meta.get(LOG_LEVEL_META_KEY)
    else:
        level = connection_of(context).state.get(LEVEL_STATE)
    return ClientLog(context, level) if level in _LEVELS else None


class _Raw(BaseModel):
    """A result as it came, which `answer_of` judges."""

    model_config = ConfigDict(extra="allow")


class SessionChannel:
    """Ask a client of the handshake era by requests on its session. Satisfies `Channel`.

    Args:
        context: the request that the client waits for.
        limit_s: seconds that one question may take.
    """

    def __init__(self, context: "ServerRequestContext[Any, Any]", *, limit_s: float) -> None:
        self._session = context.session
        self._capabilities = context.session.client_capabilities
        self._kinds = client_takes(self._capabilities)
        self._request = context.request_id
        self._limit_s = limit_s

    def takes(self, kind: QuestionKind) -> bool:
        """Tell whether the client declared that kind of question, and can be reached."""
        return kind in self._kinds and self._session.can_send_request

    async def ask(self, question: Question) -> Answer:
        """Put the question. What does not answer it is put again, a few times."""
        fault = ""
        with anyio.move_on_after(self._limit_s):
            for _ in range(_ATTEMPTS):
                try:
                    return await self._put(question, fault)
                except UnfitAnswer as error:
                    fault = str(error)
            log.info("answer_unfit", kind=question.kind, key=question.key, fault=fault)
            return Answer("cancel", by="nobody")
        return Answer("cancel", by="deadline")

    async def _put(self, question: Question, fault: str) -> Answer:
        from mcp.shared.exceptions import MCPError
        from mcp.shared.message import ServerMessageMetadata

        request = request_of(question, self._capabilities, fault)
        if request is None:
            return Answer("cancel", by="nobody")
        if question.kind == "url":
            request["params"].setdefault("elicitationId", question.id or question.key)
        try:
            typed = server_request_adapter.validate_python(request, by_name=False)
        except ValidationError:
            log.warning("question_malformed", kind=question.kind, plug=question.plug)
            return Answer("cancel", by="nobody")
        try:
            result = await self._session.send_request(
                typed, _Raw, metadata=ServerMessageMetadata(related_request_id=self._request)
            )
        except ValidationError:
            raise UnfitAnswer("The last answer was not usable.") from None
        except MCPError as error:  # the client refuses, cannot, or is gone
            log.info("question_refused", kind=question.kind, code=error.code)
            is_own = question.kind in ("sampling", "roots")  # nobody else can answer these
            return Answer("decline", by="client") if is_own else Answer("cancel", by="nobody")
        return answer_of(question, result.model_dump(mode="json"), "")

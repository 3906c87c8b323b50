"""What every handler answers with: whole results, and errors that tell no secrets."""

from collections.abc import Awaitable
from typing import Any, TypeVar

import structlog
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS

from guildry.errors import ToolError, ToolRetry

__all__ = ["answered", "complete", "hidden", "refused", "safely"]

log = structlog.get_logger()

T = TypeVar("T")


def complete(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result with the word that it is one, which the SDK drops for older clients."""
    return {**result, "resultType": "complete"}


def refused(message: str, data: Any = None) -> MCPError:
    """Return what a client is told of a request that is wrong."""
    return MCPError(INVALID_PARAMS, message, data)


async def answered(work: Awaitable[T], data: Any = None) -> T:
    """Do `work`; what it raises for the caller is told in the protocol's words.

    Raises:
        MCPError: what the client is told, with `data`.
    """
    try:
        return await work
    except ToolRetry as error:
        raise refused(str(error), data) from error
    except ToolError as error:
        raise MCPError(INTERNAL_ERROR, str(error), data) from error
    except Exception as error:
        raise hidden(error, "request_crashed") from error


async def safely(work: Awaitable[T]) -> T:
    """Do `work`; what it raises and was meant for nobody is logged and hidden.

    Raises:
        MCPError: what the client is told.
    """
    try:
        return await work
    except Exception as error:
        raise hidden(error, "request_crashed") from error


def hidden(error: Exception, event: str, **about: object) -> MCPError:
    """Return what a client is told of an error that was meant for nobody: that there was one."""
    if isinstance(error, MCPError):
        return error
    log.exception(event, exc_info=error, **about)
    return MCPError(INTERNAL_ERROR, "Internal server error")

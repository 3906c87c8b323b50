"""What every handler answers with: whole results, and errors that tell no secrets."""

from collections.abc import Awaitable
from typing import Any, TypeVar

import structlog
from mcp.shared.exceptions import MCPError
from mcp_types import INTERNAL_ERROR

__all__ = ["complete", "hidden", "safely"]

log = structlog.get_logger()

T = TypeVar("T")


def complete(result: dict[str, Any]) -> dict[str, Any]:
    """Return a result with the word that it is one, which the SDK drops for older clients."""
    return {**result, "resultType": "complete"}


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

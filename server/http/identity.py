"""Whose a request is, and how one is refused. Knows neither tokens nor sockets."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from guildry.errors import GuildryError

__all__ = ["SCOPES", "Identity", "Refused", "challenge"]

SCOPES: Final = ("tools", "teams", "admin")
"""What a token may allow, from least to most."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Who calls.

    Args:
        principal: under whose name everything is kept.
        scopes: what the token allows: `tools`, `teams`, `admin`.
        expires_at: seconds since the epoch, or None.
    """

    principal: str
    scopes: tuple[str, ...]
    expires_at: float | None = None


class Refused(GuildryError):
    """Refuse a request, with the status and the words that tell its sender why.

    Args:
        status: of the HTTP response.
        code: the error as OAuth names it; empty where the request showed no token.
        about: what is wrong, and what to change. Holds nothing of what was sent.
        retry_after_s: when it may be better.
    """

    def __init__(self, status: int, code: str, about: str, retry_after_s: float = 0.0) -> None:
        super().__init__(about)
        self.status = status
        self.code = code
        self.about = about
        self.retry_after_s = retry_after_s


def challenge(refused: Refused, metadata_url: str, scopes: Iterable[str]) -> bytes:
    """Return the header `WWW-Authenticate` for a refusal (RFC 6750, RFC 9728)."""
    parts = [f'resource_metadata="{metadata_url}"']
    if refused.code:
        parts += [f'error="{refused.code}"', f'error_description="{refused.about}"']
    if refused.code in ("", "insufficient_scope"):
        parts.append(f'scope="{" ".join(scopes)}"')
    return f"Bearer {', '.join(parts)}".encode()

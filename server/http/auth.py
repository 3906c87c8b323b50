"""Authentication: whose a request is, by the bearer token that it shows. Knows headers, no sockets.

A token that was checked once is known by its digest until it ends, so that a call costs no more.
"""

import hashlib
import re
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Final

import anyio
import structlog

from guildry.server.http.identity import Identity, Refused
from guildry.server.http.limits import Buckets

if TYPE_CHECKING:
    from guildry.server.http.auth_jwt import JwtVerifier
    from guildry.server.http.auth_tokens import TokenFile
    from guildry.server.http.settings import HttpSetting

__all__ = ["Auth"]

log = structlog.get_logger()

_MAX_KNOWN: Final = 10_000
_BEARER: Final = re.compile(rb"(?i:bearer) +([A-Za-z0-9._~+/-]+=*) *")
_LOOK_EVERY_S: Final = 0.5
_FAILURES_PER_S: Final = 5.0
_FAILURES_AT_ONCE: Final = 50
_MAX_ADDRESSES: Final = 4_096


class Auth:
    """Tell whose a request is.

    Args:
        tokens: the tokens of a file.
        jwt: what checks signed tokens.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        tokens: "TokenFile | None",
        jwt: "JwtVerifier | None",
        *,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._tokens = tokens
        self._jwt = jwt
        self._clock = clock
        self._known: OrderedDict[bytes, Identity] = OrderedDict()
        self._failures = Buckets(_FAILURES_PER_S, _FAILURES_AT_ONCE, keep=_MAX_ADDRESSES)

    @classmethod
    async def open(cls, setting: "HttpSetting") -> "Auth":
        """Return what checks the tokens that are configured.

        Raises:
            ConfigError: the file of tokens, or that of keys, cannot be used.
        """
        return cls(await _open_tokens(setting), await _open_jwt(setting))

    def known(self, authorization: bytes) -> Identity | None:
        """Return whose a header is that was checked before, or None where it must be checked."""
        identity = self._known.get(hashlib.sha256(authorization).digest())
        if identity is None:
            return None
        ends = identity.expires_at
        return identity if ends is None or ends > self._clock() else None

    async def identify(
        self, authorizations: Sequence[bytes], *, query: bytes = b"", address: str = ""
    ) -> Identity:
        """Return whose a request is.

        Args:
            authorizations: the values of the header `Authorization`.
            query: the query string, which must hold no token.
            address: where it came from, to slow down whoever guesses.

        Raises:
            Refused: no token, one that does not hold, or one that allows nothing here.
        """
        if re.search(rb"(?:^|&)access_token=", query):
            raise Refused(400, "invalid_request", "Send the token in the header `Authorization`")
        if len(authorizations) > 1:
            raise Refused(400, "invalid_request", "Send one header `Authorization`")
        found = _BEARER.fullmatch(authorizations[0]) if authorizations else None
        if found is None:
            raise Refused(401, "", "Authentication required: send `Authorization: Bearer TOKEN`")
        identity = await self._checked(found[1].decode(), address)
        if not identity.scopes:
            raise Refused(403, "insufficient_scope", "The token allows nothing here")
        self._known[hashlib.sha256(authorizations[0]).digest()] = identity
        if len(self._known) > _MAX_KNOWN:
            self._known.popitem(last=False)
        return identity

    async def _checked(self, token: str, address: str) -> Identity:
        try:
            return await self._found(token, address)
        except Refused as refused:
            if refused.status == 401 and not self._failures.take(address):
                log.warning("token_refused", reason=refused.about, address=address)
            raise

    async def _found(self, token: str, address: str) -> Identity:
        found = None if self._tokens is None else self._tokens.find(token)
        if found is not None:
            if found.expires_at is not None and found.expires_at <= self._clock():
                raise Refused(401, "invalid_token", "The token has expired")
            return Identity(found.name, found.scopes, found.expires_at)
        if self._jwt is None or token.count(".") != 2:
            raise Refused(401, "invalid_token", "The token is not known here")
        wait_s = self._failures.wanting(address)
        if wait_s:  # checking a signature costs: who guesses has to wait
            raise Refused(429, "", "Too many tokens that do not hold: wait", wait_s)
        return await self._jwt.verify(token)

    def troubles(self) -> list[str]:
        """Return why tokens cannot be checked as they should be; nothing where all is well."""
        return [*(self._tokens.troubles() if self._tokens else ()), *self._keys_missing()]

    def _keys_missing(self) -> Iterable[str]:
        return () if self._jwt is None else self._jwt.troubles()

    async def run(self, ended: Callable[[str], None]) -> None:
        """Look for changed tokens and keys until cancelled; tell whose tokens ended."""
        while True:
            await self.look(ended)
            await anyio.sleep(_LOOK_EVERY_S)

    async def look(self, ended: Callable[[str], None]) -> None:
        """Look once: what changed counts from now on."""
        if self._tokens is not None:
            changed = await self._tokens.look()
            if changed is not None:
                self._known.clear()
                for name in sorted(changed):
                    ended(name)
        if self._jwt is not None and await self._jwt.look():
            self._known.clear()


async def _open_tokens(setting: "HttpSetting") -> "TokenFile | None":
    if setting.tokens is None:
        return None
    from guildry.server.http.auth_tokens import TokenFile

    return await TokenFile.open(setting.tokens)


async def _open_jwt(setting: "HttpSetting") -> "JwtVerifier | None":
    if setting.jwt.issuer is None:
        return None
    from guildry.server.http.auth_jwt import JwtVerifier

    return await JwtVerifier.open(setting)

"""Signed tokens (JWT, RFC 9068): whose they are and what they allow. Knows one issuer."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, Self, cast

from guildry.server.http.auth_keys import KeySet, KeysUnavailable
from guildry.server.http.identity import SCOPES, Identity, Refused

if TYPE_CHECKING:
    from guildry.server.http.settings import HttpSetting, JwtSetting

__all__ = ["JwtVerifier"]

_TYPES: Final = frozenset({"jwt", "at+jwt", "application/at+jwt"})
_MAX_BYTES: Final = 16 * 1024
_MAX_SUBJECT: Final = 255
_RETRY_S: Final = 15.0


class JwtVerifier:
    """Check signed tokens.

    Args:
        setting: what is taken.
        audiences: what a token may be meant for.
        keys: the issuer's.
    """

    def __init__(self, setting: "JwtSetting", audiences: tuple[str, ...], keys: KeySet) -> None:
        self._setting = setting
        self._audiences = list(audiences)
        self._keys = keys

    @classmethod
    async def open(cls, setting: "HttpSetting") -> Self:
        """Return what checks the tokens that are configured.

        Raises:
            ConfigError: the file of keys cannot be used.
        """
        keys = KeySet(str(setting.jwt.jwks), refresh_s=setting.jwt.refresh_s)
        await keys.open()
        return cls(setting.jwt, setting.audiences, keys)

    def troubles(self) -> list[str]:
        """Return why tokens cannot be checked as they should be."""
        return self._keys.troubles()

    async def look(self) -> bool:
        """Read the keys again if they are due; tell whether there are others now."""
        return await self._keys.look()

    async def verify(self, token: str) -> Identity:
        """Return whose a token is.

        Raises:
            Refused: it does not hold, or cannot be checked now.
        """
        import jwt

        if len(token) > _MAX_BYTES:
            raise _invalid("The token is too long")
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, RecursionError):
            raise _invalid("The token is malformed") from None
        algorithm, key = await self._key(header)
        try:
            claims = jwt.decode(
                token,
                key,
                algorithms=[algorithm],
                audience=self._audiences,
                issuer=self._setting.issuer,
                leeway=self._setting.leeway_s,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError) as error:
            raise _invalid(_why(error)) from None
        return self._identity(claims)

    async def _key(self, header: Mapping[str, Any]) -> tuple[str, Any]:
        algorithm, kid, kind = header.get("alg"), header.get("kid"), header.get("typ", "JWT")
        if algorithm not in self._setting.algorithms:
            raise _invalid("The token is signed in a way that is not taken here")
        if "crit" in header or str(kind).lower() not in _TYPES:
            raise _invalid("The token is of a kind that is not taken here")
        if kid is not None and not isinstance(kid, str):
            raise _invalid("The token is malformed")
        try:
            key = await self._keys.find(kid, str(algorithm))
        except KeysUnavailable:
            about = "Tokens cannot be checked now: try again"
            raise Refused(503, "", about, _RETRY_S) from None
        if key is None:
            raise _invalid("The token is signed with a key that is not known here")
        return str(algorithm), key

    def _identity(self, claims: Mapping[str, Any]) -> Identity:
        subject = claims["sub"]
        if not subject or len(subject) > _MAX_SUBJECT or not subject.isprintable():
            raise _invalid("The token names no usable subject")
        ends = float(claims["exp"]) + self._setting.leeway_s
        return Identity(f"{claims['iss']}|{subject}", self._allowed(claims), ends)

    def _allowed(self, claims: Mapping[str, Any]) -> tuple[str, ...]:
        """Return what the claims `scope` and `scp` allow here."""
        named = {*_words(claims.get("scope")), *_words(claims.get("scp"))}
        mapped = self._setting.scopes
        if mapped:
            named = {scope for name in named for scope in mapped.get(name, ())}
        return tuple(scope for scope in SCOPES if scope in named)


def _words(claim: object) -> list[str]:
    """Return the scopes of a claim: a text with spaces, or a list."""
    if isinstance(claim, str):
        return claim.split()
    if isinstance(claim, list):
        return [word for word in cast("list[object]", claim) if isinstance(word, str)]
    return []


def _invalid(about: str) -> Refused:
    return Refused(401, "invalid_token", about)


def _why(error: Exception) -> str:
    """Return what is wrong with a token, in words that tell nothing about it."""
    import jwt

    reasons: tuple[tuple[type[Exception], str], ...] = (
        (jwt.ExpiredSignatureError, "The token has expired"),
        (jwt.ImmatureSignatureError, "The token is not valid yet"),
        (jwt.InvalidAudienceError, "The token is meant for another server"),
        (jwt.InvalidIssuerError, "The token comes from another issuer"),
        (jwt.InvalidSignatureError, "The signature of the token does not hold"),
        (jwt.MissingRequiredClaimError, "The token needs `iss`, `sub`, `aud` and `exp`"),
    )
    return next(
        (text for kind, text in reasons if isinstance(error, kind)), "The token is malformed"
    )

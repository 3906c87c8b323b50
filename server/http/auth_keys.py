"""The public keys of an issuer (a JWKS), from a file or a URL. Knows keys, no tokens.

Keys are kept while they cannot be had anew. A key that is not known is asked for at a bounded rate.
"""

import json
import re
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeGuard, cast

import anyio
import anyio.to_thread
import structlog

from guildry.errors import ConfigError, GuildryError

__all__ = ["KeySet", "KeysUnavailable", "parse_keys"]

log = structlog.get_logger()

_MAX_BYTES: Final = 512 * 1024
_MAX_KEYS: Final = 100
_FETCH_S: Final = 10.0
_AGAIN_S: Final = 15.0
_MIN_RSA_BITS: Final = 2048
_KINDS: Final = {"RS": "RSA", "PS": "RSA", "ES": "EC", "Ed": "OKP"}


class KeysUnavailable(GuildryError):
    """Report that there are no keys yet to check a token with."""


def parse_keys(text: str | bytes) -> list[dict[str, Any]]:
    """Return the keys of a JWKS that can check signatures; others are left out.

    Raises:
        ConfigError: the text is no JWKS, or has no such key.
    """
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        raise ConfigError('the keys are no JSON: give a JWKS, `{"keys": [...]}`') from None
    listed = cast("dict[str, Any]", document).get("keys") if isinstance(document, dict) else None
    if not isinstance(listed, list):
        raise ConfigError('the keys are no JWKS: give `{"keys": [...]}`')
    usable = [key for key in cast("list[object]", listed)[:_MAX_KEYS] if _is_usable(key)]
    if not usable:
        raise ConfigError("the JWKS has no public key that checks signatures (RSA, EC or OKP)")
    return usable


def _is_usable(key: object) -> "TypeGuard[dict[str, Any]]":
    if not isinstance(key, dict):
        return False
    jwk = cast("dict[str, Any]", key)
    operations = jwk.get("key_ops")
    return (
        jwk.get("kty") in _KINDS.values()
        and "d" not in jwk  # a private key: whoever reads the file can make tokens
        and jwk.get("use", "sig") == "sig"
        and (not isinstance(operations, list) or "verify" in operations)
    )


class KeySet:
    """The keys of one issuer.

    Args:
        source: a path or a URL.
        refresh_s: how old keys may get.
        fetch_s: seconds that a server may take to send them.
        clock: seconds, from any beginning.
    """

    def __init__(
        self,
        source: str,
        *,
        refresh_s: float,
        fetch_s: float = _FETCH_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._is_url = source.startswith(("http://", "https://"))
        self._refresh_s = refresh_s
        self._fetch_s = fetch_s
        self._clock = clock
        self._keys: list[dict[str, Any]] = []
        self._made: dict[tuple[str | None, str], Any] = {}
        self._mark: object = None
        self._tried_at = float("-inf")
        self._read_at = float("-inf")
        self._trouble = ""
        self._lock = anyio.Lock()

    async def open(self) -> None:
        """Read a file of keys. A URL is asked when the first token comes.

        Raises:
            ConfigError: the file cannot be used.
        """
        if not self._is_url:
            self._mark = await anyio.to_thread.run_sync(_mark, self._source)
            self._take(await self._read())

    def troubles(self) -> list[str]:
        """Return why the keys may be old, or why there are none."""
        return [self._trouble] if self._trouble else []

    async def find(self, kid: str | None, algorithm: str) -> Any:
        """Return the key with the id `kid`, or None; without an id, the only one that fits.

        Raises:
            KeysUnavailable: no keys could be had yet.
        """
        found = self._find(kid, algorithm)
        if found is None and self._is_url and self._clock() - self._tried_at >= _AGAIN_S:
            await self._refresh()
            found = self._find(kid, algorithm)
        if found is None and not self._keys:
            raise KeysUnavailable("the keys of the issuer cannot be had now")
        return found

    def _find(self, kid: str | None, algorithm: str) -> Any:
        made = self._made.get((kid, algorithm))
        if made is not None:
            return made
        fitting = [
            key
            for key in self._keys
            if key["kty"] == _KINDS[algorithm[:2]]
            and key.get("alg", algorithm) == algorithm
            and (kid is None or key.get("kid") == kid)
        ]
        found = _public_key(fitting[0], algorithm) if len(fitting) == 1 else None
        if found is not None:
            self._made[kid, algorithm] = found
        return found

    async def look(self) -> bool:
        """Read the keys again if they are due or have changed; tell whether there are others."""
        if self._is_url:
            due = self._clock() - self._read_at >= self._refresh_s
            if not self._keys or not due or self._clock() - self._tried_at < _AGAIN_S:
                return False
        else:
            mark = await anyio.to_thread.run_sync(_mark, self._source)
            if mark == self._mark:
                return False
            self._mark = mark
        before = self._keys
        await self._refresh()
        return self._keys != before

    async def _refresh(self) -> None:
        """Read the keys. Those who wait for it meanwhile find them read."""
        asked_at = self._clock()
        async with self._lock:
            if self._tried_at >= asked_at:
                return
            self._tried_at = asked_at
            try:
                self._take(await self._read())
            except ConfigError as error:
                self._trouble = "the keys of the issuer cannot be read"
                log.error("keys_refused", source=self._source, reason=str(error))

    def _take(self, data: bytes) -> None:
        keys = parse_keys(data)
        self._read_at = self._clock()
        self._trouble = ""
        if keys != self._keys:
            self._keys = keys
            self._made = {}
            log.info("keys_read", source=self._source, keys=len(keys))

    async def _read(self) -> bytes:
        try:
            if self._is_url:
                with anyio.fail_after(self._fetch_s):
                    return await _fetch(self._source)
            return await anyio.to_thread.run_sync(_read_file, self._source)
        except TimeoutError:
            raise ConfigError(
                f"`{self._source}` gave no answer within {self._fetch_s:g} s"
            ) from None
        except OSError as error:
            raise ConfigError(
                f"`http.jwt.jwks`: `{self._source}` cannot be read ({error.strerror or 'no'})"
            ) from error


def _read_file(path: str) -> bytes:
    with Path(path).open("rb") as file:
        return file.read(_MAX_BYTES)


def _mark(path: str) -> object:
    try:
        about = Path(path).stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_ctime_ns, about.st_size, about.st_ino


async def _fetch(url: str) -> bytes:
    """Return what is at `url`. Nothing is followed elsewhere: keys come from where it was said."""
    import aiohttp

    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as http,
            http.get(url, allow_redirects=False) as response,
        ):
            if response.status != 200:
                raise ConfigError(f"`{url}` answered {response.status}: give the URL of the JWKS")
            body = bytearray()
            async for chunk in response.content.iter_chunked(64 * 1024):
                body += chunk
                if len(body) > _MAX_BYTES:
                    raise ConfigError(f"`{url}` sent more than {_MAX_BYTES} bytes")
            return bytes(body)
    except aiohttp.ClientError as error:
        raise ConfigError(f"`{url}` cannot be reached ({type(error).__name__})") from error


def _public_key(jwk: Mapping[str, Any], algorithm: str) -> Any:
    """Return a key as the library takes it, or None where it is too weak or not what it says."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from jwt import PyJWK
    from jwt.exceptions import PyJWTError

    try:
        key = PyJWK(dict(jwk), algorithm).key
    except (PyJWTError, UnsupportedAlgorithm, ValueError, TypeError) as error:
        log.warning("key_refused", kid=_shown(jwk.get("kid")), reason=type(error).__name__)
        return None
    if jwk["kty"] == "RSA" and key.key_size < _MIN_RSA_BITS:
        log.warning("key_refused", kid=_shown(jwk.get("kid")), reason="too short")
        return None
    return key


def _shown(kid: object) -> str:
    return re.sub(r"[^\x20-\x7e]", "?", str(kid))[:64]

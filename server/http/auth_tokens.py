"""Files of tokens: who may call with which token. Read again when they change.

```toml
[tokens.ada]
sha256 = "…"                        # the digest of the token, in hex; or `token`, the token itself
scopes = ["tools", "teams"]
expires = 2027-01-01T00:00:00Z      # optional
```
"""

import hashlib
import hmac
import os
import re
import stat
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from pathlib import Path
from typing import Final, Self, cast

import anyio.to_thread
import structlog

from guildry.errors import ConfigError
from guildry.server.http.identity import SCOPES
from guildry.server.parts import LOCAL

__all__ = ["Token", "TokenFile", "parse_tokens", "read_tokens"]

log = structlog.get_logger()

NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
"""What a token may be called."""

_RUN: Final = re.compile(r"r[a-z2-7]{10}")
_DIGEST: Final = re.compile(r"[0-9a-fA-F]{64}")
_TOKEN: Final = re.compile(r"[A-Za-z0-9._~+/-]{16,}=*")
_KEYS: Final = frozenset({"sha256", "token", "scopes", "expires"})
_MAX_BYTES: Final = 4 * 1024 * 1024
_LOOKS_WITHOUT_FILE: Final = 2


@dataclass(frozen=True, slots=True)
class Token:
    """One token. `digest` is the SHA-256 of its text; `expires_at` is in seconds since 1970."""

    name: str
    digest: bytes
    scopes: tuple[str, ...]
    expires_at: float | None = None


def parse_tokens(text: str) -> dict[str, Token]:
    """Return the tokens that a file lists, by name.

    Raises:
        ConfigError: the text is not such a list. Says where, and shows no token.
    """
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ConfigError(f"the file of tokens is no TOML: {_place(error)}") from None
    tables = document.pop("tokens", {})
    if document or not isinstance(tables, dict):
        raise ConfigError("the file of tokens has other keys: write one table `[tokens.NAME]` each")
    found: dict[str, Token] = {}
    owners: dict[bytes, str] = {}
    for name, table in cast("dict[str, object]", tables).items():
        token = _token(name, table)
        if owners.setdefault(token.digest, name) != name:
            raise ConfigError(f"`tokens.{name}` is the token of {owners[token.digest]!r}: make one")
        found[name] = token
    return found


def _place(error: Exception) -> str:
    """Return where a file is wrong, without quoting from it."""
    place = re.search(r"\(at [^)]*\)", str(error))
    return place[0].strip("()") if place else "it is nested too deep"


def _token(name: str, table: object) -> Token:
    where = f"`tokens.{name}`" if NAME.fullmatch(name) else f"the token {name!r}"
    if not NAME.fullmatch(name) or name == LOCAL or _RUN.fullmatch(name):
        raise ConfigError(
            f"{where} cannot be called so: take letters, digits, `.`, `_` and `-`, up to 64, but"
            f" not `{LOCAL}` and nothing that looks like a run"
        )
    if not isinstance(table, dict):
        raise ConfigError(f"{where} must be a table with `sha256` and `scopes`")
    values = cast("dict[str, object]", table)
    if unknown := sorted(values.keys() - _KEYS):
        raise ConfigError(f"{where} has {unknown[0]!r}: give `sha256`, `scopes` and `expires`")
    return Token(
        name, _digest(where, values), _scopes(where, values), _expiry(where, values.get("expires"))
    )


def _digest(where: str, values: Mapping[str, object]) -> bytes:
    digest, token = values.get("sha256"), values.get("token")
    if (digest is None) == (token is None):
        raise ConfigError(f"{where} needs `sha256`, the digest of the token in hex, or `token`")
    if token is None:
        if not isinstance(digest, str) or not _DIGEST.fullmatch(digest):
            raise ConfigError(f"{where} has a `sha256` that is not 64 hexadecimal digits")
        return bytes.fromhex(digest)
    if not isinstance(token, str) or not _TOKEN.fullmatch(token):
        raise ConfigError(
            f"{where} has a `token` that is too short or has odd characters: make one with"
            " `guildry token new NAME`"
        )
    return hashlib.sha256(token.encode()).digest()


def _scopes(where: str, values: Mapping[str, object]) -> tuple[str, ...]:
    given = values.get("scopes")
    scopes = cast("list[object]", given) if isinstance(given, list) else []
    if not scopes or any(scope not in SCOPES for scope in scopes):
        raise ConfigError(f"{where} needs `scopes`: a list of {', '.join(map(repr, SCOPES))}")
    return tuple(scope for scope in SCOPES if scope in scopes)


def _expiry(where: str, given: object) -> float | None:
    if given is None:
        return None
    if isinstance(given, date) and not isinstance(given, datetime):
        given = datetime.combine(given, time(), UTC)
    if not isinstance(given, datetime) or given.tzinfo is None:
        raise ConfigError(f"{where} has an `expires` that is no time: write 2027-01-31T12:00:00Z")
    try:
        return given.timestamp()
    except (OverflowError, ValueError):
        raise ConfigError(f"{where} has an `expires` that no calendar knows") from None


def read_tokens(path: Path) -> dict[str, Token]:
    """Return the tokens of a file that nobody else may read or change.

    Raises:
        ConfigError: it cannot be read, others can, or it is no list of tokens. Names the cure.
    """
    try:
        with path.open("rb") as file:
            about = os.fstat(file.fileno())
            data = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(
            f"`http.tokens`: `{path}` cannot be read ({error.strerror}): make it with"
            " `guildry token new NAME`"
        ) from error
    _check_mode(path, about)
    if len(data) > _MAX_BYTES:
        raise ConfigError(f"`http.tokens`: `{path}` is larger than {_MAX_BYTES} bytes")
    try:
        return parse_tokens(data.decode())
    except UnicodeDecodeError:
        raise ConfigError(f"`http.tokens`: `{path}` is not UTF-8") from None
    except ConfigError as error:
        raise ConfigError(f"`http.tokens`: `{path}`: {error}") from None


def _check_mode(path: Path, about: os.stat_result) -> None:
    others = stat.S_IRWXO | stat.S_IWGRP
    if not stat.S_ISREG(about.st_mode) or about.st_mode & others:
        raise ConfigError(f"`http.tokens`: others can read or change `{path}`: `chmod 600 {path}`")
    if about.st_uid not in (0, os.getuid()):
        raise ConfigError(f"`http.tokens`: `{path}` belongs to another user: make your own")
    if about.st_mode & stat.S_IRGRP:
        log.warning("token_file_shared", path=str(path), cure=f"chmod 600 {path}")


class TokenFile:
    """The tokens of a file as they are now.

    A changed file that is not well-formed changes nothing, and says so; a file that is gone takes
    all tokens with it.
    """

    def __init__(self, path: Path, tokens: Mapping[str, Token], mark: object) -> None:
        self._path = path
        self._mark = mark
        self._missed = 0
        self._trouble = ""
        self._set(tokens)

    @classmethod
    async def open(cls, path: Path) -> Self:
        """Read a file.

        Raises:
            ConfigError: see `read_tokens`.
        """
        mark = await anyio.to_thread.run_sync(_mark, path)
        return cls(path, await anyio.to_thread.run_sync(read_tokens, path), mark)

    def find(self, token: str) -> Token | None:
        """Return what is known of a token, or None."""
        digest = hashlib.sha256(token.encode()).digest()
        found = self._by_digest.get(digest)
        return found if found is not None and hmac.compare_digest(found.digest, digest) else None

    def troubles(self) -> list[str]:
        """Return what is wrong with the file as it is now."""
        return [self._trouble] if self._trouble else []

    async def look(self) -> set[str] | None:
        """Read the file if it has changed; return whose tokens are others now, None if none are."""
        mark = await anyio.to_thread.run_sync(_mark, self._path)
        if mark is None:
            return self._gone()
        self._missed = 0
        if mark == self._mark:
            return None
        self._mark = mark
        try:
            tokens = await anyio.to_thread.run_sync(read_tokens, self._path)
        except ConfigError as error:
            self._trouble = "the file of tokens cannot be used: what it held before counts"
            log.error("token_file_refused", reason=str(error))
            return None
        return self._replaced(tokens)

    def _gone(self) -> set[str] | None:
        """Wait for one look more: a program that saves a file may remove it for a moment."""
        self._missed += 1
        if self._missed != _LOOKS_WITHOUT_FILE:
            return None
        self._mark = None
        log.error("token_file_gone", path=str(self._path))
        changed = self._replaced({})
        self._trouble = "the file of tokens is gone"
        return changed

    def _replaced(self, tokens: Mapping[str, Token]) -> set[str]:
        changed = {name for name, token in self._tokens.items() if tokens.get(name) != token}
        self._set(tokens)
        self._trouble = ""
        log.info("tokens_read", tokens=len(tokens), ended=len(changed))
        return changed

    def _set(self, tokens: Mapping[str, Token]) -> None:
        self._tokens = dict(tokens)
        self._by_digest = {token.digest: token for token in tokens.values()}


def _mark(path: Path) -> object:
    """Return what tells one state of a file from the next, or None where there is none."""
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_ctime_ns, about.st_size, about.st_ino

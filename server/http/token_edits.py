"""Changes to a file of tokens: one is added or taken out, and all else stays as it was written."""

import fcntl
import hashlib
import os
import secrets
import tempfile
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from guildry.errors import ConfigError, UsageError
from guildry.server.http.auth_tokens import parse_tokens, read_tokens

if TYPE_CHECKING:
    from tomlkit import TOMLDocument

__all__ = ["add_token", "remove_token"]

_PREFIX: Final = "guildry_"
_BYTES: Final = 32


def add_token(
    path: Path, name: str, scopes: Iterable[str], *, expires_at: datetime | None = None
) -> str:
    """Make a token, write its digest down, and return it: nobody can read it again.

    Raises:
        ConfigError: the file cannot be used, or the name or a scope cannot.
        UsageError: there is a token of this name.
    """
    import tomlkit

    token = _PREFIX + secrets.token_urlsafe(_BYTES)
    with _editing(path) as document:
        tables: Any = document.setdefault("tokens", tomlkit.table(is_super_table=True))
        if name in tables:
            raise UsageError(
                f"there is a token {name!r}: `guildry token revoke {name}` first, or take another"
                " name"
            )
        table = tomlkit.table()
        table.add("sha256", hashlib.sha256(token.encode()).hexdigest())
        table.add("scopes", list(scopes))
        if expires_at is not None:
            table.add("expires", expires_at.astimezone(UTC).replace(microsecond=0))
        tables.append(name, table)
    return token


def remove_token(path: Path, name: str) -> bool:
    """Take a token out of a file; tell whether it was there.

    Raises:
        ConfigError: the file cannot be used.
    """
    import tomlkit

    if not path.exists():
        return False
    with _editing(path) as document:
        tables: Any = document.setdefault("tokens", tomlkit.table(is_super_table=True))
        found = name in tables
        if found:
            del tables[name]
    return found


@contextmanager
def _editing(path: Path) -> "Generator[TOMLDocument]":
    """Give a document to change, and write it in one step; others who do so wait."""
    import tomlkit

    path = path.resolve()
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder = os.open(path.parent, os.O_RDONLY)
    except OSError as error:
        raise ConfigError(f"`{path.parent}` cannot be used ({error.strerror})") from error
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        before = ""
        if path.exists():
            read_tokens(path)
            before = path.read_text(encoding="utf-8")
        document = tomlkit.parse(before)
        yield document
        after = tomlkit.dumps(document)
        parse_tokens(after)
        if after != before:
            _replace(path, after)
    except OSError as error:
        raise ConfigError(f"`{path}` cannot be written ({error.strerror})") from error
    finally:
        os.close(folder)


def _replace(path: Path, text: str) -> None:
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise

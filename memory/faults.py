"""What SQLite and the file system complain about, told with the file's name and the cure."""

import errno
import shutil
import sqlite3
from pathlib import Path
from typing import Final

from guildry.errors import StoreCorrupt, StoreError, StoreFull, StoreLocked

__all__ = ["explain", "explain_os", "is_fault"]

_LOCKED: Final = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_CORRUPT: Final = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_FAULTS: Final = (
    _LOCKED
    | _CORRUPT
    | {
        sqlite3.SQLITE_FULL,
        sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_NOMEM,
        sqlite3.SQLITE_READONLY,
        sqlite3.SQLITE_CANTOPEN,
        sqlite3.SQLITE_INTERRUPT,
    }
)
_NO_ROOM: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
_ROOM_NEEDED: Final = 65_536


def is_fault(error: BaseException) -> bool:
    """Tell whether the whole database refuses work, and not one statement."""
    return isinstance(error, sqlite3.Error) and _primary(error) in _FAULTS


def explain(error: Exception, path: Path) -> StoreError:
    """Return the error that tells an operator what is wrong with the database and what to do."""
    code = _primary(error)
    if code in _LOCKED:
        return StoreLocked(
            f"the database `{path}` is locked by another process: end that process or wait for it"
            " (`fuser` with the file's name shows who holds it), then try again"
        )
    if code in _CORRUPT:
        return StoreCorrupt(
            f"`{path}` is not a readable database ({error}): move it aside, together with its"
            " `-wal` and `-shm` files, and start again; nothing was deleted, so"
            " `sqlite3 <file> .recover` may still read it"
        )
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _is_full(path)):
        return _full(path)
    if code == sqlite3.SQLITE_READONLY:
        return StoreError(f"`{path}` cannot be written: make the file and its folder writable")
    if code == sqlite3.SQLITE_CANTOPEN:
        return StoreError(f"`{path}` cannot be opened: check that its folder exists and is yours")
    return StoreError(f"the database `{path}` failed: {error}")


def explain_os(error: OSError, path: Path) -> StoreError:
    """Return the error that tells an operator why a file cannot be read or written."""
    if error.errno in _NO_ROOM:
        return _full(path)
    reason = error.strerror or type(error).__name__
    return StoreError(f"`{path}` cannot be used ({reason}): check the folder and its permissions")


def _full(path: Path) -> StoreFull:
    return StoreFull(
        f"there is no room left to write `{path}`: free some space on its disk, or move the"
        " folder to a larger one; what was stored before is intact"
    )


def _primary(error: Exception) -> int:
    code: int = getattr(error, "sqlite_errorcode", 0)  # SQLite's own errors alone have it
    return code & 0xFF


def _is_full(path: Path) -> bool:
    """Tell whether the disk is full: some calls that fail for it say no more than `I/O error`."""
    try:
        return shutil.disk_usage(path.parent).free < _ROOM_NEEDED
    except OSError:
        return False

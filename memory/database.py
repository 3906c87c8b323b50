"""How a database file is opened: settings, schema version, and what can be wrong with it."""

import sqlite3
from contextlib import suppress
from pathlib import Path
from typing import Final

from guildry.errors import StoreError
from guildry.memory.faults import explain, explain_os

__all__ = ["APPLICATION", "VERSION", "open_reader", "open_writer"]

APPLICATION: Final = 0x47_4C_44_52
"""SQLite's `application_id` of a Guildry database: the letters `GLDR`."""

VERSION: Final = 11
"""How many migrations this code knows; `user_version` of a database that is up to date."""


def open_writer(path: Path, *, busy_timeout_s: float, synchronous: str) -> sqlite3.Connection:
    """Return the connection that writes, on a database whose schema is up to date.

    Raises:
        StoreLocked: another process holds the database.
        StoreCorrupt: the file is damaged, or no database.
        StoreFull: there is no room to create it.
        StoreError: it belongs to a newer Guildry or another program, or cannot be opened.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise explain_os(error, path.parent) from error
    try:
        connection = sqlite3.connect(path, timeout=busy_timeout_s, isolation_level=None)
    except sqlite3.Error as error:
        raise explain(error, path) from error
    try:
        _prepare(connection, path, synchronous)
    except sqlite3.Error as error:
        connection.close()
        raise explain(error, path) from error
    except BaseException:
        connection.close()
        raise
    return connection


def open_reader(path: Path, *, busy_timeout_s: float) -> sqlite3.Connection:
    """Return a connection that can only read; any thread may use it, one at a time."""
    return sqlite3.connect(
        f"{path.absolute().as_uri()}?mode=ro",
        uri=True,
        timeout=busy_timeout_s,
        isolation_level=None,
        check_same_thread=False,
    )


def _prepare(connection: sqlite3.Connection, path: Path, synchronous: str) -> None:
    _check_owner(connection, path)
    mode = _pragma(connection, "journal_mode = WAL")
    if mode != "wal":
        raise StoreError(
            f"`{path}` is on a file system without write-ahead logs (journal mode {mode!r}):"
            " move the folder to a local disk"
        )
    connection.execute(f"PRAGMA synchronous = {synchronous}")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("PRAGMA journal_size_limit = 67108864")
    if _pragma(connection, "user_version") != VERSION:
        _migrate(connection, path)
    connection.execute("PRAGMA foreign_keys = ON")


def _check_owner(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a database that is not ours, before anything in it is touched."""
    version = _pragma(connection, "user_version")
    application = _pragma(connection, "application_id")
    (tables,) = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()
    if application != APPLICATION and (application or version or tables):
        raise StoreError(
            f"`{path}` is the database of another program: choose another folder with `--home`"
        )
    if isinstance(version, int) and version > VERSION:
        raise StoreError(
            f"`{path}` was written by a newer Guildry (schema {version}, this one knows"
            f" {VERSION}): upgrade Guildry, or choose another folder with `--home`"
        )


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring the schema up to date in one transaction, which a second process waits for."""
    from sqlite_utils import Database

    from guildry.memory.migrations import migrations

    connection.execute("BEGIN IMMEDIATE")
    try:
        _check_owner(connection, path)
        migrations.apply(Database(connection, execute_plugins=False))
        connection.execute(f"PRAGMA application_id = {APPLICATION}")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        with suppress(sqlite3.Error):  # SQLite may have rolled back by itself
            connection.execute("ROLLBACK")
        raise


def _pragma(connection: sqlite3.Connection, name: str) -> object:
    row = connection.execute(f"PRAGMA {name}").fetchone()
    return row[0] if row else None

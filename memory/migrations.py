"""The schema of the database, as migrations that are applied in order. Knows no rows."""

from typing import TYPE_CHECKING

from sqlite_utils import Migrations

if TYPE_CHECKING:
    from sqlite_utils import Database

__all__ = ["migrations"]

migrations = Migrations("guildry")


@migrations()
def m001_objects(db: "Database") -> None:
    """Create what objects need: contents by digest, objects by id, names and readers."""
    execute = db.conn.execute
    execute("""
        CREATE TABLE contents (
            digest TEXT NOT NULL PRIMARY KEY,
            size INTEGER NOT NULL,
            body BLOB                             -- NULL: kept as a file, named by the digest
        )""")
    execute("""
        CREATE TABLE objects (
            position INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            digest TEXT NOT NULL REFERENCES contents (digest),
            media_type TEXT NOT NULL,
            size INTEGER NOT NULL,
            sketch TEXT NOT NULL,
            preview TEXT NOT NULL,
            owner TEXT NOT NULL,
            labels TEXT NOT NULL,                 -- JSON array
            created_at REAL NOT NULL,
            expires_at REAL
        )""")
    execute("CREATE INDEX objects_digest ON objects (digest)")
    execute("CREATE INDEX objects_expires_at ON objects (expires_at) WHERE expires_at IS NOT NULL")
    execute("""
        CREATE TABLE names (
            namespace TEXT NOT NULL,
            name TEXT NOT NULL,
            id TEXT NOT NULL REFERENCES objects (id) ON DELETE CASCADE,
            is_first INTEGER NOT NULL,            -- the name that the object was made under
            PRIMARY KEY (namespace, name)
        ) WITHOUT ROWID""")
    execute("CREATE INDEX names_id ON names (id)")
    execute("""
        CREATE TABLE readers (
            holder TEXT NOT NULL,
            id TEXT NOT NULL REFERENCES objects (id) ON DELETE CASCADE,
            PRIMARY KEY (holder, id)
        ) WITHOUT ROWID""")
    execute("CREATE INDEX readers_id ON readers (id)")


@migrations()
def m002_runs(db: "Database") -> None:
    """Create what runs need: their records, their journals and the effect ledger."""
    execute = db.conn.execute
    execute("""
        CREATE TABLE runs (
            position INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            kind TEXT NOT NULL,
            team TEXT NOT NULL,
            task TEXT NOT NULL,
            principal TEXT NOT NULL,
            status TEXT NOT NULL,
            started_at REAL NOT NULL,
            ended_at REAL,
            report TEXT,                          -- JSON object
            usage TEXT NOT NULL,                  -- JSON object
            process TEXT NOT NULL
        )""")
    execute("CREATE INDEX runs_status ON runs (status)")
    execute("""
        CREATE TABLE entries (
            run TEXT NOT NULL,
            seq INTEGER NOT NULL,
            at REAL NOT NULL,
            kind TEXT NOT NULL,
            agent TEXT NOT NULL,
            data TEXT NOT NULL,                   -- JSON object
            PRIMARY KEY (run, seq)
        ) WITHOUT ROWID""")
    execute("""
        CREATE TABLE effects (
            run TEXT NOT NULL,
            key TEXT NOT NULL,                    -- in the order of intent
            agent TEXT NOT NULL,
            tool TEXT NOT NULL,
            arguments_digest TEXT NOT NULL,
            intended_at REAL NOT NULL,
            status TEXT,                          -- NULL: not settled
            outcome TEXT,
            settled_at REAL,
            PRIMARY KEY (run, key)
        ) WITHOUT ROWID""")


@migrations()
def m003_sources(db: "Database") -> None:
    """Create the table of plugged sources."""
    execute = db.conn.execute
    execute("""
        CREATE TABLE sources (
            position INTEGER PRIMARY KEY,
            name TEXT NOT NULL UNIQUE,
            source TEXT NOT NULL,
            options TEXT NOT NULL                 -- JSON object
        )""")


@migrations()
def m004_questions(db: "Database") -> None:
    """Create the table of questions that calls have asked."""
    execute = db.conn.execute
    execute("""
        CREATE TABLE questions (
            position INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            run TEXT NOT NULL,                    -- or the principal, outside any run
            principal TEXT NOT NULL,
            question TEXT NOT NULL,               -- JSON object
            asked_at REAL NOT NULL,
            expires_at REAL NOT NULL,
            process TEXT NOT NULL,
            answer TEXT,                          -- JSON object; NULL: open
            answered_at REAL
        )""")
    execute("CREATE INDEX questions_run ON questions (run)")


@migrations()
def m005_tasks(db: "Database") -> None:
    """Create the table of tasks, as the extension of MCP has them."""
    execute = db.conn.execute
    execute("""
        CREATE TABLE tasks (
            position INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            principal TEXT NOT NULL,
            tool TEXT NOT NULL,
            run TEXT,                             -- the run that it is, if it is one
            status TEXT NOT NULL,
            message TEXT,
            created_at REAL NOT NULL,
            updated_at REAL NOT NULL,
            expires_at REAL NOT NULL,
            outcome TEXT,                         -- JSON object: {"result": ...} or {"error": ...}
            process TEXT NOT NULL
        )""")
    execute("CREATE INDEX tasks_expires_at ON tasks (expires_at)")

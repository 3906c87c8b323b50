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


@migrations()
def m006_pins(db: "Database") -> None:
    """Create the tables of definitions: those that were approved, and those that are held."""
    execute = db.conn.execute
    execute("""
        CREATE TABLE pins (
            plug TEXT NOT NULL,
            tool TEXT NOT NULL,                   -- its name at the source
            digest TEXT NOT NULL,                 -- of the definition and the server's identity
            definition TEXT NOT NULL,             -- JSON object
            approved_at REAL NOT NULL,
            approved_by TEXT NOT NULL,            -- a principal, or `first use`
            PRIMARY KEY (plug, tool)
        ) WITHOUT ROWID""")
    execute("""
        CREATE TABLE held (
            plug TEXT NOT NULL,
            tool TEXT NOT NULL,
            digest TEXT NOT NULL,
            definition TEXT NOT NULL,             -- JSON object
            reason TEXT NOT NULL,
            resembles TEXT,                       -- JSON array: plug and tool that it may stand for
            held_at REAL NOT NULL,
            rejected_by TEXT,                     -- a principal; NULL: nobody has decided yet
            PRIMARY KEY (plug, tool)
        ) WITHOUT ROWID""")


@migrations()
def m007_manifests(db: "Database") -> None:
    """Create the table of what servers offered when they were last listed."""
    execute = db.conn.execute
    execute("""
        CREATE TABLE manifests (
            key TEXT NOT NULL PRIMARY KEY,        -- digest of what the server is and how it is run
            plug TEXT NOT NULL,
            manifest TEXT NOT NULL,               -- JSON object
            listed_at REAL NOT NULL
        ) WITHOUT ROWID""")


@migrations()
def m008_vectors(db: "Database") -> None:
    """Create the table of embeddings, by the digest of what was embedded."""
    execute = db.conn.execute
    execute("""
        CREATE TABLE vectors (
            model TEXT NOT NULL,
            digest TEXT NOT NULL,
            vector BLOB NOT NULL,                 -- float32, little-endian
            used_at REAL NOT NULL,
            PRIMARY KEY (model, digest)
        ) WITHOUT ROWID""")


@migrations()
def m009_usage(db: "Database") -> None:
    """Create the table of how tools have done, by day."""
    execute = db.conn.execute
    execute("""
        CREATE TABLE usage (
            plug TEXT NOT NULL,
            tool TEXT NOT NULL,                   -- its name at the source
            day INTEGER NOT NULL,                 -- since 1970-01-01, UTC
            calls REAL NOT NULL,                  -- that count for or against the tool
            errors REAL NOT NULL,                 -- of these, those that the tool is to blame for
            misused REAL NOT NULL,                -- others, which the tool blames its caller for
            duration_s REAL NOT NULL,             -- of all calls together
            slowest_s REAL NOT NULL,
            logs REAL NOT NULL,                   -- natural logarithms of the durations, added up
            squares REAL NOT NULL,                -- and their squares
            bytes REAL NOT NULL,                  -- of all answers together
            PRIMARY KEY (plug, tool, day)
        ) WITHOUT ROWID""")
    execute("CREATE INDEX usage_day ON usage (day)")


@migrations()
def m010_proposals(db: "Database") -> None:
    """Create the table of tools that were proposed, in all their versions."""
    execute = db.conn.execute
    execute("""
        CREATE TABLE proposals (
            position INTEGER PRIMARY KEY,
            id TEXT NOT NULL UNIQUE,
            name TEXT NOT NULL,
            version INTEGER NOT NULL,
            principal TEXT NOT NULL,
            run TEXT NOT NULL,
            description TEXT NOT NULL,
            source TEXT NOT NULL,
            tests TEXT NOT NULL,
            status TEXT NOT NULL,
            verdict TEXT,                         -- JSON object: what the tests gave
            decided_by TEXT,                      -- a principal, or `tests`
            proposed_at REAL NOT NULL,
            decided_at REAL,
            UNIQUE (name, version)
        )""")


@migrations()
def m011_suspended(db: "Database") -> None:
    """Create the table of model-written programs that wait in the middle of a call."""
    execute = db.conn.execute
    execute("""
        CREATE TABLE suspended (
            id TEXT NOT NULL PRIMARY KEY,
            run TEXT NOT NULL,
            holder TEXT NOT NULL,
            state BLOB NOT NULL,
            waiting TEXT NOT NULL,                -- JSON object: the calls that it waits for
            suspended_at REAL NOT NULL,
            process TEXT NOT NULL                 -- who runs it; empty: nobody
        ) WITHOUT ROWID""")

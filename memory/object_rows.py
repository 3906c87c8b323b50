"""Objects as rows: every SQL statement of the object store. Knows connections, not threads."""

import json
import sqlite3
from typing import Any, Final, NamedTuple

from guildry.memory.references import Reference
from guildry.memory.store import storable

__all__ = [
    "NewName",
    "NewObject",
    "NewReader",
    "delete_expired",
    "insert_objects",
    "select_content",
    "select_listing",
    "select_named",
    "select_names",
    "select_reference",
    "select_unused",
]


class NewObject(NamedTuple):
    """An object to insert. `body` is None when its content is kept as a file."""

    reference: Reference
    body: bytes | None


class NewReader(NamedTuple):
    """A holder who may read an object from now on."""

    id: str
    holder: str


class NewName(NamedTuple):
    """A further name of an object."""

    id: str
    namespace: str
    name: str


_REFERENCE: Final = """
    SELECT o.id, n.name, n.namespace, o.media_type, o.size, o.digest, o.sketch, o.preview, o.owner,
           o.created_at, o.expires_at, o.labels,
           (SELECT json_group_array(holder) FROM readers WHERE readers.id = o.id)
    FROM objects AS o JOIN names AS n ON n.id = o.id AND """


def insert_objects(
    connection: sqlite3.Connection, rows: list[NewObject | NewReader | NewName]
) -> None:
    """Insert objects, readers and names. What is said of an unknown object is passed over."""
    new = [row for row in rows if isinstance(row, NewObject)]
    names = [
        (row.reference.namespace, row.reference.name, 1, row.reference.id)
        if isinstance(row, NewObject)
        else (row.namespace, row.name, 0, row.id)
        for row in rows
        if not isinstance(row, NewReader)
    ]
    readers = [(row.holder, row.id) for row in rows if isinstance(row, NewReader)]
    if new:
        connection.executemany(
            "INSERT OR IGNORE INTO contents (digest, size, body) VALUES (?, ?, ?)",
            [(row.reference.digest, row.reference.size, row.body) for row in new],
        )
        connection.executemany(
            "INSERT INTO objects (id, digest, media_type, size, sketch, preview, owner, labels,"
            " created_at, expires_at) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            [_object(row.reference) for row in new],
        )
        readers += [(holder, row.reference.id) for row in new for holder in row.reference.readers]
    if names:
        _insert_names(connection, names)
    if readers:
        connection.executemany(
            "INSERT OR IGNORE INTO readers (holder, id) SELECT ?, id FROM objects WHERE id = ?",
            readers,
        )


def select_reference(connection: sqlite3.Connection, id: str) -> Reference | None:
    """Return the reference of that id under its first name, or None."""
    row = connection.execute(f"{_REFERENCE} n.is_first WHERE o.id = ?", (storable(id),)).fetchone()
    return None if row is None else _reference(row)


def select_named(connection: sqlite3.Connection, namespace: str, name: str) -> str | None:
    """Return the id that a name stands for, or None."""
    row = connection.execute(
        "SELECT id FROM names WHERE namespace = ? AND name = ?",
        (storable(namespace), storable(name)),
    ).fetchone()
    return None if row is None else str(row[0])


def select_names(connection: sqlite3.Connection, namespace: str) -> dict[str, str]:
    """Return the ids of a namespace by name."""
    return dict(connection.execute("SELECT name, id FROM names WHERE namespace = ?", (namespace,)))


def select_content(connection: sqlite3.Connection, digest: str) -> tuple[int, bytes | None] | None:
    """Return size and body of a content, or None. No body: it is kept as a file."""
    found: tuple[int, bytes | None] | None = connection.execute(
        "SELECT size, body FROM contents WHERE digest = ?", (digest,)
    ).fetchone()
    return found


def select_listing(
    connection: sqlite3.Connection,
    *,
    namespace: str | None,
    holder: str | None,
    now: float,
    limit: int,
    after: str | None,
    made: float,
) -> list[Reference]:
    """Return references in the order in which they were made, from the one after `after` on.

    Where that one is gone, from the first on that was made later than `made`.
    """
    named = "n.is_first" if namespace is None else "n.namespace = :namespace"
    rows = connection.execute(
        f"{_REFERENCE} {named}"
        " WHERE (o.expires_at IS NULL OR o.expires_at > :now)"
        " AND (:holder IS NULL OR o.owner = :holder OR EXISTS"
        " (SELECT 1 FROM readers WHERE readers.holder = :holder AND readers.id = o.id))"
        " AND (:after IS NULL OR o.position >"
        " coalesce((SELECT position FROM objects WHERE id = :after),"
        " (SELECT max(position) FROM objects WHERE created_at <= :made), 0))"
        " ORDER BY o.position LIMIT :limit",
        {
            "namespace": namespace,
            "holder": holder,
            "now": now,
            "limit": limit,
            "after": after,
            "made": made,
        },
    )
    return [_reference(row) for row in rows]


def delete_expired(connection: sqlite3.Connection, now: float) -> tuple[list[str], list[str]]:
    """Delete expired objects and the contents that no other needs.

    Returns:
        The ids of the objects, and the digests of contents whose files are no longer needed.
    """
    expired = connection.execute(
        "DELETE FROM objects WHERE expires_at <= ? RETURNING id, digest", (now,)
    ).fetchall()
    files: list[str] = []
    for digest in {digest for _, digest in expired}:
        unused = connection.execute(
            "SELECT body IS NULL FROM contents WHERE digest = ?1"
            " AND NOT EXISTS (SELECT 1 FROM objects WHERE digest = ?1)",
            (digest,),
        ).fetchone()
        if unused is not None:  # SQLite 3.40 returns the wrong value from `DELETE … RETURNING`
            connection.execute("DELETE FROM contents WHERE digest = ?", (digest,))
            if unused[0]:
                files.append(digest)
    return [id for id, _ in expired], files


def select_unused(connection: sqlite3.Connection, digests: list[str]) -> list[str]:
    """Return those of `digests` that name no content."""
    return [digest for digest in digests if select_content(connection, digest) is None]


def _object(reference: Reference) -> tuple[object, ...]:
    return (
        reference.id,
        reference.digest,
        storable(reference.media_type),
        reference.size,
        storable(reference.sketch),
        storable(reference.preview),
        reference.owner,
        json.dumps(sorted(reference.labels)) if reference.labels else "[]",
        reference.created_at,
        reference.expires_at,
    )


def _insert_names(connection: sqlite3.Connection, names: list[tuple[str, str, int, str]]) -> None:
    """Insert names. One that another process took meanwhile gets the end of its id."""
    insert = (
        "INSERT OR IGNORE INTO names (namespace, name, is_first, id)"
        " SELECT ?, ?, ?, id FROM objects WHERE id = ?"
    )
    if connection.executemany(insert, names).rowcount == len(names):
        return
    for namespace, name, is_first, id in names:
        if select_named(connection, namespace, name) != id:
            connection.execute(insert, (namespace, f"{name}_{id[-6:]}", is_first, id))


def _reference(row: tuple[Any, ...]) -> Reference:
    id, name, namespace, media_type, size, digest, sketch, preview, owner = row[:9]
    created_at, expires_at, labels, readers = row[9:]
    return Reference(
        id=id,
        name=name,
        namespace=namespace,
        media_type=media_type,
        size=size,
        digest=digest,
        sketch=sketch,
        preview=preview,
        owner=owner,
        created_at=created_at,
        readers=frozenset(json.loads(readers)),
        labels=frozenset(json.loads(labels)),
        expires_at=expires_at,
    )

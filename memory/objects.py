"""The object store: values behind references, each content once. Knows no grants: it tells who may
read what, and leaves it to its callers to keep to it.
"""

import json
import sqlite3
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from secrets import token_urlsafe
from typing import Final

from anyio import to_thread

from guildry.errors import ReferenceNotFound, StoreError, ToolRetry
from guildry.memory.cache import Cache
from guildry.memory.contents import ContentFolder
from guildry.memory.names import Names, clean
from guildry.memory.object_rows import (
    NewName,
    NewObject,
    NewReader,
    delete_expired,
    insert_objects,
    select_content,
    select_listing,
    select_named,
    select_names,
    select_reference,
    select_unused,
)
from guildry.memory.references import Reference
from guildry.memory.selectors import Json, select
from guildry.memory.sketch import is_json, is_text
from guildry.memory.store import Store
from guildry.memory.values import copied, look

__all__ = ["ObjectStore"]

_ON_LOOP_BYTES: Final = 16_384
_UNWRITTEN_BYTES: Final = 8_000_000
_UNWRITTEN_ROWS: Final = 1_000
_CACHED_REFERENCES: Final = 20_000
_CACHED_NAMESPACES: Final = 1_000
_CACHED_BYTES: Final = 32_000_000
_CACHED_EACH: Final = 4_000_000


class ObjectStore:
    """Keep values behind references.

    Args:
        store: the database; contents up to `inline_bytes` are in it.
        folder: where larger contents are, as files.
        inline_bytes: the largest content that is kept in the database.
        sync: make sure that large contents are on the disk before they are referred to.
        clock: seconds since the epoch.
    """

    def __init__(
        self,
        store: Store,
        folder: Path,
        *,
        inline_bytes: int = 100_000,
        sync: bool = True,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._files = ContentFolder(folder, sync=sync)
        self._inline_bytes = inline_bytes
        self._clock = clock
        self._unwritten = 0
        self._changes = 0
        self._loaded = 0
        self._references: Cache[str, Reference] = Cache(_CACHED_REFERENCES)
        self._namespaces: Cache[str, Names] = Cache(_CACHED_NAMESPACES)
        self._contents: Cache[str, bytes] = Cache(_CACHED_BYTES, _CACHED_EACH)
        self._parsed: Cache[str, list[Json]] = Cache(_CACHED_BYTES // 2, _CACHED_EACH)

    async def put(
        self,
        content: bytes,
        *,
        media_type: str,
        name: str,
        namespace: str,
        owner: str,
        readers: Iterable[str] = (),
        labels: Iterable[str] = (),
        ttl_s: float | None = None,
    ) -> Reference:
        """Keep `content` and return its reference.

        Content that fits in the database is readable at once and committed soon after (`flush` of
        the store waits for that); larger content is committed when this returns.

        Args:
            content: the bytes; the same bytes are kept once.
            media_type: such as `application/json`; decides how the value is read.
            name: the short name that is wanted; a taken one gets a number.
            namespace: where the name is unique: a run, or a principal.
            owner: the holder who makes it.
            readers: further holders who may read it.
            labels: where it came from.
            ttl_s: seconds until it expires, or None to keep it.

        Raises:
            StoreFull: there is no room; nothing of it is kept.
            StoreError: it cannot be kept.
        """
        names = await self._names(namespace)
        if len(content) <= _ON_LOOP_BYTES:
            seen = look(content, media_type)
        else:
            seen = await to_thread.run_sync(look, content, media_type)
        now = self._clock()
        id = token_urlsafe(16)
        reference = Reference(
            id=id,
            name=names.take(clean(name), id),
            namespace=namespace,
            media_type=media_type,
            size=len(content),
            digest=seen.digest,
            sketch=seen.sketch,
            preview=seen.preview,
            owner=owner,
            created_at=now,
            readers=frozenset(readers),
            labels=frozenset(labels),
            expires_at=None if ttl_s is None else now + ttl_s,
        )
        try:
            await self._write(reference, content)
        except BaseException:
            names.drop(id)
            raise
        self._remember(reference, content, seen.parsed)
        return reference

    async def read(self, reference: Reference) -> bytes:
        """Return the stored bytes.

        Raises:
            ReferenceNotFound: it has expired.
            StoreError: it cannot be read.
        """
        if self._has_expired(reference):
            raise _expired(reference)
        found = self._contents.get(reference.digest)
        if found is None:
            found = await self._stored(reference.digest)
        if found is None:  # posted, and not yet committed
            await self._store.flush()
            found = await self._stored(reference.digest)
        if found is None:
            raise _expired(reference)
        self._contents.put(reference.digest, found, len(found))
        return found

    async def value(self, reference: Reference) -> Json:
        """Return the stored value: parsed JSON, or text. It is the caller's own, to change at will.

        Raises:
            ToolRetry: it is neither JSON nor text.
            ReferenceNotFound: it has expired.
            StoreError: it cannot be read.
        """
        return await self.select(reference, None)

    async def select(self, reference: Reference, selector: str | None) -> Json:
        """Return the part of the stored value that `selector` addresses, or all for None.

        Args:
            reference: what is read.
            selector: with its first character, as in `Handle.selector`; see `selectors.select`.

        Raises:
            ToolRetry: the selector addresses nothing, or the value is neither JSON nor text.
            ReferenceNotFound: it has expired.
            StoreError: it cannot be read.
        """
        if is_text(reference.media_type):
            text = (await self.read(reference)).decode("utf-8", "replace")
            return text if selector is None else select(text, selector)
        if not is_json(reference.media_type):
            raise ToolRetry(
                f"`{reference.short}` is {reference.media_type}, neither JSON nor text: pass it"
                " whole to a tool that takes such data"
            )
        if self._has_expired(reference):
            raise _expired(reference)
        parsed = self._parsed.get(reference.digest)
        if parsed is None:
            parsed = await _parse(reference, await self.read(reference))
            self._parsed.put(reference.digest, parsed, reference.size)
        value = parsed[0] if selector is None else select(parsed[0], selector)
        return copied(value)

    async def by_name(self, namespace: str, name: str) -> Reference | None:
        """Return the reference of that short name, or None when it is unknown or has expired."""
        names = self._namespaces.get(namespace)
        id = None if names is None else names.ids.get(name)
        if id is None:
            await self._store.flush()
            id = await self._store.read(lambda reader: select_named(reader, namespace, name))
        found = None if id is None else await self.by_id(id)
        if found is None or (found.name == name and found.namespace == namespace):
            return found
        return replace(found, name=name, namespace=namespace)

    async def by_id(self, id: str) -> Reference | None:
        """Return the reference of that id, or None when it is unknown or has expired."""
        found = self._references.get(id)
        while found is None:
            changes = self._changes
            await self._store.flush()
            found = await self._store.read(lambda reader: select_reference(reader, id))
            if changes != self._changes:
                found = self._references.get(id)  # something changed meanwhile: look again
                continue
            if found is None:
                return None
            self._references.put(id, found)
        return None if self._has_expired(found) else found

    async def share(self, ids: Iterable[str], holder: str) -> None:
        """Let `holder` read these objects, from now on. Unknown ids are passed over.

        Raises:
            StoreError: too much waits to be written already.
        """
        self._changes += 1
        for id in ids:
            found = self._references.get(id)
            if found is not None and found.readable_by(holder):
                continue
            self._store.post_row(insert_objects, NewReader(id, holder))
            if found is not None:
                self._references.put(id, replace(found, readers=found.readers | {holder}))

    async def alias(self, reference: Reference, namespace: str) -> Reference:
        """Give an object a short name in another namespace as well.

        The name is its own where that is free. An object has one name in a namespace: asked for
        again, it is the same.

        Raises:
            StoreError: the database refuses.
        """
        names = await self._names(namespace)
        name = names.names.get(reference.id)
        if name is None:
            name = names.take(reference.name, reference.id)
            try:
                self._store.post_row(insert_objects, NewName(reference.id, namespace, name))
            except StoreError:
                names.drop(reference.id)
                raise
        return replace(reference, name=name, namespace=namespace)

    async def listing(
        self,
        *,
        namespace: str | None = None,
        holder: str | None = None,
        limit: int = 100,
        after: str | None = None,
        made: float = 0.0,
    ) -> list[Reference]:
        """Return references that have not expired, in the order in which they were made.

        Args:
            namespace: only those with a name in it, under that name.
            holder: only those that this holder may read.
            limit: how many at most.
            after: the id of the last one that was seen.
            made: when that one was made, which tells its place should it have expired since.

        Raises:
            StoreError: the database cannot be read.
        """
        await self._store.flush()
        within = partial(select_listing, namespace=namespace, holder=holder, now=self._clock())
        return await self._store.read(partial(within, limit=limit, after=after, made=made))

    async def expire(self) -> int:
        """Remove expired objects, and contents that no other object needs; returns how many.

        Raises:
            StoreError: the database refuses.
        """
        now = self._clock()
        ids, files = await self._store.write(lambda writer: delete_expired(writer, now))
        self._changes += 1
        for id in ids:
            self._forget(id)
        if files:
            await self._store.write(lambda writer: self._remove_files(writer, files))
        await to_thread.run_sync(self._files.sweep)
        return len(ids)

    async def _names(self, namespace: str) -> Names:
        found = self._namespaces.get(namespace)
        if found is not None:
            return found
        if self._loaded >= _CACHED_NAMESPACES:  # it may have been here, with names just posted
            await self._store.flush()
        taken = await self._store.read(lambda reader: select_names(reader, namespace))
        found = self._namespaces.get(namespace)  # another task may have been faster
        if found is None:
            self._loaded += 1
            found = Names(taken)
            self._namespaces.put(namespace, found)
        return found

    async def _write(self, reference: Reference, content: bytes) -> None:
        if len(content) > self._inline_bytes:
            await self._write_large(reference, content)
            return
        if self._unwritten > _UNWRITTEN_BYTES or self._store.waiting > _UNWRITTEN_ROWS:
            self._unwritten = 0
            await self._store.flush()
        self._store.post_row(insert_objects, NewObject(reference, content))
        self._unwritten += len(content)

    async def _write_large(self, reference: Reference, content: bytes) -> None:
        """Write the file, then the row: whoever sees the row can read the file."""
        digest = reference.digest
        row = NewObject(reference, None)

        def insert(connection: sqlite3.Connection) -> bool:
            if not self._files.has(digest, len(content)):
                return False  # it was there already, and expired between the two steps
            insert_objects(connection, [row])
            return True

        await to_thread.run_sync(self._files.write, digest, content)
        while not await self._store.write(insert):
            await to_thread.run_sync(self._files.write, digest, content)

    def _remove_files(self, connection: sqlite3.Connection, digests: list[str]) -> None:
        """Remove files inside a transaction, in which nobody else can come to need them."""
        for digest in select_unused(connection, digests):
            self._files.remove(digest)

    async def _stored(self, digest: str) -> bytes | None:
        def select_body(connection: sqlite3.Connection) -> bytes | None:
            row = select_content(connection, digest)
            if row is None:
                return None
            size, body = row
            return self._files.read(digest, size) if body is None else body

        return await self._store.read(select_body)

    def _remember(self, reference: Reference, content: bytes, parsed: list[Json] | None) -> None:
        self._references.put(reference.id, reference)
        self._contents.put(reference.digest, content, len(content))
        if parsed is not None:
            self._parsed.put(reference.digest, parsed, len(content))

    def _forget(self, id: str) -> None:
        found = self._references.get(id)
        self._references.drop(id)
        names = None if found is None else self._namespaces.get(found.namespace)
        if names is not None:
            names.drop(id)

    def _has_expired(self, reference: Reference) -> bool:
        return reference.expires_at is not None and reference.expires_at <= self._clock()


async def _parse(reference: Reference, content: bytes) -> list[Json]:
    try:
        if len(content) <= _ON_LOOP_BYTES:
            return [json.loads(content)]
        return [await to_thread.run_sync(json.loads, content)]
    except (ValueError, RecursionError) as error:
        raise ToolRetry(
            f"`{reference.short}` is labelled {reference.media_type} and is not JSON ({error}):"
            " make it again, as text/plain or as JSON"
        ) from error


def _expired(reference: Reference) -> ReferenceNotFound:
    return ReferenceNotFound(
        f"there is no reference {reference.short!r} here: use one that you were given"
    )

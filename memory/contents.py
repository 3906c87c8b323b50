"""Large contents: files named by the digest of what is in them. Knows files, not the database."""

import hashlib
import os
import time
from contextlib import suppress
from pathlib import Path
from secrets import token_hex
from typing import Final

from guildry.errors import StoreCorrupt, StoreError
from guildry.memory.faults import explain_os

__all__ = ["ContentFolder", "digest_of"]

_ABANDONED_S: Final = 3_600.0


def digest_of(content: bytes) -> str:
    """Return the digest that names `content`, with its algorithm."""
    return f"sha256:{hashlib.sha256(content).hexdigest()}"


class ContentFolder:
    """Keep contents as files. Every method blocks: call them in worker threads.

    A file appears under its final name only when it is whole; until then it has another one.
    """

    def __init__(self, folder: Path, *, sync: bool) -> None:
        self._folder = folder
        self._sync = sync

    def has(self, digest: str, size: int) -> bool:
        """Tell whether a whole file of that digest and size is there."""
        try:
            return self._path(digest).stat().st_size == size
        except OSError:
            return False

    def write(self, digest: str, content: bytes) -> None:
        """Keep `content`, unless it is there.

        Raises:
            StoreFull: there is no room; nothing of it is left behind.
            StoreError: the folder cannot be written.
        """
        if self.has(digest, len(content)):
            return
        path = self._path(digest)
        incoming = self._folder / "incoming" / token_hex(16)
        try:
            incoming.parent.mkdir(parents=True, exist_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            self._fill(incoming, content)
            incoming.replace(path)
            if self._sync:
                _sync_folder(path.parent)
        except OSError as error:
            with suppress(OSError):
                incoming.unlink()
            raise explain_os(error, path) from error

    def read(self, digest: str, size: int) -> bytes:
        """Return the content of that digest, checked.

        Raises:
            StoreCorrupt: the file is gone or damaged.
            StoreError: it cannot be read.
        """
        path = self._path(digest)
        try:
            content = path.read_bytes()
        except FileNotFoundError as error:
            raise StoreCorrupt(
                f"`{path}` is gone, and a stored object needs it: put the file back, or run again"
                " what made the object"
            ) from error
        except OSError as error:
            raise explain_os(error, path) from error
        if len(content) != size or digest_of(content) != digest:
            raise StoreCorrupt(
                f"`{path}` is damaged: it does not match its digest. Move the file aside and run"
                " again what made the object"
            )
        return content

    def remove(self, digest: str) -> None:
        """Remove the content of that digest, if it is there.

        Raises:
            StoreError: it cannot be removed.
        """
        path = self._path(digest)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise explain_os(error, path) from error

    def sweep(self) -> None:
        """Remove what processes that were killed left half-written, an hour after."""
        try:
            for path in (self._folder / "incoming").iterdir():
                if time.time() - path.stat().st_mtime > _ABANDONED_S:
                    path.unlink(missing_ok=True)
        except FileNotFoundError:
            return
        except OSError as error:
            raise explain_os(error, self._folder) from error

    def _fill(self, path: Path, content: bytes) -> None:
        with path.open("xb") as file:
            file.write(content)
            if self._sync:
                file.flush()
                os.fsync(file.fileno())

    def _path(self, digest: str) -> Path:
        algorithm, _, name = digest.partition(":")
        if not (algorithm and name.isalnum()):
            raise StoreError(f"{digest!r} is no digest")
        return self._folder / algorithm / name[:2] / name[2:]


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

"""Words between the server processes of one home: that something has changed, never what.

Each process listens on a datagram socket beside its control socket, for its own user alone. A word
is sent once and waits for nobody: one that is lost is made up for by the next.
"""

import json
import os
import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import anyio
import structlog

from guildry.errors import UsageError
from guildry.server.control import own_folder, socket_folder
from guildry.tools.schema import as_list

__all__ = ["Peers"]

log = structlog.get_logger()

_SUFFIX: Final = ".word"
_MAX_BYTES: Final = 4_096
_AT_ONCE: Final = 64


class Peers:
    """Speak with the other processes of a home. `run` must be running to hear them.

    Args:
        home: the folder that the processes share.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        self._own: Path | None = None
        self._listeners: dict[str, list[Callable[[str], None]]] = {}

    def listen(self, topic: str, listener: Callable[[str], None]) -> Callable[[], None]:
        """Call `listener` for each word on `topic`, with what it is about. Returns the way out."""
        listeners = self._listeners.setdefault(topic, [])
        listeners.append(listener)
        return lambda: listeners.remove(listener)

    def tell(self, topic: str, about: str = "") -> None:
        """Send a word to every other process. Never waits, never raises."""
        folder = socket_folder(self._home)
        others = [path for path in folder.glob(f"*{_SUFFIX}") if path != self._own]
        if not others:
            return
        word = json.dumps([topic, about]).encode()
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            for path in others:
                try:
                    sender.sendto(word, str(path))
                except (ConnectionRefusedError, FileNotFoundError):  # its process is gone
                    _remove(path)
                except OSError as error:
                    log.debug("word_not_sent", topic=topic, error=str(error))

    async def run(self) -> None:
        """Hear what others say, until cancelled."""
        try:
            folder = own_folder(socket_folder(self._home))
        except (OSError, UsageError) as error:
            log.warning("peers_not_heard", error=str(error))
            return
        path = folder / f"{os.getpid()}.{secrets.token_hex(2)}{_SUFFIX}"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
            receiver.setblocking(False)
            _remove(path)
            receiver.bind(str(path))
            path.chmod(0o600)
            self._own = path
            try:
                while True:
                    await anyio.wait_readable(receiver)
                    self._hear(receiver)
            finally:
                _remove(path)

    def _hear(self, receiver: socket.socket) -> None:
        words: dict[tuple[str, str], None] = {}
        with suppress(BlockingIOError):
            for _ in range(_AT_ONCE):
                word = _word(receiver.recv(_MAX_BYTES))
                if word is not None:
                    words[word] = None
        for topic, about in words:
            for listener in tuple(self._listeners.get(topic, ())):
                listener(about)


def _word(data: bytes) -> tuple[str, str] | None:
    try:
        told: Any = json.loads(data)
    except (ValueError, RecursionError):
        return None
    parts = as_list(told)
    if len(parts) != 2 or not all(isinstance(part, str) for part in parts):
        return None
    return parts[0], parts[1]


def _remove(path: Path) -> None:
    with suppress(OSError):
        path.unlink()

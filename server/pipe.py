"""A pair of descriptors that an event loop can watch: pipes, or a socket for both directions."""

import os
import select
from typing import Final

import anyio

__all__ = ["Pipe"]

_CHUNK_BYTES: Final = 256 * 1024


class Pipe:
    """Read and write descriptors. Satisfies `guildry.server.lines.Wire`.

    Args:
        reading: where the client's bytes come from.
        writing: where its answers go.
        shared: what is written to is another's as well (a terminal, the log), so that it must go on
            blocking: it is only written to when it is known to have room.
    """

    def __init__(self, reading: int, writing: int, *, shared: bool = False) -> None:
        self._reading = reading
        self._writing = writing
        self._shared = shared
        self._room = select.poll()
        self._room.register(writing, select.POLLOUT)

    async def receive(self) -> bytes:
        """Return what has come, or nothing at the end."""
        while True:
            try:
                if os.get_blocking(self._reading):
                    await anyio.wait_readable(self._reading)
                return os.read(self._reading, _CHUNK_BYTES)
            except BlockingIOError:
                await anyio.wait_readable(self._reading)
            except OSError:
                return b""

    def write(self, data: bytes | bytearray) -> int:
        """Write as much of `data` as goes without waiting, and return how much that was.

        Raises:
            BrokenResourceError: the client is gone.
        """
        try:
            if not self._shared:
                return os.write(self._writing, data)
            return os.write(self._writing, data[: select.PIPE_BUF]) if self._room.poll(0) else 0
        except BlockingIOError:
            return 0
        except OSError as error:
            raise anyio.BrokenResourceError from error

    async def writable(self) -> None:
        """Wait until more can be written."""
        await anyio.wait_writable(self._writing)

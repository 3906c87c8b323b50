"""What the MCP servers of one board share: their last lists, and turns to start. Starts nothing."""

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio
import structlog

from guildry.errors import StoreError
from guildry.tools.mcp.manifest import Manifest

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, Callable

    from guildry.memory.manifests import ManifestStore

__all__ = ["IDLE_S", "STARTS_AT_ONCE", "Servers"]

log = structlog.get_logger()

IDLE_S: Final = 600.0
"""Seconds without a call after which a lazy server is stopped, where nothing else is said."""

STARTS_AT_ONCE: Final = 8
"""Servers that may be starting at a time, where nothing else is said."""


class Servers:
    """Know what servers offered when they were last listed, and let only so many start at once.

    Args:
        manifests: where the lists are kept, or None: then each server is started to be listed.
        is_lazy: whether a server whose list is known is started only when it is needed, and
            stopped when it is not, where its options say nothing of it.
        idle_s: seconds without a call after which a lazy server is stopped.
        starts_at_once: servers that may be starting at a time; others wait for their turn.
    """

    def __init__(
        self,
        manifests: "ManifestStore | None" = None,
        *,
        is_lazy: bool = True,
        idle_s: float = IDLE_S,
        starts_at_once: int = STARTS_AT_ONCE,
    ) -> None:
        self.is_lazy = is_lazy
        self.idle_s = idle_s
        self._manifests = manifests
        self._starts = anyio.CapacityLimiter(starts_at_once)

    async def known(self, key: str) -> Manifest | None:
        """Return what the server of that key offered last, or None where that is not known."""
        if self._manifests is None:
            return None
        try:
            kept = await self._manifests.get(key)
        except StoreError as error:
            log.warning("manifest_not_read", error=str(error))
            return None
        return None if kept is None else Manifest.from_json(kept)

    async def keep(self, key: str, plug: str, manifest: Manifest) -> None:
        """Keep what a server offers, for later starts."""
        if self._manifests is None:
            return
        try:
            await self._manifests.put(key, plug, manifest.as_json())
        except StoreError as error:
            log.warning("manifest_not_kept", plug=plug, error=str(error))

    @asynccontextmanager
    async def turn(self) -> "AsyncGenerator[Callable[[], None]]":
        """Wait for a turn to start, and have it until the block ends or what is given is called."""
        holder = object()
        is_held = True

        def done() -> None:
            nonlocal is_held
            if is_held:
                is_held = False
                self._starts.release_on_behalf_of(holder)

        await self._starts.acquire_on_behalf_of(holder)
        try:
            yield done
        finally:
            done()

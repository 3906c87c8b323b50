"""The interpreter: worker processes in which programs run, started when the first one comes.

Knows no tool. Each program gets a process of its own, which has neither files nor network.
"""

from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio

from guildry.errors import ToolRetry
from guildry.tools.code.limits import CodeLimits

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from pydantic_monty import AsyncMonty, AsyncMontySession

__all__ = ["Interpreter"]

_GRACE_S: Final = 2.0
_OPEN_S: Final = 20.0
_SETTLE_S: Final = 0.1
"""How long the pool's own threads get to let go: a process that ends at once may abort in them."""


class Interpreter:
    """A pool of worker processes.

    Args:
        at_once: how many programs may run at a time.
        wait_s: seconds that another one waits for its turn.
    """

    def __init__(self, at_once: int = 16, wait_s: float = 10.0) -> None:
        self._at_once = at_once
        self._wait_s = wait_s
        self._pool: AsyncMonty | None = None
        self._opening = anyio.Lock()

    @asynccontextmanager
    async def session(self, limits: CodeLimits) -> "AsyncGenerator[AsyncMontySession]":
        """Give a fresh interpreter, whose process ends with the block.

        Raises:
            ToolRetry: too many programs run already.
        """
        pool = await self._opened()
        session = pool.checkout(
            limits={
                "max_feed_duration_secs": limits.cpu_s,
                "max_memory": limits.memory_bytes,
                "max_recursion_depth": limits.depth,
                "max_suspensions": 20 * limits.calls + 1_000,
            },
            os_policy={"sleep": "call_host"},
        )
        try:
            await session.__aenter__()
        except TimeoutError:
            raise ToolRetry(
                f"{self._at_once} programs run already: try again when one of them has ended"
            ) from None
        try:
            yield session
        finally:
            with anyio.CancelScope(shield=True), anyio.move_on_after(_GRACE_S):
                await session.__aexit__(None, None, None)

    async def aclose(self) -> None:
        """End every worker."""
        pool, self._pool = self._pool, None
        if pool is not None:
            with anyio.CancelScope(shield=True), anyio.move_on_after(_GRACE_S):
                await pool.__aexit__(None, None, None)
                await anyio.sleep(_SETTLE_S)

    async def _opened(self) -> "AsyncMonty":
        async with self._opening:
            if self._pool is None:
                from pydantic_monty import AsyncMonty

                pool = AsyncMonty(
                    min_processes=1,
                    max_processes=self._at_once,
                    checkout_timeout=self._wait_s,
                    max_checkouts_per_worker=1,
                    feed_duration_limit_grace=_GRACE_S,
                )
                with anyio.fail_after(_OPEN_S):
                    await pool.__aenter__()
                self._pool = pool
            return self._pool

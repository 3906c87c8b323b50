"""A real MCP server that offers everything and asks everything, plugged in every way there is."""

import shlex
import sys
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Protocol

import anyio
import anyio.abc
import pytest
from anyio.streams.text import TextReceiveStream

from guildry.tools.plugs.board import PlugBoard
from guildry.tools.plugs.plug import PlugLimits
from guildry.tools.registry import Catalog

SERVERS = Path(__file__).parent / "servers"


class Plugged(Protocol):
    """Plug a server and return the catalog that serves it."""

    def __call__(
        self,
        way: str = "stdio modern",
        *,
        server: str = "offering",
        call_s: float = 20,
        ask_s: float = 20,
        start_s: float = 10,
    ) -> AbstractAsyncContextManager[Catalog]: ...


@pytest.fixture
def plugged() -> Plugged:
    @asynccontextmanager
    async def plug(
        way: str = "stdio modern",
        *,
        server: str = "offering",
        call_s: float = 20,
        ask_s: float = 20,
        start_s: float = 10,
    ) -> AsyncGenerator[Catalog]:
        transport, era = way.split()
        words = ["legacy"] if era == "legacy" else []
        limits = PlugLimits(
            start_s=start_s, call_s=call_s, ask_s=ask_s, close_s=0.5, backoff_max_s=0.1
        )
        catalog = Catalog()
        with anyio.fail_after(60):
            async with (
                _source(SERVERS / f"{server}.py", words, transport) as source,
                PlugBoard(catalog, limits=limits) as board,
            ):
                await board.plug(source, "up")
                yield catalog

    return plug


@asynccontextmanager
async def _source(path: Path, words: list[str], transport: str) -> AsyncGenerator[str]:
    command = [sys.executable, str(path), *words]
    if transport == "stdio":
        yield shlex.join(command)
        return
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
    process = await anyio.open_process([*command, str(port)], start_new_session=True)
    try:
        assert process.stderr is not None
        async for text in TextReceiveStream(process.stderr):
            if "running" in text:
                break
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        with anyio.CancelScope(shield=True):
            process.kill()
            await process.aclose()

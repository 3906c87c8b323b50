"""A server of the modern era with calls that wait side by side until they are let go."""

import anyio
from mcp.server import MCPServer

server = MCPServer("busy", version="1")
waiting = 0
most = 0
gate = anyio.Event()


@server.tool()
async def hold() -> int:
    """Wait until `release` is called, and tell how many waited at once."""
    global waiting, most
    waiting += 1
    most = max(most, waiting)
    await gate.wait()
    waiting -= 1
    return most


@server.tool()
async def release() -> str:
    """Let all go that wait."""
    gate.set()
    return "released"


@server.tool()
async def pass_by() -> int:
    """Wait for others to come by, and tell how many there were at most at once."""
    global waiting, most
    waiting += 1
    most = max(most, waiting)
    for _ in range(20):
        await anyio.lowlevel.checkpoint()
    waiting -= 1
    return most


if __name__ == "__main__":
    server.run("stdio")

"""A server on the SDK, of both eras. `grow` adds a tool and announces it; serves HTTP on a port."""

import os
import sys

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

server = MCPServer("modern", version="1")
ended: list[str] = []


def late() -> str:
    """Answer late."""
    return "here I am"


@server.tool()
async def grow(ctx: Context) -> str:
    """Add the tool `late`."""
    server.add_tool(late)
    await ctx.notify_tools_changed()
    return "grown"


@server.tool()
async def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
async def steps(ctx: Context) -> str:
    """Report progress."""
    await ctx.report_progress(1, 2, "half")
    return "done"


@server.tool()
async def wait(ctx: Context) -> str:
    """Wait until cancelled."""
    await ctx.report_progress(0, None, "waiting")
    try:
        await anyio.sleep_forever()
    finally:
        ended.append("wait")
    return ""


@server.tool()
async def cancelled() -> int:
    """Return how many calls of `wait` have ended."""
    return len(ended)


@server.tool()
def pid() -> int:
    """Return the process id."""
    return os.getpid()


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")

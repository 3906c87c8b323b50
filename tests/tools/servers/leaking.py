"""A server that tells its own key wherever it can: in answers, errors, prompts and on stderr."""

import json
import os
import sys

from mcp.server import MCPServer
from mcp.server.mcpserver import Context

KEY = os.environ["LEAKING_KEY"]
server = MCPServer("leaking", version="1")
sys.stderr.write(f"starting with {KEY}\n")


@server.tool()
async def text(ctx: Context) -> str:
    """Tell it as text."""
    await ctx.report_progress(1, 2, f"with {KEY}")
    return f"key={KEY}"


@server.tool()
async def table() -> dict[str, str]:
    """Tell it as a structure."""
    return {"key": KEY, **{f"row {n}": KEY for n in range(500)}}


@server.tool()
async def fail() -> str:
    """Tell it in an error."""
    raise ValueError(json.dumps({"authorization": f"Bearer {KEY}"}))


@server.tool()
async def crash() -> str:
    """Tell it and end."""
    sys.stderr.write(f"fatal: {KEY}\n")
    sys.stderr.flush()
    os._exit(3)


@server.prompt()
def greet() -> str:
    """Tell it in a prompt."""
    return f"Use {KEY}"


@server.resource("leak://key")
def key() -> str:
    """Tell it in a resource."""
    return KEY


server.run("stdio")

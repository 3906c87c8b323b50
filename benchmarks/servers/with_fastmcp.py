"""The echo tool on a fastmcp server, with the defaults of fastmcp."""

import sys

from fastmcp import FastMCP

server = FastMCP("echo")


@server.tool
async def echo(text: str) -> str:
    """Return the text that was given."""
    return text


if __name__ == "__main__":
    if sys.argv[1:2] == ["http"]:
        server.run(transport="http", port=int(sys.argv[2]))
    else:
        server.run()

"""Many tools on a bare SDK server, with the defaults of the SDK."""

import sys

from mcp.server import MCPServer

server = MCPServer("many")


def add(number: int) -> None:
    async def tool(text: str, times: int = 1) -> str:
        return text * times

    about = f"Return the text, as many times as asked, way {number}."
    server.add_tool(tool, name=f"tool_{number}", description=about)


if __name__ == "__main__":
    for n in range(int(sys.argv[3])):
        add(n)
    if sys.argv[1] == "http":
        server.run("streamable-http", port=int(sys.argv[2]))
    else:
        server.run("stdio")

"""A stand-in for an MCP server: lists the tools of a JSON file, and answers calls with its name.

    python standin.py TOOLS.json

Only the standard library, so that what is measured is not the stand-in. Speaks the handshake era.
"""

import json
import sys
from pathlib import Path


def main() -> None:
    """Answer one message a line until the input ends."""
    file = Path(sys.argv[1])
    tools = json.loads(file.read_text(encoding="utf-8"))
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        answer = {"jsonrpc": "2.0", "id": message["id"]} | reply(message, tools, file.stem)
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


def reply(message: dict, tools: list, name: str) -> dict:
    """Return the result of a request, or the error."""
    method = message["method"]
    if method == "initialize":
        version = message["params"]["protocolVersion"]
        about = {"name": name, "version": "1"}
        offered = {"tools": {}}
        return {
            "result": {"protocolVersion": version, "capabilities": offered, "serverInfo": about}
        }
    if method == "tools/list":
        return {"result": {"tools": tools}}
    if method == "tools/call":
        text = f"{name} did {message['params']['name']}"
        return {"result": {"content": [{"type": "text", "text": text}]}}
    if method == "ping":
        return {"result": {}}
    return {"error": {"code": -32601, "message": f"no {method} here"}}


if __name__ == "__main__":
    main()

"""The least that a handshake-era stdio server is: lines of JSON-RPC, no SDK."""

import json
import sys
from collections.abc import Callable, Iterator
from typing import Any

Message = dict[str, Any]


def send(message: Message) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def answer(message: Message, result: Message) -> None:
    send({"id": message["id"], "result": result})


def text(words: str) -> Message:
    return {"content": [{"type": "text", "text": words}]}


def tool(name: str, **properties: Message) -> Message:
    schema = {"type": "object", "properties": properties, "additionalProperties": False}
    return {"name": name, "description": f"Do {name}.", "inputSchema": schema}


def messages() -> Iterator[Message]:
    for line in sys.stdin:
        yield json.loads(line)


def serve(tools: Callable[[], list[Message]], call: Callable[[Message], None]) -> None:
    """Answer the handshake and `tools/list`; leave calls and notifications to `call`."""
    for message in messages():
        method = message.get("method")
        if method == "initialize":
            info = {"name": "wire", "version": "1"}
            offers = {"tools": {"listChanged": True}}
            answer(
                message,
                {"protocolVersion": "2025-11-25", "capabilities": offers, "serverInfo": info},
            )
        elif method == "tools/list":
            answer(message, {"tools": tools()})
        elif method in ("tools/call", "notifications/cancelled"):
            call(message)
        elif "id" in message:
            send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})

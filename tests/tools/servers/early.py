"""A server of the handshake era that asks before anything is called, and says what it was told."""

import json
from typing import Any

from wire import answer, messages, send, text, tool

told: list[str] = []
for message in messages():
    method = message.get("method")
    if method == "initialize":
        info = {"name": "early", "version": "1"}
        result: dict[str, Any] = {"capabilities": {"tools": {}}, "serverInfo": info}
        answer(message, {"protocolVersion": "2025-11-25", **result})
    elif method == "notifications/initialized":
        send({"id": "early", "method": "roots/list"})
    elif method == "tools/list":
        answer(message, {"tools": [tool("answers")]})
    elif method == "tools/call":
        answer(message, text(json.dumps(told)))
    elif message.get("id") == "early":
        told.append(message["error"]["message"])
    elif "id" in message:
        send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})

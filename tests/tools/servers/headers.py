"""A server of the modern era: one tool has wrong header annotations; with `none` it has none."""

import sys
from typing import Any

from wire import answer, messages, send, tool

BY_OBJECT = {"type": "object", "x-mcp-header": "Place"}
NO_HEADER = {"code": -32601, "message": "Method not found"}
COMMON: dict[str, Any] = {"resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
for message in messages():
    if message["method"] == "server/discover":
        found: dict[str, Any] = {
            "supportedVersions": ["2026-07-28"],
            "capabilities": {"tools": {}},
            **COMMON,
        }
        answer(message, found)
    elif message["method"] == "tools/list" and sys.argv[1:] != ["none"]:
        answer(message, {"tools": [tool("good"), tool("misled", place=BY_OBJECT)], **COMMON})
    elif "id" in message:
        send({"id": message["id"], "error": NO_HEADER})

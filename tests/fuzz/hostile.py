"""A hostile MCP server on stdio: `python hostile.py SEED`. What it says is broken in every way.

The handshake is honest, so that it is plugged at all; then definitions, answers, notifications and
requests of its own are broken at random, and now and then it ends without a word.
"""

import json
import random
import sys
from typing import Any

from mutate import broken_bytes, broken_message, members_of

CHANCE = random.Random(sys.argv[1])
TOOLS = [
    {
        "name": f"tool_{n}",
        "description": f"Do the thing number {n}.",
        "inputSchema": {"type": "object", "properties": {"text": {"type": "string"}}},
    }
    for n in range(8)
]
listed: list[Any] = []
UNASKED: list[dict[str, Any]] = [
    {"method": "notifications/tools/list_changed"},
    {"method": "notifications/progress", "params": {"progressToken": 1, "progress": 3}},
    {"method": "notifications/message", "params": {"level": "info", "data": {"a": [1]}}},
    {"method": "notifications/resources/updated", "params": {"uri": "file:///x"}},
    {"method": "notifications/cancelled", "params": {"requestId": 2}},
    {"method": "ping", "id": "p"},
    {"method": "roots/list", "id": "r"},
    {"method": "sampling/createMessage", "id": "s", "params": {"messages": [], "maxTokens": 3}},
    {
        "method": "elicitation/create",
        "id": "e",
        "params": {"message": "?", "requestedSchema": {"type": "object", "properties": {}}},
    },
]


def main() -> None:
    """Answer until the input ends."""
    for line in sys.stdin:
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if "id" in message and "method" in message:
            answer(message)


def answer(message: dict[str, Any]) -> None:
    """Answer a request, mostly broken."""
    method = message["method"]
    if method == "initialize":
        capabilities = {"tools": {"listChanged": True}, "resources": {}, "prompts": {}}
        say(
            message["id"],
            {
                "protocolVersion": message["params"]["protocolVersion"],
                "capabilities": capabilities,
                "serverInfo": {"name": "hostile", "version": "1"},
            },
        )
    elif method == "tools/list":
        tools = [broken_message(CHANCE, t) if CHANCE.random() < 0.3 else t for t in TOOLS]
        listed.append(message["id"])
        say(message["id"], {"tools": [TOOLS[0], *tools]}, broken=len(listed) % 5 == 4)
    elif method == "tools/call":
        called(message["id"])
    elif method.endswith("/list"):
        say(message["id"], {method.split("/")[0]: []}, broken=CHANCE.random() < 0.3)
    else:
        write({"id": message["id"], "error": {"code": -32601, "message": "no"}})


def called(number: Any) -> None:
    """Answer a call: noise first, then an answer, a broken one, or none; or end."""
    for _ in range(CHANCE.randrange(4)):
        noise = CHANCE.choice(UNASKED)
        write(broken_message(CHANCE, noise) if CHANCE.random() < 0.7 else noise)
    chance = CHANCE.random()
    content = [
        {"type": "text", "text": "x" * CHANCE.choice((1, 100, 100_000))},
        {"type": "resource", "resource": {"uri": "file:///a", "text": "a"}},
        {"type": "image", "data": "AAAA", "mimeType": "image/png"},
    ]
    result = {"content": content, "structuredContent": {"a": [1, {"b": None}]}, "isError": False}
    if chance < 0.55:
        say(number, result, broken=True)
    elif chance < 0.70:
        line = json.dumps({"jsonrpc": "2.0", "id": number, "result": result}).encode()
        sys.stdout.buffer.write(broken_bytes(CHANCE, line) + b"\n")
        sys.stdout.buffer.flush()
    elif chance < 0.75:
        sys.stdout.buffer.write(b"\xff\x00garbage" * CHANCE.choice((1, 10_000)) + b"\n")
        sys.stdout.buffer.flush()
    elif chance < 0.78:
        for _ in range(3_000):
            write({"method": "notifications/message", "params": {"level": "info", "data": "f"}})
    elif chance < 0.80:
        sys.exit(CHANCE.choice((0, 1, 3)))
    elif chance < 0.85:
        return  # no answer at all
    else:
        say(number, result)


def say(number: Any, result: dict[str, Any], *, broken: bool = False) -> None:
    """Write an answer."""
    message: Any = {"jsonrpc": "2.0", "id": number, "result": result}
    write(broken_message(CHANCE, message) if broken else message)


def write(message: Any) -> None:
    """Write a message."""
    members = members_of(message)
    try:
        text = json.dumps(message if members is None else {"jsonrpc": "2.0", **members})
    except (ValueError, RecursionError):
        text = "{"
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()

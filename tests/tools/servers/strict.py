"""A server of the handshake era that ends when its first message is not `initialize`."""

import sys

from wire import Message, answer, messages, text, tool


def main() -> None:
    for n, message in enumerate(messages()):
        method = message.get("method")
        if n == 0 and method != "initialize":
            sys.exit("expected initialize")
        result: Message | None = None
        if method == "initialize":
            result = {
                "protocolVersion": "2025-06-18",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "strict", "version": "1"},
            }
        elif method == "tools/list":
            result = {"tools": [tool("hello")]}
        elif method == "tools/call":
            result = text("hello")
        if result is not None:
            answer(message, result)


main()

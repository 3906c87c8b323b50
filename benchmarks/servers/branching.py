"""A stdio server that leaves processes behind: `branching.py MARK KIND`, run with `-I -S`.

KIND says which: `alone`, `child`, `session` (a child in a session of its own) or `daemon` (one
that was forked twice). They are deaf to SIGTERM and to the end of their pipes.
"""

import json
import os
import signal
import sys


def stay() -> None:
    """Never end by itself."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    while True:
        signal.pause()


def branch(kind: str) -> None:
    """Leave a process of that kind."""
    if kind == "alone" or os.fork():
        return
    if kind != "child":
        os.setsid()
    if kind == "daemon" and os.fork():
        os._exit(0)
    stay()


def answer(message: dict[str, object]) -> dict[str, object]:
    """Return the answer to a request."""
    results: dict[object, object] = {
        "initialize": {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "branching", "version": "1"},
        },
        "ping": {},
        "tools/list": {"tools": [{"name": "noop", "inputSchema": {"type": "object"}}]},
    }
    method = message["method"]
    if method in results:
        return {"result": results[method]}
    return {"error": {"code": -32601, "message": "no such method"}}


if __name__ == "__main__":
    branch(sys.argv[2])
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            reply = {"jsonrpc": "2.0", "id": message["id"], **answer(message)}
            sys.stdout.write(json.dumps(reply) + "\n")
            sys.stdout.flush()

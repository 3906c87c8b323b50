"""A server of the handshake era whose definitions are a JSON file, read at each listing.

The file holds `{"name": ..., "tools": [...], "prompts": [...]}`. A call answers with the name of
the file and of the tool. `nudge` says that the list has changed; `wait` reads a pipe to its end.
"""

import json
import sys
import threading
from pathlib import Path

from wire import Message, answer, messages, send, text

PATH = Path(sys.argv[1])


def told() -> Message:
    found: Message = json.loads(PATH.read_text(encoding="utf-8"))
    return found


def waiting(message: Message) -> None:
    """Answer once the pipe of that name has been written and closed."""
    Path(message["params"]["arguments"]["path"]).read_text(encoding="utf-8")
    answer(message, text(f"{PATH.stem}: waited"))


def call(message: Message) -> None:
    name = message["params"]["name"]
    if name == "wait":
        threading.Thread(target=waiting, args=(message,), daemon=True).start()
        return
    if name == "nudge":
        send({"method": "notifications/tools/list_changed"})
    answer(message, text(f"{PATH.stem}: {name}"))


for message in messages():
    match message.get("method"):
        case "initialize":
            info = {"name": told().get("name", "shifting"), "version": "1"}
            offers = {"tools": {"listChanged": True}, "prompts": {}}
            answer(
                message,
                {"protocolVersion": "2025-11-25", "capabilities": offers, "serverInfo": info},
            )
        case "tools/list":
            answer(message, {"tools": told().get("tools", [])})
        case "prompts/list":
            answer(message, {"prompts": told().get("prompts", [])})
        case "tools/call":
            call(message)
        case _ if "id" in message:
            send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})
        case _:
            pass

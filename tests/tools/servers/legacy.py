"""A server of the handshake era with every kind of content, progress and cancellation."""

import base64
import os
import subprocess
import sys
from collections.abc import Callable

from wire import Message, answer, send, serve, text, tool

PNG = base64.b64encode(b"\x89PNG\r\n\x1a\nrest").decode()
WAV = base64.b64encode(b"RIFF....WAVE").decode()
BLOB = base64.b64encode(b"\x00\x01").decode()
CONTENT: list[Message] = [
    {"type": "text", "text": "words"},
    {"type": "image", "data": PNG, "mimeType": "image/png"},
    {"type": "audio", "data": WAV, "mimeType": "audio/wav"},
    {"type": "resource_link", "uri": "file:///a.txt", "name": "a", "mimeType": "text/plain"},
    {"type": "resource", "resource": {"uri": "x://t", "mimeType": "text/plain", "text": "inside"}},
    {"type": "resource", "resource": {"uri": "x://b", "mimeType": "a/b", "blob": BLOB}},
]
cancelled: list[str | int] = []


def tools() -> list[Message]:
    reading = {"readOnlyHint": True, "openWorldHint": False, "title": "Echo it"}
    return [
        {**tool("echo", text={"type": "string"}), "annotations": reading, "_meta": {"k": "v"}},
        tool("everything"),
        tool("steps"),
        tool("wait"),
        tool("cancelled"),
        tool("environment"),
        tool("child"),
        tool("refuse"),
        tool("fail"),
        tool("whole"),
        tool("spoiled"),
        {**tool("promise"), "outputSchema": {"type": "object", "required": ["n"]}},
    ]


def steps(message: Message) -> None:
    progress(message, 1, "step 1")
    progress(message, 2, "step 2")
    answer(message, text("done"))


def progress(message: Message, n: int, words: str) -> None:
    token = message["params"]["_meta"]["progressToken"]
    told = {"progressToken": token, "progress": n, "total": 2, "message": words}
    send({"method": "notifications/progress", "params": told})


def child(message: Message) -> None:
    started = subprocess.Popen(["sleep", "1000"])
    answer(message, text(str(started.pid)))


def refuse(message: Message) -> None:
    send({"id": message["id"], "error": {"code": -32602, "message": "`n` must be odd"}})


CALLS: dict[str, Callable[[Message], None]] = {
    "echo": lambda message: answer(message, text(message["params"]["arguments"]["text"])),
    "everything": lambda message: answer(
        message, {"content": CONTENT, "structuredContent": {"n": 1}}
    ),
    "steps": steps,
    "wait": lambda message: progress(message, 0, "waiting"),
    "cancelled": lambda message: answer(message, text(str(len(cancelled)))),
    "environment": lambda message: answer(message, text(" ".join(sorted(os.environ)))),
    "child": child,
    "refuse": refuse,
    "fail": lambda message: answer(message, {**text("no luck"), "isError": True}),
    "spoiled": lambda message: answer(
        message, {"content": [{"type": "image", "data": "%%%", "mimeType": "image/png"}]}
    ),
    "whole": lambda message: answer(message, {"content": "not a list"}),
    "promise": lambda message: answer(message, text("no structured content")),
}


def call(message: Message) -> None:
    if message["method"] == "notifications/cancelled":
        cancelled.append(message["params"]["requestId"])
    else:
        CALLS[message["params"]["name"]](message)


if __name__ == "__main__":
    sys.stderr.write(f"serving as {os.getpid()}\n")
    sys.stderr.flush()
    serve(tools, call)

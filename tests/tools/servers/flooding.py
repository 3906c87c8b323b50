"""A server of the handshake era that can be told to say too much: from then on, without end.

Its tools begin a flood of one kind; `calm` says how often the list of tools was asked for.
"""

import sys
import threading
from collections.abc import Callable

from wire import Message, answer, send, serve, text, tool

lists = 0
lock = threading.Lock()


def write(message: Message) -> None:
    with lock:
        send(message)


def changes() -> None:
    write({"method": "notifications/tools/list_changed"})


def logs() -> None:
    params = {"level": "info", "data": "x" * 1_000}
    write({"method": "notifications/message", "params": params})


def answers() -> None:
    write({"id": 4_711, "result": {}})


def garbage() -> None:
    with lock:
        sys.stdout.write("no message\n" * 100)
        sys.stdout.flush()


def requests() -> None:
    write({"id": "q", "method": "roots/list"})


FLOODS: dict[str, Callable[[], None]] = {
    "changes": changes,
    "logs": logs,
    "answers": answers,
    "garbage": garbage,
    "requests": requests,
}


def flood(name: str) -> None:
    while True:
        FLOODS[name]()


def giant() -> None:
    while True:
        sys.stdout.write("x" * 1_000_000)


def listed() -> list[Message]:
    global lists
    lists += 1
    return [tool(name) for name in (*FLOODS, "giant", "calm")]


def call(message: Message) -> None:
    if message["method"] != "tools/call":
        return
    name = message["params"]["name"]
    if name == "giant":
        giant()
    with lock:
        answer(message, text(str(lists)))
    if name in FLOODS:
        threading.Thread(target=flood, args=(name,), daemon=True).start()


serve(listed, call)

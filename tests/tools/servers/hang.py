"""A server that never answers: from its start, or (`call`) from its first call on."""

import os
import signal
import sys

from wire import Message, answer, serve, text, tool


def stop() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        signal.pause()


def call(message: Message) -> None:
    if message["method"] != "tools/call":
        return
    if message["params"]["name"] == "pid":
        answer(message, text(str(os.getpid())))
    else:
        stop()


if sys.argv[1:] == ["call"]:
    serve(lambda: [tool("hang"), tool("pid")], call)
else:
    stop()

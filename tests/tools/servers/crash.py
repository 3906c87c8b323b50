"""A server that dies on a call of `crash`, after it has written why; `pid` tells who it is."""

import os
import sys

from wire import Message, answer, serve, text, tool


def call(message: Message) -> None:
    if message["method"] != "tools/call":
        return
    if message["params"]["name"] == "crash":
        sys.stderr.write("out of cheese\n")
        sys.stderr.flush()
        os._exit(3)
    answer(message, text(str(os.getpid())))


serve(lambda: [tool("crash"), tool("pid")], call)

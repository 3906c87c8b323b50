"""A server of the handshake era that notes its starts in a file, and offers what another names.

Its arguments: the file of starts, the file with the names of its tools.
"""

import os
import sys
from pathlib import Path

from wire import Message, answer, send, serve, text, tool

starts, names = Path(sys.argv[1]), Path(sys.argv[2])


def call(message: Message) -> None:
    if message["method"] != "tools/call":
        return
    if message["params"]["name"] == "grow":
        names.write_text(names.read_text() + " grown")
        send({"method": "notifications/tools/list_changed"})
    answer(message, text(str(os.getpid())))


with starts.open("a") as file:
    file.write(f"{os.getpid()}\n")
serve(lambda: [tool(name) for name in names.read_text().split()], call)

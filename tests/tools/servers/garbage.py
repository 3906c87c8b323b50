"""A server that writes to stdout what is no message: for ever, or (`banner`) once at its start."""

import sys

from wire import answer, serve, text, tool

if sys.argv[1:] == ["banner"]:
    sys.stdout.write("Welcome to the banner server!\n{\n")
    sys.stdout.flush()
    serve(lambda: [tool("hello")], lambda message: answer(message, text("hello")))
else:
    while True:
        sys.stdout.write("Loading model weights...\n")

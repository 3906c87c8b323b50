"""A server of the handshake era that gains a tool when `grow` is called, and says so."""

from wire import Message, answer, send, serve, text, tool

names = ["grow"]


def call(message: Message) -> None:
    if message["params"]["name"] == "grow":
        names.append(f"grown_{len(names)}")
        send({"method": "notifications/tools/list_changed"})
    answer(message, text(message["params"]["name"]))


serve(lambda: [tool(name) for name in names], call)

"""A server of the modern era whose subscriptions end, are cut down or refused, as its tools say."""

from typing import Any

from wire import Message, answer, messages, send, text, tool

COMMON: dict[str, Any] = {"resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
ID = "io.modelcontextprotocol/subscriptionId"
OFFERED: dict[str, Any] = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}
URIS = [f"note://{name}" for name in ("one", "two", "secret")]
NOTES = [{"uri": uri, "name": uri} for uri in URIS]
LISTS: dict[str, Message] = {
    "server/discover": {"supportedVersions": ["2026-07-28"], "capabilities": OFFERED},
    "tools/list": {
        "tools": [tool("end"), tool("refuse"), tool("fall_silent"), tool("grow_unheard")]
    },
    "resources/list": {"resources": NOTES},
    "resources/templates/list": {"resourceTemplates": []},
}
open_streams: list[str | int] = []
said: set[str] = set()


def listen(message: Message) -> None:
    if "refuse" in said:
        send({"id": message["id"], "error": {"code": -32603, "message": "no more"}})
    elif "fall_silent" not in said:
        wanted: Message = message["params"]["notifications"]
        uris = [uri for uri in wanted.get("resourceSubscriptions", []) if "secret" not in uri]
        kept = {**wanted, "resourceSubscriptions": uris} if uris else {}
        params = {"_meta": {ID: message["id"]}, "notifications": kept}
        send({"method": "notifications/subscriptions/acknowledged", "params": params})
        open_streams.append(message["id"])


def call(message: Message) -> None:
    name = message["params"]["name"]
    said.add(name)
    if name == "grow_unheard":
        LISTS["tools/list"]["tools"].append(tool("unheard"))
    answer(message, {**text(name), "resultType": "complete"})
    while name == "end" and open_streams:
        answer({"id": open_streams.pop()}, {"resultType": "complete"})


for message in messages():
    method = message["method"]
    if method in LISTS:
        answer(message, {**LISTS[method], **COMMON})
    elif method == "subscriptions/listen":
        listen(message)
    elif method == "tools/call":
        call(message)
    elif "id" in message:
        send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})

"""A server whose prompts and resources are broken in every way, and one each that is right.

With `alone` it has prompts, no tools, and gives no list of the resources that it says it has.
"""

import sys
from typing import Any

from wire import answer, messages, send

IS_ALONE = "alone" in sys.argv
NOTE: dict[str, Any] = {"name": "a note", "mimeType": "text/plain"}
PROMPTS: list[dict[str, Any]] = [
    {"name": "good", "description": "Be good."},
    {"description": "No name."},
    {"name": "twice", "arguments": [{"name": "a"}, {"name": "a"}]},
    {"name": "good", "description": "Be good as well."},
]
RESOURCES: list[dict[str, Any]] = [
    {"uri": "note://good", **NOTE},
    {"uri": "note://nameless"},
    {"uri": "no uri", **NOTE},
    {"uri": "run://mine", **NOTE},
]
TEMPLATES: list[dict[str, Any]] = [
    {"uriTemplate": "note://{day}", **NOTE},
    {"uriTemplate": "note://{day", **NOTE},
]
OFFERED: dict[str, Any] = {"prompts": {}, "resources": {}}
LISTS: dict[str, dict[str, Any]] = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": OFFERED if IS_ALONE else {**OFFERED, "tools": {}},
        "serverInfo": {"name": "faulty", "version": "1"},
    },
    "tools/list": {"tools": []},
    "prompts/list": {"prompts": PROMPTS[:1] if IS_ALONE else PROMPTS},
    "resources/list": {"resources": RESOURCES},
    "resources/templates/list": {"resourceTemplates": TEMPLATES},
}
for message in messages():
    method = message["method"]
    if IS_ALONE and method == "resources/list":
        send({"id": message["id"], "error": {"code": -32603, "message": "no such luck"}})
    elif method in LISTS and not (IS_ALONE and method == "resources/templates/list"):
        answer(message, LISTS[method])
    elif "id" in message:
        send({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})

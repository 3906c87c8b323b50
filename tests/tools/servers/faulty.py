"""A server whose definitions are broken in every way, and one that is right."""

from typing import Any

from wire import answer, serve, text, tool

BROKEN: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "strng"}}}
serve(
    lambda: [
        tool("good"),
        {**tool("broken"), "inputSchema": BROKEN},
        {**tool("shapeless"), "inputSchema": {"type": "array"}},
        {"name": "bare"},
        {"inputSchema": {"type": "object"}},
        tool("good", other={"type": "string"}),
        tool("odd name!"),
        tool("odd.name."),
        {**tool("promise"), "outputSchema": {"type": "object", "properties": {"n": {"type": 5}}}},
    ],
    lambda message: answer(message, text(message["params"]["name"])),
)

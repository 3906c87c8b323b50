"""The tool that reads references."""

from typing import Final, cast

from guildry.errors import ToolRetry
from guildry.memory.references import Handle, parse_handle
from guildry.server.builtin.schemas import compact, parameters
from guildry.server.parts import BUILTIN, App
from guildry.tools.base import READS, REFERENCE_FORMAT, Call, Json, Outcome, Text, Tool
from guildry.tools.passing import open_reference
from guildry.tools.results import BYTES_PER_TOKEN

__all__ = ["Reading"]

_ELLIPSIS_BYTES: Final = 240
_REFERENCE: Final[dict[str, Json]] = {
    "type": "string",
    "format": REFERENCE_FORMAT,
    "description": "`ref:name` or `ref://id`.",
}


class Reading:
    """Make the tool that reads references."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._inline_bytes = app.settings.inline_tokens * BYTES_PER_TOKEN

    def tools(self) -> tuple[Tool, ...]:
        """Return the tools, in the order in which they are listed."""
        return (self._read_reference_tool(),)

    def _read_reference_tool(self) -> Tool:
        return Tool(
            name="read_reference",
            plug=BUILTIN,
            description=(
                "Read a stored value, or a part of it: `#/rows/0/name` (JSON Pointer),"
                " `?lines=1-40`, or `?query=rows[?total>10].id` (JMESPath)."
            ),
            input_schema=parameters(
                ["reference"],
                reference=_REFERENCE,
                selector={"type": "string", "description": "Which part; all if not given."},
                limit={
                    "type": "integer",
                    "minimum": 1,
                    "description": "How many characters at most.",
                },
            ),
            invoke=self._read_reference,
            effects=READS,
        )

    async def _read_reference(self, arguments: dict[str, Json], call: Call) -> Outcome:
        handle = _handle(cast("str", arguments["reference"]), arguments.get("selector"))
        reference = await open_reference(self._app.objects, call.caller, handle)
        value = await self._app.objects.select(reference, handle.selector)
        text = value if isinstance(value, str) else compact(value)
        return Outcome((Text(self._cut(text, cast("int | None", arguments.get("limit")))),))

    def _cut(self, text: str, limit: int | None) -> str:
        """Return as much of `text` as the caller wants, and as can be given inline."""
        room = max(_ELLIPSIS_BYTES, self._inline_bytes)
        wanted = len(text) if limit is None else min(limit, len(text))
        if wanted == len(text) and len(text.encode()) <= room:
            return text
        head = text[:wanted].encode()[: room - _ELLIPSIS_BYTES].decode(errors="ignore")
        return (
            f"{head}\n… {len(text) - len(head):,} of {len(text):,} characters are not shown: read"
            " a part by a selector, or pass the reference to a tool"
        )


def _handle(text: str, selector: Json) -> Handle:
    handle = parse_handle(text)
    if handle is None:
        raise ToolRetry(f"`reference` is {text!r}: give `ref:name` or `ref://id`")
    if not selector:
        return handle
    if handle.selector is not None:
        raise ToolRetry("the reference has a selector already: leave `selector` out")
    if selector[0] not in "#?":
        selector = f"#{selector}" if selector[0] == "/" else f"?{selector}"
        if not selector.startswith(("#", "?lines=", "?query=")):
            selector = f"?query={selector[1:]}"
    return Handle(handle.kind, handle.key, selector)

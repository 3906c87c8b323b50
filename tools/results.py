"""The result contract: exactly one form of an answer reaches the caller, nothing is dropped.

An answer under the inline limit is given as it is. A longer one is stored, and its sketch, preview
and reference are given instead. What a model cannot read (an image, a sound) is stored as well.
"""

import json
from dataclasses import replace
from typing import Final

from anyio import to_thread

from guildry.memory.objects import ObjectStore
from guildry.memory.references import Reference
from guildry.tools.base import Block, Embedded, Json, Link, Media, Outcome, Result, Text, Tool
from guildry.tools.caller import Caller
from guildry.tools.schema import as_list, as_object

__all__ = ["BYTES_PER_TOKEN", "ResultContract", "size_of", "stored_text"]

BYTES_PER_TOKEN: Final = 4
"""How tokens are estimated where no endpoint has counted them: UTF-8 bytes divided by four."""

_SNIFFED_ON_LOOP: Final = 64_000


def size_of(text: str) -> int:
    """Return the size of `text` in bytes, as UTF-8."""
    return len(text) if text.isascii() else len(text.encode())


def stored_text(reference: Reference) -> str:
    """Return what a model reads in place of a stored answer."""
    return (
        f"[stored as {reference.short}: {reference.media_type}, {reference.size:,} bytes,"
        f" {reference.sketch}]\n{reference.preview}"
    )


class ResultContract:
    """Turn what a tool answered into what its caller gets."""

    def __init__(
        self, objects: ObjectStore, *, inline_tokens: int, ttl_s: float | None = None
    ) -> None:
        self._objects = objects
        self._ttl_s = ttl_s
        self._inline_bytes = inline_tokens * BYTES_PER_TOKEN

    async def apply(
        self, tool: Tool, caller: Caller, outcome: Outcome, labels: frozenset[str]
    ) -> Result:
        """Return the one form of `outcome` that `caller` gets, with these labels.

        Raises:
            StoreError: the answer is too long to be inline and could not be kept.
        """
        try:
            return await self._applied(tool, caller, outcome, labels)
        except UnicodeEncodeError:
            return await self._applied(tool, caller, _mended(outcome), labels)

    async def _applied(
        self, tool: Tool, caller: Caller, outcome: Outcome, labels: frozenset[str]
    ) -> Result:
        blocks = outcome.blocks
        if len(blocks) == 1 and type(blocks[0]) is Text and not outcome.has_structured:
            text = blocks[0].text  # the common case, kept short
            if self.inline(text):
                size = size_of(text)
                return Result(text, blocks, is_error=outcome.is_error, size=size, labels=labels)
        return await _Shaping(self, tool, caller, labels).shape(outcome)

    async def keep(
        self, tool: Tool, caller: Caller, content: bytes, media_type: str, labels: frozenset[str]
    ) -> Reference:
        """Store `content` as the caller's own."""
        return await self._objects.put(
            content,
            media_type=media_type,
            name=tool.name,
            namespace=caller.run,
            owner=caller.grant.holder,
            labels=labels,
            ttl_s=self._ttl_s,
        )

    async def keep_text(
        self, tool: Tool, caller: Caller, text: str, labels: frozenset[str]
    ) -> Reference:
        """Store text as the caller's own, as JSON where that is what it is."""
        large = len(text) > _SNIFFED_ON_LOOP
        is_json = await to_thread.run_sync(_is_json, text) if large else _is_json(text)
        media_type = "application/json" if is_json else "text/plain"
        return await self.keep(tool, caller, text.encode(), media_type, labels)

    def inline(self, text: str) -> bool:
        """Tell whether `text` is short enough to be given as it is."""
        return size_of(text) <= self._inline_bytes


def _mended(outcome: Outcome) -> Outcome:
    """Return an answer without halves of surrogate pairs, which JSON allows and UTF-8 does not."""
    blocks = tuple(
        replace(block, text=_mended_text(block.text))
        if isinstance(block, Text | Embedded) and block.text is not None
        else block
        for block in outcome.blocks
    )
    return replace(outcome, blocks=blocks, structured=_mended_value(outcome.structured))


def _mended_value(value: Json) -> Json:
    if isinstance(value, str):
        return _mended_text(value)
    members = as_object(value)
    if members is not None:
        return {_mended_text(key): _mended_value(each) for key, each in members.items()}
    return [_mended_value(each) for each in as_list(value)] if isinstance(value, list) else value


def _mended_text(text: str) -> str:
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class _Shaping:
    """One answer on its way through the contract."""

    def __init__(
        self, contract: ResultContract, tool: Tool, caller: Caller, labels: frozenset[str]
    ) -> None:
        self._contract = contract
        self._tool = tool
        self._caller = caller
        self._labels = labels
        self._kept: list[Reference] = []

    async def shape(self, outcome: Outcome) -> Result:
        lines, others = await self._lines(outcome.blocks)
        parts = ["\n".join(lines)] if lines else []
        if outcome.has_structured:
            compact = json.dumps(outcome.structured, ensure_ascii=False, separators=(",", ":"))
            twin = not parts or _says(parts[0], outcome.structured)
            parts = [compact] if twin else [*parts, compact]
        size = sum(map(size_of, parts))
        whole = await self._store_what_is_long(parts)
        text = "\n".join(parts)
        links = (
            [] if whole else [Link(r.uri, r.name, r.media_type, size=r.size) for r in self._kept]
        )
        return Result(
            text=text,
            blocks=(*((Text(text),) if text else ()), *links, *others),
            structured=outcome.structured if whole else None,
            has_structured=outcome.has_structured and whole,
            references=tuple(self._kept),
            is_error=outcome.is_error,
            size=size,
            saved_tokens=max(0, size - size_of(text)) // BYTES_PER_TOKEN,
            labels=self._labels,
        )

    async def _store_what_is_long(self, parts: list[str]) -> bool:
        """Replace the longest of `parts` by references until all is inline; tell if none was."""
        whole = True
        for n in sorted(range(len(parts)), key=lambda n: -len(parts[n])):
            if self._contract.inline("\n".join(parts)):
                break
            kept = await self._contract.keep_text(self._tool, self._caller, parts[n], self._labels)
            self._kept.append(kept)
            parts[n] = stored_text(kept)
            whole = False
        return whole

    async def _lines(self, blocks: tuple[Block, ...]) -> tuple[list[str], list[Block]]:
        """Return what a model reads of `blocks`, and the blocks that only a client can show."""
        lines: list[str] = []
        others: list[Block] = []
        for block in blocks:
            if isinstance(block, Text):
                lines.append(block.text)
            elif not self._caller.for_model:
                others.append(block)
            else:
                lines.append(await self._told(block))
        return lines, others

    async def _told(self, block: Media | Link | Embedded) -> str:
        if isinstance(block, Link):
            about = f": {block.description}" if block.description else ""
            return f"[resource {block.uri}{about}]"
        if isinstance(block, Embedded) and block.data is None:
            return block.text or ""
        data = block.data or b""
        media_type = block.media_type or "application/octet-stream"
        kept = await self._contract.keep(self._tool, self._caller, data, media_type, self._labels)
        self._kept.append(kept)
        return f"[{media_type}, {len(data):,} bytes: {kept.short}]"


def _is_json(text: str) -> bool:
    if text.lstrip()[:1] not in ("{", "["):
        return False
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _says(text: str, value: Json) -> bool:
    """Tell whether `text` is the JSON form of `value`, as MCP asks servers to send it twice."""
    members = as_object(value) or {}
    if tuple(members) == ("result",) and str(members["result"]) == text:
        return True  # the wrapping that SDKs give to a tool that answers a bare value
    try:
        return bool(json.loads(text) == value)
    except ValueError:
        return False

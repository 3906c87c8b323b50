"""Guildry's own resources: references, runs and their journals, and what is told of tools."""

import json
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from time import time
from typing import TYPE_CHECKING, Any, Final

from guildry.errors import GuildryError, ReferenceNotFound, ToolRetry
from guildry.memory.references import Handle, Reference, parse_handle
from guildry.server.wire import tool_to_wire
from guildry.tools.base import Embedded
from guildry.tools.offers import NO_OFFERS
from guildry.tools.passing import open_reference

if TYPE_CHECKING:
    from guildry.memory.runs import RunRecord
    from guildry.server.parts import App
    from guildry.tools.base import Tool
    from guildry.tools.caller import Caller

__all__ = ["OWN_TEMPLATES", "OwnResources", "Read", "ResourceNotFound", "may_see", "run_json"]

OWN_TEMPLATES: Final[tuple[dict[str, Any], ...]] = (
    {
        "uriTemplate": "ref://{id}",
        "name": "reference",
        "title": "Stored value",
        "description": "A stored object: a result that was too long to be inline, or a file.",
    },
    {
        "uriTemplate": "run://{id}",
        "name": "run",
        "title": "Run",
        "description": "A run: its state, its report and what it cost.",
        "mimeType": "application/json",
    },
    {
        "uriTemplate": "run://{id}/journal",
        "name": "journal",
        "title": "Journal of a run",
        "description": "The journal of a run, one event a line.",
        "mimeType": "application/x-ndjson",
    },
    {
        "uriTemplate": "tool://{name}",
        "name": "tool",
        "title": "Tool",
        "description": "The whole description and the schemas of a tool, also of one not listed.",
        "mimeType": "application/json",
    },
    {
        "uriTemplate": "team://{name}",
        "name": "team",
        "title": "Team",
        "description": "What a team does, and the schema of the tool that sets it to work.",
        "mimeType": "application/json",
    },
    {
        "uriTemplate": "plug://{name}",
        "name": "plug",
        "title": "Plug",
        "description": "What a source of tools offers: tools, prompts, resources and templates.",
        "mimeType": "application/json",
    },
)

_JSON: Final = "application/json"
_LINES: Final = "application/x-ndjson"
_TEAM: Final = "team_"
_MAX_BYTES: Final = 16 * 1024 * 1024
_KEPT_MS: Final = 3_600_000
_FINAL: Final = ("done", "partial", "failed", "cancelled")


class ResourceNotFound(GuildryError):
    """Refuse a URI where there is nothing for this caller, whatever the reason: in the same words.

    Args:
        uri: what was asked for.
    """

    def __init__(self, uri: str) -> None:
        super().__init__(f"there is no resource {uri!r} here: take one that was listed")
        self.uri = uri


@dataclass(frozen=True, slots=True)
class Read:
    """What a resource holds, and for how long that stays so, in milliseconds."""

    contents: tuple[Embedded, ...]
    kept_ms: int = 0


class OwnResources:
    """The resources of Guildry itself that one principal may read."""

    def __init__(self, app: "App", caller: "Caller") -> None:
        self._app = app
        self._caller = caller

    @property
    def principal(self) -> str | None:
        """Whose runs are shown: everybody's, as None, to an administrator."""
        grant = self._caller.grant
        return None if "admin" in grant.scopes else grant.holder

    async def check(self, uri: str) -> None:
        """See that there is something to read.

        Raises:
            ResourceNotFound: there is no such thing for this caller.
        """
        scheme, _, name = uri.partition("://")
        if scheme == "ref":
            await self._reference(uri)
        elif scheme == "run":
            await self._run(uri)
        elif scheme == "plug":
            self._plug(uri, name)
        else:
            self._tool(uri, name)

    async def read(self, uri: str) -> Read:
        """Return what is at a URI.

        Raises:
            ResourceNotFound: there is no such thing for this caller.
            ToolRetry: it is too large to be read in one piece, or has no such part.
        """
        scheme, _, name = uri.partition("://")
        if scheme == "ref":
            return await self._read_reference(uri)
        if scheme == "run":
            return await self._read_run(uri)
        told = self._plug(uri, name) if scheme == "plug" else _described(self._tool(uri, name))
        return Read((_json(uri, told),))

    async def references(self, after: str | None, limit: int) -> list[tuple[str, dict[str, Any]]]:
        """Return references with their places, from the one after `after` on."""
        id, _, made = (after or "").partition("@")
        found = await self._app.objects.listing(
            holder=self._caller.grant.holder,
            limit=limit,
            after=id or None,
            made=float(made or 0),
        )
        return [(f"{each.id}@{each.created_at!r}", _reference_entry(each)) for each in found]

    async def runs(self, after: str | None, limit: int) -> list[tuple[str, dict[str, Any]]]:
        """Return runs with their places, the newest first, from the one after `after` on."""
        found = await self._app.runs.listing(self.principal, limit, before=after)
        return [(record.id, _run_entry(record)) for record in found]

    async def _reference(self, uri: str) -> tuple[Reference, Handle]:
        handle = parse_handle(uri)
        if handle is None:
            raise ResourceNotFound(uri)
        try:
            return await open_reference(self._app.objects, self._caller, handle), handle
        except ReferenceNotFound as error:
            raise ResourceNotFound(uri) from error

    async def _read_reference(self, uri: str) -> Read:
        reference, handle = await self._reference(uri)
        if handle.selector is not None:
            value = await self._app.objects.select(reference, handle.selector)
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            kind = "text/plain" if isinstance(value, str) else _JSON
            return Read((Embedded(uri, kind, text),), _kept_ms(reference))
        if reference.size > _MAX_BYTES:
            raise ToolRetry(
                f"`{uri}` has {reference.size:,} bytes: read a part, such as `{uri}?lines=1-200`"
            )
        content = await self._app.objects.read(reference)
        return Read((_embedded(uri, reference.media_type, content),), _kept_ms(reference))

    async def _run(self, uri: str) -> tuple["RunRecord", bool]:
        """Return the run that a URI is about, and whether it is about the journal."""
        id, _, part = uri.removeprefix("run://").partition("/")
        record = await self._app.runs.get(id)
        if record is None or part not in ("", "journal") or not may_see(self._caller, record):
            raise ResourceNotFound(uri)
        return record, bool(part)

    async def _read_run(self, uri: str) -> Read:
        record, is_journal = await self._run(uri)
        kept_ms = _KEPT_MS if record.status in _FINAL else 0
        if not is_journal:
            entries = (await self._app.runs.progress([record.id]))[record.id][1]
            return Read((_json(uri, {**run_json(record), "entries": entries}),), kept_ms)
        read = await self._app.journal.read(record.id)
        lines = (json.dumps(asdict(entry), ensure_ascii=False, default=str) for entry in read)
        return Read((Embedded(uri, _LINES, "\n".join(lines)),), kept_ms)

    def _tool(self, uri: str, name: str) -> "Tool":
        full = f"{_TEAM}{name}" if uri.startswith("team://") else name
        tool = self._app.catalog.current.tools.get(full)
        if tool is None or not self._may_call(tool):
            raise ResourceNotFound(uri)
        return tool

    def _plug(self, uri: str, name: str) -> dict[str, Any]:
        current = self._app.catalog.current
        tools = [tool.name for tool in current.of(name) if self._may_call(tool)]
        offers = current.offers.get(name, NO_OFFERS)
        offered = offers if "tools" in self._caller.grant.scopes else NO_OFFERS
        if not tools and offered == NO_OFFERS:
            raise ResourceNotFound(uri)
        return {
            "plug": name,
            "tools": tools,
            "prompts": [each.name for each in current.prompts.values() if each.plug == name]
            if offered.prompts
            else [],
            "resources": [each.uri for each in offered.resources],
            "templates": [each.uri_template for each in offered.templates],
        }

    def _may_call(self, tool: "Tool") -> bool:
        grant = self._caller.grant
        return tool.scope in grant.scopes and grant.allows(tool.name)


def may_see(caller: "Caller", record: "RunRecord") -> bool:
    """Tell whether a run is the caller's own, or the caller an administrator."""
    return record.principal == caller.grant.holder or "admin" in caller.grant.scopes


def run_json(record: "RunRecord") -> dict[str, Any]:
    """Return a run as its resource shows it."""
    return {
        "run": record.id,
        "kind": record.kind,
        "team": record.team,
        "task": record.task,
        "status": record.status,
        "started_at": record.started_at,
        "ended_at": record.ended_at,
        "report": record.report,
        "usage": record.usage,
    }


def _run_entry(record: "RunRecord") -> dict[str, Any]:
    return {
        "uri": f"run://{record.id}",
        "name": record.id,
        "title": record.team or record.kind,
        "description": f"{record.status}: {record.task[:120]}",
        "mimeType": _JSON,
        "annotations": {
            "audience": ["user", "assistant"],
            "lastModified": _moment(record.ended_at or record.started_at),
        },
    }


def _reference_entry(reference: Reference) -> dict[str, Any]:
    return {
        "uri": reference.uri,
        "name": reference.name,
        "description": reference.sketch,
        "mimeType": reference.media_type,
        "size": reference.size,
        "annotations": {
            "audience": ["assistant"],
            "lastModified": _moment(reference.created_at),
        },
    }


def _described(tool: "Tool") -> dict[str, Any]:
    described = tool_to_wire(tool)
    return {**described, "plug": tool.plug}


def _moment(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def _json(uri: str, value: Any) -> Embedded:
    return Embedded(uri, _JSON, json.dumps(value, ensure_ascii=False, default=str))


def _embedded(uri: str, media_type: str, content: bytes) -> Embedded:
    try:
        return Embedded(uri, media_type, text=content.decode())
    except UnicodeDecodeError:
        return Embedded(uri, media_type, data=content)


def _kept_ms(reference: Reference) -> int:
    """Return how long a client may keep it: what is stored never changes, but it may expire."""
    if reference.expires_at is None:
        return _KEPT_MS
    return max(0, min(_KEPT_MS, int((reference.expires_at - time()) * 1000)))

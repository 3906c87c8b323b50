"""References and runs as MCP resources, for those who may read them. Knows no transport."""

import base64
import json
from collections.abc import Mapping
from dataclasses import asdict
from time import time
from typing import TYPE_CHECKING, Any, Final

from mcp_types import INVALID_PARAMS

from guildry.errors import GuildryError
from guildry.memory.references import Reference, parse_handle
from guildry.tools.passing import open_reference

if TYPE_CHECKING:
    from guildry.memory.runs import RunRecord
    from guildry.server.parts import App
    from guildry.tools.caller import Caller

__all__ = ["TEMPLATES", "Resources", "may_see", "run_json"]

TEMPLATES: Final[tuple[dict[str, Any], ...]] = (
    {
        "uriTemplate": "ref://{id}",
        "name": "reference",
        "description": "A stored object: a result that was too long to be inline, or a file.",
    },
    {
        "uriTemplate": "run://{id}",
        "name": "run",
        "description": "A run: its state, its report and what it cost.",
        "mimeType": "application/json",
    },
    {
        "uriTemplate": "run://{id}/journal",
        "name": "journal",
        "description": "The journal of a run, one event a line.",
        "mimeType": "application/x-ndjson",
    },
)

_PAGE: Final = 100
_MAX_BYTES: Final = 16 * 1024 * 1024
_KEPT_MS: Final = 3_600_000
_RUNS: Final = "runs"


class Resources:
    """What one principal may list and read."""

    def __init__(self, app: "App", caller: "Caller") -> None:
        self._app = app
        self._caller = caller

    async def listing(self, cursor: str | None) -> dict[str, Any]:
        """Return a page of resources: references, then the latest runs."""
        if cursor == _RUNS:
            records = await self._app.runs.listing(principal=self._principal, limit=_PAGE)
            return _fresh({"resources": [_run_entry(record) for record in records]})
        if cursor is not None and not cursor.startswith("ref:"):
            raise _refused(f"`cursor` is {cursor!r}: pass on what the last page gave, or nothing")
        found = await self._app.objects.listing(
            holder=self._caller.grant.holder,
            limit=_PAGE,
            after=None if cursor is None else cursor.removeprefix("ref:"),
        )
        entries = [_reference_entry(reference) for reference in found]
        if len(found) == _PAGE:
            return _fresh({"resources": entries, "nextCursor": f"ref:{found[-1].id}"})
        records = await self._app.runs.listing(principal=self._principal, limit=1)
        more = {"nextCursor": _RUNS} if records else {}
        return _fresh({"resources": entries, **more})

    async def read(self, uri: str) -> dict[str, Any]:
        """Return the content of a resource.

        Raises:
            MCPError: there is no such resource for this caller.
        """
        try:
            if uri.startswith("ref://"):
                return await self._read_reference(uri)
            if uri.startswith("run://"):
                return await self._read_run(uri)
        except GuildryError as error:
            raise _refused(str(error), uri) from error
        raise _refused(f"there is no resource {uri!r} here: take one that was listed", uri)

    async def complete(self, argument: str, prefix: str) -> list[str]:
        """Return ids that begin with `prefix`, for an argument of a template."""
        if argument != "id":
            return []
        found = await self._app.objects.listing(holder=self._caller.grant.holder, limit=_PAGE)
        records = await self._app.runs.listing(principal=self._principal, limit=_PAGE)
        ids = [*(reference.id for reference in found), *(record.id for record in records)]
        return [each for each in ids if each.startswith(prefix)]

    @property
    def _principal(self) -> str | None:
        """Whose runs are listed: everybody's for an administrator."""
        grant = self._caller.grant
        return None if "admin" in grant.scopes else grant.holder

    async def _read_reference(self, uri: str) -> dict[str, Any]:
        handle = parse_handle(uri)
        if handle is None:
            raise _refused(f"{uri!r} is no reference: use one that you were given", uri)
        reference = await open_reference(self._app.objects, self._caller, handle)
        if handle.selector is not None:
            value = await self._app.objects.select(reference, handle.selector)
            text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
            kind = "text/plain" if isinstance(value, str) else "application/json"
            return _read(uri, kind, {"text": text}, _kept_ms(reference))
        if reference.size > _MAX_BYTES:
            raise _refused(
                f"`{uri}` has {reference.size:,} bytes: read a part, such as `{uri}?lines=1-200`",
                uri,
            )
        content = await self._app.objects.read(reference)
        return _read(uri, reference.media_type, _body(content), _kept_ms(reference))

    async def _read_run(self, uri: str) -> dict[str, Any]:
        id, _, part = uri.removeprefix("run://").partition("/")
        record = await self._app.runs.get(id)
        if record is None or part not in ("", "journal") or not may_see(self._caller, record):
            raise _refused(f"there is no resource {uri!r} here: take one that was listed", uri)
        if not part:
            text = json.dumps(run_json(record), ensure_ascii=False)
            return _read(uri, "application/json", {"text": text}, 0)
        entries = await self._app.journal.read(id)
        lines = (json.dumps(asdict(entry), ensure_ascii=False, default=str) for entry in entries)
        return _read(uri, "application/x-ndjson", {"text": "\n".join(lines)}, 0)


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
        "mimeType": "application/json",
    }


def _reference_entry(reference: Reference) -> dict[str, Any]:
    return {
        "uri": reference.uri,
        "name": reference.name,
        "description": reference.sketch,
        "mimeType": reference.media_type,
        "size": reference.size,
    }


def _body(content: bytes) -> dict[str, str]:
    try:
        return {"text": content.decode()}
    except UnicodeDecodeError:
        return {"blob": base64.b64encode(content).decode("ascii")}


def _read(uri: str, media_type: str, body: Mapping[str, str], kept_ms: int) -> dict[str, Any]:
    return {
        "contents": [{"uri": uri, "mimeType": media_type, **body}],
        "ttlMs": kept_ms,
        "cacheScope": "private",
    }


def _fresh(page: dict[str, Any]) -> dict[str, Any]:
    return {**page, "ttlMs": 0, "cacheScope": "private"}


def _kept_ms(reference: Reference) -> int:
    """Return how long a client may keep it: what is stored never changes, but it may expire."""
    if reference.expires_at is None:
        return _KEPT_MS
    return max(0, min(_KEPT_MS, int((reference.expires_at - time()) * 1000)))


def _refused(message: str, uri: str | None = None) -> Exception:
    from mcp.shared.exceptions import MCPError

    return MCPError(INVALID_PARAMS, message, None if uri is None else {"uri": uri})

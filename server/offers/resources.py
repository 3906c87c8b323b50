"""What one principal may list, read and follow: Guildry's own resources, then those of plugs.

Knows no transport. Every list is told in pages whose order plugging does not upset.
"""

from bisect import bisect_right
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import anyio

from guildry.errors import ToolFailed
from guildry.server.offers.cursors import Place, page_of, place_of
from guildry.server.offers.offered import OWN_SCHEMES, offered_at
from guildry.server.offers.own_resources import (
    OWN_TEMPLATES,
    OwnResources,
    Read,
    ResourceNotFound,
    may_see,
    run_json,
)
from guildry.server.offers.wire import contents_to_wire, resource_to_wire, template_to_wire

if TYPE_CHECKING:
    from guildry.server.parts import App
    from guildry.tools.asking.questions import Channel
    from guildry.tools.base import Log
    from guildry.tools.caller import Caller
    from guildry.tools.offers import Resource, Template

__all__ = ["ResourceNotFound", "Resources", "may_see", "run_json"]

_PAGE: Final = 100
_SECTIONS: Final = ("plugs", "references", "runs")
_TEMPLATES: Final = "templates"
_SCOPE: Final = "tools"


class Resources:
    """What one principal may list, read and follow."""

    def __init__(self, app: "App", caller: "Caller") -> None:
        self._app = app
        self._caller = caller
        self._own = OwnResources(app, caller)

    async def listing(self, cursor: str | None) -> dict[str, Any]:
        """Return a page of resources: those of plugs, then references, then runs.

        Raises:
            ToolRetry: `cursor` is no cursor of this list.
        """
        place = Place(_SECTIONS[0], "") if cursor is None else place_of(cursor, _SECTIONS)
        after = place.key or None
        found: list[tuple[Place, dict[str, Any]]] = []
        for section in _SECTIONS[_SECTIONS.index(place.section) :]:
            room = _PAGE + 1 - len(found)
            entries = await self._entries(section, after, room)
            found += [(Place(section, key), entry) for key, entry in entries]
            if len(found) > _PAGE:
                break
            after = None
        page: dict[str, Any] = {"resources": [entry for _, entry in found[:_PAGE]]}
        if len(found) > _PAGE:
            page["nextCursor"] = str(found[_PAGE - 1][0])
        return _fresh(page)

    def templates(self, cursor: str | None) -> dict[str, Any]:
        """Return a page of templates: Guildry's own, then those of plugs.

        Raises:
            ToolRetry: `cursor` is no cursor of this list.
        """
        entries = {f"0{n}": entry for n, entry in enumerate(OWN_TEMPLATES)}
        if _SCOPE in self._caller.grant.scopes:
            for each in self._app.catalog.current.templates:
                entries[f"1{each.uri_template} {each.plug}"] = template_to_wire(each)
        found, more = page_of(entries, cursor, _TEMPLATES, _PAGE)
        page: dict[str, Any] = {"resourceTemplates": found}
        return _fresh(page if more is None else {**page, "nextCursor": more})

    async def read(
        self, uri: str, channel: "Channel | None" = None, log: "Log | None" = None
    ) -> dict[str, Any]:
        """Return what a resource holds.

        Args:
            uri: where it is.
            channel: the way to the client that reads it.
            log: where log messages for that client go.

        Raises:
            ResourceNotFound: there is no such resource for this caller.
            ToolError: it cannot be read, or not in one piece.
        """
        found = await self._read(uri, replace(self._caller, channel=channel, log=log))
        contents = contents_to_wire(found.contents)
        return {"contents": contents, "ttlMs": found.kept_ms, "cacheScope": "private"}

    async def check(self, uri: str) -> None:
        """See that a resource is there for this caller.

        Raises:
            ResourceNotFound: there is no such resource for this caller.
        """
        if self._offered(uri) is not None:
            return
        if not uri.startswith(OWN_SCHEMES):
            raise ResourceNotFound(uri)
        await self._own.check(uri)

    async def _read(self, uri: str, caller: "Caller") -> Read:
        if uri.startswith(OWN_SCHEMES):
            try:
                return await self._own.read(uri)
            except ResourceNotFound:
                if self._offered(uri) is None:
                    raise
        offered = self._offered(uri)
        if offered is None:
            raise ResourceNotFound(uri)
        limit_s = self._app.patience_s(asks=caller.channel is not None)
        with anyio.move_on_after(limit_s):
            return Read(await offered.read(uri, caller))
        raise ToolFailed(f"`{uri}` was not read within {limit_s:g} s: try again later")

    def _offered(self, uri: str) -> "Resource | Template | None":
        """Return what a plug offers there, for callers who may use plugs at all."""
        if _SCOPE not in self._caller.grant.scopes:
            return None
        return offered_at(self._app.catalog.current, uri)

    async def _entries(
        self, section: str, after: str | None, limit: int
    ) -> list[tuple[str, dict[str, Any]]]:
        if section == "references":
            return await self._own.references(after, limit)
        if section == "runs":
            return await self._own.runs(after, limit)
        if _SCOPE not in self._caller.grant.scopes:
            return []
        offered = self._app.catalog.current.resources
        uris = sorted(offered)
        start = 0 if after is None else bisect_right(uris, after)
        return [(uri, resource_to_wire(offered[uri])) for uri in uris[start : start + limit]]


def _fresh(page: dict[str, Any]) -> dict[str, Any]:
    """Return a page with what is true of it: it may be another one at any moment.

    Anybody may plug something at any time. A client that wants to keep a list listens for changes.
    """
    return {**page, "ttlMs": 0, "cacheScope": "private"}

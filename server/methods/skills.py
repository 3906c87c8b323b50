"""The Skills extension (SEP-2640): `skills/list`, `skills/get` and `resources/directory/read`.

The files themselves are ordinary resources.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS, PaginatedRequestParams, RequestParams

from guildry.errors import ToolRetry
from guildry.server.methods.answers import complete, safely
from guildry.server.offers.cursors import page_of
from guildry.server.offers.wire import resource_to_wire

if TYPE_CHECKING:
    from mcp.server.lowlevel.server import Server

    from guildry.server.surface import Surface
    from guildry.tools.offers import Skill
    from guildry.tools.registry import Registry

__all__ = ["EXTENSION", "register"]

EXTENSION: Final = "io.modelcontextprotocol/skills"
"""The name of the extension."""

_PAGE: Final = 20  # an entry names up to 512 files
_CHILDREN: Final = 500
_SCOPE: Final = "tools"
_DIRECTORY: Final = "inode/directory"
_FRESH: Final = {"ttlMs": 0, "cacheScope": "private"}


class GetSkillParams(RequestParams):
    """What `skills/get` takes."""

    uri: str


class ReadDirectoryParams(PaginatedRequestParams):
    """What `resources/directory/read` takes."""

    uri: str


def register(server: "Server[Any]", surface: "Surface") -> None:
    """Serve the methods about skills, and say so in the capabilities."""
    skills = _Skills(surface)
    server.extensions[EXTENSION] = {"directoryRead": True}
    server.add_request_handler("skills/list", PaginatedRequestParams, skills.on_list)
    server.add_request_handler("skills/get", GetSkillParams, skills.on_get)
    server.add_request_handler(
        "resources/directory/read", ReadDirectoryParams, skills.on_read_directory
    )


class _Skills:
    def __init__(self, surface: "Surface") -> None:
        self._surface = surface
        self._directories: tuple[int, dict[str, dict[str, Any]]] = (-1, {})

    async def on_list(self, context: Any, params: PaginatedRequestParams) -> dict[str, Any]:
        entries = {uri: _entry(skill) for uri, skill in (await self._served()).items()}
        page, cursor = _page(entries, params.cursor, "skills", _PAGE)
        return complete({"skills": page, **_FRESH, **cursor})

    async def on_get(self, context: Any, params: GetSkillParams) -> dict[str, Any]:
        skill = (await self._served()).get(params.uri)
        if skill is None:
            raise _refused("there is no skill at {!r} here: take one of `skills/list`", params.uri)
        return complete({"skill": _entry(skill), **_FRESH})

    async def on_read_directory(self, context: Any, params: ReadDirectoryParams) -> dict[str, Any]:
        served = await self._served()
        registry = self._surface.app.catalog.current
        if self._directories[0] != registry.version:
            self._directories = (registry.version, _tree(served.values(), registry))
        children = self._directories[1].get(params.uri) if served else None
        if children is None:
            raise _refused(
                "{!r} is no directory here: take one that a skill's files are in, without a slash"
                " at its end",
                params.uri,
            )
        page, cursor = _page(children, params.cursor, params.uri, _CHILDREN)
        return complete({"resources": page, **_FRESH, **cursor})

    async def _served(self) -> "dict[str, Skill]":
        """Return the skills that the principal may read, by URI."""
        app = self._surface.app
        await safely(app.settled())
        if _SCOPE not in self._surface.caller.grant.scopes:
            return {}
        offers = app.catalog.current.offers.values()
        return {skill.uri: skill for each in offers for skill in each.skills}


def _entry(skill: "Skill") -> dict[str, Any]:
    files = [{"uri": each.uri, "digest": each.digest, "size": each.size} for each in skill.files]
    return {"uri": skill.uri, "frontmatter": skill.frontmatter, "resources": files}


def _tree(skills: "Any", registry: "Registry") -> dict[str, dict[str, Any]]:
    """Return the children of every directory, those above the skills included, by URI."""
    tree: dict[str, dict[str, Any]] = {}
    for skill in skills:
        for uri, children in skill.directories.items():
            inner = tree.setdefault(uri, {})
            for child in children:
                resource = registry.resources.get(child)
                inner[child] = _directory(child) if resource is None else resource_to_wire(resource)
        child = skill.uri.rpartition("/")[0]
        while not (above := child.rpartition("/")[0]).endswith("/"):
            tree.setdefault(above, {})[child] = _directory(child)
            child = above
    return tree


def _directory(uri: str) -> dict[str, Any]:
    return {"uri": uri, "name": unquote(uri.rpartition("/")[2]), "mimeType": _DIRECTORY}


def _page(
    entries: Mapping[str, dict[str, Any]], cursor: str | None, section: str, size: int
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """Return a page of `entries`, and the field that names the next one.

    Raises:
        MCPError: `cursor` is none of this listing.
    """
    try:
        page, more = page_of(entries, cursor, section, size)
    except ToolRetry as error:
        raise MCPError(INVALID_PARAMS, str(error)) from error
    return page, {} if more is None else {"nextCursor": more}


def _refused(message: str, uri: str) -> MCPError:
    return MCPError(INVALID_PARAMS, message.format(uri[:200]), {"uri": uri[:2000]})

"""`completion/complete`: for arguments of prompts, and for variables of templates."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import anyio
from mcp_types import CompleteRequestParams, PromptReference

from guildry.errors import ToolFailed, ToolRetry
from guildry.server.methods.answers import answered, complete
from guildry.server.offers.own_resources import OWN_TEMPLATES
from guildry.server.offers.suggest import ranked, variables_of
from guildry.tools.registry import nearest

if TYPE_CHECKING:
    from mcp.server.lowlevel.server import Server

    from guildry.server.surface import Surface
    from guildry.tools.offers import Complete

__all__ = ["register"]

_MOST: Final = 100
_PATIENCE_S: Final = 10.0
_OWN: Final = tuple(str(each["uriTemplate"]) for each in OWN_TEMPLATES)


def register(server: "Server[Any]", surface: "Surface") -> None:
    """Serve completion."""
    methods = _Completion(surface)
    server.add_request_handler("completion/complete", CompleteRequestParams, methods.on_complete)


class _Completion:
    def __init__(self, surface: "Surface") -> None:
        self._surface = surface

    async def on_complete(self, context: Any, params: CompleteRequestParams) -> dict[str, Any]:
        values = await answered(self._values(params))
        told = {"values": values[:_MOST], "total": len(values), "hasMore": len(values) > _MOST}
        return complete({"completion": told})

    async def _values(self, params: CompleteRequestParams) -> list[str]:
        await self._surface.app.settled()
        name, typed = params.argument.name, params.argument.value
        given = (params.context.arguments if params.context else None) or {}
        if isinstance(params.ref, PromptReference):
            prompt = self._surface.prompts.named(params.ref.name)
            _check(name, [each.name for each in prompt.arguments], f"`{prompt.name}`")
            return await _asked(prompt.complete, name, typed, given)
        uri = params.ref.uri
        if uri in _OWN:
            _check(name, variables_of(uri), f"`{uri}`")
            return list(await self._surface.suggestions.of_template(uri, typed))
        return await self._of_plug(uri, name, typed, given)

    async def _of_plug(
        self, uri: str, name: str, typed: str, given: Mapping[str, str]
    ) -> list[str]:
        registry = self._surface.app.catalog.current
        may = "tools" in self._surface.caller.grant.scopes
        offered = [each for each in registry.templates if may and each.uri_template == uri]
        if not offered:
            if may and uri in registry.resources:
                raise ToolRetry(f"`{uri}` has no variables: read it as it is")
            known = (*_OWN, *(each.uri_template for each in registry.templates if may))
            near = nearest(uri, known)
            cure = f"did you mean `{near}`?" if near else "take one that was listed"
            raise ToolRetry(f"there is no template {uri!r} here: {cure}")
        _check(name, variables_of(uri), f"`{uri}`")
        return await _asked(offered[0].complete, name, typed, given)


async def _asked(
    completing: "Complete | None", name: str, typed: str, given: Mapping[str, str]
) -> list[str]:
    """Ask whoever offers a prompt or a template, which may be in another process."""
    if completing is None:
        return []
    with anyio.move_on_after(_PATIENCE_S):
        return ranked(await completing(name, typed, given), typed)
    raise ToolFailed(f"`{name}` cannot be completed: whoever offers it does not answer")


def _check(name: str, known: Sequence[str], where: str) -> None:
    if name not in known:
        near = nearest(name, known)
        takes = ", ".join(f"`{each}`" for each in known) or "none"
        cure = f"did you mean `{near}`?" if near else f"it has {takes}"
        raise ToolRetry(f"{where} has no argument {name!r}: {cure}")

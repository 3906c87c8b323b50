"""Suggestions for what a person is typing: names of tools, teams, plugs, runs and references."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from guildry.server.offers.prompts import team_of

if TYPE_CHECKING:
    from guildry.server.parts import App
    from guildry.tools.base import Tool
    from guildry.tools.caller import Caller

__all__ = ["Suggestions", "ranked", "variables_of"]

_LOOKED_AT: Final = 1_000
_EXPRESSION: Final = re.compile(r"\{[+#./;?&]?([^{}]*)\}")


def variables_of(uri_template: str) -> tuple[str, ...]:
    """Return the names of the variables of a URI template (RFC 6570), in order."""
    named = ",".join(_EXPRESSION.findall(uri_template)).split(",")
    return tuple(dict.fromkeys(each.partition(":")[0].rstrip("*") for each in named if each))


def ranked(values: Iterable[str], typed: str) -> list[str]:
    """Return values, each once: what begins with `typed`, then what has it inside, then the rest.

    Upper and lower case are the same; equals keep their order.
    """
    wanted = typed.casefold()

    def rank(value: str) -> int:
        folded = value.casefold()
        return 0 if folded.startswith(wanted) else 1 if wanted in folded else 2

    return sorted(dict.fromkeys(values), key=rank)


class Suggestions:
    """What one principal may be about to write: nothing that it may not use."""

    def __init__(self, app: "App", caller: "Caller") -> None:
        self._app = app
        self._caller = caller

    async def of_prompt(self, name: str, typed: str, given: Mapping[str, str]) -> Sequence[str]:
        """Complete an argument of a prompt that sets agents to work; of a list, its last item."""
        begun, comma, last = typed.rpartition(",")
        item = last.lstrip()
        before = begun + comma + last[: len(last) - len(item)]
        if name == "references":
            found = await self._references(item)
        elif name == "tools":
            found = _matching((tool.name for tool in self._callable()), item)
        else:
            return []
        return [before + each for each in found]

    async def of_template(self, uri_template: str, typed: str) -> Sequence[str]:
        """Complete the variable of one of Guildry's own templates."""
        match uri_template.partition("://")[0]:
            case "ref":
                return await self._reference_ids(typed)
            case "run":
                return await self._runs(typed)
            case "team":
                teams = (team_of(tool) for tool in self._callable())
                return _matching((team for team in teams if team is not None), typed)
            case "plug":
                return _matching(self._plugs(), typed)
            case _:
                return _matching((tool.name for tool in self._callable()), typed)

    def _plugs(self) -> list[str]:
        may_use = "tools" in self._caller.grant.scopes
        offering = self._app.catalog.current.offers if may_use else ()
        return [*(tool.plug for tool in self._callable()), *offering]

    async def _runs(self, typed: str) -> list[str]:
        """Return the ids of runs, the newest first, by id or by the team's name."""
        grant = self._caller.grant
        principal = None if "admin" in grant.scopes else grant.holder
        records = await self._app.runs.listing(principal, _LOOKED_AT)
        return _meant([(each.id, each.team) for each in records], typed)

    async def _reference_ids(self, typed: str) -> list[str]:
        """Return the ids of references, by id or by short name."""
        holder = self._caller.grant.holder
        found = await self._app.objects.listing(holder=holder, limit=_LOOKED_AT)
        return _meant([(each.id, each.name) for each in found], typed)

    async def _references(self, typed: str) -> list[str]:
        """Return references as one writes them: by this principal's short names, then by ids."""
        holder, listing = self._caller.grant.holder, self._app.objects.listing
        own = await listing(namespace=self._caller.run, holder=holder, limit=_LOOKED_AT)
        every = await listing(holder=holder, limit=_LOOKED_AT)
        return _matching([*(each.short for each in own), *(each.uri for each in every)], typed)

    def _callable(self) -> "list[Tool]":
        grant = self._caller.grant
        return [
            tool
            for tool in self._app.catalog.current
            if tool.scope in grant.scopes and grant.allows(tool.name)
        ]


def _matching(values: Iterable[str], typed: str) -> list[str]:
    wanted = typed.casefold()
    return ranked((each for each in values if wanted in each.casefold()), typed)


def _meant(pairs: Sequence[tuple[str, str]], typed: str) -> list[str]:
    """Return the first of each pair of which either was meant, the best ones first."""
    wanted = typed.casefold()

    def rank(pair: tuple[str, str]) -> int:
        return 0 if any(each.casefold().startswith(wanted) for each in pair) else 1

    found = [pair for pair in pairs if any(wanted in each.casefold() for each in pair)]
    return [first for first, _ in sorted(found, key=rank)]

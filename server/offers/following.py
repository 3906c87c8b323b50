"""Who follows which resource, and finding out when one of these has changed. Knows no client.

Runs are looked at while somebody follows one, so that runs of other processes are seen as well.
The plugs' own resources tell by themselves, once they were asked to.
"""

from typing import TYPE_CHECKING, Final

import anyio
import structlog

from guildry.errors import GuildryError, ToolError, ToolFailed
from guildry.server.offers.offered import offered_at

if TYPE_CHECKING:
    from collections.abc import Callable

    from guildry.memory.runs import RunStore
    from guildry.tools.offers import Resource, Template
    from guildry.tools.registry import Catalog, Change

__all__ = ["Following"]

log = structlog.get_logger()

_LOOK_S: Final = 0.5
_FOLLOW_S: Final = 10.0
_RUN: Final = "run://"
_NOTHING: Final = ("", 0)


class Following:
    """Count who follows which resource, and say when one that is followed has changed.

    `run` must be running.

    Args:
        catalog: what plugs offer.
        runs: the records of runs.
        updated: called with the URI of a resource that is followed and is another one now.
        patience_s: how long a plug may take to say that it will tell of a resource.
    """

    def __init__(
        self,
        catalog: "Catalog",
        runs: "RunStore",
        updated: "Callable[[str], None]",
        *,
        patience_s: float = _FOLLOW_S,
    ) -> None:
        self._catalog = catalog
        self._runs = runs
        self._updated = updated
        self._patience_s = patience_s
        self._held: dict[str, int] = {}
        self._seen: dict[str, tuple[str, int]] = {}
        self._asked: dict[str, Resource | Template] = {}
        self._version = 0
        self._some = anyio.Event()

    async def hold(self, uri: str) -> None:
        """Follow a resource, until it was released as often as it was held.

        Raises:
            ToolError: whoever offers it cannot tell when it changes.
        """
        self._held[uri] = self._held.get(uri, 0) + 1
        self._some.set()
        try:
            run = _run_of(uri)
            if run is not None and run not in self._seen:
                self._seen[run] = _NOTHING
                self._seen |= await self._runs.progress([run])
            await self._ask(uri)
        except BaseException:
            self.release(uri)
            raise

    def release(self, uri: str) -> None:
        """Follow a resource no longer, unless others do."""
        left = self._held.get(uri, 0) - 1
        if left > 0:
            self._held[uri] = left
            return
        self._held.pop(uri, None)
        self._asked.pop(uri, None)
        run = _run_of(uri)
        if run is not None and not any(_run_of(each) == run for each in self._held):
            self._seen.pop(run, None)

    def touched(self, uri: str) -> None:
        """Hear that the resource at `uri` is another one now."""
        if uri in self._held:
            self._updated(uri)

    def changed(self, change: "Change") -> None:
        """Hear of a change of the catalog: what is told of a tool and of a plug is another now."""
        self.touched(f"plug://{change.plug}")
        for name in (*change.added, *change.removed, *change.changed):
            self.touched(f"tool://{name}")
            self.touched(f"team://{name.removeprefix('team_')}")

    async def run(self) -> None:
        """Look for changes while anything is followed, until cancelled."""
        while True:
            await self._some.wait()
            if not self._held:
                self._some = anyio.Event()
                continue
            await anyio.sleep(_LOOK_S)
            try:
                await self._look_at_runs()
            except GuildryError as error:
                log.warning("runs_not_looked_at", error=str(error))
            await self._ask_anew()

    async def _look_at_runs(self) -> None:
        if not self._seen:
            return
        for run, now in (await self._runs.progress(tuple(self._seen))).items():
            if run in self._seen and self._seen[run] != now:
                self._seen[run] = now
                self.touched(f"{_RUN}{run}")
                self.touched(f"{_RUN}{run}/journal")

    async def _ask_anew(self) -> None:
        """Ask again where a plug was loaded anew, for it has forgotten who followed what."""
        if self._catalog.current.version == self._version:
            return
        self._version = self._catalog.current.version
        for uri in tuple(self._held):
            try:
                if await self._ask(uri):
                    self.touched(uri)
            except ToolError as error:
                log.warning("resource_not_followed", uri=uri, error=str(error))
            except Exception:  # of a plug: whoever follows other resources goes on hearing of them
                log.exception("resource_not_followed", uri=uri)

    async def _ask(self, uri: str) -> bool:
        """Have whoever offers a resource say when it changes; False where it was asked before."""
        offered = offered_at(self._catalog.current, uri)
        if offered is None or self._asked.get(uri) is offered:
            return False
        if offered.follow is not None:
            with anyio.move_on_after(self._patience_s) as scope:
                await offered.follow(uri)
            if scope.cancelled_caught:
                raise ToolFailed(f"`{uri}` cannot be followed: `{offered.plug}` does not answer")
        if uri in self._held:
            self._asked[uri] = offered
        return True


def _run_of(uri: str) -> str | None:
    """Return the id of the run that a URI is about, if it is."""
    return uri.removeprefix(_RUN).partition("/")[0] if uri.startswith(_RUN) else None

"""The board: plugs come and go on it while calls are in flight. Knows no kind of plug."""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import anyio
import structlog
from anyio import to_thread

from guildry.errors import PlugError
from guildry.tools.plugs.admission import admit
from guildry.tools.plugs.entry import Entry
from guildry.tools.plugs.gate import Gate
from guildry.tools.plugs.options import NOTHING_SAID, PlugOptions
from guildry.tools.plugs.plug import (
    LIMITS,
    Loaded,
    Opener,
    Plug,
    PlugLimits,
    PlugReport,
    PlugStatus,
    Review,
    Touching,
    Wanted,
)
from guildry.tools.plugs.sources import Opening, derive_name, open_source
from guildry.tools.plugs.watch import Watch
from guildry.tools.redaction import HIDDEN, secrets_in
from guildry.tools.registry import Catalog, tool_name

__all__ = ["PlugBoard"]

log = structlog.get_logger()

_OWN: Final = "guildry"


class PlugBoard:
    """Hold the plugs of one server: plug, unplug, reload, and say how each is.

    An async context manager: it owns the tasks of its plugs, and leaving it closes them all.
    What happens to one plug never waits for another.

    Args:
        catalog: where tools are served from.
        openers: kinds of source besides Python and MCP, asked first, in order.
        folder: where relative paths are looked up and commands run; the current one if None.
        limits: how long each step may take.
        review: looks at what a plug offers before it is served.
        opening: gives the plug for a source that no opener takes.
    """

    def __init__(
        self,
        catalog: Catalog,
        *,
        openers: Sequence[Opener] = (),
        folder: Path | None = None,
        limits: PlugLimits = LIMITS,
        review: Review | None = None,
        opening: Opening = open_source,
    ) -> None:
        self._catalog = catalog
        self._review = review
        self._openers = tuple(openers)
        self._opening = opening
        self._folder = folder or Path.cwd()
        self._limits = limits
        self._close_s = 3 * limits.close_s + 5
        self._entries: dict[str, Entry] = {}
        self._beside: set[Entry] = set()
        self._watch = Watch()
        self._tasks = anyio.create_task_group()

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._tasks.start_soon(self._watch.run)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        drain_s = 0.0 if kind else self._limits.drain_s
        with anyio.CancelScope(shield=True):
            async with anyio.create_task_group() as closing:
                for entry in (*self._entries.values(), *self._beside):
                    closing.start_soon(self._remove, entry, drain_s)
        self._tasks.cancel_scope.cancel()
        await self._tasks.__aexit__(None, None, None)  # the error of the block stays as it is

    async def plug(
        self,
        source: str,
        name: str | None = None,
        *,
        options: PlugOptions = NOTHING_SAID,
        keep: bool = False,
        replace: bool = False,
    ) -> PlugReport:
        """Open a source and serve its tools.

        Args:
            source: a Python file or folder, a URL, or a command line.
            name: on the board; derived from the source if None.
            options: what is said of it besides.
            keep: a source that cannot be opened stays on the board as failed, so that it is listed
                and a saved change or `reload` may mend it. The error is raised all the same.
            replace: a plug of that name is replaced without a gap; see `replace`.

        Raises:
            PlugError: the source cannot be plugged; names it and the cure.
        """
        wanted = Wanted(source, name, options)
        if replace and (taken := self._entries.get(self._name(wanted))) is not None:
            return await self._replace(taken, wanted)
        return await self._plug(wanted, keep=keep)

    async def replace(
        self, name: str, source: str, options: PlugOptions = NOTHING_SAID
    ) -> PlugReport:
        """Put another version in the place of a plug, without a gap.

        The new one is opened beside the old one, and takes its place in one step of the catalog.
        Calls in flight end on the old one, which is closed once there are none.

        Raises:
            PlugError: there is no such plug, or the source cannot be plugged: the old one goes on
                serving.
        """
        return await self._replace(self._entry(name), Wanted(source, name, options))

    async def plug_all(
        self, wanted: Sequence[Wanted], *, patience_s: float = 8.0
    ) -> list[PlugReport | PlugError]:
        """Open sources side by side and serve them in the order given; failed ones are kept.

        One that takes longer than `patience_s` no longer holds up those after it.
        """
        until = anyio.current_time() + patience_s
        done = [anyio.Event() for _ in wanted]
        found: dict[int, PlugReport | PlugError] = {}

        async def turn(n: int) -> None:
            with anyio.CancelScope(deadline=until):
                for event in done[:n]:
                    await event.wait()

        async def one(n: int) -> None:
            try:
                found[n] = await self._plug(wanted[n], keep=True, turn=partial(turn, n))
            except PlugError as error:
                found[n] = error
            finally:
                done[n].set()

        async with anyio.create_task_group() as opening:
            for n in range(len(wanted)):
                opening.start_soon(one, n)
        return [found[n] for n in range(len(wanted))]

    async def unplug(self, name: str) -> None:
        """Withdraw the tools of a plug, let its calls in flight end, and close it.

        Raises:
            PlugError: there is no plug of that name.
        """
        await self._remove(self._entry(name), self._limits.drain_s)

    async def reload(self, name: str) -> PlugReport:
        """Read anew what a plug offers; one that failed is opened anew.

        Raises:
            PlugError: there is no such plug, or it cannot be read; its last tools go on serving.
        """
        entry = self._entry(name)
        await self._work(entry, partial(self._read, entry))
        return self._report(entry)

    async def review(self, name: str) -> None:
        """Look again at what a plug offers, after a person has decided; does nothing without it.

        Raises:
            PlugError: it cannot be looked at; its last tools go on serving.
        """
        entry = self._entries.get(name)
        if entry is not None and entry.state == "ready":
            await self._work(entry, partial(self._review_again, entry))

    def said_of(self, name: str) -> tuple[str, str, PlugOptions] | None:
        """Return the kind, the source and the options of a plug, or None where there is none."""
        entry = self._entries.get(name)
        return None if entry is None else (entry.plug.kind, entry.plug.source, entry.options)

    def listing(self) -> list[PlugStatus]:
        """Say how each plug is, in the order in which they were plugged."""
        return [entry.status(self._catalog.current) for entry in self._entries.values()]

    async def _plug(
        self, wanted: Wanted, *, keep: bool, turn: Callable[[], Awaitable[None]] | None = None
    ) -> PlugReport:
        name = self._name(wanted)
        if (taken := self._entries.get(name)) is not None:
            raise PlugError(
                wanted.source,
                f"a plug named `{name}` is there already, from `{taken.plug.source}`",
                "Unplug that one first, or give this one another name",
            )
        entry = self._entries[name] = self._made(wanted, name)
        try:
            await self._work(entry, partial(self._open, entry, turn))
        except PlugError as error:
            log.warning("plug_failed", plug=name, kind=entry.plug.kind, error=error.reason)
            if not keep:
                await self._discard(entry)
            raise
        except BaseException:
            await self._discard(entry)
            raise
        if entry.stale:
            self._changed(entry)
        return self._report(entry)

    async def _replace(self, old: Entry, wanted: Wanted) -> PlugReport:
        heir = self._made(wanted, old.name)
        self._beside.add(heir)
        try:
            await self._work(heir, partial(self._open, heir, partial(self._take_over, heir, old)))
        except BaseException as error:
            log.warning("plug_not_replaced", plug=old.name, error=str(error))
            await self._discard(heir)
            raise
        self._tasks.start_soon(self._remove, old, self._limits.retire_s)
        if heir.stale:
            self._changed(heir)
        return self._report(heir)

    async def _take_over(self, heir: Entry, old: Entry) -> None:
        """Put a plug that is open in the place of another; its tools are served in the same step.

        Nothing is waited for in here, so that no caller ever finds neither of the two.
        """
        if self._entries.get(old.name) is not old or old.state == "closing":
            why = "the plug was unplugged or replaced meanwhile"
            raise PlugError(heir.plug.source, why, "See how it is now, and plug it again")
        self._beside.remove(heir)
        self._beside.add(old)
        self._entries[old.name] = heir
        old.state = "closing"
        old.working.cancel()
        old.gate.hand_over(heir.gate)
        log.info("plug_replaced", plug=old.name, source=heir.plug.source)

    def _name(self, wanted: Wanted) -> str:
        name = tool_name(wanted.name or derive_name(wanted.source, self._folder))
        if name == _OWN:
            why = f"`{name}` is the name of Guildry's own tools"
            raise PlugError(wanted.source, why, "Give the plug another name")
        return name

    def _made(self, wanted: Wanted, name: str) -> Entry:
        HIDDEN.hide_named(wanted.options.env, wanted.options.headers)
        HIDDEN.hide(secrets_in(wanted.source))
        return Entry(name, self._find(wanted, name), wanted.options, Gate(name))

    def _find(self, wanted: Wanted, name: str) -> Plug:
        for opener in self._openers:
            if (plug := opener(wanted.source, name)) is not None:
                return plug
        return self._opening(wanted, name, self._folder, self._limits, self._tasks)

    async def _work(self, entry: Entry, work: Callable[[], Awaitable[None]]) -> None:
        """Run one step of a plug alone; whatever fails is a `PlugError` that the entry remembers.

        Unplugging cancels the step.
        """
        source = entry.plug.source
        async with entry.lock:
            with anyio.CancelScope() as entry.working:
                if entry.state == "closing":
                    entry.working.cancel()
                try:
                    await work()
                    return
                except PlugError as error:
                    entry.error = str(error)
                    raise
                except Exception as error:
                    log.exception("plug_broke", plug=entry.name)
                    entry.error = f"{type(error).__name__}: {error}"
                    raise PlugError(source, entry.error, "See the server's log") from error
        raise PlugError(source, "it was unplugged meanwhile", "Plug it again")

    async def _open(self, entry: Entry, turn: Callable[[], Awaitable[None]] | None = None) -> None:
        changed = partial(self._changed, entry)
        entry.state = "starting"
        if entry.plug.watched and entry.unwatch is None:
            entry.unwatch = await self._watch.add(entry.plug.watched, changed)
        if isinstance(entry.plug, Touching):
            entry.plug.touched = self._catalog.touch
        entry.is_open, entry.stale = True, False
        try:
            loaded = await self._admitted(entry, await entry.plug.open(changed))
            if turn is not None:
                await turn()
            self._serve(entry, loaded)
        except BaseException:
            if entry.state == "starting":
                entry.state = "failed"
            await entry.close(self._close_s)
            raise

    async def _read(self, entry: Entry) -> None:
        if entry.state == "failed":
            await self._open(entry)
        else:
            self._serve(entry, await self._admitted(entry, await entry.plug.reload()))

    async def _admitted(self, entry: Entry, loaded: Loaded) -> Loaded:
        """Return what of a plug's offers may be served."""
        fit = entry.admitted = await to_thread.run_sync(admit, loaded)
        return fit if self._review is None else await self._review(entry.plug, entry.options, fit)

    async def _review_again(self, entry: Entry) -> None:
        if self._review is not None and entry.admitted is not None:
            self._serve(entry, await self._review(entry.plug, entry.options, entry.admitted))

    def _serve(self, entry: Entry, loaded: Loaded) -> None:
        entry.state, entry.error, entry.quarantined = "ready", None, loaded.quarantined
        self._catalog.replace(entry.name, entry.gate.guards(loaded.tools), loaded.offers)
        log.info("plug_served", plug=entry.name, kind=entry.plug.kind, tools=len(loaded.tools))
        for each in loaded.quarantined:
            log.warning("tool_quarantined", plug=entry.name, tool=each.tool, reason=each.reason)

    def _changed(self, entry: Entry) -> None:
        """Read a plug anew, now or after the reading in progress; a burst is one reading."""
        entry.stale = True
        if entry.state in ("ready", "failed") and not entry.reloading:
            entry.reloading = True
            self._tasks.start_soon(self._read_while_stale, entry)

    async def _read_while_stale(self, entry: Entry) -> None:
        try:
            while entry.stale and entry.state in ("ready", "failed"):
                entry.stale = False
                try:
                    await self._work(entry, partial(self._read, entry))
                except PlugError as error:
                    log.warning("plug_reload_failed", plug=entry.name, error=error.reason)
        finally:
            entry.reloading = False

    async def _remove(self, entry: Entry, drain_s: float) -> None:
        entry.state = "closing"
        entry.working.cancel()
        if self._entries.get(entry.name) is entry:
            self._catalog.withdraw(entry.name)
        try:
            if cut := await entry.gate.drain(drain_s):
                log.warning("calls_cut_off", plug=entry.name, calls=cut, drain_s=drain_s)
        finally:
            await self._discard(entry)

    async def _discard(self, entry: Entry) -> None:
        """Take a plug off the board and close it, whatever happens to the caller meanwhile."""
        with anyio.CancelScope(shield=True):
            async with entry.lock:
                if entry.is_gone:
                    return
                entry.is_gone = True
                if entry.unwatch is not None:
                    entry.unwatch()
                await entry.close(self._close_s)
                self._beside.discard(entry)
                if self._entries.get(entry.name) is entry:
                    del self._entries[entry.name]
        log.info("plug_closed", plug=entry.name)

    def _entry(self, name: str) -> Entry:
        entry = self._entries.get(name)
        if entry is None or entry.state == "closing":
            there = ", ".join(f"`{each}`" for each in self._entries) or "none"
            raise PlugError(name, "there is no plug of that name", f"Plugged are: {there}")
        return entry

    def _report(self, entry: Entry) -> PlugReport:
        return entry.report(self._catalog.current)

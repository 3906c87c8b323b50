"""Assemblies: sources that stand for several plugs, which come and go as the source says.

An assembly is a plug without tools; its members are plugs of their own on the same board. Knows no
form in which members are written down.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, Protocol

import anyio
import structlog
from anyio import to_thread

from guildry.errors import PlugError
from guildry.tools.plugs.options import NOTHING_SAID, PlugOptions
from guildry.tools.plugs.plug import (
    Loaded,
    PlugReport,
    PlugStatus,
    Quarantined,
    Wanted,
    Watched,
)
from guildry.tools.registry import tool_name

__all__ = ["Assembly", "Board", "Expanded", "inherited"]

log = structlog.get_logger()

_READ_S: Final = 20.0
_MAX_MEMBERS: Final = 500


@dataclass(frozen=True, slots=True)
class Expanded:
    """What a source stands for: named members, and what of it cannot be one.

    Args:
        members: by their names in the source, in its order.
        left_out: what cannot be plugged, and why.
    """

    members: Mapping[str, Wanted]
    left_out: tuple[Quarantined, ...] = ()


class Board(Protocol):
    """What plugs and unplugs the members."""

    async def plug(
        self,
        source: str,
        name: str | None = None,
        *,
        options: PlugOptions = NOTHING_SAID,
        keep: bool = False,
    ) -> PlugReport:
        """Plug a source."""
        ...

    async def unplug(self, name: str) -> None:
        """Unplug a source."""
        ...

    async def replace(
        self, name: str, source: str, options: PlugOptions = NOTHING_SAID
    ) -> PlugReport:
        """Put another version in the place of a plug."""
        ...

    def listing(self) -> list[PlugStatus]:
        """Say how each plug is."""
        ...


class Assembly:
    """A source that stands for several plugs.

    A member that is unplugged by hand stays away until what the source says of it changes.

    Args:
        source: as it was written.
        name: on the board.
        kind: what it is, in a word.
        watched: files whose saved changes bring members, or take them away.
        expand: reads the source, in a thread; raises `PlugError`.
        board: where the members go.
        folder: where relative paths of other plugs begin.
    """

    def __init__(
        self,
        source: str,
        name: str,
        kind: str,
        *,
        watched: tuple[Watched, ...],
        expand: Callable[[], Expanded],
        board: Board,
        folder: Path,
    ) -> None:
        self.kind = kind
        self.source = source
        self.name = name
        self.watched = watched
        self.fault: str | None = None
        self._expand = expand
        self._board = board
        self._folder = folder
        self._known: dict[str, Wanted] = {}
        self._names: dict[str, str] = {}
        self._refused: dict[str, str] = {}

    @property
    def members(self) -> tuple[str, ...]:
        """The names of its plugs on the board."""
        return tuple(self._names.values())

    async def open(self, changed: Callable[[], None]) -> Loaded:
        """Read the source, and plug its members.

        Raises:
            PlugError: it cannot be read.
        """
        return await self.reload()

    async def reload(self) -> Loaded:
        """Read the source anew: plug what has come, unplug what has gone.

        Raises:
            PlugError: it cannot be read; its members stay as they are.
        """
        try:
            with anyio.fail_after(_READ_S):
                expanded = await to_thread.run_sync(self._expand, abandon_on_cancel=True)
        except TimeoutError:
            reason = f"reading it took over {_READ_S:g} s"
            raise PlugError(self.source, reason, "Check the disk that it is on") from None
        left_out = list(expanded.left_out)
        wanted = dict(list(expanded.members.items())[:_MAX_MEMBERS])
        if len(wanted) < len(expanded.members):
            why = f"there are over {_MAX_MEMBERS}: plug fewer"
            left_out.append(Quarantined(self.name, why))
        await self._follow(wanted)
        left_out += [Quarantined(name, reason) for name, reason in self._refused.items()]
        return Loaded((), tuple(left_out))

    async def close(self) -> None:
        """Unplug the members."""
        await self._follow({})

    async def _follow(self, wanted: dict[str, Wanted]) -> None:
        """Make the members on the board those that are wanted, side by side."""
        async with anyio.create_task_group() as leaving:
            for key in [key for key in self._known if key not in wanted]:
                leaving.start_soon(self._leave, key)
        async with anyio.create_task_group() as coming:
            for key, each in wanted.items():
                if self._known.get(key) != each or key in self._refused:
                    is_there = key in self._names
                    self._known[key] = each
                    coming.start_soon(self._change if is_there else self._come, key, each)
        order = list(wanted)
        self._names = dict(sorted(self._names.items(), key=lambda each: order.index(each[0])))

    async def _come(self, key: str, wanted: Wanted) -> None:
        self._refused.pop(key, None)
        plugged = self._board.listing()
        twin = next((each.name for each in plugged if self._is_same(each, wanted)), None)
        if twin is not None:
            self._refused[key] = f"it is the plug `{twin}` already"
            return
        taken = {status.name for status in plugged} | set(self._names.values())
        name = tool_name(wanted.name or key)
        if name in taken:
            name = tool_name(f"{self.name}_{name}")
        if name in taken:
            self._refused[key] = f"there is a plug named `{name}` already: rename one of the two"
            return
        self._names[key] = name
        try:
            await self._board.plug(wanted.source, name, options=wanted.options, keep=True)
        except PlugError as error:
            there = {status.name: status.source for status in self._board.listing()}
            if there.get(name) != wanted.source:
                del self._names[key]
                self._refused[key] = f"{error.reason}. {error.cure}"
        except BaseException:
            self._forget(key)
            raise

    def _is_same(self, status: PlugStatus, wanted: Wanted) -> bool:
        """Tell whether a plug comes from the same file or folder."""
        path = os.path.join(self._folder, os.path.expanduser(status.source))
        return os.path.isabs(wanted.source) and os.path.abspath(path) == wanted.source

    async def _change(self, key: str, wanted: Wanted) -> None:
        """Swap a member whose source or options have changed; one that was unplugged comes back."""
        self._refused.pop(key, None)
        name = self._names[key]
        state = {status.name: status.state for status in self._board.listing()}.get(name)
        if state in (None, "failed"):  # nothing is served that could go on
            await self._leave(key)
            self._known[key] = wanted
            await self._come(key, wanted)
            return
        try:
            await self._board.replace(name, wanted.source, wanted.options)
        except PlugError as error:
            self._refused[key] = f"{error.reason} (as it was before, it stays). {error.cure}"

    async def _leave(self, key: str) -> None:
        name = self._names.get(key)
        self._forget(key)
        if name is None:
            return
        try:
            await self._board.unplug(name)
        except PlugError:  # it was unplugged by hand, or is closing with the board
            log.debug("member_gone_already", plug=name, assembly=self.name)

    def _forget(self, key: str) -> None:
        for kept in (self._known, self._names, self._refused):
            kept.pop(key, None)


def inherited(options: PlugOptions, own: PlugOptions) -> PlugOptions:
    """Return what is said of a member: what is said of its assembly, with its own credentials."""
    return replace(
        options,
        env=own.env,
        headers=own.headers,
        call_timeout_s=own.call_timeout_s or options.call_timeout_s,
    )

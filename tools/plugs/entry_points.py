"""Installed packages as plugs: entry points of the group `guildry.plugs`, as `package:NAME`.

An entry point names a module, whose file or folder is plugged, or a callable that returns a source:
a path, a URL or a command line.
"""

from collections.abc import Callable
from functools import partial
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import anyio

from guildry.errors import PlugError
from guildry.tools.plugs.plug import Loaded, Plug, PlugState, Standing, Touching, Wanted, Watched
from guildry.tools.python.threads import DaemonThreads
from guildry.tools.registry import nearest

__all__ = ["GROUP", "PackagePlug", "installed"]

GROUP: Final = "guildry.plugs"
"""The group of entry points."""

_PREFIX: Final = "package:"


def installed() -> dict[str, str]:
    """Return the entry points of installed packages: `package:NAME`, and what each names."""
    found = sorted(entry_points(group=GROUP), key=lambda each: each.name)
    return {f"{_PREFIX}{each.name}": each.value for each in found}


class PackagePlug:
    """What an installed package offers. It is the plug of the source that the package names.

    Args:
        source: as it was written.
        name: on the board.
        point: the name of the entry point.
        opened: gives the plug for the source that the package names.
        start_s: how long the package may take to name it.
    """

    def __init__(
        self,
        source: str,
        name: str,
        point: str,
        *,
        opened: Callable[[str], Plug],
        start_s: float,
    ) -> None:
        self.source = source
        self.name = name
        self.watched: tuple[Watched, ...] = ()
        self.touched: Callable[[str], None] = lambda uri: None
        self._point = point
        self._opened = opened
        self._start_s = start_s
        self._threads = DaemonThreads(1)
        self._plug: Plug | None = None

    @property
    def kind(self) -> str:
        """What its source is, once it is known."""
        return "package" if self._plug is None else self._plug.kind

    @property
    def fault(self) -> str | None:
        """Why its tools cannot be served at this moment, or None while they can."""
        return None if self._plug is None else self._plug.fault

    @property
    def standing(self) -> PlugState:
        """How the server behind it is, if it has one."""
        if isinstance(self._plug, Standing):
            return self._plug.standing
        return "restarting" if self.fault else "ready"

    async def open(self, changed: Callable[[], None]) -> Loaded:
        """Find what the package names, and open that.

        Raises:
            PlugError: there is no such entry point, or it names nothing that can be plugged.
        """
        self._threads = DaemonThreads(1)
        try:
            with anyio.fail_after(self._start_s):
                named = await self._threads.run(partial(_named_by, self._point, self.source))
        except TimeoutError:
            reason = f"it took over {self._start_s:g} s to say what it offers"
            raise PlugError(self.source, reason, "Name a module instead of a callable") from None
        self._plug = self._opened(named)
        if isinstance(self._plug, Touching):
            self._plug.touched = self.touched
        return await self._plug.open(changed)

    async def reload(self) -> Loaded:
        """Read anew what is offered.

        Raises:
            PlugError: it cannot be read.
        """
        assert self._plug is not None
        return await self._plug.reload()

    async def close(self) -> None:
        """Close what the package named."""
        self._threads.close()
        if self._plug is not None:
            await self._plug.close()


def _named_by(point: str, source: str) -> str:
    """Return the source that an entry point names."""
    found = entry_points(group=GROUP)
    matching = [each for each in found if each.name == point]
    if not matching:
        names = sorted({each.name for each in found})
        near = nearest(point, names)
        cure = f"Did you mean `{_PREFIX}{near}`?" if near else "Install the package that offers it"
        raise PlugError(source, f"no installed package has it in `{GROUP}`", cure)
    if len({each.value for each in matching}) > 1:
        values = ", ".join(sorted({each.value for each in matching}))
        raise PlugError(source, f"several packages offer it: {values}", "Uninstall all but one")
    try:
        return _module(matching[0]) if not matching[0].attr else _given(matching[0], source)
    except PlugError:
        raise
    except (Exception, SystemExit) as error:
        reason = f"`{matching[0].value}` fails: {type(error).__name__}: {error}"
        raise PlugError(source, reason, "Mend the package, or install another version") from error


def _module(point: EntryPoint) -> str:
    """Return the file or the folder of a module, which is imported when it is plugged."""
    spec = find_spec(point.module)
    if spec is not None and spec.submodule_search_locations:
        return next(iter(spec.submodule_search_locations))
    if spec is None or spec.origin is None or not spec.origin.endswith(".py"):
        raise ValueError("there is no such module, or it is not written in Python")
    return spec.origin


def _given(point: EntryPoint, source: str) -> str:
    """Return the source that a callable gives; a relative path begins at its module."""
    value: object = point.load()
    value = value() if callable(value) else value
    if isinstance(value, Wanted):
        value = value.source
    if isinstance(value, Path):
        spec = find_spec(point.module)
        return str(
            value if spec is None or spec.origin is None else Path(spec.origin).parent / value
        )
    if isinstance(value, str) and value:
        return value
    reason = f"`{point.value}` gives {type(value).__name__}"
    raise PlugError(source, reason, "Return a `Path`, a URL or a command line")

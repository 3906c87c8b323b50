"""Skills as plugs: folders with a `SKILL.md`, whose files are resources, read anew when saved.

A file is read when it is asked for, and given out only if it is what the skill's entry says: its
size and its digest. One that has changed since makes the plug read the folder again.
"""

import hashlib
import os
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import anyio
from anyio import to_thread

from guildry.errors import PlugError, ToolRetry
from guildry.tools.base import Embedded
from guildry.tools.offers import Offers, Resource, Skill, SkillFile
from guildry.tools.plugs.plug import (
    LIMITS,
    Loaded,
    Opener,
    Plug,
    PlugLimits,
    Quarantined,
    Wanted,
    Watched,
)
from guildry.tools.skills.files import SKILL_FILE, Found, is_skill_folder, read_file, scan

__all__ = ["SkillFolder", "skill_folders", "skill_sources"]

_MARKDOWN: Final = "text/markdown"
_READ_S: Final = 20.0


def _ignore(uri: str) -> None:
    """Tell nobody."""


def _rest() -> None:
    """Do nothing: it is not open."""


class SkillFolder:
    """A plug that offers the skills of a folder, which may be one skill itself.

    Args:
        source: the folder, as the caller wrote it.
        name: on the board.
        path: where it is.
        claimed: which plug serves the skill at a URI; shared by all plugs of one board.
        limits: how long reading may take.
    """

    def __init__(
        self,
        source: str,
        name: str,
        *,
        path: Path,
        claimed: dict[str, str] | None = None,
        limits: PlugLimits = LIMITS,
    ) -> None:
        self.source: Final = source
        self.name: Final = name
        self._path = path
        self.touched: Callable[[str], None] = _ignore
        self._claimed: dict[str, str] = {} if claimed is None else claimed
        self._limits = limits
        self._changed: Callable[[], None] = _rest
        self._files: dict[str, tuple[SkillFile, Path]] = {}

    @property
    def kind(self) -> str:
        """What it is, in a word."""
        return "skills"

    @property
    def fault(self) -> str | None:
        """None: what can be read is served, and what cannot is left out."""
        return None

    @property
    def watched(self) -> tuple[Watched, ...]:
        """The folder, whatever its files are called."""
        return (Watched(self._path, ""),)

    async def open(self, changed: Callable[[], None]) -> Loaded:
        """Read the folder.

        Raises:
            PlugError: there is no such folder; or it is one skill, and that one cannot be served.
        """
        if not await anyio.Path(self._path).is_dir():
            raise PlugError(
                self.source, "there is no such folder", f"Give a folder with a `{SKILL_FILE}` in it"
            )
        self._changed = changed
        loaded = await self.reload()
        if loaded.quarantined and not loaded.offers.skills:
            reason = "; ".join(f"`{each.tool}`: {each.reason}" for each in loaded.quarantined)
            raise PlugError(self.source, reason, "Mend it and plug it again")
        return loaded

    async def reload(self) -> Loaded:
        """Read the folder again.

        Raises:
            PlugError: reading takes too long.
        """
        try:
            with anyio.fail_after(self._limits.start_s):
                work = partial(scan, self._path, self.name)
                found = await to_thread.run_sync(work, abandon_on_cancel=True)
        except TimeoutError:
            raise PlugError(
                self.source,
                f"reading it took over {self._limits.start_s:g} s",
                "Plug a smaller folder, or one on a faster disk",
            ) from None
        return self._take(found)

    async def close(self) -> None:
        """Give up the URIs that it served."""
        self._files, self._changed = {}, _rest
        for uri in [uri for uri, plug in self._claimed.items() if plug == self.name]:
            del self._claimed[uri]

    def _take(self, found: Found) -> Loaded:
        """Make what was found what is served, less the skills that another plug serves."""
        for uri in [uri for uri, plug in self._claimed.items() if plug == self.name]:
            del self._claimed[uri]
        skills: list[Skill] = []
        left_out = list(found.left_out)
        for skill in found.skills:
            holder = self._claimed.setdefault(skill.uri, self.name)
            if holder == self.name:
                skills.append(skill)
                continue
            reason = f"the plug `{holder}` serves `{skill.uri}` already: rename one of the two"
            left_out.append(Quarantined(skill.name, reason))
        before = self._files
        self._files = {
            file.uri: (file, found.paths[file.uri]) for skill in skills for file in skill.files
        }
        for uri, (file, _) in self._files.items():
            if uri in before and before[uri][0].digest != file.digest:
                self.touched(uri)
        offers = Offers(resources=self._resources(skills), skills=tuple(skills))
        return Loaded((), tuple(left_out), offers)

    def _resources(self, skills: list[Skill]) -> tuple[Resource, ...]:
        heads = {skill.uri: skill for skill in skills}
        return tuple(self._resource(file, heads.get(uri)) for uri, (file, _) in self._files.items())

    def _resource(self, file: SkillFile, skill: Skill | None) -> Resource:
        """Return a file as a resource; a `SKILL.md` is named and described as its skill."""
        return Resource(
            uri=file.uri,
            name=self._files[file.uri][1].name if skill is None else skill.name,
            plug=self.name,
            read=self._read,
            description=None if skill is None else skill.description,
            media_type=file.media_type if skill is None else _MARKDOWN,
            size=file.size,
            follow=_follow,
        )

    async def _read(self, uri: str, caller: Any) -> tuple[Embedded, ...]:
        file, path = self._files.get(uri) or (None, None)
        if file is None or path is None:
            raise ToolRetry(f"there is no {uri!r} any more: list the skills again")
        content = await self._content(path, file.size + 1)
        digest = None if content is None else f"sha256:{hashlib.sha256(content).hexdigest()}"
        if content is None or digest != file.digest:
            self._changed()
            raise ToolRetry(
                f"`{uri}` has changed since the skill was listed: get its entry again"
                " (`skills/get` or `skills/list`), then read it"
            )
        try:
            return (Embedded(uri, file.media_type, text=content.decode()),)
        except UnicodeDecodeError:
            return (Embedded(uri, file.media_type, data=content),)

    async def _content(self, path: Path, limit: int) -> bytes | None:
        """Return what is in a file now, or None where it cannot be read."""
        try:
            with anyio.fail_after(_READ_S):
                work = partial(read_file, path, limit)
                return await to_thread.run_sync(work, abandon_on_cancel=True)
        except (OSError, TimeoutError):
            return None


def skill_folders(
    folder: Path | None = None,
    *,
    known: Collection[str] = (),
    limits: PlugLimits = LIMITS,
) -> Opener:
    """Return the opener of skill folders, for the board of plugs.

    Args:
        folder: where a relative path is looked up; the current one if None.
        known: sources that are skill folders whatever is in them.
        limits: see `SkillFolder`.
    """
    claimed: dict[str, str] = {}

    def opened(source: str, name: str) -> Plug | None:
        path = Path(os.path.abspath((folder or Path()) / os.path.expanduser(source)))
        if not source.strip() or (source not in known and not _holds_skills(path)):
            return None
        return SkillFolder(source, name, path=path, claimed=claimed, limits=limits)

    return opened


def skill_sources(paths: Sequence[Path]) -> list[Wanted]:
    """Return what to plug for folders of skills: they are often called the same."""
    wanted: dict[str, Wanted] = {}
    for path in paths:
        name = path.name if path.name not in wanted else f"{path.parent.name}_{path.name}"
        wanted[name] = Wanted(str(path), name)
    return list(wanted.values())


def _holds_skills(path: Path) -> bool:
    try:
        return path.is_dir() and is_skill_folder(path)
    except OSError:
        return False


async def _follow(uri: str) -> None:
    """Follow a file: its folder is watched anyway."""

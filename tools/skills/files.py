"""Skill folders: which skills are in a folder, and what is in their files. Knows no plug.

A skill is a folder with a `SKILL.md` (agentskills.io/specification). Names that begin with a dot,
and `__pycache__`, are no part of it. What cannot be served is left out with its whole skill.
"""

import hashlib
import mimetypes
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final
from urllib.parse import quote

from guildry.tools.offers import Skill, SkillFile
from guildry.tools.plugs.plug import Quarantined

__all__ = ["MAX_BYTES", "MAX_FILES", "SKILL_FILE", "Found", "is_skill_folder", "read_file", "scan"]

SKILL_FILE: Final = "SKILL.md"
"""The file that makes a folder a skill."""

MAX_FILES: Final = 512
"""Files of one skill (SEP-2640)."""

MAX_BYTES: Final = 16 * 1024 * 1024
"""Bytes of all files of one skill together (SEP-2640)."""

_SCHEME: Final = "skill:/"
_NAME: Final = re.compile(r"(?!.*--)[a-z0-9](?:[a-z0-9-]{0,62}[a-z0-9])?")
_MAX_DESCRIPTION: Final = 1024
_MAX_DEPTH: Final = 12
_MAX_FOLDERS: Final = 2_000
_GLANCE: Final = 200
_SEGMENT: Final = "!$&'()*+,;=:@~"
_TYPES: Final = mimetypes.MimeTypes()  # its own table: that of the machine may say anything
for _suffix, _type in (
    (".md", "text/markdown"),
    (".yaml", "application/yaml"),
    (".yml", "application/yaml"),
    (".toml", "application/toml"),
    (".ts", "text/typescript"),
    (".tsx", "text/typescript"),
):
    _TYPES.add_type(_type, _suffix)


@dataclass(frozen=True, slots=True)
class Found:
    """What a folder holds: its skills, where each of their files is, and what was left out."""

    skills: tuple[Skill, ...] = ()
    paths: dict[str, Path] = field(default_factory=dict[str, Path])
    left_out: tuple[Quarantined, ...] = ()


class _Unfit(Exception):
    """Tell why a skill cannot be served, and the cure."""


def is_skill_folder(folder: Path) -> bool:
    """Tell whether `folder` is a skill, or holds skills and no Python files of its own."""
    entries = _entries(folder)
    if any(entry.name == SKILL_FILE for entry in entries):
        return True
    if any(entry.name.endswith(".py") for entry in entries):
        return False
    return next(_skill_folders(folder, [], _GLANCE), None) is not None


def scan(folder: Path, plug: str) -> Found:
    """Read every skill in `folder`, which may be one itself."""
    from guildry.tools.skills.frontmatter import FrontmatterError

    skills: list[Skill] = []
    paths: dict[str, Path] = {}
    left_out: list[Quarantined] = []
    top = folder.name if (folder / SKILL_FILE).is_file() else ""
    for inner in _skill_folders(folder, left_out):
        relative = inner.relative_to(folder).parts
        try:
            reader = _Reader(inner, _uri(_SCHEME, *((top,) if top else ()), *relative))
            skill = reader.skill(plug)
        except (_Unfit, FrontmatterError) as error:
            left_out.append(Quarantined("/".join(relative) or top, str(error)))
        except OSError as error:
            reason = f"it cannot be read ({error.strerror}): mend its permissions"
            left_out.append(Quarantined("/".join(relative) or top, reason))
        else:
            skills.append(skill)
            paths |= reader.paths
    return Found(tuple(skills), paths, tuple(left_out))


def read_file(path: Path, limit: int) -> bytes:
    """Return what is in a regular file, at most `limit` bytes. Never waits for a pipe.

    Raises:
        OSError: it cannot be opened, or is no regular file.
    """
    flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    with open(os.open(path, flags), "rb") as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(None, "it is no regular file")
        return file.read(limit)


class _Reader:
    """Read one skill: every file of its folder, within the limits."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.paths: dict[str, Path] = {}
        self._folder = folder
        self._real = os.path.realpath(folder)
        self._uri = uri
        self._files: list[SkillFile] = []
        self._directories: dict[str, tuple[str, ...]] = {}
        self._left = MAX_BYTES

    def skill(self, plug: str) -> Skill:
        """Return the skill.

        Raises:
            _Unfit, FrontmatterError, OSError: it cannot be served.
        """
        from guildry.tools.skills.frontmatter import read_frontmatter

        content = self._read(self._folder / SKILL_FILE, SKILL_FILE)
        self._left = MAX_BYTES
        try:
            head = read_frontmatter(content.decode())
        except UnicodeDecodeError as error:
            raise _Unfit(f"`{SKILL_FILE}` is not UTF-8 at byte {error.start}: save it so") from None
        name, description = _named(head, self._folder.name)
        self._walk(self._folder, self._uri, (self._real,))
        first = f"{self._uri}/{SKILL_FILE}"
        self._files.sort(key=lambda file: (file.uri != first, file.uri))
        return Skill(
            uri=first,
            name=name,
            description=description,
            plug=plug,
            frontmatter=head,
            files=tuple(self._files),
            directories=self._directories,
        )

    def _walk(self, folder: Path, uri: str, above: tuple[str, ...]) -> None:
        if len(above) > _MAX_DEPTH:
            raise _Unfit(f"its folders are nested deeper than {_MAX_DEPTH}: flatten them")
        if len(self._directories) >= MAX_FILES:
            raise _Unfit(f"it has over {MAX_FILES} folders: split it")
        children: list[str] = []
        self._directories[uri] = ()
        for entry in _entries(folder):
            told = Path(entry.path).relative_to(self._folder).as_posix()
            child = _uri(uri, entry.name)
            if entry.is_symlink():
                self._check(entry.path, told)
            if entry.is_dir():
                real = os.path.realpath(entry.path)
                if real in above:
                    raise _Unfit(f"`{told}` is a link to a folder that it is in: remove it")
                self._walk(Path(entry.path), child, (*above, real))
            else:
                self._add(Path(entry.path), child, told)
            children.append(child)
        self._directories[uri] = tuple(children)

    def _add(self, path: Path, uri: str, told: str) -> None:
        if len(self._files) >= MAX_FILES:
            raise _Unfit(f"it has over {MAX_FILES} files: split it, or move what it does not need")
        content = self._read(path, told)
        digest = f"sha256:{hashlib.sha256(content).hexdigest()}"
        self._files.append(SkillFile(uri, digest, len(content), _media_type(path.name, content)))
        self.paths[uri] = path

    def _read(self, path: Path, told: str) -> bytes:
        try:
            content = read_file(path, self._left + 1)
        except OSError as error:
            raise _Unfit(f"`{told}` cannot be read ({error.strerror}): mend or remove it") from None
        if len(content) > self._left:
            raise _Unfit(f"its files are over {MAX_BYTES:,} bytes together: split it")
        self._left -= len(content)
        return content

    def _check(self, path: str, told: str) -> None:
        real = os.path.realpath(path)
        if not os.path.exists(real):
            raise _Unfit(f"`{told}` is a link to nothing: mend or remove it")
        if not Path(real).is_relative_to(self._real):
            raise _Unfit(f"`{told}` is a link that leaves the skill: put the file itself there")


def _entries(folder: Path) -> "list[os.DirEntry[str]]":
    """Return what is in a folder, by name, less what is hidden."""
    with os.scandir(folder) as entries:
        kept = [each for each in entries if each.name[0] != "." and each.name != "__pycache__"]
    return sorted(kept, key=lambda entry: entry.name)


def _skill_folders(
    root: Path, left_out: list[Quarantined], folders: int = _MAX_FOLDERS
) -> Iterator[Path]:
    """Yield the folders at or below `root` that have a `SKILL.md`, outer ones first."""
    waiting = [root]
    for _ in range(folders):
        if not waiting:
            return
        folder = waiting.pop()
        try:
            entries = _entries(folder)
        except OSError as error:
            left_out.append(Quarantined(folder.name, f"it cannot be read ({error.strerror})"))
            continue
        if any(entry.name == SKILL_FILE for entry in entries):
            yield folder
        subfolders = [entry for entry in entries if entry.is_dir()]
        left_out.extend(
            Quarantined(entry.name, "it is a link that leaves the folder: plug it by its own path")
            for entry in subfolders
            if entry.is_symlink() and _is_skill_elsewhere(entry.path, root)
        )
        if len(folder.relative_to(root).parts) < _MAX_DEPTH:
            inner = [Path(entry.path) for entry in subfolders if not entry.is_symlink()]
            waiting.extend(reversed(inner))
    if waiting:
        reason = f"only its first {folders:,} folders were searched: plug a smaller folder"
        left_out.append(Quarantined(root.name, reason))


def _is_skill_elsewhere(path: str, root: Path) -> bool:
    outside = not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))
    return outside and os.path.isfile(os.path.join(path, SKILL_FILE))


def _named(head: dict[str, object], folder: str) -> tuple[str, str]:
    """Return name and description, if they are as the Agent Skills specification has them."""
    name, description = head.get("name"), head.get("description")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        told = "missing" if name is None else repr(name)
        raise _Unfit(
            f"`name` in its head is {told}: give 1 to 64 of `a-z`, `0-9` and single hyphens between"
        )
    if name != folder:
        raise _Unfit(f"it is named {name!r} in a folder named {folder!r}: make the two the same")
    if not isinstance(description, str) or not description.strip():
        raise _Unfit("`description` is missing in its head: say what it does and when to use it")
    if len(description) > _MAX_DESCRIPTION:
        raise _Unfit(f"`description` is over {_MAX_DESCRIPTION} characters: shorten it")
    return name, description


def _uri(base: str, *names: str) -> str:
    try:
        return "/".join((base, *(quote(name, safe=_SEGMENT) for name in names)))
    except UnicodeEncodeError:
        raise _Unfit(f"the name {names[-1]!r} is not UTF-8: rename it") from None


def _media_type(name: str, content: bytes) -> str:
    guessed, encoding = _TYPES.guess_type(name, strict=False)
    if guessed and not encoding:
        return guessed
    try:
        content.decode()
    except UnicodeDecodeError:
        return "application/octet-stream"
    return "application/octet-stream" if b"\0" in content else "text/plain"

"""A client's file with Guildry in it, or out of it: planned as text, checked, then written whole.

The rest of the file stays as it is, comments included. What was there before is kept beside it.
"""

import os
import stat
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, takewhile
from pathlib import Path
from typing import Any, Final, cast

from guildry.errors import UsageError
from guildry.server.install import jsonc
from guildry.server.install.clients import Client, Entry

__all__ = ["Edit", "added", "removed", "write"]

_SUFFIX: Final = ".guildry-backup"
_MAX_BYTES: Final = 64 * 1024 * 1024

_MARK: Final = "\ufeff"

Values = dict[str, Any]
Way = Callable[[str], str]


@dataclass(frozen=True, slots=True)
class Edit:
    """What is to become of a file: its text before and after, None where there is no file."""

    file: Path
    before: str | None
    after: str | None

    @property
    def is_needed(self) -> bool:
        """Tell whether anything changes."""
        return self.before != self.after

    def diff(self) -> str:
        """Return the change as a unified diff."""
        from difflib import unified_diff

        before, after = (self.before or "").splitlines(True), (self.after or "").splitlines(True)
        there, then = (str(self.file) if each is not None else os.devnull for each in self._both())
        lines = [line.rstrip("\r\n") for line in unified_diff(before, after, there, then)]
        return "\n".join(lines)

    def _both(self) -> tuple[str | None, str | None]:
        return self.before, self.after


def added(file: Path, client: Client, name: str, entry: Entry) -> Edit:
    """Return the edit that makes the entry `name` in `file` say `entry`.

    Members of an entry that is there already, and that are not Guildry's, stay.

    Raises:
        UsageError: the file cannot be read, or cannot be edited safely.
    """
    before = _text(file)
    text = before or ""
    values = _read(file, client, text)
    servers = _servers(file, client, values)
    there = _table(servers.get(name))
    if there is not None:
        own = client.governed()
        entry = {**entry, **{key: value for key, value in there.items() if key not in own}}
    if there == entry:
        return Edit(file, before, before)
    wanted = {**values, client.key: {**servers, name: entry}}
    after = _checked(file, client, wanted, _putters(client, name, entry, there), text)
    return Edit(file, before, after)


def removed(file: Path, client: Client, name: str) -> Edit:
    """Return the edit that takes the entry `name` out of `file`, and nothing else.

    A file that has not changed since it was installed is as it was before, byte for byte.

    Raises:
        UsageError: the file cannot be read, or cannot be edited safely.
    """
    before = _text(file)
    values = _read(file, client, before or "")
    servers = _servers(file, client, values)
    if before is None or name not in servers:
        return Edit(file, before, before)
    there = servers[name]
    kept = [text for text in _backups(file) if name not in _known(file, client, text)]
    for text in kept:
        if _made(client, text, name, there) == before:
            return Edit(file, before, text)
    if _made(client, "", name, there) == before:
        return Edit(file, before, None)  # there was no file
    rest = {key: value for key, value in servers.items() if key != name}
    wanted = {**values, client.key: rest}
    if not rest and kept and client.key not in _values(client, kept[0]):
        del wanted[client.key]
    droppers = _droppers(client, name, whole=client.key not in wanted)
    return Edit(file, before, _checked(file, client, wanted, droppers, before))


def write(edit: Edit) -> Path | None:
    """Make the edit, in one step; return where the text before is kept, if there was any.

    Raises:
        UsageError: the file has changed meanwhile, or cannot be written.
    """
    target = Path(os.path.realpath(edit.file))  # a link stays a link
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        backup = None if edit.before is None else _backup(edit.file, target, edit.before)
        if _text(edit.file) != edit.before:
            raise UsageError(f"`{edit.file}` has changed meanwhile: run this again")
        if edit.after is None:
            target.unlink()
        else:
            _replace(target, edit.after)
    except OSError as error:
        reason = f"`{edit.file}` cannot be written ({error.strerror}): mend its permissions"
        raise UsageError(reason) from error
    return backup


def _text(file: Path) -> str | None:
    try:
        with file.open("rb") as opened:
            content = opened.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise UsageError(f"`{file}` is over {_MAX_BYTES:,} bytes: that is no settings file")
        return content.decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        line = error.object.count(b"\n", 0, error.start) + 1
        raise UsageError(f"`{file}` is not UTF-8 on line {line}: save it so") from None
    except OSError as error:
        raise UsageError(f"`{file}` cannot be read ({error.strerror})") from error


def _read(file: Path, client: Client, text: str) -> Values:
    try:
        return _values(client, text)
    except ValueError as error:
        raise UsageError(f"`{file}` is not as it should be: {error}. Nothing was changed") from None


def _values(client: Client, text: str) -> Values:
    if client.kind == "toml":
        import tomllib

        return tomllib.loads(text.removeprefix(_MARK))
    values = jsonc.read(text)
    table = {} if values is None else _table(values)
    if table is None:
        raise jsonc.JsoncError(text, 0, "the whole is no object: write `{}` there")
    return table


def _table(value: object) -> Values | None:
    return cast("Values", value) if isinstance(value, dict) else None


def _servers(file: Path, client: Client, values: Values) -> Values:
    servers = _table(values.get(client.key, {}))
    if servers is None:
        raise UsageError(f"`{client.key}` in `{file}` is no table: make it one, or remove it")
    return servers


def _known(file: Path, client: Client, text: str) -> Values:
    """Return the servers of an earlier text; one that cannot be read has none."""
    with suppress(ValueError, UsageError):
        return _servers(file, client, _values(client, text))
    return {}


def _checked(
    file: Path,
    client: Client,
    wanted: Values,
    ways: "Sequence[Way]",
    text: str,
) -> str:
    """Return the text of the first way that comes to `wanted`, and to nothing else."""
    for way in ways:
        with suppress(ValueError):
            after = _run(way, text)
            if _plain(client, _values(client, after)) == _plain(client, wanted):
                return after
    raise UsageError(
        f"`{file}` is written in a way that cannot be edited safely: change `{client.key}` by hand"
    )


def _run(way: Way, text: str) -> str:
    """Edit what comes after a byte order mark."""
    bare = text.removeprefix(_MARK)
    return text[: len(text) - len(bare)] + way(bare)


def _plain(client: Client, values: Values) -> Values:
    """Return values without an empty table of servers where TOML does not tell it from none."""
    if client.kind == "toml" and values.get(client.key) == {}:
        return {key: value for key, value in values.items() if key != client.key}
    return values


def _made(client: Client, text: str, name: str, entry: Any) -> str | None:
    """Return what installing `entry` into `text` would have made."""
    with suppress(ValueError):
        return _run(_putters(client, name, entry, None)[0], text)
    return None


def _putters(client: Client, name: str, entry: Entry, there: Values | None) -> list[Way]:
    path = (client.key, name)
    if client.kind == "toml":
        from guildry.server.install import toml_text

        return [
            lambda text: toml_text.put(text, path, entry),
            lambda text: toml_text.put_inline(text, path, entry),
        ]
    if there is None:
        return [lambda text: jsonc.put(text, path, entry)]

    def members(text: str) -> str:
        for key in sorted(there.keys() - entry.keys()):
            text = jsonc.drop(text, (*path, key))
        for key, value in entry.items():
            text = jsonc.put(text, (*path, key), value)
        return text

    return [members, lambda text: jsonc.put(text, path, entry)]


def _droppers(client: Client, name: str, *, whole: bool) -> list[Way]:
    path = (client.key,) if whole else (client.key, name)
    if client.kind == "toml":
        from guildry.server.install import toml_text

        return [
            lambda text: toml_text.cut(text, (client.key, name)),
            lambda text: toml_text.drop(text, path),
        ]
    return [lambda text: jsonc.drop(text, path)]


def _backup_names(file: Path) -> Iterator[Path]:
    yield file.with_name(file.name + _SUFFIX)
    yield from (file.with_name(f"{file.name}{_SUFFIX}.{n}") for n in count(2))


def _backups(file: Path) -> list[str]:
    """Return the texts that were kept, the latest first."""
    texts = [_kept(name) for name in takewhile(Path.exists, _backup_names(file))]
    return [text for text in reversed(texts) if text is not None]


def _kept(backup: Path) -> str | None:
    """Return a text that was kept, or None for one that cannot be read."""
    try:
        return _text(backup)
    except UsageError:
        return None


def _backup(file: Path, target: Path, text: str) -> Path:
    """Keep `text` beside the file, unless it is kept already; an older backup is never lost."""
    names = _backup_names(file)
    name = next(each for each in names if not each.exists() or _kept(each) == text)
    if not name.exists():
        _create(name, text, stat.S_IMODE(target.stat().st_mode))
    return name


def _replace(target: Path, text: str) -> None:
    new = target.with_name(f".{target.name}.{os.getpid()}.new")
    mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
    try:
        _create(new, text, mode)
        if mode is not None:
            status = target.stat()
            with suppress(OSError, AttributeError):
                os.chown(new, status.st_uid, status.st_gid)
        new.replace(target)
    finally:
        new.unlink(missing_ok=True)


def _create(file: Path, text: str, mode: int | None) -> None:
    """Write a new file whole; it is nobody else's to read before it has its mode."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_BINARY", 0)
    with open(os.open(file, flags, 0o666 if mode is None else 0o600), "wb") as opened:
        opened.write(text.encode())
        opened.flush()
        os.fsync(opened.fileno())
    if mode is not None:
        file.chmod(mode)

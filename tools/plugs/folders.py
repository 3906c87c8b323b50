"""Watched folders: whatever source of tools is dropped in is a plug, until it is taken out.

Python files and folders of them, MCP client configurations, OpenAPI documents, team files, skills,
and `.url` files with one URL. Reads names and beginnings of files; opens no plug.
"""

import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Final

from guildry.errors import PlugError
from guildry.tools.plugs.assemblies import Expanded, inherited
from guildry.tools.plugs.options import PlugOptions
from guildry.tools.plugs.plug import Quarantined, Wanted
from guildry.tools.plugs.special import special_of

__all__ = ["read_folder"]

_URL_LINE: Final = re.compile(
    r"^\s*(?:URL\s*=\s*)?(https?://\S+)\s*$", re.IGNORECASE | re.MULTILINE
)
_MAX_URL_BYTES: Final = 64 * 1024
_UNFINISHED: Final = (".tmp", ".part", ".swp", ".swx", ".crdownload", ".orig", ".bak", "~")
_TEXTS: Final = (".md", ".txt", ".rst", ".example")
_SKILL: Final = "SKILL.md"


def read_folder(path: Path, *, source: str, options: PlugOptions) -> Expanded:
    """Return the sources in a folder, by the names of their files.

    Args:
        path: the folder.
        source: how it was written, for errors.
        options: said of all of its plugs.

    Raises:
        PlugError: there is no such folder.
    """
    try:
        names = sorted(os.listdir(path))
    except OSError as error:
        reason = f"it cannot be read ({error.strerror or error})"
        raise PlugError(source, reason, "Make the folder, or check the path") from error
    members: dict[str, Wanted] = {}
    left_out: list[Quarantined] = []
    for name in names:
        if name[0] in "._" or name.lower().endswith((*_UNFINISHED, *_TEXTS)):
            continue
        try:
            wanted = _wanted(path / name)
        except OSError:
            continue  # it is gone again
        except ValueError as error:
            left_out.append(Quarantined(name, str(error)))
            continue
        members[name] = replace(wanted, options=inherited(options, PlugOptions()))
    return Expanded(members, tuple(left_out))


def _wanted(path: Path) -> Wanted:
    """Return the plug that a file or a folder is to be.

    Raises:
        OSError: it cannot be read.
        ValueError: it is no source of tools; says what is.
    """
    if path.is_dir():
        if (path / _SKILL).is_file() or any(each.is_dir() for each in path.glob(f"*/{_SKILL}")):
            return Wanted(str(path), path.name)
        return _python_folder(path)
    suffix = path.suffix.lower()
    if suffix == ".url":
        return Wanted(_url_in(path), path.stem)
    if suffix == ".py" or special_of(str(path), path.parent) is not None or suffix == ".toml":
        return Wanted(str(path), path.stem)
    if suffix in (".json", ".jsonc", ".yaml", ".yml"):
        raise ValueError("it is neither an OpenAPI 3 document nor does it name MCP servers")
    raise ValueError(
        "it is no source of tools: drop in Python, team (.toml), OpenAPI, `mcp.json` and .url files"
    )


def _python_folder(path: Path) -> Wanted:
    if not any(path.glob("*.py")):
        raise ValueError("it holds neither Python files nor a `SKILL.md`")
    return Wanted(str(path), path.name)


def _url_in(path: Path) -> str:
    with path.open("rb") as file:
        text = file.read(_MAX_URL_BYTES).decode("utf-8-sig", "replace")
    found = _URL_LINE.search(text)
    if found is None:
        raise ValueError("it holds no line with a URL: write one, with http or https")
    return found[1]

"""Sources besides Python and MCP: which kind each is, and its short name. Opens nothing.

`package:NAME` is an installed package, `folder:PATH` a folder of sources, `openapi:PATH-OR-URL` an
OpenAPI document. Files that are such documents, or that name the servers of an MCP client, are
known by what is in them.
"""

import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal
from urllib.parse import urlsplit

__all__ = ["Special", "special_of"]

_URL: Final = re.compile(r"https?://", re.IGNORECASE)
_DOCUMENTS: Final = (".json", ".yaml", ".yml")
_CONFIGS: Final = (".json", ".jsonc", ".toml")
_DOCUMENT: Final = re.compile(r"""(?:^|[{,\s])["']?(?:openapi|swagger)["']?\s*:\s*["']?\d""")
_CONFIG: Final = re.compile(
    r""""(?:mcpServers|context_servers|servers|mcp)"\s*:|^\s*\[\s*mcp_servers\b""", re.MULTILINE
)
_CONFIG_NAME: Final = re.compile(r"mcp|claude|settings", re.IGNORECASE)
_DULL: Final = frozenset({"openapi", "swagger", "api", "mcp", "settings", "config", "openapi3"})
_LOOKED_AT: Final = 2 * 1024 * 1024


@dataclass(frozen=True, slots=True)
class Special:
    """What a source is.

    Args:
        kind: an OpenAPI document, the servers of a client, a package, or a folder of sources.
        where: a file, a folder, a URL, or the name of a package's entry point.
        name: for the board, where none is given.
    """

    kind: Literal["openapi", "client", "package", "folder"]
    where: Path | str
    name: str


def special_of(source: str, folder: Path) -> Special | None:
    """Return what a source is, or None where it is Python, an MCP server, or nothing.

    Args:
        source: as it was written.
        folder: where a relative path begins.
    """
    prefix, _, rest = source.strip().partition(":")
    rest = rest.strip()
    match prefix.lower():
        case "package" if rest:
            return Special("package", rest, rest)
        case "folder" if rest:
            path = _absolute(rest, folder)
            return Special("folder", path, path.name or "folder")
        case "openapi" if rest:
            where = rest if _URL.match(rest) else _absolute(rest, folder)
            return Special("openapi", where, _name(where))
        case _:
            return _found(source.strip(), folder)


def _found(source: str, folder: Path) -> Special | None:
    if _URL.match(source):
        is_document = urlsplit(source).path.lower().endswith(_DOCUMENTS)
        return Special("openapi", source, _name(source)) if is_document else None
    if not source.lower().endswith((*_DOCUMENTS, *_CONFIGS)):
        return None
    path = _absolute(source, folder)
    kind = _kind_of(path, is_path=" " not in source)
    return None if kind is None else Special(kind, path, _name(path))


def _kind_of(path: Path, *, is_path: bool) -> Literal["openapi", "client"] | None:
    suffix = path.suffix.lower()
    try:
        with path.open("rb") as file:
            text = file.read(_LOOKED_AT).decode("utf-8", "replace")
    except OSError:
        if not is_path or suffix == ".toml":
            return None
        return "client" if _CONFIG_NAME.search(str(path)) and suffix in _CONFIGS else "openapi"
    if suffix in _DOCUMENTS and _DOCUMENT.search(text):
        return "openapi"
    return "client" if suffix in _CONFIGS and _CONFIG.search(text) else None


def _absolute(path: str, folder: Path) -> Path:
    return Path(os.path.abspath(os.path.join(folder, os.path.expanduser(path))))


def _name(where: Path | str) -> str:
    """Return a short name: of a file, or of its folder where the file's says nothing."""
    if isinstance(where, str):
        host = urlsplit(where).hostname or "api"
        labels = [each for each in host.split(".")[:-1] if each not in ("www", "api")]
        return "_".join(labels) or host
    parts = [where.stem, *reversed(where.parent.parts[1:])]
    telling = (each.lstrip(".") for each in parts)
    return next((each for each in telling if each and each.lower() not in _DULL), "api")

"""TOML: one table put into a text or taken out of it, and all else left as it is. Knows no file.

A new table goes to the end, where it disturbs nothing. `tomlkit` does what that cannot.
"""

import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, cast

__all__ = ["cut", "drop", "put", "put_inline"]


def put(text: str, path: Sequence[str], table: Mapping[str, Any]) -> str:
    """Return `text` with `table` at `path`: changed where it stands, else at the end.

    Raises:
        ValueError: it is no TOML, or cannot be changed.
    """
    newline = _newline(text)
    if _stands(text, path):
        return _changed(text, path, table)
    end = "" if not text or text.endswith("\n") else newline
    blank = newline if text else ""
    return f"{text}{end}{blank}{_block(path, table, newline)}"


def put_inline(text: str, path: Sequence[str], table: Mapping[str, Any]) -> str:
    """Return `text` with `table` at `path`, where the tables above are written inline.

    Raises:
        ValueError: they are not there, or cannot be changed.
    """
    import tomlkit

    inline: Any = tomlkit.inline_table()
    inline.update(table)
    with _document(text) as document:
        _at(document, path[:-1])[path[-1]] = inline
        return tomlkit.dumps(document)


def cut(text: str, path: Sequence[str]) -> str:
    """Return `text` without the table at `path` where it stands as `put` has written it.

    Raises:
        ValueError: it does not.
    """
    import tomllib

    table = _at(tomllib.loads(text), path)
    newline = _newline(text)
    block = _block(path, table, newline)
    for found in (newline + block, block):
        if text.count(found) == 1:
            return text.replace(found, "")
    raise ValueError("it was written in another way")


def drop(text: str, path: Sequence[str]) -> str:
    """Return `text` without what is at `path`.

    Raises:
        ValueError: it cannot be taken out.
    """
    import tomlkit

    with _document(text) as document:
        del _at(document, path[:-1])[path[-1]]
        return tomlkit.dumps(document)


def _stands(text: str, path: Sequence[str]) -> bool:
    import tomllib

    node: object = tomllib.loads(text)
    for key in path:
        if not isinstance(node, dict) or key not in node:
            return False
        node = cast("dict[str, object]", node)[key]
    return True


def _changed(text: str, path: Sequence[str], table: Mapping[str, Any]) -> str:
    import tomlkit

    with _document(text) as document:
        node = _at(document, path)
        for key in [key for key in node if key not in table]:
            del node[key]
        for key, value in table.items():
            if key not in node or node[key] != value:
                node[key] = value
        return tomlkit.dumps(document)


@contextmanager
def _document(text: str) -> Generator[Any]:
    """Give a document to edit; whatever the library cannot do is a `ValueError`."""
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    try:
        yield tomlkit.parse(text)
    except (TOMLKitError, LookupError, TypeError, AttributeError) as error:
        raise ValueError(str(error)) from error


def _at(document: Any, path: Sequence[str]) -> Any:
    for key in path:
        document = document[key]
    return document


def _block(path: Sequence[str], table: Mapping[str, Any], newline: str) -> str:
    lines = [f"[{'.'.join(path)}]"]
    lines += [f"{key} = {json.dumps(value, ensure_ascii=False)}" for key, value in table.items()]
    return newline.join([*lines, ""])


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"

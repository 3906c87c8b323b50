"""Tables as survey tools take them: the whole answer of another tool, or just its rows."""

from typing import Any, cast

from guildry.errors import ToolRetry
from guildry.server.demo.listing import Row
from guildry.server.demo.shown import list_of, object_of

__all__ = ["TableArgument", "bounded_limit", "rows_of"]

TableArgument = list[Any] | dict[str, Any]
"""Rows, or an object that holds them under `rows`. Its items are checked here, in one pass."""

_MAX_LIMIT = 1_000


def rows_of(table: TableArgument, *columns: str) -> list[Row]:
    """Return the rows of `table`.

    Raises:
        ToolRetry: it has no rows, or a row lacks one of `columns`.
    """
    found: object = table.get("rows") if isinstance(table, dict) else table
    if not isinstance(found, list):
        raise ToolRetry("there are no `rows` in the table: pass the answer of a tool that has them")
    rows = list_of(cast("object", found))
    for n, row in enumerate(rows):
        known = object_of(row)
        missing = [name for name in columns if name not in known]
        if missing:
            has = ", ".join(f"`{key}`" for key in known) or repr(row)[:80]
            raise ToolRetry(f"row {n} has no `{missing[0]}`: it holds {has}")
    return rows


def bounded_limit(limit: int) -> int:
    """Return `limit` where a table may have that many rows.

    Raises:
        ToolRetry: it is below 1 or too large.
    """
    if not 1 <= limit <= _MAX_LIMIT:
        raise ToolRetry(f"`limit` is {limit}: pass 1 to {_MAX_LIMIT}")
    return limit

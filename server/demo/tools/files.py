"""Tools that list a folder and size up the list."""

from collections import Counter
from statistics import median

from guildry.errors import ToolRetry
from guildry.server.demo.listing import Row, folder, list_folder
from guildry.server.demo.scan import Table
from guildry.server.demo.tables import TableArgument, bounded_limit, rows_of
from guildry.tools.python import reads

__all__ = ["list_files", "size_by_folder", "size_summary", "top_rows"]

_MAX_FILES = 50_000
_LIST_S = 10.0


@reads
def list_files(path: str) -> Table:
    """List every file of a folder with its size; what git ignores is left out.

    Args:
        path: the folder.
    """
    listed = list_folder(folder(path), _MAX_FILES, _LIST_S)
    size = sum(int(row["bytes"]) for row in listed.rows)
    total = {"files": len(listed.rows), "bytes": size, "source": listed.source}
    return {**total, "note": listed.note, "rows": listed.rows}


@reads
def size_summary(files: TableArgument) -> Table:
    """Sum up the sizes of listed files: how many, all bytes, the median, how many are empty.

    Args:
        files: the answer of `list_files`.
    """
    sizes = [int(row["bytes"]) for row in rows_of(files, "bytes")]
    return {
        "files": len(sizes),
        "bytes": sum(sizes),
        "median_bytes": int(median(sizes)) if sizes else 0,
        "empty_files": sizes.count(0),
        "note": str(files.get("note", "")) if isinstance(files, dict) else "",
    }


@reads
def size_by_folder(files: TableArgument, limit: int = 8) -> Table:
    """Sum up listed files by the first folder of their path, largest first.

    Args:
        files: the answer of `list_files`.
        limit: how many folders to return.
    """
    counts, sizes = Counter[str](), Counter[str]()
    for row in rows_of(files, "path", "bytes"):
        first, slash, _ = str(row["path"]).partition("/")
        name = first + slash if slash else "."
        counts[name] += 1
        sizes[name] += int(row["bytes"])
    order = sorted(sizes, key=lambda name: (-sizes[name], name))
    rows: list[Row] = [
        {"folder": name, "files": counts[name], "bytes": sizes[name]} for name in order
    ]
    return {"rows": rows[: bounded_limit(limit)], "folders": len(rows)}


@reads
def top_rows(table: TableArgument, column: str, limit: int = 8) -> Table:
    """Return the rows of a table that are largest in one column, with the table's totals.

    Args:
        table: the answer of a tool that has `rows`.
        column: the name of a column of numbers.
        limit: how many rows to return.
    """
    rows = rows_of(table, column)
    for n, row in enumerate(rows):
        if not isinstance(row[column], int | float):
            raise ToolRetry(
                f"`{column}` of row {n} is {row[column]!r:.80}: name a column of numbers"
            )
    top = sorted(rows, key=lambda row: -float(row[column]))[: bounded_limit(limit)]
    totals = table.items() if isinstance(table, dict) else ()
    kept = {key: value for key, value in totals if not isinstance(value, list | dict)}
    return {**kept, "rows": top, "of": len(rows)}

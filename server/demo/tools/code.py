"""Tools that read what is in the files."""

from guildry.server.demo.listing import folder
from guildry.server.demo.scan import Table, scan
from guildry.server.demo.tables import TableArgument, bounded_limit, rows_of
from guildry.tools.python import reads

__all__ = ["count_languages", "largest_functions"]


@reads(timeout_s=40.0)
async def count_languages(path: str, files: TableArgument, limit: int = 12) -> Table:
    """Count files, lines and bytes by programming language, most lines first.

    Args:
        path: the folder.
        files: the answer of `list_files` for that folder.
        limit: how many languages to return.
    """
    rows = rows_of(files, "path", "bytes")
    return await scan("count_languages", folder(path), rows, bounded_limit(limit))


@reads(timeout_s=40.0)
async def largest_functions(path: str, files: TableArgument, limit: int = 8) -> Table:
    """Find the longest functions: exact in Python, by braces in C-like and script languages.

    Args:
        path: the folder.
        files: the answer of `list_files` for that folder.
        limit: how many functions to return.
    """
    rows = rows_of(files, "path", "bytes")
    return await scan("largest_functions", folder(path), rows, bounded_limit(limit))

"""The source that is plugged while clients are connected."""

from guildry.server.demo.listing import folder
from guildry.server.demo.scan import Table, scan
from guildry.server.demo.tables import TableArgument, bounded_limit, rows_of
from guildry.tools.python import reads

__all__ = ["duplicate_files"]


@reads(timeout_s=40.0)
async def duplicate_files(path: str, files: TableArgument, limit: int = 6) -> Table:
    """Find files that hold the same bytes, the most wasteful first.

    Args:
        path: the folder.
        files: the answer of `list_files` for that folder.
        limit: how many groups of files to return.
    """
    rows = rows_of(files, "path", "bytes")
    return await scan("duplicate_files", folder(path), rows, bounded_limit(limit))

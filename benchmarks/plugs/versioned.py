"""A tool that says which version of the plug it is. `VERSION` is replaced by a number."""

import anyio

from guildry.tools.python import reads


@reads
async def version(wait_s: float = 0.0) -> int:
    """Return the number of this version, after a while."""
    await anyio.sleep(wait_s)
    return VERSION  # noqa: F821 - put in when the file is copied

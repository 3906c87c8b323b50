"""A tool that comes while clients are connected."""

from guildry.tools.python import reads


@reads
def latecomer() -> str:
    """Answer late."""
    return "here I am"

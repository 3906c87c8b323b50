"""An echo tool that says that it only reads."""

from guildry.tools.python import reads


@reads
async def echo(text: str) -> str:
    """Return the text that was given."""
    return text

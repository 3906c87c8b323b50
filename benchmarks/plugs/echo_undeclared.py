"""An echo tool that says nothing of its effects, as most tools do."""


async def echo(text: str) -> str:
    """Return the text that was given."""
    return text

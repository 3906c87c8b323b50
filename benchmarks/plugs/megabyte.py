"""A tool that returns 1 MB, and one that takes it."""


async def make_megabyte() -> str:
    """Return 1,000,000 characters of text."""
    return "".join(f"line {n:06d} of a long log\n" for n in range(40_000))[:1_000_000]


async def count_characters(text: str) -> int:
    """Count the characters of a text."""
    return len(text)

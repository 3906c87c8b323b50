"""What the fuzzed server offers: a tool, a prompt and a resource of each kind."""

from typing import Annotated

from pydantic import Field

from guildry.tools.asking.questions import Ask, Question
from guildry.tools.python import prompt, reads, resource, tool


@reads
async def echo(text: str) -> str:
    """Return the text that was given."""
    return text


@reads
async def count(
    words: list[str], limit: int = 5, exact: bool = False, weights: dict[str, float] | None = None
) -> dict[str, int]:
    """Count words.

    Args:
        words: what to count.
        limit: how many at most.
        exact: whether case matters.
        weights: what each counts.
    """
    return {word: len(word) + len(weights or {}) for word in words[: max(limit, 0)]}


@tool(task="optional")
async def slow_echo(text: str) -> str:
    """Return the text that was given, as a task for who likes."""
    return text


@tool(asks=True)
async def ask_me(what: str, ask: Ask) -> str:
    """Ask a person for something."""
    schema = {"type": "object", "properties": {"value": {"type": "string"}}}
    answer = await ask(Question(key="value", kind="form", message=what, schema=schema))
    return f"{answer.action}: {answer.content.get('value')}"


@reads
async def regional(
    region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})],
) -> str:
    """Return the region that was named, in a header as well."""
    return region


@prompt
def review(code: str) -> str:
    """Review some code."""
    return f"Please review: {code}"


@resource("note://today")
def today() -> str:
    """What is to be done today."""
    return "nothing"


@resource("note://{day}/{hour}")
def at(day: str, hour: str) -> str:
    """What is to be done at an hour."""
    return f"nothing on {day} at {hour}"

"""The fixtures of the Tasks extension, as plain Python functions.

Each has the name and the words that the suite looks for.
"""

from typing import Any, Final

import anyio

from guildry.errors import ToolFailed, ToolProtocolError
from guildry.tools.asking.questions import Answer, Ask, Question
from guildry.tools.python.decorators import reads, tool

_CONFIRM: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"confirm": {"type": "boolean"}},
    "required": ["confirm"],
}
_NAME: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
}


@reads
def greet(name: str) -> str:
    """Greet somebody, at once."""
    return f"Hello, {name}!"


@reads(task="optional", timeout_s=120)
async def slow_compute(seconds: float, label: str = "") -> str:
    """Take some seconds.

    Args:
        seconds: how many.
        label: what to call the result.
    """
    await anyio.sleep(seconds)
    return f"Computed {label} in {seconds:g} s"


@reads(task="required")
async def failing_job() -> str:
    """Fail after a second, as tools do."""
    await anyio.sleep(1)
    raise ToolFailed("This job always fails.")


@reads(task="required")
def protocol_error_job() -> str:
    """Fail as a request does."""
    raise ToolProtocolError("The job failed.", -32603, "This job fails on purpose.")


@tool(task="optional", destructive=False)
async def confirm_delete(filename: str, ask: Ask) -> str:
    """Ask whether to delete, once it is at work.

    Args:
        filename: what to delete.
    """
    answer = await ask(_form("confirm", f"Delete {filename}?", _CONFIRM))
    deleted = answer.action == "accept" and answer.content["confirm"]
    return f"{'Deleted' if deleted else 'Kept'} {filename}"


@tool(task="optional", destructive=False)
async def multi_input(ask: Ask) -> str:
    """Ask two things at the same time."""
    answers: dict[str, Answer] = {}

    async def put(key: str, message: str) -> None:
        answers[key] = await ask(_form(key, message, _NAME))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(put, "first", "What is your first name?")
        tasks.start_soon(put, "last", "What is your last name?")
    return " and ".join(f"{key}: {answer.action}" for key, answer in sorted(answers.items()))


@tool(task="required", destructive=False)
async def test_tool_with_task(ask: Ask) -> str:
    """Ask for a name before there is a task, and greet as one."""
    answer = await ask(_form("user_name", "What is your name?", _NAME, repeatable=True))
    await anyio.sleep(0.2)
    return f"Hello, {answer.content.get('name', 'stranger')}!"


def _form(key: str, message: str, schema: dict[str, Any], *, repeatable: bool = False) -> Question:
    return Question(key=key, kind="form", message=message, schema=schema, repeatable=repeatable)

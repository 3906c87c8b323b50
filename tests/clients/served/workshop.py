"""Tools that do one thing each, as the tests of the clients need them."""

from dataclasses import dataclass
from typing import Any, Final

import anyio

from guildry.tools.asking.questions import Ask, Question
from guildry.tools.base import Block, Call, Media, Text
from guildry.tools.python import prompt, reads, resource

_notes: Final[dict[str, str]] = {"today": "nothing yet"}
_gates: Final[dict[str, anyio.Event]] = {}


@dataclass
class Sum:
    """What came of an addition."""

    total: int


def _gate(name: str) -> anyio.Event:
    return _gates.setdefault(name, anyio.Event())


@reads(title="Echo a text")
def echo(text: str) -> str:
    """Return the text.

    Args:
        text: what is returned.
    """
    return text


@reads
def add(a: int, b: int) -> Sum:
    """Add two numbers."""
    return Sum(a + b)


@reads
def fail(why: str) -> str:
    """Fail, and say why."""
    raise ValueError(why)


@reads
def picture() -> list[Block]:
    """Return a picture and a word."""
    return [Text("a dot"), Media(b"GIF89a", "image/gif")]


@reads
def many_words(count: int) -> str:
    """Return so many words."""
    return " ".join(f"word{n}" for n in range(count))


@reads
async def pass_gate(name: str, call: Call) -> str:
    """Report progress, wait until the gate is opened, and report again."""
    if call.progress is not None:
        await call.progress(1, 2, "waiting")
    await _gate(name).wait()
    return "through"


@reads
async def open_gate(name: str) -> str:
    """Open a gate."""
    _gate(name).set()
    return "open"


@reads
async def wait_for_ever(name: str, call: Call) -> str:
    """Wait until the call is cancelled, and open the gate then."""
    if call.progress is not None:
        await call.progress(0, None, "waiting")
    try:
        await anyio.sleep_forever()
    finally:
        _gate(name).set()
    return "never"


@reads
async def ask_name(ask: Ask) -> str:
    """Ask the user for a name."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {"name": {"type": "string"}},
        "required": ["name"],
    }
    answer = await ask(Question(key="name", kind="form", message="Who are you?", schema=schema))
    return f"{answer.action}: {answer.content.get('name', 'nobody')}"


@reads
async def ask_model(text: str, ask: Ask) -> str:
    """Ask the client's model."""
    message = {"role": "user", "content": {"type": "text", "text": text}}
    params = {"messages": [message], "maxTokens": 20}
    answer = await ask(Question(key="model", kind="sampling", message=text, params=params))
    return f"{answer.action}: {answer.content['content']['text']}"


@reads
async def ask_folders(ask: Ask) -> str:
    """Ask for the client's folders."""
    answer = await ask(Question(key="folders", kind="roots", message="Which folders?"))
    return f"{answer.action}: {answer.content['roots'][0]['uri']}"


@reads
def write_note(text: str, call: Call) -> str:
    """Write today's note anew, and tell that it has changed."""
    _notes["today"] = text
    if call.touch is not None:
        call.touch("note://today")
    return "written"


@prompt(title="Greet somebody", complete={"name": ["Ada", "Adele", "Grace"]})
def greeting(name: str, tone: str = "warm") -> str:
    """Ask for a greeting.

    Args:
        name: who is greeted.
        tone: how.
    """
    return f"Write a {tone} greeting for {name}."


@resource("note://today", title="Today's note", media_type="text/plain")
def today() -> str:
    """Return today's note."""
    return _notes["today"]


@resource("note://{day}", complete={"day": ["monday", "friday"]})
def note(day: str) -> str:
    """Return the note of a day."""
    return f"nothing on {day}"

"""The fixtures that are plain Python functions: content of every kind, progress, errors, questions.

Each has the name and the words that the suite looks for.
"""

import json
from base64 import b64decode
from typing import Any, Final

import anyio

from guildry.tools.asking.questions import Answer, Ask, Question
from guildry.tools.base import Block, Call, Embedded, Media, Text
from guildry.tools.python import prompt, reads, resource

PIXEL: Final = b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
)
SILENCE: Final = b"RIFF$\0\0\0WAVEfmt \x10\0\0\0\1\0\1\0@\x1f\0\0@\x1f\0\0\1\0\x08\0data\0\0\0\0"

NAME: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
}
ACCOUNT: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "username": {"type": "string", "description": "The user's name."},
        "email": {"type": "string", "description": "The user's address."},
    },
    "required": ["username", "email"],
}
DEFAULTS: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "default": "John Doe"},
        "age": {"type": "integer", "default": 30},
        "score": {"type": "number", "default": 95.5},
        "status": {
            "type": "string",
            "enum": ["active", "inactive", "pending"],
            "default": "active",
        },
        "verified": {"type": "boolean", "default": True},
    },
}
CHOICES: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "untitledSingle": {"type": "string", "enum": ["option1", "option2", "option3"]},
        "titledSingle": {
            "type": "string",
            "oneOf": [
                {"const": "value1", "title": "First Option"},
                {"const": "value2", "title": "Second Option"},
                {"const": "value3", "title": "Third Option"},
            ],
        },
        "legacyEnum": {
            "type": "string",
            "enum": ["opt1", "opt2", "opt3"],
            "enumNames": ["Option One", "Option Two", "Option Three"],
        },
        "untitledMulti": {
            "type": "array",
            "items": {"type": "string", "enum": ["option1", "option2", "option3"]},
        },
        "titledMulti": {
            "type": "array",
            "items": {
                "anyOf": [
                    {"const": "value1", "title": "First Choice"},
                    {"const": "value2", "title": "Second Choice"},
                    {"const": "value3", "title": "Third Choice"},
                ]
            },
        },
    },
}


@reads
def test_simple_text() -> str:
    """Return a line of text."""
    return "This is a simple text response for testing."


@reads
def test_image_content() -> list[Block]:
    """Return an image."""
    return [Media(PIXEL, "image/png")]


@reads
def test_audio_content() -> list[Block]:
    """Return a sound."""
    return [Media(SILENCE, "audio/wav")]


@reads
def test_embedded_resource() -> list[Block]:
    """Return a resource with its content."""
    content = "This is an embedded resource content."
    return [Embedded("test://embedded-resource", "text/plain", text=content)]


@reads
def test_multiple_content_types() -> list[Block]:
    """Return a text, an image and a resource."""
    content = json.dumps({"test": "data", "value": 123})
    return [
        Text("Multiple content types test:"),
        Media(PIXEL, "image/png"),
        Embedded("test://mixed-content-resource", "application/json", text=content),
    ]


@reads
def test_error_handling() -> str:
    """Fail."""
    raise RuntimeError("This tool intentionally returns an error for testing")


@reads
async def test_tool_with_progress(call: Call) -> str:
    """Report progress three times."""
    for done in (0, 50, 100):
        if call.progress is not None:
            await call.progress(done, 100, f"Completed step {done} of 100")
    return "Completed"


@reads
async def test_sampling(prompt: str, ask: Ask) -> str:
    """Ask the client's model.

    Args:
        prompt: what the model is asked.
    """
    answer = await ask(_completion("model_response", prompt, 100))
    return f"LLM response: {_text(answer)}"


@reads
async def test_elicitation(message: str, ask: Ask) -> str:
    """Ask the user.

    Args:
        message: what the user reads.
    """
    return f"User response: {_outcome(await ask(_form('user_response', message, ACCOUNT)))}"


@reads
async def test_elicitation_sep1034_defaults(ask: Ask) -> str:
    """Ask with a default for each kind of field."""
    answer = await ask(_form("user_details", "Please check the details", DEFAULTS))
    return f"Elicitation completed: {_outcome(answer)}"


@reads
async def test_elicitation_sep1330_enums(ask: Ask) -> str:
    """Ask with each kind of choice."""
    answer = await ask(_form("user_choices", "Please choose", CHOICES))
    return f"Elicitation completed: {_outcome(answer)}"


@reads
async def test_input_required_result_elicitation(ask: Ask) -> str:
    """Ask for a name."""
    answer = await ask(_form("user_name", "What is your name?", NAME))
    return f"Hello, {answer.content.get('name', 'stranger')}!"


@reads
async def test_input_required_result_tampered_state(ask: Ask) -> str:
    """Ask, to be given a state that nobody can change."""
    answer = await ask(_form("confirm", "What is your name?", NAME))
    return f"state-ok: {answer.action}"


@reads
async def test_input_required_result_capabilities(call: Call, ask: Ask) -> str:
    """Ask at the same time what this client can be asked."""
    channel = call.caller.channel
    questions = [
        question
        for question in (
            _completion("sample", "Say hello", 50),
            _form("ask", "What is your name?", NAME),
        )
        if channel is not None and channel.takes(question.kind)
    ]

    async def put(question: Question) -> None:
        await ask(question)

    async with anyio.create_task_group() as tasks:
        for question in questions:
            tasks.start_soon(put, question)
    return f"{len(questions)} answered."


@prompt
def test_simple_prompt() -> str:
    """Say one sentence."""
    return "This is a simple prompt for testing."


@prompt(complete={"arg1": ["hello", "help"], "arg2": ["world"]})
def test_prompt_with_arguments(arg1: str, arg2: str) -> str:
    """Say both arguments.

    Args:
        arg1: the first.
        arg2: the second.
    """
    return f"Prompt with arguments: arg1='{arg1}', arg2='{arg2}'"


@prompt
def test_prompt_with_embedded_resource(resourceUri: str) -> list[Block]:
    """Show a resource, and ask to have it worked on.

    Args:
        resourceUri: where the resource is.
    """
    content = "Embedded resource content for testing."
    shown = Embedded(resourceUri, "text/plain", text=content)
    return [shown, Text("Please process the embedded resource above.")]


@prompt
def test_prompt_with_image() -> list[Block]:
    """Show an image, and ask to have it looked at."""
    return [Media(PIXEL, "image/png"), Text("Please analyze the image above.")]


@resource("test://static-text")
def static_text() -> str:
    """Return a text."""
    return "This is the content of the static text resource."


@resource("test://static-binary", media_type="image/png")
def static_binary() -> bytes:
    """Return an image."""
    return PIXEL


@resource("test://watched-resource")
def watched() -> str:
    """Return a text that somebody may wait for a change of."""
    return "Watched resource content"


@resource("test://template/{id}/data", media_type="application/json")
def template_data(id: str) -> str:
    """Return what the URI names."""
    return json.dumps({"id": id, "templateTest": True, "data": f"Data for ID: {id}"})


def _form(key: str, message: str, schema: dict[str, Any]) -> Question:
    return Question(key=key, kind="form", message=message, schema=schema, repeatable=True)


def _completion(key: str, prompt: str, max_tokens: int) -> Question:
    content = {"type": "text", "text": prompt}
    params = {"messages": [{"role": "user", "content": content}], "maxTokens": max_tokens}
    return Question(key=key, kind="sampling", message=prompt, params=params, repeatable=True)


def _outcome(answer: Answer) -> str:
    return f"action={answer.action}, content={json.dumps(dict(answer.content))}"


def _text(answer: Answer) -> str:
    return str(answer.content.get("content", {}).get("text", "no response"))

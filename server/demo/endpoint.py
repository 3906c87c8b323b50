"""A chat-completions endpoint on the loopback interface that plays a program instead of a model."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, Final

from guildry.server.demo.shown import list_of, object_of
from guildry.teams.model import Completion, Message, Request, ToolCall, ToolSpec
from guildry.teams.scripted import ScriptedModel

if TYPE_CHECKING:
    from aiohttp import web

    from guildry.teams.scripted import Program

__all__ = ["MODEL", "scripted_endpoint"]

MODEL: Final = "scripted-survey"
"""The name under which the endpoint lists its one model."""

_MAX_BODY: Final = 64 * 1024 * 1024


@asynccontextmanager
async def scripted_endpoint(program: "Program") -> AsyncGenerator[str]:
    """Serve `program` on a free port; yields the base URL, such as `http://127.0.0.1:4242/v1`."""
    from aiohttp import web

    player = _Player(ScriptedModel(program, name=MODEL))
    app = web.Application(client_max_size=_MAX_BODY)
    app.router.add_get("/v1/models", player.models)
    app.router.add_post("/v1/chat/completions", player.complete)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    finally:
        await runner.cleanup()


class _Player:
    def __init__(self, model: ScriptedModel) -> None:
        self._model = model

    async def models(self, _: "web.Request") -> "web.Response":
        from aiohttp import web

        return web.json_response({"object": "list", "data": [{"id": MODEL, "object": "model"}]})

    async def complete(self, asked: "web.Request") -> "web.StreamResponse":
        from aiohttp import web

        body: dict[str, Any] = await asked.json()
        completion = await self._model.complete(_request(body))
        self._model.requests.clear()
        if not body.get("stream"):
            return web.json_response(_whole(completion))
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(asked)
        for piece in _pieces(completion):
            await response.write(b"data: " + json.dumps(piece).encode() + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response


def _request(body: dict[str, Any]) -> Request:
    form = object_of(body.get("response_format"))
    schema: dict[str, Any] | None = object_of(form.get("json_schema")).get("schema")
    tools = tuple(
        ToolSpec(f["name"], f.get("description", ""), object_of(f.get("parameters")))
        for f in (tool["function"] for tool in body.get("tools") or ())
    )
    messages = tuple(_message(message) for message in body["messages"])
    return Request(messages=messages, tools=tools, response_schema=schema)


def _message(form: dict[str, Any]) -> Message:
    content = form.get("content") or ""
    if parts := list_of(content):
        content = "".join(str(part.get("text", "")) for part in parts)
    calls = tuple(
        ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
        for call in form.get("tool_calls") or ()
    )
    return Message(form["role"], str(content), calls, form.get("tool_call_id"))


def _said(completion: Completion) -> dict[str, Any]:
    said: dict[str, Any] = {"role": "assistant", "content": completion.text or None}
    if completion.calls:
        said["tool_calls"] = [
            {
                "index": n,
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for n, call in enumerate(completion.calls)
        ]
    return said


def _usage(completion: Completion) -> dict[str, int]:
    usage = completion.usage
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total,
    }


def _whole(completion: Completion) -> dict[str, Any]:
    choice = {"index": 0, "message": _said(completion), "finish_reason": completion.finish}
    head = {"id": "scripted", "object": "chat.completion", "model": MODEL, "created": 0}
    return {**head, "choices": [choice], "usage": _usage(completion)}


def _pieces(completion: Completion) -> list[dict[str, Any]]:
    head = {"id": "scripted", "object": "chat.completion.chunk", "model": MODEL, "created": 0}
    said = {"index": 0, "delta": _said(completion), "finish_reason": None}
    ended: dict[str, Any] = {"index": 0, "delta": {}, "finish_reason": completion.finish}
    return [
        {**head, "choices": [said]},
        {**head, "choices": [ended]},
        {**head, "choices": [], "usage": _usage(completion)},
    ]

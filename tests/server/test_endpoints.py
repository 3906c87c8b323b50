"""Model endpoints: their listings, and the first model of one that names none."""

import socket
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from aiohttp import web

from guildry.errors import ModelRejected, ModelReplyError, ModelUnavailable
from guildry.server.config import ModelSetting
from guildry.server.endpoints import FirstModel, list_models, listing_url
from guildry.teams.model import Message, Request


@dataclass
class Endpoint:
    url: str = ""
    body: Any = None
    status: int = 200
    listings: int = 0
    asked: list[str] = field(default_factory=list[str])

    async def models(self, _: web.Request) -> web.Response:
        self.listings += 1
        return web.json_response(self.body, status=self.status)

    async def chat(self, request: web.Request) -> web.Response:
        self.asked.append((await request.json())["model"])
        message = {"role": "assistant", "content": "yes"}
        return web.json_response({"choices": [{"message": message, "finish_reason": "stop"}]})


@pytest.fixture
async def endpoint() -> AsyncGenerator[Endpoint]:
    there = Endpoint()
    app = web.Application()
    app.router.add_get("/v1/models", there.models)
    app.router.add_post("/v1/chat/completions", there.chat)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    there.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield there
    await runner.cleanup()


def test_a_listing_is_found_from_any_part_of_the_url() -> None:
    for url in ("http://h:1", "http://h:1/", "http://h:1/v1", "http://h:1/v1/chat/completions"):
        assert listing_url(url) == "http://h:1/v1/models"
    assert listing_url("https://h/api/v2/") == "https://h/api/v2/models"


async def test_the_first_model_is_asked_for_once_and_used(endpoint: Endpoint) -> None:
    endpoint.body = {"data": [{"id": "small"}, {"id": "large"}]}
    model = FirstModel(ModelSetting(url=endpoint.url))
    request = Request(messages=(Message("user", "Well?"),))

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(model.complete, request)
        reply = await model.complete(request)
        await model.aclose()

    assert reply.text == "yes"
    assert model.name == "small"
    assert endpoint.asked == ["small"] * 4
    assert endpoint.listings == 1


async def test_an_endpoint_without_a_model_is_told_so(endpoint: Endpoint) -> None:
    endpoint.body = {"data": []}

    with anyio.fail_after(30), pytest.raises(ModelReplyError, match="configure its `model`"):
        await FirstModel(ModelSetting(url=endpoint.url)).complete(Request(messages=()))


async def test_what_is_no_listing_is_refused_and_what_is_gone_is_unavailable(
    endpoint: Endpoint,
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dead = f"http://me:secret@127.0.0.1:{taken.getsockname()[1]}"
    endpoint.body, endpoint.status = {}, 401

    with anyio.fail_after(30):
        with pytest.raises(ModelRejected, match="answers 401") as refused:
            await list_models(ModelSetting(url=endpoint.url))
        with pytest.raises(ModelUnavailable, match="gives no answer") as gone:
            await list_models(ModelSetting(url=dead))
        endpoint.body, endpoint.status = [1], 200
        with pytest.raises(ModelRejected, match="no list of models"):
            await list_models(ModelSetting(url=endpoint.url))

    assert refused.value.status == 401
    assert "secret" not in str(gone.value)

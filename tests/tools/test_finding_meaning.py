"""Finding by meaning, with an endpoint that gives vectors of what a few words mean."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from aiohttp import web

from guildry.errors import ModelError, ModelRejected, ModelReplyError, ModelUnavailable
from guildry.memory.store import Store
from guildry.memory.vectors import VectorStore
from guildry.tools.base import Call, Outcome, Tool
from guildry.tools.finding.endpoint import EndpointEmbedder
from guildry.tools.finding.index import ToolIndex
from guildry.tools.registry import Catalog

MEANINGS = (("forecast", "rain", "umbrella"), ("invoice", "bill", "owe"), ("picture", "photo"))


class Endpoint:
    """A real server whose vectors count words of one meaning."""

    def __init__(self) -> None:
        self.url = ""
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.replies: list[web.Response] = []

    async def answer(self, request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        self.asked.append(body)
        self.keys.append(request.headers.get("Authorization"))
        if self.replies:
            return self.replies.pop(0)
        data = [{"index": n, "embedding": vector_of(text)} for n, text in enumerate(body["input"])]
        return web.json_response({"data": data[::-1]})


def vector_of(text: str) -> list[float]:
    words = text.lower().split()
    counts = [float(sum(word.strip(".:?") in each for word in words)) for each in MEANINGS]
    return [*counts, 0.1]


@asynccontextmanager
async def endpoint() -> AsyncGenerator[Endpoint, None]:
    served = Endpoint()
    app = web.Application()
    app.router.add_post("/v1/embeddings", served.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        served.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        with anyio.fail_after(20):
            yield served
    finally:
        await runner.cleanup()


async def answer(_: dict[str, Any], __: Call) -> Outcome:
    return Outcome()


def tool(name: str, description: str) -> Tool:
    schema = {"type": "object"}
    return Tool(name=name, plug="p", description=description, input_schema=schema, invoke=answer)


TOOLS = [
    tool("weather", "Gives the forecast."),
    tool("accounts", "Writes an invoice."),
    tool("camera", "Takes a picture."),
]


async def names(index: ToolIndex, *queries: str) -> list[str]:
    return [hit.tool.name for hit in await index.search(queries, 3)]


async def test_tools_are_found_by_words_at_first_and_by_meaning_once_it_is_known() -> None:
    catalog = Catalog()
    catalog.replace("p", TOOLS)
    async with endpoint() as served:
        index = ToolIndex(catalog, embedder=EndpointEmbedder(served.url, "tiny", api_key="k1"))

        assert await names(index, "will I need an umbrella?") == []
        assert await index.learn() == 3
        assert (await names(index, "will I need an umbrella?"))[0] == "weather"
        assert (await names(index, "what do I owe?"))[0] == "accounts"
        await index.aclose()

    assert served.keys == ["Bearer k1"] * len(served.keys)
    assert served.asked[0]["model"] == "tiny"


async def test_a_tool_plugged_later_is_found_by_its_words_until_its_meaning_is_known() -> None:
    catalog = Catalog()
    catalog.replace("p", [tool(f"rain_{n}", f"Forecast number {n}.") for n in range(30)])
    async with endpoint() as served:
        index = ToolIndex(catalog, embedder=EndpointEmbedder(served.url, "tiny"))
        await index.learn()

        catalog.replace("q", [tool("album", "Shows a photo of the year.")])
        assert (await names(index, "photo of the year"))[0] == "album"
        assert await index.learn() == 1
        assert (await names(index, "picture"))[0] == "album"
        catalog.withdraw("q")
        assert "album" not in await names(index, "picture")
        await index.aclose()


async def test_vectors_are_kept_so_that_none_is_made_twice(tmp_path: Path) -> None:
    catalog = Catalog()
    catalog.replace("p", TOOLS)
    async with endpoint() as served, Store.open(tmp_path / "g.db") as store:
        for _ in range(2):
            embedder = EndpointEmbedder(served.url, "tiny")
            index = ToolIndex(catalog, embedder=embedder, vectors=VectorStore(store))
            await index.learn()
            assert (await names(index, "umbrella"))[0] == "weather"
            await index.aclose()

        texts = [each for body in served.asked for each in body["input"]]

    assert len(texts) == 3 * len(TOOLS) + 2


async def test_the_meaning_of_new_tools_is_learnt_in_the_background() -> None:
    catalog = Catalog()
    async with endpoint() as served:
        index = ToolIndex(catalog, embedder=EndpointEmbedder(served.url, "tiny"))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(index.run)
            catalog.replace("p", TOOLS)
            while (await names(index, "umbrella"))[:1] != ["weather"]:
                await anyio.lowlevel.checkpoint()
            tasks.cancel_scope.cancel()
        await index.aclose()


async def test_an_endpoint_that_fails_costs_the_meaning_and_no_search() -> None:
    catalog = Catalog()
    catalog.replace("p", TOOLS)
    async with endpoint() as served:
        index = ToolIndex(catalog, embedder=EndpointEmbedder(served.url, "tiny"))
        await index.learn()
        served.replies.append(web.Response(status=500))

        asked = len(served.asked)

        assert await names(index, "forecast") == ["weather"]
        assert await names(index, "invoice") == ["accounts"]
        await index.aclose()

    assert len(served.asked) == asked + 1  # it is left alone for a while


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (web.Response(status=401), ModelRejected),
        (web.Response(text="no JSON"), ModelReplyError),
        (web.json_response({"data": [{"index": 0}]}), ModelReplyError),
        (web.json_response({"data": []}), ModelReplyError),
        (web.json_response({"data": [{"index": 0, "embedding": ["x"]}]}), ModelReplyError),
    ],
)
async def test_an_answer_without_vectors_says_what_to_check(
    reply: web.Response, kind: type[ModelError]
) -> None:
    async with endpoint() as served:
        embedder = EndpointEmbedder(f"{served.url}/v1/embeddings", "tiny", api_key="secret-1")
        served.replies.append(reply)

        with pytest.raises(kind) as error:
            await embedder.queries(["a"])
        await embedder.aclose()

    assert "check" in str(error.value) or "no list" in str(error.value)
    assert "secret-1" not in str(error.value)


async def test_an_endpoint_that_is_not_there_is_told_without_its_password() -> None:
    embedder = EndpointEmbedder("http://me:pass-1@127.0.0.1:9", "tiny")

    with pytest.raises(ModelUnavailable) as error:
        await embedder.documents(["a"])
    await embedder.aclose()

    assert "127.0.0.1:9" in str(error.value)
    assert "pass-1" not in str(error.value)


async def test_a_query_gets_the_prefix_that_the_model_wants() -> None:
    async with endpoint() as served:
        embedder = EndpointEmbedder(served.url, "tiny", query_prefix="query: ")
        await embedder.queries(["a"])
        await embedder.documents(["b"])
        await embedder.aclose()

    assert [body["input"] for body in served.asked] == [["query: a"], ["b"]]

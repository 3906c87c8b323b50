"""What is served besides MCP, and what pages of other origins may do."""

from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from endpoint import Post, bearer, modern_call, serving, token_of, write_tokens

from guildry.server.app import open_app
from guildry.server.config import Settings
from guildry.server.http.settings import HttpSetting
from guildry.tools.base import Tool

PAGE = "https://app.example"


def root_of(url: str) -> str:
    return url.removesuffix("/mcp")


@pytest.mark.parametrize(
    ("method", "path", "status", "allow"),
    [
        ("PUT", "/mcp", 405, "DELETE, GET, POST"),
        ("PATCH", "/mcp", 405, "DELETE, GET, POST"),
        ("OPTIONS", "/mcp", 405, "DELETE, GET, POST"),
        ("POST", "/health", 405, "GET, HEAD"),
        ("DELETE", "/mcp/server-card", 405, "GET, HEAD"),
        ("GET", "/", 404, None),
        ("GET", "/mcp/", 404, None),
        ("GET", "/health/", 404, None),
        ("GET", "/.well-known/oauth-protected-resource", 404, None),
        ("HEAD", "/health", 200, None),
        ("HEAD", "/ready", 200, None),
    ],
)
async def test_wrong_methods_and_paths_are_told(
    opened: Any, echo: Tool, method: str, path: str, status: int, allow: str | None
) -> None:
    async with opened(echo) as app, serving(app) as url, httpx2.AsyncClient() as http:
        response = await http.request(method, root_of(url) + path)

    assert (response.status_code, response.headers.get("allow")) == (status, allow)
    assert response.headers["content-type"] == "application/json"
    assert method == "HEAD" or response.json()["error"]


async def test_readiness_waits_for_the_plugs_and_life_does_not(tmp_path: Path) -> None:
    slow = tmp_path / "slow.py"
    gate = tmp_path / "gate"
    slow.write_text(
        "import pathlib, time\n"
        f"while not pathlib.Path({str(gate)!r}).exists(): time.sleep(0.01)\n"
        "def hello() -> str:\n    '''Say hello.'''\n    return 'hello'\n"
    )
    plugs: Any = {"slow": {"source": str(slow)}}
    async with open_app(Settings(home=tmp_path / "home", plugs=plugs)) as app:
        async with serving(app) as url, httpx2.AsyncClient() as http:
            early = await http.get(f"{root_of(url)}/ready")
            alive = await http.get(f"{root_of(url)}/health")
            gate.touch()
            with anyio.fail_after(30):
                await app.ready.wait()
            late = await http.get(f"{root_of(url)}/ready")

    assert early.status_code == 503
    assert early.json() == {"ready": False, "reasons": ["plugs are being opened"]}
    assert (alive.status_code, alive.json()["ready"]) == (200, False)
    assert (late.status_code, late.json()) == (200, {"ready": True, "reasons": []})


async def test_readiness_tells_of_a_file_of_tokens_that_cannot_be_used(
    opened: Any, echo: Tool, tmp_path: Path
) -> None:
    tokens = write_tokens(tmp_path / "tokens.toml", ada="tools")
    async with opened(echo) as app, serving(app, setting=HttpSetting(tokens=tokens)) as url:
        async with httpx2.AsyncClient() as http:
            tokens.write_text("[")
            while (response := await http.get(f"{root_of(url)}/ready")).status_code == 200:
                pass
            still = await Post(url, http, **bearer(token_of("ada"))).call("echo", text="a")

    assert str(tmp_path) not in response.text
    assert still["content"]


async def test_the_card_and_the_catalog_tell_how_to_connect_and_nothing_else(
    opened: Any, echo: Tool, tmp_path: Path
) -> None:
    tokens = write_tokens(tmp_path / "tokens.toml", ada="tools")
    setting = HttpSetting(
        tokens=tokens,
        public_url="https://tools.example/mcp",
        allowed_hosts=("127.0.0.1:*",),
        allowed_origins=(PAGE,),
    )
    async with opened(echo) as app, serving(app, setting=setting) as url:
        async with httpx2.AsyncClient(headers={"Origin": "https://any.example"}) as http:
            card = await http.get(f"{url}/server-card")
            catalog = await http.get(f"{root_of(url)}/.well-known/ai-catalog.json")
            again = await http.get(
                f"{url}/server-card", headers={"If-None-Match": card.headers["etag"]}
            )
            health = await http.get(f"{root_of(url)}/health")

    assert card.headers["content-type"] == "application/mcp-server-card+json"
    assert card.json()["remotes"][0]["url"] == "https://tools.example/mcp"
    assert "echo" not in card.text
    assert "max-age" in card.headers["cache-control"]
    (entry,) = catalog.json()["entries"]
    assert entry["url"] == "https://tools.example/mcp/server-card"
    assert (again.status_code, again.content) == (304, b"")
    assert card.headers["access-control-allow-origin"] == "*"
    assert health.status_code == 403


async def test_a_page_that_is_configured_may_call_and_read_the_answer(
    opened: Any, echo: Tool, tmp_path: Path
) -> None:
    tokens = write_tokens(tmp_path / "tokens.toml", ada="tools")
    setting = HttpSetting(tokens=tokens, allowed_origins=(PAGE,))
    asks = {
        "Origin": PAGE,
        "Access-Control-Request-Method": "POST",
        "Access-Control-Request-Headers": "authorization, mcp-param-region, x-evil, mcp-method",
    }
    async with opened(echo) as app, serving(app, setting=setting) as url:
        async with httpx2.AsyncClient() as http:
            before = await http.options(url, headers=asks)
            post = Post(url, http, Origin=PAGE, **bearer(token_of("ada")))
            called = await post.send(*modern_call("echo", {"text": "a"}))
            nobody = await Post(url, http, Origin=PAGE).send(*modern_call("echo", {"text": "a"}))
            foreign = await http.options(url, headers={**asks, "Origin": "https://evil.example"})

    assert before.status_code == 204
    assert before.headers["access-control-allow-origin"] == PAGE
    assert "mcp-param-region" in before.headers["access-control-allow-headers"]
    assert "x-evil" not in before.headers["access-control-allow-headers"]
    assert called.json()["result"]["content"][0]["text"] == "a"
    for response in (called, nobody):
        assert response.headers["access-control-allow-origin"] == PAGE
        assert "mcp-session-id" in response.headers["access-control-expose-headers"]
        assert response.headers["vary"] == "origin"
    assert nobody.status_code == 401
    assert foreign.status_code == 403
    assert "access-control-allow-origin" not in foreign.headers


async def test_without_configuration_nothing_is_said_to_other_pages(
    opened: Any, echo: Tool
) -> None:
    async with opened(echo) as app, serving(app) as url, httpx2.AsyncClient() as http:
        own = {"Origin": root_of(url)}
        called = await Post(url, http, **own).send(*modern_call("echo", {"text": "a"}))
        asked = await http.options(url, headers={**own, "Access-Control-Request-Method": "POST"})
        card = await http.get(f"{url}/server-card", headers={"Origin": PAGE})

    assert called.status_code == 200
    assert (asked.status_code, card.status_code) == (405, 403)
    for response in (called, asked, card):
        assert not [name for name in response.headers if name.startswith("access-control")]

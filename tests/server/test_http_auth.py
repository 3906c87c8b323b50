"""Authenticated callers over HTTP: who comes in, and what is each one's own."""

import json
import re
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from endpoint import (
    LEGACY,
    MODERN,
    Post,
    bearer,
    legacy_call,
    modern_call,
    serving,
    token_of,
    write_tokens,
)
from issuer import ISSUER, RESOURCE, Keys, claims, signer
from mcp import Client
from mcp.client.streamable_http import streamable_http_client

from guildry.memory.runs import RunRecord
from guildry.server.http.settings import HttpSetting, JwtSetting
from guildry.tools.base import Outcome, Text, Tool

ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])
ADA, BOB = bearer(token_of("ada")), bearer(token_of("bob"))
METADATA = "/.well-known/oauth-protected-resource"


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    both = "tools teams"
    return write_tokens(tmp_path / "tokens.toml", ada=both, bob=both, root="admin")


@asynccontextmanager
async def client(url: str, token: str, era: Any) -> AsyncGenerator[Client]:
    async with httpx2.AsyncClient(headers=bearer(token), timeout=60) as http:
        async with Client(streamable_http_client(url, http_client=http), mode=era) as found:
            yield found


@ERAS
async def test_the_official_client_calls_with_a_token(
    opened: Any, echo: Tool, tokens: Path, era: Any
) -> None:
    async with opened(echo) as app, serving(app, setting=HttpSetting(tokens=tokens)) as url:
        async with client(url, token_of("ada"), era) as ada:
            names = {tool.name for tool in (await ada.list_tools()).tools}
            said = await ada.call_tool("echo", {"text": "hello"})
        async with client(url, token_of("root"), era) as root:
            admin = {tool.name for tool in (await root.list_tools()).tools}

    assert "echo" in names
    assert "plug" not in names
    assert "plug" in admin
    assert "echo" not in admin
    assert said.content[0].text == "hello"  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("headers", "status", "error"),
    [
        ({}, 401, None),
        (bearer("nobody"), 401, "invalid_token"),
        ({"Authorization": "Basic YTpi"}, 401, None),
    ],
)
@pytest.mark.parametrize("method", ["POST", "GET", "DELETE"])
@pytest.mark.requirement("auth.challenge")
async def test_whoever_shows_no_token_is_told_where_to_get_one(
    opened: Any, echo: Tool, tokens: Path, headers: dict[str, str], status: int, error: Any,
    method: str,
) -> None:  # fmt: skip
    setting = HttpSetting(tokens=tokens)
    async with opened(echo) as app, serving(app, setting=setting) as url:
        async with httpx2.AsyncClient() as http:
            response = await http.request(method, url, headers=headers, content=b"{}")
            challenge = response.headers["www-authenticate"]
            where = challenge.partition('resource_metadata="')[2].partition('"')[0]
            metadata = await http.get(where)

    assert response.status_code == status
    assert ("error=" in challenge) == (error is not None)
    assert response.json()["error"]["code"] == -32600
    assert metadata.json() == {
        "resource": url,
        "scopes_supported": ["tools", "teams", "admin"],
        "bearer_methods_supported": ["header"],
        "resource_name": "Guildry",
    }


@pytest.mark.requirement("auth.header-only")
async def test_a_token_in_the_query_is_refused(opened: Any, echo: Tool, tokens: Path) -> None:
    async with opened(echo) as app, serving(app, setting=HttpSetting(tokens=tokens)) as url:
        async with httpx2.AsyncClient() as http:
            response = await http.post(f"{url}?access_token={token_of('ada')}", headers=ADA)

    assert (response.status_code, "invalid_request" in response.text) == (400, False)


@pytest.mark.requirement("auth.metadata")
async def test_signed_tokens_come_in_and_metadata_name_their_issuer(
    opened: Any, echo: Tool
) -> None:
    keys = Keys([signer("good")])
    async with keys.served() as jwks:
        setting = HttpSetting(
            jwt=JwtSetting(issuer=ISSUER, jwks=jwks),
            public_url=RESOURCE,
            allowed_hosts=("127.0.0.1:*",),
        )
        async with opened(echo) as app, serving(app, setting=setting) as url:
            async with httpx2.AsyncClient() as http:
                post = Post(url, http, **bearer(signer("good").sign()))
                said = await post.call("echo", text="a")
                stray = Post(url, http, **bearer(signer("good").sign(claims(scope="openid"))))
                forbidden = await stray.send(*modern_call("echo", {"text": "a"}))
                keys.status = "500 Oops"
                again = await post.call("echo", text="b")
                root = url.removesuffix("/mcp")
                found = [await http.get(root + METADATA + end) for end in ("", "/mcp")]
                bare = await http.post(url)
        calls = await _calls_of(opened, f"{ISSUER}|ada")

    assert (said["content"][0]["text"], again["content"][0]["text"]) == ("a", "b")
    assert keys.asked == 1
    assert forbidden.status_code == 403
    assert 'error="insufficient_scope"' in forbidden.headers["www-authenticate"]
    assert {each.json()["resource"] for each in found} == {RESOURCE}
    assert found[0].json()["authorization_servers"] == [ISSUER]
    assert "https://tools.example" + METADATA + "/mcp" in bare.headers["www-authenticate"]
    assert calls == 2


async def _calls_of(opened: Any, principal: str) -> int:
    async with opened() as app:
        return len(await app.journal.read(principal))


@pytest.fixture
def long(make_tool: Any) -> Tool:
    async def invoke(arguments: dict[str, Any], call: Any) -> Outcome:
        return Outcome((Text("secret " * 5_000),))

    made: Tool = make_tool("long", invoke)
    return made


@pytest.mark.requirement("stateless.handles", "resources.access")
async def test_each_callers_references_and_calls_are_its_own(
    opened: Any, long: Tool, tokens: Path
) -> None:
    async with opened(long) as app, serving(app, setting=HttpSetting(tokens=tokens)) as url:
        async with httpx2.AsyncClient() as http:
            ada, bob = Post(url, http, **ADA), Post(url, http, **BOB)
            made = await ada.call("long")
            reference = re.findall(r"ref:[a-z0-9_.-]+[a-z0-9]", json.dumps(made))[0]
            mine = await ada.call("read_reference", reference=reference)
            theirs = await bob.call("read_reference", reference=reference)
            unknown = await bob.call("read_reference", reference="ref:never-was")
        entries = {name: len(await app.journal.read(name)) for name in ("ada", "bob", "local")}

    assert "secret" in str(mine["content"])
    assert theirs["isError"]
    assert str(theirs["content"]).replace(reference, "X") == str(unknown["content"]).replace(
        "ref:never-was", "X"
    )
    assert entries == {"ada": 2, "bob": 2, "local": 0}


@pytest.mark.requirement("auth.sessions")
async def test_a_session_of_one_caller_is_unknown_to_another(
    opened: Any, echo: Tool, tokens: Path
) -> None:
    async with opened(echo) as app, serving(app, setting=HttpSetting(tokens=tokens)) as url:
        async with httpx2.AsyncClient() as http:
            ada, bob = Post(url, http, **ADA), Post(url, http, **BOB)
            await ada.open()
            bob.session = ada.session
            posts = [
                await bob.send(legacy_call("echo", {"text": "a"})),
                await bob.send({"id": 1, "method": "tools/list"}),
                await http.get(url, headers={**BOB, **ada.session, "Accept": "text/event-stream"}),
                await http.delete(url, headers={**BOB, **ada.session}),
            ]
            nobody = await http.delete(url, headers=ada.session)
            mine = await ada.send(legacy_call("echo", {"text": "a"}))

    assert [each.status_code for each in posts] == [404] * 4
    assert (nobody.status_code, mine.status_code) == (401, 200)


@pytest.mark.requirement("auth.revoked")
async def test_a_revoked_token_ends_what_it_has_open(
    opened: Any, echo: Tool, hang: Any, tokens: Path
) -> None:
    """Its session, its streams in both eras and its calls; another's go on."""
    tool, began, cancelled = hang
    statuses: list[int] = []
    async with opened(echo, tool) as app, serving(app, setting=HttpSetting(tokens=tokens)) as url:
        async with httpx2.AsyncClient(timeout=60) as http:
            ada, bob = Post(url, http, **ADA), Post(url, http, **BOB)
            await ada.open()
            await bob.open()
            listens = {
                "id": 7,
                "method": "subscriptions/listen",
                "params": {"_meta": modern_call("x", {})[0]["params"]["_meta"],
                           "notifications": {"toolsListChanged": True}},
            }  # fmt: skip
            headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "subscriptions/listen"}
            stream = {**ADA, **ada.session, "Accept": "text/event-stream"}
            modern = Post(url, http, **ADA)
            async with anyio.create_task_group() as tasks:

                async def post(sender: Post, *message: Any) -> None:
                    statuses.append((await sender.send(*message)).status_code)

                async def get() -> None:
                    async with http.stream("GET", url, headers=stream) as response:
                        streaming.set()
                        async for _ in response.aiter_bytes():
                            pass
                        statuses.append(response.status_code)

                streaming = anyio.Event()
                tasks.start_soon(get)
                tasks.start_soon(post, modern, listens, headers)
                tasks.start_soon(post, modern, *modern_call("hang", {}))
                await streaming.wait()
                await began.wait()
                write_tokens(tokens, bob="tools teams")
                await cancelled.wait()
            after = await ada.send(legacy_call("echo", {"text": "a"}))
            other = await bob.send(legacy_call("echo", {"text": "a"}))

    assert sorted(statuses) == [200, 200, 401]
    assert (after.status_code, other.status_code) == (401, 200)


async def test_other_scopes_count_from_the_next_request_on(
    opened: Any, echo: Tool, tokens: Path
) -> None:
    async with opened(echo) as app, serving(app, setting=HttpSetting(tokens=tokens)) as url:
        async with httpx2.AsyncClient() as http:
            ada = Post(url, http, **ADA)
            await ada.open()
            before = await ada.send(legacy_call("echo", {"text": "a"}))
            write_tokens(tokens, ada="admin")
            while (await ada.send(legacy_call("echo", {"text": "a"}))).status_code == 200:
                pass
            ended = await ada.send(legacy_call("echo", {"text": "a"}))
            ada.session = {}
            unknown = await ada.call("echo", text="a")

    assert (before.status_code, ended.status_code) == (200, 404)
    assert unknown["code"] == -32602


@pytest.mark.requirement("auth.revoked")
async def test_a_stream_ends_when_its_token_does(opened: Any, echo: Tool) -> None:
    keys = Keys([signer("good")])
    async with keys.served() as jwks, opened(echo) as app:
        jwt = JwtSetting(issuer=ISSUER, jwks=jwks, audience=(RESOURCE,), leeway_s=0)
        async with serving(app, setting=HttpSetting(jwt=jwt)) as url:
            async with httpx2.AsyncClient(timeout=60) as http:
                brief = signer("good").sign(claims(exp=int(time.time()) + 3))
                ada = Post(url, http, **bearer(brief))
                await ada.open()
                headers = {**bearer(brief), **ada.session, "Accept": "text/event-stream"}
                async with http.stream("GET", url, headers=headers) as response:
                    async for _ in response.aiter_bytes():
                        pass
                after = await ada.send(legacy_call("echo", {"text": "a"}))

    assert (response.status_code, after.status_code) == (200, 401)
    assert "expired" in after.headers["www-authenticate"]


async def test_callers_are_dropped_for_others_but_not_while_they_call(
    opened: Any, echo: Tool, hang: Any, tmp_path: Path
) -> None:
    tool, began, _ = hang
    tokens = write_tokens(tmp_path / "tokens.toml", ada="tools", bob="tools", eve="tools")
    setting = HttpSetting(tokens=tokens, max_callers=2)
    async with opened(echo, tool) as app, serving(app, setting=setting) as url:
        async with httpx2.AsyncClient(timeout=60) as http:
            ada, bob, eve = (Post(url, http, **bearer(token_of(n))) for n in ("ada", "bob", "eve"))
            await ada.open()
            await bob.open()
            await eve.open()  # ada was idle for longest
            gone = await ada.send(legacy_call("echo", {"text": "a"}))
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(eve.send, legacy_call("hang", {}))
                await began.wait()
                ada.session = {}
                assert (await ada.open()).status_code == 200
                assert (await bob.send(legacy_call("echo", {"text": "a"}))).status_code == 404
                tasks.cancel_scope.cancel()

    assert gone.status_code == 404


async def test_a_caller_for_whom_there_is_no_room_is_told_to_come_again(
    opened: Any, hang: Any, tokens: Path
) -> None:
    tool, began, _ = hang
    setting = HttpSetting(tokens=tokens, max_callers=1)
    async with opened(tool) as app, serving(app, setting=setting) as url:
        async with httpx2.AsyncClient(timeout=60) as http, anyio.create_task_group() as tasks:
            tasks.start_soon(Post(url, http, **ADA).send, *modern_call("hang", {}))
            await began.wait()

            bob = await Post(url, http, **BOB).send(*modern_call("hang", {}))

            assert (bob.status_code, bob.headers["retry-after"]) == (503, "1")
            tasks.cancel_scope.cancel()


@pytest.mark.requirement("auth.not-logged")
async def test_no_token_is_logged(
    opened: Any, echo: Tool, tokens: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with opened(echo) as app, serving(app, setting=HttpSetting(tokens=tokens)) as url:
        async with httpx2.AsyncClient() as http:
            await Post(url, http, **ADA).call("echo", text="a")
            await http.post(url, headers=bearer("a-secret-of-somebody"))

    told = "".join(capsys.readouterr())
    assert "token_refused" in told
    assert token_of("ada") not in told
    assert "a-secret-of-somebody" not in told


@pytest.mark.requirement("sessions.version-header")
async def test_a_legacy_request_is_served_with_any_version_header_that_is_supported(
    opened: Any, echo: Tool, tokens: Path
) -> None:
    async with opened(echo) as app, serving(app, setting=HttpSetting(tokens=tokens)) as url:
        async with httpx2.AsyncClient() as http:
            ada = Post(url, http, **ADA)
            await ada.open()
            found = {}
            for version in (LEGACY, "2025-06-18", "1999-01-01", "x"):
                headers = {"MCP-Protocol-Version": version}
                response = await ada.send(legacy_call("echo", {"text": "a"}), headers)
                found[version] = response.status_code
            del ada.session["MCP-Protocol-Version"]
            missing = await ada.send(legacy_call("echo", {"text": "a"}))
            ada.session = {"MCP-Protocol-Version": LEGACY}
            no_session = await ada.send({"id": 1, "method": "tools/list"})

    assert found == {LEGACY: 200, "2025-06-18": 200, "1999-01-01": 400, "x": 400}
    assert (missing.status_code, no_session.status_code) == (200, 400)


async def test_each_callers_runs_and_tasks_are_its_own(
    opened: Any, echo: Tool, tokens: Path
) -> None:
    mine, none = "raaaaaaaaaa", "rbbbbbbbbbb"
    async with opened(echo) as app, serving(app, setting=HttpSetting(tokens=tokens)) as url:
        await app.runs.create(RunRecord(mine, "team", "survey", "look", "ada"))
        async with httpx2.AsyncClient() as http:
            ada, bob = Post(url, http, **ADA), Post(url, http, **BOB)
            own = await ada.call("run_status", run=mine)
            foreign = await bob.call("run_status", run=mine)
            unknown = await bob.call("run_status", run=none)
            envelope = modern_call("x", {})[0]["params"]["_meta"]
            listing = {"id": 1, "method": "resources/list", "params": {"_meta": envelope}}
            method = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "resources/list"}
            lists = [(await each.send(listing, method)).text for each in (ada, bob)]
            tasks: list[Any] = []
            for sender, task in ((bob, mine), (bob, none)):
                params = {"_meta": envelope, "taskId": task}
                message = {"id": 1, "method": "tasks/get", "params": params}
                headers = {
                    "MCP-Protocol-Version": MODERN,
                    "Mcp-Method": "tasks/get",
                    "Mcp-Name": task,
                }
                tasks.append((await sender.send(message, headers)).json()["error"])

    assert not own.get("isError")
    assert foreign["isError"]
    assert str(foreign).replace(mine, "X") == str(unknown).replace(none, "X")
    assert [mine in listed for listed in lists] == [True, False]
    assert str(tasks[0]).replace(mine, "X") == str(tasks[1]).replace(none, "X")

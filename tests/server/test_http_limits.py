"""Limits over HTTP: sizes, rates, calls at once, slow clients; with either parser of requests."""

import json
import socket
from collections.abc import AsyncGenerator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import anyio.to_thread
import httpx2
import pytest
from anyio.abc import SocketStream
from endpoint import MODERN, Post, bearer, legacy_call, modern_call, serving, token_of, write_tokens

from guildry.server.http.settings import HttpSetting
from guildry.tools.base import Outcome, Text, Tool

NEEDS_FAST = pytest.mark.skipif(find_spec("httptools") is None, reason="needs `guildry[fast]`")
PARSERS = pytest.mark.parametrize("fast", [False, pytest.param(True, marks=NEEDS_FAST)])


@pytest.fixture
def gate(make_tool: Any) -> tuple[Tool, anyio.Event, anyio.Event]:
    """A tool that waits for an event, and the event that two calls have begun."""
    began, both, opens = [0], anyio.Event(), anyio.Event()

    async def invoke(arguments: dict[str, Any], call: Any) -> Outcome:
        began[0] += 1
        if began[0] == 2:
            both.set()
        await opens.wait()
        return Outcome((Text("through"),))

    return make_tool("gate", invoke), both, opens


@PARSERS
@pytest.mark.requirement("http.bad-input")
async def test_a_large_body_is_refused_in_json_and_the_connection_lives_on(
    opened: Any, echo: Tool, fast: bool
) -> None:
    async def chunks() -> AsyncGenerator[bytes]:
        for _ in range(40):
            yield b"x" * 100

    setting = HttpSetting(max_body_bytes=2_000)
    async with opened(echo) as app, serving(app, setting=setting, fast=fast) as url:
        async with httpx2.AsyncClient() as http:
            declared = await Post(url, http).send(*modern_call("echo", {"text": "x" * 3_000}))
            streamed = await http.post(url, content=chunks())
            fits = await Post(url, http).call("echo", text="x" * 1_000)

    assert (declared.status_code, streamed.status_code) == (413, 413)
    assert declared.json()["error"]["message"].endswith("send at most 2000 bytes")
    assert fits["content"]


@PARSERS
@pytest.mark.parametrize("pieces", [1, 20])
async def test_large_headers_are_refused(opened: Any, echo: Tool, fast: bool, pieces: int) -> None:
    """However they come: at once, or bit by bit without end."""
    setting = HttpSetting(max_header_bytes=4_096)
    async with opened(echo) as app, serving(app, setting=setting, fast=fast) as url:
        async with await connected(url) as client:
            host = f"127.0.0.1:{port_of(url)}"
            end = b"\r\n\r\n" if pieces == 1 else b""
            data = f"GET /health HTTP/1.1\r\nhost: {host}\r\nx: {'y' * 4_200}".encode() + end
            size = len(data) // pieces + 1
            for at in range(0, len(data), size):
                await client.send(data[at : at + size])
            answer = await client.receive()
        async with httpx2.AsyncClient() as http:
            fine = await http.get(url.replace("/mcp", "/health"), headers={"x": "y" * 2_000})

    assert answer.startswith(b"HTTP/1.1 431 ")
    assert fine.status_code == 200


@PARSERS
@pytest.mark.parametrize(
    "data", [b"garbage\r\n\r\n", b"\x00\x01\x02\r\n\r\n", b"GET / HTTP/1.1\r\n:\r\n\r\n"]
)
@pytest.mark.requirement("http.bad-input")
async def test_what_is_no_request_is_answered_and_closed(
    opened: Any, echo: Tool, fast: bool, data: bytes
) -> None:
    async with opened(echo) as app, serving(app, fast=fast) as url:
        async with await connected(url) as client:
            await client.send(data)
            answer = b""
            with pytest.raises(anyio.EndOfStream):
                while True:
                    answer += await client.receive()

    assert answer.startswith(b"HTTP/1.1 400 ")
    assert json.loads(answer.partition(b"\r\n\r\n")[2]) == {"error": "bad request"}


def port_of(url: str) -> int:
    return int(url.rpartition(":")[2].partition("/")[0])


async def connected(url: str) -> SocketStream:
    return await anyio.connect_tcp("127.0.0.1", port_of(url))


@PARSERS
@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", b"HTTP/1.1 408 "),
        (b"POST /mcp HTTP/1.1\r\nho", b"HTTP/1.1 408 "),
        (b"POST /mcp HTTP/1.1\r\nhost: HOST\r\ncontent-length: 9\r\n\r\n{", b"HTTP/1.1 408 "),
    ],
)
async def test_a_client_that_dawdles_is_cut_off(
    opened: Any, echo: Tool, fast: bool, data: bytes, told: bytes
) -> None:
    setting = HttpSetting(slow_client_s=0.2)
    async with opened(echo) as app, serving(app, setting=setting, fast=fast) as url:
        async with await connected(url) as client:
            if data:
                await client.send(data.replace(b"HOST", f"127.0.0.1:{port_of(url)}".encode()))
            answer = b""
            with pytest.raises(anyio.EndOfStream):
                while True:
                    answer += await client.receive()

    assert answer.startswith(told)


@PARSERS
async def test_a_client_that_reads_nothing_is_cut_off(
    opened: Any, make_tool: Any, fast: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    async def invoke(arguments: dict[str, Any], call: Any) -> Outcome:
        return Outcome((Text("x" * 20_000_000),))

    setting = HttpSetting(slow_client_s=0.3)
    async with opened(make_tool("much", invoke), inline_tokens=100_000_000) as app:
        async with serving(app, setting=setting, fast=fast) as url:
            with socket.create_connection(("127.0.0.1", port_of(url))) as client:
                message, headers = modern_call("much", {})
                body = json.dumps({"jsonrpc": "2.0", **message}).encode()
                about = {
                    **headers,
                    "Host": f"127.0.0.1:{port_of(url)}",
                    "Content-Type": "application/json",
                    "Accept": "*/*",
                    "Content-Length": str(len(body)),
                }
                head = "".join(f"{name}: {value}\r\n" for name, value in about.items())
                client.sendall(f"POST /mcp HTTP/1.1\r\n{head}\r\n".encode() + body)
                told = ""
                while "slow_client_closed" not in told:
                    await anyio.lowlevel.checkpoint()
                    told += capsys.readouterr().out
                size = await anyio.to_thread.run_sync(sent_to, client)

    assert "waited_for=reading" in told
    assert size < 20_000_000


def sent_to(client: socket.socket) -> int:
    """Return how much had been sent before the connection ended."""
    client.settimeout(30)
    size = 0
    try:
        while chunk := client.recv(1_000_000):
            size += len(chunk)
    except ConnectionError:
        pass
    return size


@pytest.mark.requirement("tools.rate")
async def test_a_caller_that_asks_too_often_has_to_wait_and_others_need_not(
    opened: Any, echo: Tool, tmp_path: Path
) -> None:
    tokens = write_tokens(tmp_path / "tokens.toml", ada="tools", bob="tools")
    setting = HttpSetting(tokens=tokens, rate_per_s=0.01, burst=3)
    async with opened(echo) as app, serving(app, setting=setting) as url:
        async with httpx2.AsyncClient() as http:
            ada, bob = (Post(url, http, **bearer(token_of(name))) for name in ("ada", "bob"))
            found = [await ada.send(*modern_call("echo", {"text": "a"})) for _ in range(5)]
            other = await bob.send(*modern_call("echo", {"text": "a"}))

    assert [each.status_code for each in found] == [200, 200, 200, 429, 429]
    assert 1 <= int(found[-1].headers["retry-after"]) <= 100
    assert found[-1].json()["error"]["message"] == "Too many requests: wait"
    assert other.status_code == 200


@pytest.mark.parametrize(
    ("limits", "status"),
    [({"max_concurrent_per_caller": 2}, 429), ({"max_concurrent": 2}, 503)],
)
@pytest.mark.requirement("tools.rate")
async def test_more_calls_than_may_be_in_flight_are_refused(
    opened: Any, gate: Any, limits: dict[str, Any], status: int
) -> None:
    """A cancellation still gets through: it makes room."""
    tool, both, opens = gate
    found: list[int] = []
    answers: dict[str, httpx2.Response] = {}
    one_ended = anyio.Event()
    async with opened(tool) as app, serving(app, setting=HttpSetting(**limits)) as url:
        async with httpx2.AsyncClient(timeout=60) as http:
            post = Post(url, http)
            await post.open()

            async def call(n: int) -> None:
                found.append((await post.send(legacy_call("gate", {}, id=n))).status_code)
                one_ended.set()

            async with anyio.create_task_group() as tasks:
                for n in range(2):
                    tasks.start_soon(call, n)
                await both.wait()
                answers["refused"] = await post.send(legacy_call("gate", {}, id=9))
                cancel = {"method": "notifications/cancelled", "params": {"requestId": 0}}
                answers["cancelled"] = await post.send(cancel)
                await one_ended.wait()
                opens.set()
                answers["after"] = await post.send(legacy_call("gate", {}, id=10))

    statuses = {name: answer.status_code for name, answer in answers.items()}
    assert statuses == {"refused": status, "cancelled": 202, "after": 200}
    assert "retry-after" in answers["refused"].headers
    assert answers["refused"].json()["error"]["message"]
    assert found == [200, 200]


@pytest.mark.requirement("sessions.bounded")
async def test_sessions_and_streams_of_a_caller_are_bounded(opened: Any, echo: Tool) -> None:
    async with opened(echo) as app, serving(app, setting=HttpSetting(max_sessions=2)) as url:
        async with httpx2.AsyncClient(timeout=60) as http:
            posts = [Post(url, http) for _ in range(3)]
            opening = [(await post.open()).status_code for post in posts]
            made_room = await posts[0].send(legacy_call("echo", {"text": "a"}))
            kept = await posts[1].send(legacy_call("echo", {"text": "a"}))
            listen = {
                "id": 1,
                "method": "subscriptions/listen",
                "params": {
                    "_meta": modern_call("x", {})[0]["params"]["_meta"],
                    "notifications": {"toolsListChanged": True},
                },
            }
            headers = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "subscriptions/listen"}
            body = json.dumps({"jsonrpc": "2.0", **listen}).encode()
            usual = {**headers, "Content-Type": "application/json",
                     "Accept": "application/json, text/event-stream"}  # fmt: skip
            async with (
                http.stream("POST", url, content=body, headers=usual) as one,
                http.stream("POST", url, content=body, headers=usual) as two,
            ):
                third = await http.post(url, content=body, headers=usual)
                stream = {**posts[1].session, "Accept": "text/event-stream"}
                fourth = await http.get(url, headers=stream)

    assert opening == [200, 200, 200]
    assert (made_room.status_code, kept.status_code) == (404, 200)
    assert (one.status_code, two.status_code) == (200, 200)
    assert (third.status_code, fourth.status_code) == (429, 429)


@pytest.mark.requirement("sessions.bounded")
async def test_a_refused_handshake_holds_no_session(opened: Any, echo: Tool) -> None:
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {}}
    async with opened(echo) as app, serving(app, setting=HttpSetting(max_sessions=1)) as url:
        async with httpx2.AsyncClient(timeout=60) as http:
            headers = {"Accept": "application/json, text/event-stream"}
            refused = [await http.post(url, json=body, headers=headers) for _ in range(80)]
            opening = await Post(url, http).open()

    assert all('"error"' in each.text for each in refused)
    assert opening.status_code == 200


@pytest.mark.requirement("sessions.bounded")
async def test_an_unused_session_ends(
    opened: Any, echo: Tool, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "mcp.server.streamable_http_manager")
    setting = HttpSetting(session_idle_s=0.3)
    async with opened(echo) as app, serving(app, setting=setting) as url:
        async with httpx2.AsyncClient(timeout=60) as http:
            first = Post(url, http)
            await first.open()
            with anyio.fail_after(60):
                while "idle timeout" not in caplog.text:
                    await http.get(url.replace("/mcp", "/health"))
            gone = await first.send(legacy_call("echo", {"text": "a"}))

    assert gone.status_code == 404


async def test_more_connections_than_may_be_open_are_refused(opened: Any, echo: Tool) -> None:
    async with opened(echo) as app, serving(app, setting=HttpSetting(max_connections=3)) as url:
        health = url.replace("/mcp", "/health")
        async with await connected(url), await connected(url), await connected(url):
            async with httpx2.AsyncClient() as http:
                while (await http.get(health)).status_code != 503:
                    pass
        async with httpx2.AsyncClient() as http:
            while (await http.get(health)).status_code != 200:
                pass

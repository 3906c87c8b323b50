"""The HTTP endpoint, on real sockets: both eras, both ways through it, and its end."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import anyio
import httpx2
import pytest
from mcp import Client
from mcp.types import TextContent

from guildry.errors import UsageError
from guildry.server.app import App
from guildry.server.http.endpoint import serve_http
from guildry.server.surface import USER_SCOPES, Surface
from guildry.tools.base import Outcome, Text, Tool

ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])
MODERN = "2026-07-28"
LEGACY = "2025-11-25"
ENVELOPE: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}
USUAL = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}


def text_of(result: Any) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


@asynccontextmanager
async def serving(app: App, **options: Any) -> AsyncGenerator[str]:
    surface = Surface(app, scopes=USER_SCOPES)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as tasks:
            yield await tasks.start(partial(serve_http, surface, port=0, **options))
            tasks.cancel_scope.cancel()


class Post:
    """Send JSON-RPC over HTTP as a client of one era does."""

    def __init__(self, url: str, http: httpx2.AsyncClient) -> None:
        self._url = url
        self._http = http
        self._session: dict[str, str] = {}

    async def open(self) -> None:
        info = {"name": "test", "version": "1"}
        hello = {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": info}
        response = await self.send({"id": 0, "method": "initialize", "params": hello})
        assert response.status_code == 200, response.text
        self._session = {
            "Mcp-Session-Id": response.headers["mcp-session-id"],
            "MCP-Protocol-Version": LEGACY,
        }
        assert (await self.send({"method": "notifications/initialized"})).status_code == 202

    async def send(
        self, message: Mapping[str, Any], headers: Mapping[str, str] | None = None
    ) -> httpx2.Response:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        return await self._http.post(
            self._url, content=body, headers={**USUAL, **self._session, **(headers or {})}
        )

    async def delete(self) -> httpx2.Response:
        return await self._http.delete(self._url, headers=self._session)


def modern_call(
    tool: str, arguments: Any, id: Any = 1, **headers: str
) -> tuple[dict[str, Any], dict[str, str]]:
    params = {"name": tool, "arguments": arguments, "_meta": ENVELOPE}
    named = {"MCP-Protocol-Version": MODERN, "Mcp-Method": "tools/call", "Mcp-Name": tool}
    changed = {key.replace("_", "-"): value for key, value in headers.items()}
    return {"id": id, "method": "tools/call", "params": params}, {**named, **changed}


def legacy_call(tool: str, arguments: Any, id: Any = 1) -> dict[str, Any]:
    return {"id": id, "method": "tools/call", "params": {"name": tool, "arguments": arguments}}


@ERAS
@pytest.mark.requirement("http.post")
async def test_the_official_client_lists_calls_and_hears_progress(
    opened: Any, echo: Tool, make_tool: Any, era: Any
) -> None:
    heard: list[float] = []

    async def steps(arguments: dict[str, Any], call: Any) -> Outcome:
        for done in (1, 2):
            await call.progress(done, 2)
        return Outcome((Text("done"),))

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        heard.append(progress)

    async with opened(echo, make_tool("steps", steps)) as app, serving(app) as url:
        async with Client(url, mode=era) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            said = await client.call_tool("echo", {"text": "hello"})
            done = await client.call_tool("steps", {}, progress_callback=hear)

    assert "echo" in names
    assert not names & {"plug", "unplug", "list_plugs"}
    assert (text_of(said), text_of(done)) == ("hello", "done")
    assert heard == [1, 2]


@ERAS
@pytest.mark.requirement("stateless.side-by-side")
async def test_many_clients_call_side_by_side(opened: Any, make_tool: Any, era: Any) -> None:
    """No call can end before all have begun."""
    began, all_began = [0], anyio.Event()

    async def meet(arguments: dict[str, Any], call: Any) -> Outcome:
        began[0] += 1
        if began[0] == 8:
            all_began.set()
        await all_began.wait()
        return Outcome((Text(str(arguments["n"])),))

    async def visit(url: str, n: int, heard: list[str]) -> None:
        async with Client(url, mode=era) as client:
            heard.append(text_of(await client.call_tool("meet", {"n": n})))

    heard: list[str] = []
    tool = make_tool("meet", meet, {"n": {"type": "integer"}})
    async with opened(tool) as app, serving(app) as url, anyio.create_task_group() as tasks:
        for n in range(8):
            tasks.start_soon(visit, url, n, heard)

    assert sorted(heard) == [str(n) for n in range(8)]


@pytest.mark.requirement("stateless.no-earlier-request", "http.post")
async def test_a_plain_call_gets_json_in_either_era(opened: Any, echo: Tool) -> None:
    async with opened(echo) as app, serving(app) as url, httpx2.AsyncClient() as http:
        post = Post(url, http)
        modern = await post.send(*modern_call("echo", {"text": "a"}))
        await post.open()
        legacy = await post.send(legacy_call("echo", {"text": "a"}))

    assert modern.headers["content-type"] == legacy.headers["content-type"] == "application/json"
    assert modern.json()["result"]["resultType"] == "complete"
    assert legacy.json()["result"] == {
        "content": [{"type": "text", "text": "a"}],
        "isError": False,
    }
    assert "mcp-session-id" in legacy.headers


@pytest.mark.parametrize(
    ("changes", "status", "code"),
    [
        ({}, 200, None),
        ({"Mcp_Name": "other"}, 400, -32020),
        ({"Mcp_Method": "tools/list"}, 400, -32020),
        ({"MCP_Protocol_Version": "2027-01-01"}, 400, -32020),
        ({"Mcp_Name": "=?base64?ZWNobw==?="}, 200, None),
        ({"Mcp_Param_Text": "a"}, 200, None),
        ({"Content_Type": "text/plain"}, 400, None),
        ({"Accept": "text/html"}, 406, None),
        ({"Host": "evil.example"}, 421, None),
        ({"Origin": "http://evil.example"}, 403, None),
    ],
)
@pytest.mark.requirement("http.method-header")
async def test_unusual_headers_are_judged_as_the_sdk_does(
    opened: Any, echo: Tool, changes: dict[str, str], status: int, code: int | None
) -> None:
    async with opened(echo) as app, serving(app) as url, httpx2.AsyncClient() as http:
        response = await Post(url, http).send(*modern_call("echo", {"text": "a"}, **changes))

    assert response.status_code == status
    if code is not None:
        assert response.json()["error"]["code"] == code


@pytest.mark.parametrize("value", ["eu", "us", None])
@pytest.mark.requirement("http.param-headers")
async def test_an_argument_that_must_be_repeated_in_a_header_is_checked(
    opened: Any, make_tool: Any, echo: Tool, value: str | None
) -> None:
    schema = {"text": {"type": "string", "x-mcp-header": "Region"}}
    headers = {} if value is None else {"Mcp_Param_Region": value}
    async with opened(make_tool("where", echo.invoke, schema)) as app, serving(app) as url:
        async with httpx2.AsyncClient() as http:
            response = await Post(url, http).send(*modern_call("where", {"text": "eu"}, **headers))

    assert response.status_code == (200 if value == "eu" else 400)


@pytest.mark.requirement("tools.unknown")
async def test_an_unknown_tool_has_the_status_of_its_error(opened: Any, echo: Tool) -> None:
    async with opened(echo) as app, serving(app) as url, httpx2.AsyncClient() as http:
        post = Post(url, http)
        unknown = await post.send(*modern_call("ecko", {}))
        forbidden = await post.send(*modern_call("plug", {"source": "x"}))
        garbage = await http.post(url, content=b"{", headers=USUAL)

    assert [each.status_code for each in (unknown, forbidden)] == [400, 400]
    assert {each.json()["error"]["code"] for each in (unknown, forbidden)} == {-32602}
    assert garbage.status_code == 400


@pytest.mark.requirement("sessions.ended")
async def test_a_session_that_its_client_ended_is_gone_with_its_calls(
    opened: Any, echo: Tool, hang: Any
) -> None:
    tool, began, cancelled = hang
    async with opened(echo, tool) as app, serving(app) as url, httpx2.AsyncClient() as http:
        post = Post(url, http)
        await post.open()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(post.send, legacy_call("hang", {}))
            await began.wait()
            assert (await post.delete()).status_code == 200
            await cancelled.wait()
        after = await post.send(legacy_call("echo", {"text": "a"}))
        unknown = await post.send(legacy_call("echo", {"text": "a"}), {"Mcp-Session-Id": "f" * 32})

    assert (after.status_code, unknown.status_code) == (404, 404)


@pytest.mark.requirement("cancel.handshake")
async def test_a_call_of_a_session_is_cancelled_by_a_notification(opened: Any, hang: Any) -> None:
    tool, began, cancelled = hang
    answers: list[httpx2.Response] = []
    cancel = {"method": "notifications/cancelled", "params": {"requestId": 9}}
    async with opened(tool) as app, serving(app) as url, httpx2.AsyncClient() as http:
        post = Post(url, http)
        await post.open()

        async def call() -> None:
            answers.append(await post.send(legacy_call("hang", {}, id=9)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(call)
            await began.wait()
            assert (await post.send(cancel)).status_code == 202
            await cancelled.wait()
        assert (await post.send(cancel)).status_code == 202

    assert answers[0].json() == {
        "jsonrpc": "2.0",
        "id": 9,
        "error": {"code": -32800, "message": "Request cancelled"},
    }


@pytest.mark.requirement("cancel.http")
async def test_closing_the_connection_cancels_a_modern_call(opened: Any, hang: Any) -> None:
    tool, began, cancelled = hang
    async with opened(tool) as app, serving(app) as url, httpx2.AsyncClient() as http:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(Post(url, http).send, *modern_call("hang", {}))
            await began.wait()
            tasks.cancel_scope.cancel()
        await cancelled.wait()
        entries = await app.journal.read("local")

    assert [entry.data["status"] for entry in entries] == ["cancelled"]


async def test_health_tells_whether_the_server_is_ready(opened: Any, echo: Tool) -> None:
    async with opened(echo) as app, serving(app) as url, httpx2.AsyncClient() as http:
        root = url.removesuffix("/mcp")
        health = await http.get(f"{root}/health")
        foreign = await http.get(f"{root}/health", headers={"Host": "evil.example"})
        nowhere = await http.get(f"{root}/elsewhere")

    assert health.json() == {"status": "ok", "ready": True, "tools": len(app.catalog.current)}
    assert (health.status_code, foreign.status_code, nowhere.status_code) == (200, 421, 404)


async def test_a_body_that_is_too_large_is_refused(opened: Any, echo: Tool) -> None:
    async with opened(echo) as app, serving(app) as url, httpx2.AsyncClient() as http:
        response = await Post(url, http).send(*modern_call("echo", {"text": "x" * 5_000_000}))

    assert response.status_code == 413


@pytest.mark.requirement("http.loopback")
async def test_only_this_machine_is_served(opened: Any, echo: Tool) -> None:
    async with opened(echo) as app:
        for host in ("0.0.0.0", "192.0.2.1", "example.com"):
            with pytest.raises(UsageError, match="`host`"):
                await serve_http(Surface(app), host=host, port=0)


async def test_a_port_that_is_taken_is_told_with_the_cure(opened: Any, echo: Tool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        async with opened(echo) as app:
            with pytest.raises(UsageError, match=f"`port` {port} .* is taken"):
                await serve_http(Surface(app), port=port)


async def test_a_session_that_is_called_often_is_still_seen_by_the_sdk(
    opened: Any, echo: Tool
) -> None:
    """Else the SDK would take it for idle and end it."""
    options = {"sdk_sees_s": -1.0}
    async with opened(echo) as app, serving(app, **options) as url, httpx2.AsyncClient() as http:
        post = Post(url, http)
        await post.open()
        answer = await post.send(legacy_call("echo", {"text": "a"}))

    assert answer.headers["content-type"].startswith("text/event-stream")
    assert '"text":"a"' in answer.text


SERVER = """
import sys
from pathlib import Path

import anyio

from guildry.server.app import open_app
from guildry.server.config import Settings
from guildry.server.http.endpoint import serve_http
from guildry.server.surface import Surface
from guildry.tools.base import READS, Outcome, Text, Tool


async def slow(arguments, call):
    print("began", flush=True)
    await anyio.sleep(float(arguments["s"]))
    return Outcome((Text("slept"),))


async def main():
    async with open_app(Settings(home=Path(sys.argv[1]))) as app:
        schema = {"type": "object", "properties": {"s": {"type": "number"}}}
        tool = Tool(name="slow", plug="mine", description="", input_schema=schema, invoke=slow)
        app.catalog.replace("mine", [tool])
        async with anyio.create_task_group() as tasks:
            start = lambda *, task_status: serve_http(
                Surface(app), port=0, drain_s=float(sys.argv[2]), task_status=task_status
            )
            print(await tasks.start(start), flush=True)
    print("ended", flush=True)


anyio.run(main)
"""


@asynccontextmanager
async def running(tmp_path: Any, drain_s: float) -> AsyncGenerator[tuple[Any, str, Any]]:
    """Run a server of its own; yield its process, its URL and what it prints."""
    script = tmp_path / "serve.py"
    script.write_text(SERVER)
    command = [sys.executable, str(script), str(tmp_path / "home"), str(drain_s)]
    with anyio.fail_after(60):
        async with await anyio.open_process(command, stderr=subprocess.DEVNULL) as process:
            assert process.stdout is not None
            lines = _lines(process.stdout)
            try:
                yield process, await anext(lines), lines
            finally:
                await lines.aclose()
                if process.returncode is None:
                    process.kill()


async def _lines(stream: Any) -> AsyncGenerator[str]:
    rest = ""
    async for chunk in stream:
        *whole, rest = (rest + chunk.decode()).split("\n")
        for line in whole:
            if line and not line.startswith("20"):  # the log
                yield line


@pytest.mark.parametrize("era", ["modern", "legacy"])
@pytest.mark.requirement("handshake.shutdown")
async def test_a_call_in_flight_is_drained_at_a_signal(tmp_path: Any, era: str) -> None:
    answers: list[httpx2.Response] = []
    async with running(tmp_path, 30) as (process, url, lines), httpx2.AsyncClient() as http:
        post = Post(url, http)
        if era == "legacy":
            await post.open()
        call = (legacy_call("slow", {"s": 0.5}), None)
        message, headers = modern_call("slow", {"s": 0.5}) if era == "modern" else call

        async def ask() -> None:
            answers.append(await post.send(message, headers))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            assert await anext(lines) == "began"
            process.send_signal(signal.SIGTERM)
        assert await anext(lines) == "ended"
        assert await process.wait() == 0

    assert answers[0].json()["result"]["content"][0]["text"] == "slept"


async def test_what_does_not_end_and_what_never_ends_is_cut_off_at_the_bound(
    tmp_path: Any,
) -> None:
    """An open stream and a hung call do not keep the process."""
    async with running(tmp_path, 0.1) as (process, url, lines):
        async with Client(url, mode="legacy") as client:
            async with anyio.create_task_group() as tasks:

                async def call() -> None:
                    with pytest.raises(Exception):  # noqa: B017 - however the client puts it
                        await client.call_tool("slow", {"s": 600})

                tasks.start_soon(call)
                assert await anext(lines) == "began"
                process.send_signal(signal.SIGTERM)
                assert await anext(lines) == "ended"
                assert await process.wait() == 0
                tasks.cancel_scope.cancel()

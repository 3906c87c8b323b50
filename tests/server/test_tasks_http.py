"""Tasks over HTTP, by real server processes: headers, and what a killed server leaves."""

import json
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import httpx2
import pytest
from mcp import MCPError

from guildry.memory.tasks import INTERRUPTED

SERVER = """
import sys
from dataclasses import replace
from pathlib import Path

import anyio

from guildry.server.app import open_app
from guildry.server.config import Settings
from guildry.server.http.endpoint import serve_http
from guildry.server.surface import Surface
from guildry.teams.scripted import ScriptedModel, call
from guildry.teams.team import Solo
from guildry.tools.base import READS, Outcome, Text, Tool


async def lasting(arguments, call):
    print("began", flush=True)
    await anyio.sleep(600)


async def quick(arguments, call):
    return Outcome((Text("done"),))


async def main():
    model = ScriptedModel([call("lasting")])
    settings = Settings(home=Path(sys.argv[1]))
    async with open_app(settings, models={"scripted": model}) as app:
        tool = Tool(
            name="lasting", plug="mine", description="", input_schema={"type": "object"},
            invoke=lasting, effects=READS, task="optional",
        )
        app.catalog.replace("mine", [tool, replace(tool, name="quick", invoke=quick)])
        app.add_team(Solo(name="dig", description="Digs."))
        async with anyio.create_task_group() as tasks:
            start = lambda *, task_status: serve_http(
                Surface(app), port=0, task_status=task_status
            )
            print(await tasks.start(start), flush=True)


anyio.run(main)
"""


@asynccontextmanager
async def running(tmp_path: Path) -> AsyncGenerator[tuple[Any, str, Any]]:
    """Run a server of its own; yield its process, its URL and what it prints."""
    script = tmp_path / "serve.py"
    script.write_text(SERVER)
    command = [sys.executable, str(script), str(tmp_path / "home")]
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


async def test_a_task_lives_over_many_requests_and_outlives_its_client(
    tmp_path: Path, with_tasks: Any
) -> None:
    async with running(tmp_path) as (_, url, _):
        async with with_tasks(url) as client:
            id = await client.begin("quick")
        async with with_tasks(url) as client:
            ended = await client.until(id)

    assert ended["status"] == "completed"
    assert ended["result"]["content"] == [{"type": "text", "text": "done"}]


@pytest.mark.requirement("tasks.restart")
async def test_a_killed_server_leaves_tasks_that_say_they_were_cut_off(
    tmp_path: Path, with_tasks: Any
) -> None:
    async with running(tmp_path) as (process, url, lines), with_tasks(url) as client:
        done = await client.begin("quick")
        finished = await client.until(done)
        cut = await client.begin("lasting")
        assert await anext(lines) == "began"
        begun = await client.call("team_dig", task="look")
        assert await anext(lines) == "began"
        process.kill()
        await process.wait()
    async with running(tmp_path) as (_, url, _), with_tasks(url) as client:
        kept = await client.get(done)
        lost = await client.get(cut)
        stopped = await client.get(begun["taskId"])
        run = begun["_meta"]["guildry/run"]
        result = await client.client.call_tool("run_result", {"run": run})
        await client.cancel(cut)

    assert kept == finished
    assert (lost["status"], lost["statusMessage"]) == ("failed", INTERRUPTED)
    assert lost["error"] == {"code": -32603, "message": INTERRUPTED}
    assert (stopped["status"], stopped["error"]["data"]) == ("failed", {"run": run})
    assert json.loads(result.content[0].text)["status"] == "interrupted"


@pytest.mark.parametrize("name", [None, "t" + "b" * 26, "=?base64?!?="])
@pytest.mark.requirement("tasks.headers")
async def test_the_header_names_the_task_or_the_request_is_refused(
    tmp_path: Path, with_tasks: Any, name: str | None
) -> None:
    async with running(tmp_path) as (_, url, _):
        async with with_tasks(url) as client:
            id = await client.begin("quick")
        refused = await _post(url, id, name)
        fine = await _post(url, id, id)

    assert (refused.status_code, refused.json()["error"]["code"]) == (400, -32020)
    assert fine.status_code == 200


async def test_an_unknown_task_is_refused(tmp_path: Path, with_tasks: Any) -> None:
    async with running(tmp_path) as (_, url, _), with_tasks(url) as client:
        with pytest.raises(MCPError) as refused:
            await client.get("t" + "a" * 26)

    assert refused.value.error.code == -32602


async def _post(url: str, id: str, name: str | None) -> httpx2.Response:
    headers = {
        "Accept": "application/json, text/event-stream",
        "MCP-Protocol-Version": "2026-07-28",
        "Mcp-Method": "tasks/get",
        **({} if name is None else {"Mcp-Name": name}),
    }
    meta: dict[str, Any] = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {
            "extensions": {"io.modelcontextprotocol/tasks": {}}
        },
    }
    params = {"taskId": id, "_meta": meta}
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "method": "tasks/get", "params": params}
    async with httpx2.AsyncClient() as http:
        return await http.post(url, json=body, headers=headers)

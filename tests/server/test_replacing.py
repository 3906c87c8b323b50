"""A plug is replaced while a task is at work on it: the task ends on the version it began with."""

import os
from pathlib import Path
from typing import Any

import anyio
from anyio import to_thread
from mcp import Client

from guildry.server.surface import build_server

VERSION = '''
from pathlib import Path

from guildry.tools.python import tool


@tool(task="optional")
def work(pipe: str) -> str:
    """Work until the pipe is closed."""
    Path(pipe).read_text()
    return "{version}"
'''


async def test_a_task_ends_on_the_version_that_it_began_with(
    tmp_path: Path, opened: Any, with_tasks: Any
) -> None:
    pipes: dict[str, Path] = {}
    for version in ("v1", "v2"):
        (tmp_path / f"{version}.py").write_text(VERSION.replace("{version}", version))
        pipes[version] = tmp_path / f"{version}.pipe"
        os.mkfifo(pipes[version])

    with anyio.fail_after(60):
        async with opened() as app, with_tasks(build_server(app)) as client:
            await app.plugs.plug(str(tmp_path / "v1.py"), "p")
            first = await client.begin("work", pipe=str(pipes["v1"]))
            held_open = await to_thread.run_sync(pipes["v1"].open, "w")  # once it is read
            report = await app.plugs.replace("p", str(tmp_path / "v2.py"))
            second = await client.begin("work", pipe=str(pipes["v2"]))
            await to_thread.run_sync(pipes["v2"].write_text, "go")
            new = await client.until(second)
            held_open.close()
            old = await client.until(first)
            async with Client(build_server(app)) as plain:
                listed = await plain.list_tools()

    assert report.tools == ("work",)
    assert [text_of(task) for task in (old, new)] == ["v1", "v2"]
    assert [tool.name for tool in listed.tools].count("work") == 1


def text_of(task: dict[str, Any]) -> str:
    (block,) = task["result"]["content"]
    text: str = block["text"]
    return text

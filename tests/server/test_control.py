"""The control socket: the command line's way to a server that is running."""

import os
import socket
import stat
import tempfile
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from guildry.errors import UsageError
from guildry.server.control import connect, serve_control, socket_folder
from guildry.server.surface import Surface
from guildry.tools.base import Tool

ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])


@ERAS
async def test_a_client_reaches_the_live_server_and_may_administer_it(
    opened: Any, echo: Tool, tmp_path: Path, era: Any
) -> None:
    home = tmp_path / "home"
    async with opened(echo) as app, anyio.create_task_group() as tasks:
        path: Path = await tasks.start(serve_control, Surface(app), home)
        transport = connect(home)
        assert transport is not None
        with anyio.fail_after(10):
            async with Client(transport, mode=era) as client:
                names = {tool.name for tool in (await client.list_tools()).tools}
                result = await client.call_tool("echo", {"text": "x" * 3_000})
        about = await anyio.Path(path).stat(), await anyio.Path(path.parent).stat()
        assert {"plug", "unplug", "list_plugs", "echo"} <= names
        assert len(result.content[0].model_dump()["text"]) == 3_000
        assert [stat.S_IMODE(each.st_mode) for each in about] == [0o600, 0o700]
        assert path.name == f"{os.getpid()}.sock"
        tasks.cancel_scope.cancel()

    assert [each async for each in anyio.Path(home / "servers").iterdir()] == []


async def test_several_clients_are_served_side_by_side(
    opened: Any, make_tool: Any, tmp_path: Path
) -> None:
    from guildry.tools.base import Outcome, Text

    arrived, everybody = [0], anyio.Event()

    async def meet(arguments: dict[str, Any], call: Any) -> Outcome:
        arrived[0] += 1
        if arrived[0] == 3:
            everybody.set()
        await everybody.wait()
        return Outcome((Text("met"),))

    async def visit(home: Path) -> None:
        transport = connect(home)
        assert transport is not None
        async with Client(transport) as client:
            await client.call_tool("meet", {})

    home = tmp_path / "home"
    async with opened(make_tool("meet", meet)) as app, anyio.create_task_group() as tasks:
        await tasks.start(serve_control, Surface(app), home)
        with anyio.fail_after(10):
            async with anyio.create_task_group() as visitors:
                for _ in range(3):
                    visitors.start_soon(visit, home)
        tasks.cancel_scope.cancel()


async def test_a_client_that_leaves_takes_its_calls_with_it(
    opened: Any, hang: Any, tmp_path: Path
) -> None:
    tool, began, cancelled = hang
    home = tmp_path / "home"
    async with opened(tool) as app, anyio.create_task_group() as tasks:
        await tasks.start(serve_control, Surface(app), home)
        transport = connect(home)
        assert transport is not None
        with anyio.fail_after(10):
            async with anyio.create_task_group() as visit:

                async def call() -> None:
                    async with Client(transport) as client:
                        await client.call_tool("hang", {})

                visit.start_soon(call)
                await began.wait()
                visit.cancel_scope.cancel()
            await cancelled.wait()
        tasks.cancel_scope.cancel()


def test_without_a_server_there_is_nothing_to_connect_to(tmp_path: Path) -> None:
    assert connect(tmp_path) is None


def test_a_socket_that_nobody_listens_on_is_removed(tmp_path: Path) -> None:
    folder = socket_folder(tmp_path)
    folder.mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "1.sock"))

    assert connect(tmp_path) is None
    assert list(folder.iterdir()) == []


async def test_a_home_with_a_long_path_is_served_from_a_short_one(
    opened: Any, echo: Tool, tmp_path: Path
) -> None:
    home = tmp_path / ("x" * 120)
    async with opened(echo) as app, anyio.create_task_group() as tasks:
        path: Path = await tasks.start(serve_control, Surface(app), home)
        transport = connect(home)
        assert transport is not None
        with anyio.fail_after(10):
            async with Client(transport) as client:
                assert (await client.call_tool("echo", {"text": "a"})).content
        assert path.is_relative_to(tempfile.gettempdir())
        assert path.parent != socket_folder(tmp_path / ("x" * 121))
        tasks.cancel_scope.cancel()


async def test_a_folder_that_is_not_ours_is_refused(
    opened: Any, echo: Tool, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    (tmp_path / "elsewhere").mkdir()
    home.mkdir()
    socket_folder(home).symlink_to(tmp_path / "elsewhere")
    async with opened(echo) as app:
        with pytest.raises(UsageError, match="belongs to somebody else"):
            await serve_control(Surface(app), home)

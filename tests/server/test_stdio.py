"""Standard input and output, by real processes."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from mcp import Client, StdioServerParameters
from mcp.types import TextContent

ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])
HELLO = {
    "jsonrpc": "2.0",
    "id": 0,
    "method": "initialize",
    "params": {
        "protocolVersion": "2025-11-25",
        "capabilities": {},
        "clientInfo": {"name": "test", "version": "1"},
    },
}
TOOLS = '''
import os
import subprocess
import sys
import time


def words(text: str) -> int:
    """Count words."""
    return len(text.split())


def noisy(text: str) -> str:
    """Print where nothing should be printed."""
    print("stray")
    sys.stdout.write("more\\n")
    os.write(1, b"raw\\n")
    subprocess.run(["echo", "from a child"], check=True)
    return f"{text} {sys.stdin.read()!r}"


def long(size: int) -> str:
    """Return a long text."""
    return "x" * size


def sleepy(marker: str) -> str:
    """Sleep for long."""
    open(marker, "w").close()
    time.sleep(600)
    return "never"
'''


def text_of(result: Any) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


def command(tmp_path: Path, *options: str) -> list[str]:
    source = tmp_path / "mine.py"
    source.write_text(TOOLS)
    home = str(tmp_path / "home")
    serve = [sys.executable, "-m", "guildry.server", "serve", "--stdio", "--home", home]
    return [*serve, "--plug", f"mine={source}", *options]


def parameters(tmp_path: Path, *options: str, cwd: Path | None = None) -> StdioServerParameters:
    executable, *args = command(tmp_path, *options)
    return StdioServerParameters(command=executable, args=args, cwd=str(cwd or tmp_path))


@ERAS
async def test_a_real_process_answers_in_a_hostile_directory(tmp_path: Path, era: Any) -> None:
    """The working directory has its own tools/ and memory/, as any user's checkout may."""
    hostile = tmp_path / "checkout"
    for name in ("tools", "memory", "server", "teams", "mcp", "guildry"):
        (hostile / name).mkdir(parents=True)
        (hostile / name / "__init__.py").write_text("raise SystemExit('workspace code ran')")
    _, *args = command(tmp_path)
    script = str(Path(sys.executable).parent / "guildry")
    server = StdioServerParameters(command=script, args=args[2:], cwd=str(hostile))

    with anyio.fail_after(60):
        async with Client(server, mode=era) as client:
            result = await client.call_tool("words", {"text": "a b"})

    assert text_of(result) == "2"


@ERAS
@pytest.mark.requirement("stdio.pure")
async def test_what_a_tool_prints_never_reaches_the_wire(tmp_path: Path, era: Any) -> None:
    with anyio.fail_after(60):
        async with Client(parameters(tmp_path), mode=era) as client:
            for n in range(5):
                result = await client.call_tool("noisy", {"text": str(n)})
                assert text_of(result) == f"{n} ''"


@ERAS
async def test_answers_far_larger_than_a_pipe_arrive_whole_and_side_by_side(
    tmp_path: Path, era: Any
) -> None:
    sizes = [300_000 + n for n in range(20)]
    got: list[int] = []

    async def call(client: Client, size: int) -> None:
        result = await client.call_tool("long", {"size": size})
        got.append(len(text_of(result)))

    options = ("--set", "inline_tokens=1000000")
    with anyio.fail_after(60):
        async with Client(parameters(tmp_path, *options), mode=era) as client:
            async with anyio.create_task_group() as tasks:
                for size in sizes:
                    tasks.start_soon(call, client, size)

    assert sorted(got) == sizes


class Process:
    """A server process that is spoken to line by line."""

    def __init__(self, process: anyio.abc.Process) -> None:
        self.process = process
        assert process.stdout is not None
        self._lines = BufferedByteReceiveStream(process.stdout)

    async def say(self, *messages: Any) -> None:
        assert self.process.stdin is not None
        for message in messages:
            await self.process.stdin.send(json.dumps(message).encode() + b"\n")

    async def hear(self) -> Any:
        return json.loads(await self._lines.receive_until(b"\n", 1_000_000))

    async def hang_up(self) -> None:
        assert self.process.stdin is not None
        await self.process.stdin.aclose()


@asynccontextmanager
async def running(tmp_path: Path) -> AsyncGenerator[Process]:
    with anyio.fail_after(60):
        async with await anyio.open_process(
            command(tmp_path), stderr=subprocess.DEVNULL
        ) as process:
            try:
                yield Process(process)
            finally:
                if process.returncode is None:
                    process.kill()


async def appeared(path: Path) -> None:
    """Wait until a file is there. Nothing in this process can tell when another makes one."""
    while not await anyio.Path(path).exists():
        await anyio.lowlevel.checkpoint()


@pytest.mark.requirement("stdio.end-of-input")
async def test_the_process_ends_when_its_client_closes_standard_input(tmp_path: Path) -> None:
    async with running(tmp_path) as server:
        await server.say(HELLO)
        assert (await server.hear())["id"] == 0
        await server.hang_up()

        assert await server.process.wait() == 0


async def test_requests_may_be_piped_in_before_the_end_of_input(tmp_path: Path) -> None:
    call = {"name": "words", "arguments": {"text": "a b c"}}
    async with running(tmp_path) as server:
        await server.say(
            HELLO,
            {"jsonrpc": "2.0", "method": "notifications/initialized"},
            {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call},
        )
        await server.hang_up()
        heard = [await server.hear(), await server.hear()]

        assert await server.process.wait() == 0
    assert [each["id"] for each in heard] == [0, 1]
    assert heard[1]["result"]["content"] == [{"type": "text", "text": "3"}]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.requirement("handshake.shutdown")
async def test_the_process_ends_at_a_signal_though_a_tool_hangs(
    tmp_path: Path, number: signal.Signals
) -> None:
    marker = tmp_path / "began"
    call = {"name": "sleepy", "arguments": {"marker": str(marker)}}
    async with running(tmp_path) as server:
        await server.say(HELLO)
        await server.hear()
        await server.say({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call})
        await appeared(marker)
        server.process.send_signal(number)

        assert await server.process.wait() == 0


async def test_files_are_served_as_well_as_pipes(tmp_path: Path) -> None:
    said, heard = tmp_path / "said", tmp_path / "heard"
    said.write_text(json.dumps(HELLO) + "\n")
    with anyio.fail_after(60), said.open("rb") as stdin, heard.open("wb") as stdout:
        done = await anyio.run_process(
            command(tmp_path), stdin=stdin, stdout=stdout, stderr=subprocess.DEVNULL, check=False
        )

    assert done.returncode == 0
    assert json.loads(heard.read_text())["result"]["serverInfo"]["name"] == "guildry"


async def test_one_pipe_for_answers_and_for_errors_still_works(tmp_path: Path) -> None:
    """With `2>&1` the wire must stay as blocking as the log needs it."""
    reading, writing = os.pipe()
    with anyio.fail_after(60):
        process = await anyio.open_process(command(tmp_path), stdout=writing, stderr=writing)
        os.close(writing)
        async with process:
            assert process.stdin is not None
            await process.stdin.send(json.dumps(HELLO).encode() + b"\n")
            text = b""
            while b'"serverInfo"' not in text:
                await anyio.wait_readable(reading)
                text += os.read(reading, 65_536)
            await process.stdin.aclose()
            assert await process.wait() == 0
    os.close(reading)


async def test_a_terminal_is_served_until_it_is_interrupted(tmp_path: Path) -> None:
    controller, terminal = os.openpty()
    with anyio.fail_after(60):
        process = await anyio.open_process(
            command(tmp_path), stdin=terminal, stdout=terminal, stderr=subprocess.DEVNULL
        )
        os.close(terminal)
        async with process:
            os.write(controller, json.dumps(HELLO).encode() + b"\n")
            text = b""
            while b'"serverInfo"' not in text:
                await anyio.wait_readable(controller)
                text += os.read(controller, 65_536)
            process.send_signal(signal.SIGINT)
            assert await process.wait() == 0
    os.close(controller)

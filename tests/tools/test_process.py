"""Server processes: lines both ways, and nothing left behind whatever they do."""

import os
import sys
from pathlib import Path

import anyio
import pytest
import structlog.testing

from guildry.tools import process as module
from guildry.tools.process import ServerProcess, inherited_environment, launch

HERE = Path(__file__).parent


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


async def lines_of(process: ServerProcess) -> list[bytes]:
    lines: list[bytes] = []
    with anyio.fail_after(10):
        while True:
            try:
                lines.append(await process.receive())
            except anyio.EndOfStream:
                return lines


async def run(code: str, close_s: float = 0.5) -> list[bytes]:
    async with launch(python(code), name="p", env={}, cwd=HERE, close_s=close_s) as process:
        return await lines_of(process)
    raise AssertionError


async def test_lines_go_both_ways_whatever_the_size_of_the_pieces() -> None:
    code = "import sys\nfor line in sys.stdin: sys.stdout.write(line * 2); sys.stdout.flush()"
    long = b"x" * 300_000
    async with launch(python(code), name="p", env={}, cwd=HERE, close_s=2) as process:
        with anyio.fail_after(10):
            await process.send(b"one\n")
            first = [await process.receive(), await process.receive()]
            await process.send(long + b"\n")
            second = [await process.receive(), await process.receive()]

    assert first == [b"one", b"one"]
    assert second == [long, long]


async def test_an_unfinished_last_line_is_dropped_and_the_end_is_told() -> None:
    assert await run("import sys; sys.stdout.write('whole\\nhalf')") == [b"whole"]


async def test_a_line_without_an_end_ends_the_stream_before_memory_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_LINE_BYTES", 100_000)
    endless = "import sys\nwhile True: sys.stdout.write('x' * 10000)"
    with structlog.testing.capture_logs() as logs:
        lines = await run(endless)

    assert lines == []
    assert [each["event"] for each in logs] == ["server_line_too_long"]


async def test_stderr_goes_to_the_log_in_bounds_and_its_end_is_kept() -> None:
    code = (
        "import sys\nfor n in range(5000): print(f'line {n}', file=sys.stderr)\n"
        "sys.stderr.write('the end')\nsys.stderr.flush()\nimport os; os.close(2)\nsys.stdin.read()"
    )
    with structlog.testing.capture_logs() as logs:
        async with launch(python(code), name="p", env={}, cwd=HERE, close_s=2) as process:
            with anyio.fail_after(10):
                while not process.last_words or process.last_words[-1] != "the end":
                    await anyio.lowlevel.checkpoint()
            kept = list(process.last_words)

    assert len(kept) == 20
    assert 200 <= len(logs) < 1000
    assert logs[0] == {
        "event": "server_stderr",
        "plug": "p",
        "line": "line 0",
        "log_level": "info",
    }


async def test_a_child_that_holds_the_pipe_does_not_hide_the_end_of_a_server() -> None:
    code = "import subprocess, sys\nprint(subprocess.Popen(['sleep', '1000']).pid, flush=True)"
    lines = await run(code)

    assert len(lines) == 1
    with pytest.raises(ProcessLookupError):
        _still_runs(int(lines[0]))


def _still_runs(pid: int) -> None:
    os.kill(pid, 0)
    if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
        raise ProcessLookupError  # dead, and left for the first process to reap


async def test_a_server_that_reads_no_more_breaks_the_stream() -> None:
    code = "import os, sys\nos.close(0)\nprint('closed', flush=True)\nimport signal; signal.pause()"
    async with launch(python(code), name="p", env={}, cwd=HERE, close_s=0.2) as process:
        with anyio.fail_after(10):
            await process.receive()
            with pytest.raises(anyio.BrokenResourceError):
                while True:
                    await process.send(b"x" * 100_000 + b"\n")


async def test_a_server_in_the_middle_of_a_flood_is_ended_gracefully() -> None:
    """It sees the end of its stdin and leaves by itself, though nobody reads what it writes."""
    code = (
        "import sys, threading\n"
        "def leave():\n    sys.stdin.read()\n    import os; os._exit(7)\n"
        "threading.Thread(target=leave, daemon=True).start()\n"
        "while True: sys.stdout.write('y' * 1000 + '\\n')"
    )
    async with launch(python(code), name="p", env={}, cwd=HERE, close_s=5) as process:
        with anyio.fail_after(10):
            await process.receive()

    assert process.returncode == 7


async def test_a_command_that_is_none_cannot_be_started() -> None:
    with pytest.raises(FileNotFoundError):
        async with launch(["no-such-command"], name="p", env={}, cwd=HERE, close_s=1):
            pass


def test_the_inherited_environment_is_the_usual_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_API_KEY", "s3cret")

    inherited = inherited_environment()

    assert "PATH" in inherited
    assert "SOME_API_KEY" not in inherited

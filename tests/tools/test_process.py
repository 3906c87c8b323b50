"""Server processes: lines both ways, and nothing left behind whatever they do."""

import os
import signal
import sys
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import anyio
import pytest
import structlog.testing

from guildry.tools import process as module
from guildry.tools.process import ServerProcess, inherited_environment, launch
from guildry.tools.sandbox.supervision import start

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


BRANCHING = """
import os, signal, subprocess, sys
def left(*, far):
    heard, said = os.pipe()
    if os.fork() == 0:
        if far:
            os.setsid()
            if os.fork():
                os._exit(0)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        os.write(said, b"%d" % os.getpid())
        signal.pause()
        os._exit(0)
    return os.read(heard, 20).decode()
print(os.getpid(), os.getppid(), left(far=False), left(far=True), flush=True)
signal.pause()
"""
"""Says who it is, who its parent is, and the ids of a child and of one that left its session."""


def watched(pids: Iterable[int]) -> list[int]:
    """Return descriptors that can be read once these processes are dead."""
    return [os.pidfd_open(pid) for pid in pids]


async def all_dead(descriptors: list[int]) -> None:
    with anyio.fail_after(20):
        for each in descriptors:
            await anyio.wait_readable(each)
            os.close(each)


async def test_whatever_a_server_started_ends_with_it_in_any_session_and_deaf_to_sigterm() -> None:
    async with launch(python(BRANCHING), name="p", env={}, cwd=HERE, close_s=0.1) as process:
        with anyio.fail_after(10):
            pids = [int(each) for each in (await process.receive()).split()]
        descriptors = watched(pids)

    assert pids[0] == process.pid
    await all_dead(descriptors)


async def test_what_a_server_leaves_behind_ends_when_it_ends_by_itself() -> None:
    leaving = BRANCHING.removesuffix("signal.pause()\n") + "os._exit(5)"
    async with launch(python(leaving), name="p", env={}, cwd=HERE, close_s=5) as process:
        with anyio.fail_after(10):
            pids = [int(each) for each in (await process.receive()).split()]
            with pytest.raises(anyio.EndOfStream):
                await process.receive()

    assert process.returncode == 5
    for pid in pids[2:]:
        with pytest.raises(ProcessLookupError):
            _still_runs(pid)


HOST = """
import anyio, sys
from pathlib import Path
from guildry.tools.process import launch
async def main():
    command = [sys.executable, "-c", sys.argv[1]]
    async with launch(command, name="p", env={}, cwd=Path(), close_s=60) as process:
        print((await process.receive()).decode(), flush=True)
        await anyio.sleep_forever()
in_thread = sys.argv[2] == "thread"
if in_thread:
    import threading
    threading.Thread(target=anyio.run, args=[main]).start()
else:
    anyio.run(main)
"""


@pytest.mark.parametrize("where", ["main", "thread"])
async def test_when_guildry_is_killed_nothing_of_its_servers_lives_on(where: str) -> None:
    host = await anyio.open_process([*python(HOST), BRANCHING, where])
    assert host.stdout is not None
    with anyio.fail_after(20):
        pids = [int(each) for each in (await host.stdout.receive()).split()]
    descriptors = watched(pids)

    host.kill()

    await all_dead(descriptors)
    await host.aclose()


async def test_a_server_dies_with_its_supervisor() -> None:
    async with launch(python(BRANCHING), name="p", env={}, cwd=HERE, close_s=0.5) as process:
        with anyio.fail_after(10):
            pids = [int(each) for each in (await process.receive()).split()]
        descriptors = watched(pids[:2])

        os.kill(pids[1], signal.SIGKILL)

        await all_dead(descriptors)
        for pid in pids[2:]:  # nobody is left who would
            os.kill(pid, signal.SIGKILL)


async def test_a_server_is_asked_before_it_is_killed_with_all_of_its_processes() -> None:
    code = (
        "import os, signal\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM])\n"
        "heard, said = os.pipe()\n"
        "child = os.fork()\n"
        "if child: os.read(heard, 1); print(os.getpid(), 'ready', flush=True)\n"
        "else: os.setsid(); os.write(said, b'1')\n"
        "signal.sigwait([signal.SIGTERM])\n"
        "if child: os.wait()\n"
        "print(os.getpid(), 'asked', flush=True)"
    )
    begun = await start(python(code), env=inherited_environment(), cwd=HERE)
    try:
        with anyio.fail_after(10):
            assert begun.process.stdout is not None
            ready = await begun.process.stdout.receive()
            begun.ask()
            said = b"".join([chunk async for chunk in begun.process.stdout])
    finally:
        await begun.end()

    assert ready == b"%d ready\n" % begun.pid
    assert said.count(b"asked") == 2


async def test_a_cancelled_start_leaves_no_process() -> None:
    async with anyio.create_task_group() as tasks:
        tasks.cancel_scope.cancel()
        async with launch(python(BRANCHING), name="p", env={}, cwd=HERE, close_s=0.1):
            raise AssertionError

    assert not [each for each in _commands() if BRANCHING.encode() in each]


def _commands() -> list[bytes]:
    found: list[bytes] = []
    for each in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            found.append(each.read_bytes())
    return found


@pytest.mark.parametrize(
    ("code", "returned"),
    [("import sys; sys.exit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)],
)
async def test_the_end_of_a_server_is_told_as_it_was(code: str, returned: int) -> None:
    async with launch(python(code), name="p", env={}, cwd=HERE, close_s=2) as process:
        await lines_of(process)

    assert process.returncode == returned


async def test_a_folder_that_is_not_there_is_told() -> None:
    with pytest.raises(OSError, match="nowhere"):
        async with launch(["true"], name="p", env={}, cwd=HERE / "nowhere", close_s=1):
            pass

"""The sandbox: what a confined command sees, may do and may use, and that nothing of it is left."""

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import anyio
import anyio.abc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildry.errors import PlugError, SandboxError
from guildry.tools.plugs.board import PlugBoard
from guildry.tools.plugs.options import PlugOptions, SandboxOptions
from guildry.tools.plugs.plug import PlugLimits
from guildry.tools.process import inherited_environment, launch
from guildry.tools.registry import Catalog
from guildry.tools.sandbox.confinement import (
    available,
    confined,
    supervised,
    verdict,
    wanted_sandbox,
)
from guildry.tools.sandbox.running import Ended, run_confined
from guildry.tools.sandbox.visible import SYSTEM

needs_sandbox = pytest.mark.skipif(available() is not None, reason=f"no sandbox: {available()}")
NOTHING = SandboxOptions()


async def run(
    script: str,
    options: SandboxOptions = NOTHING,
    *,
    cwd: Path,
    stdin: bytes = b"",
    wall_s: float = 20,
    output_bytes: int = 100_000,
) -> Ended:
    with anyio.fail_after(60):
        return await run_confined(
            ["/bin/sh", "-c", script],
            options,
            cwd=cwd,
            env=inherited_environment(),
            stdin=stdin,
            wall_s=wall_s,
            output_bytes=output_bytes,
        )
    raise AssertionError


def inside(folder: Path) -> set[str]:
    return {str(each.relative_to(folder)) for each in folder.rglob("*")}


def python(code: str) -> str:
    return f"exec /usr/bin/env -i {sys.executable} -I -S -c '{code}'"


def with_python(**options: int | float | bool) -> SandboxOptions:
    """Return options under which this interpreter can be run by a shell."""
    prefixes = {sys.prefix, sys.base_prefix}
    given = SandboxOptions(read=tuple(each for each in prefixes if not each.startswith("/usr")))
    return SandboxOptions(**{"read": given.read, **options})  # type: ignore[arg-type] # one for all


@pytest.fixture
def no_sandbox(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine on which bubblewrap is not installed."""
    available.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    yield
    available.cache_clear()


@needs_sandbox
async def test_a_confined_command_sees_the_system_and_nothing_of_the_user(tmp_path: Path) -> None:
    (tmp_path / "secret.txt").write_text("s3cret")
    script = 'ls -A "$HOME" /tmp; cat secret.txt /etc/shadow; echo $PWD; ls /usr >/dev/null && echo'

    ended = await run(f"{script} system", cwd=tmp_path)

    assert ended.is_confined
    shown = ended.stdout.decode()
    assert shown.endswith(f"{tmp_path}\nsystem\n")
    assert "s3cret" not in shown
    assert ended.stderr.count(b"No such file") == 2
    home = os.environ["HOME"]
    assert shown.startswith(f"{home}:\n\n/tmp:\n{tmp_path.parts[2]}\n")


@needs_sandbox
async def test_it_changes_nothing_but_the_folders_that_it_was_given(tmp_path: Path) -> None:
    for name in ("mine", "yours"):
        (tmp_path / name).mkdir()
    script = (
        "for f in /usr/x /x ./x yours/x mine/x /tmp/x; do (: > $f) 2>/dev/null && echo $f; done"
    )

    ended = await run(script, SandboxOptions(read=("yours",), write=("mine",)), cwd=tmp_path)

    assert set(ended.stdout.split()) <= {b"./x", b"mine/x", b"/tmp/x"}  # its own `/tmp`
    assert inside(tmp_path) == {"mine", "yours", "mine/x"}


@needs_sandbox
async def test_a_file_is_read_only_if_it_was_granted(tmp_path: Path) -> None:
    (tmp_path / "given.txt").write_text("given")
    (tmp_path / "other.txt").write_text("other")

    ended = await run(
        "cat given.txt; cat other.txt", SandboxOptions(read=("given.txt",)), cwd=tmp_path
    )

    assert ended.stdout == b"given"
    assert ended.code == 1


@needs_sandbox
@pytest.mark.parametrize("network", [False, True])
async def test_there_is_no_network_unless_it_was_granted(tmp_path: Path, network: bool) -> None:
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        code = f'import socket; socket.create_connection(("127.0.0.1", {port}), 5); print("there")'
        ended = await run(python(code), with_python(network=network), cwd=tmp_path)

    assert (ended.stdout == b"there\n") is network


@needs_sandbox
async def test_it_neither_sees_nor_signals_processes_outside(tmp_path: Path) -> None:
    script = f"ls /proc | grep -c '^[0-9]'; kill -0 {os.getpid()} || echo none"

    ended = await run(script, cwd=tmp_path)

    count, last = ended.stdout.split()
    assert int(count) <= 6
    assert last == b"none"


@needs_sandbox
async def test_it_has_no_capability_and_gains_none(tmp_path: Path) -> None:
    ended = await run("grep -E '^(CapEff|CapBnd|NoNewPrivs)' /proc/self/status", cwd=tmp_path)

    values = dict(line.split(b":\t") for line in ended.stdout.splitlines())
    assert int(values[b"CapEff"], 16) == int(values[b"CapBnd"], 16) == 0
    assert values[b"NoNewPrivs"] == b"1"


@needs_sandbox
async def test_it_cannot_turn_the_knobs_of_the_machine(tmp_path: Path) -> None:
    """Not even as the superuser, who owns those files: opening one to append changes nothing."""
    script = (
        "for f in sys/kernel/core_pattern sys/vm/swappiness sysrq-trigger self/oom_score_adj;"
        " do (: >> /proc/$f) || echo held; done; ls /sys"
    )

    ended = await run(script, cwd=tmp_path)

    assert ended.stdout == b"held\n" * 4
    assert b"cannot access" in ended.stderr


async def test_a_command_that_needs_too_much_memory_fails(tmp_path: Path) -> None:
    ended = await run(python("bytearray(900_000_000)"), with_python(memory_mb=200), cwd=tmp_path)

    assert ended.code != 0
    assert b"MemoryError" in ended.stderr


async def test_shared_memory_that_is_no_data_is_counted_too(tmp_path: Path) -> None:
    code = (
        "import mmap, signal; m = mmap.mmap(-1, 300_000_000);"
        ' [m.write(b"x" * 1_000_000) for _ in range(300)]; signal.pause()'
    )
    ended = await run(python(code), with_python(memory_mb=200), cwd=tmp_path)

    assert ended.code == -9
    assert b"of memory, at most 200 are allowed" in ended.stderr


async def test_a_command_with_too_many_processes_is_ended(tmp_path: Path) -> None:
    code = "import os, signal; [os.fork() or signal.pause() for _ in range(40)]; signal.pause()"

    ended = await run(python(code), with_python(processes=10), cwd=tmp_path)

    assert ended.code != 0
    assert (
        b"processes, at most 10 are allowed" in ended.stderr or b"BlockingIOError" in ended.stderr
    )


async def test_a_file_grows_no_larger_than_it_may(tmp_path: Path) -> None:
    options = SandboxOptions(file_mb=2, write=(".",))

    ended = await run("head -c 9000000 /dev/zero > big; wc -c < big", options, cwd=tmp_path)

    assert int(ended.stdout or (tmp_path / "big").stat().st_size) == 2 * 1024 * 1024


async def test_processor_time_comes_to_an_end(tmp_path: Path) -> None:
    ended = await run(python("while True: pass"), with_python(cpu_s=1), cwd=tmp_path)

    assert ended.cut is None
    assert ended.code != 0


async def test_a_command_is_ended_when_its_time_is_over(tmp_path: Path) -> None:
    ended = await run("echo begun; sleep 1000", cwd=tmp_path, wall_s=1)

    assert (ended.cut, ended.stdout) == ("time", b"begun\n")


async def test_a_command_that_writes_without_end_is_ended(tmp_path: Path) -> None:
    ended = await run("yes; sleep 1000", cwd=tmp_path, output_bytes=50_000)

    assert ended.cut == "output"
    assert len(ended.stdout) == 50_000


async def test_what_it_is_given_to_read_comes_through(tmp_path: Path) -> None:
    text = b"line\n" * 100_000

    ended = await run("wc -c; echo words >&2; exit 4", cwd=tmp_path, stdin=text)

    assert (ended.code, ended.stdout.strip(), ended.stderr) == (4, b"500000", b"words\n")


async def test_input_that_nobody_reads_is_no_error(tmp_path: Path) -> None:
    ended = await run("exit 0", cwd=tmp_path, stdin=b"x" * 1_000_000)

    assert (ended.code, ended.stdout) == (0, b"")


async def test_nothing_is_left_of_a_command_that_is_cancelled(tmp_path: Path) -> None:
    """Its processes hold a pipe, those that left its session too: it ends when they all have."""
    os.mkfifo(tmp_path / "pipe")
    script = (
        "exec 3> pipe; echo ready >&3; (trap '' TERM; setsid sleep 1000) & setsid sleep 1000 &"
        " trap '' TERM; sleep 1000"
    )
    pipe = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    options = SandboxOptions(write=(".",))
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:

            async def command() -> None:
                await run(script, options, cwd=tmp_path, wall_s=1000)

            tasks.start_soon(command)
            await anyio.wait_readable(pipe)
            assert os.read(pipe, 100) == b"ready\n"
            tasks.cancel_scope.cancel()
        await anyio.wait_readable(pipe)

    assert os.read(pipe, 100) == b""
    os.close(pipe)


@needs_sandbox
async def test_a_server_is_confined_as_its_options_say(tmp_path: Path) -> None:
    command = ["/bin/sh", "-c", "ls -A $HOME; echo end; read _"]
    async with launch(
        command, name="p", env={}, cwd=tmp_path, close_s=2, sandbox=NOTHING
    ) as process:
        with anyio.fail_after(20):
            first = await process.receive()

    assert process.is_confined
    assert first == b"end"


@needs_sandbox
async def test_a_program_of_an_environment_runs_confined_with_its_packages(tmp_path: Path) -> None:
    """The interpreter, what it links to and its packages are seen; the script's folder, too."""
    (tmp_path / "beside.py").write_text("word = 'beside'")
    (tmp_path / "server.py").write_text("import anyio, beside; print(beside.word, flush=True)")
    command = [sys.executable, str(tmp_path / "server.py")]

    async with launch(
        command, name="p", env={}, cwd=tmp_path, close_s=2, sandbox=NOTHING
    ) as process:
        with anyio.fail_after(30):
            assert await process.receive() == b"beside"


async def test_a_command_that_is_none_is_told_as_such_in_a_sandbox_too(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        async with launch(
            ["no-such-command"], name="p", env={}, cwd=tmp_path, close_s=1, sandbox=NOTHING
        ):
            pass


@needs_sandbox
def test_what_a_command_names_but_cannot_see_is_noted(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    command = ["/bin/ls", f"--hide={tmp_path}/notes", "/usr/bin"]

    made = confined(command, NOTHING, cwd=tmp_path, env=inherited_environment())

    assert made.notes == (
        f"`{tmp_path}/notes` is not seen in the sandbox: add it to `read` or `write`",
    )


@needs_sandbox
@pytest.mark.parametrize("kind", ["read", "write"])
def test_a_grant_of_what_is_not_there_is_refused(tmp_path: Path, kind: str) -> None:
    options = SandboxOptions(**{kind: ("gone",)})  # type: ignore[arg-type] # one of the two

    with pytest.raises(SandboxError, match=f"`{kind}` of the sandbox names"):
        confined(["true"], options, cwd=tmp_path, env={})


@needs_sandbox
@given(
    st.lists(st.sampled_from(["a", "b", "b/c", "d"]), unique=True),
    st.lists(st.sampled_from(["a", "b", "b/c", "d"]), unique=True),
    st.booleans(),
)
def test_a_sandbox_shows_and_gives_no_more_than_was_granted(
    tmp_path_factory: pytest.TempPathFactory, read: list[str], write: list[str], network: bool
) -> None:
    folder = tmp_path_factory.getbasetemp() / "granted"
    for name in ("a", "b/c", "d"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    options = SandboxOptions(read=tuple(read), write=tuple(write), network=network)

    made = confined(["/bin/true"], options, cwd=folder, env={"HOME": "/home/me", "PATH": "/bin"})

    words = list(made.inner[: made.inner.index("--")])
    bound = {words[n + 2]: words[n] for n in range(len(words) - 2) if "bind" in words[n]}
    beyond = {path: how for path, how in bound.items() if not path.startswith((*SYSTEM, "/etc/"))}
    given = {str(folder / each): "--bind" for each in write}
    assert beyond == {str(folder / each): "--ro-bind" for each in read} | given
    assert all(how.startswith("--ro-bind") for path, how in bound.items() if path not in beyond)
    assert ("--share-net" in words) is network
    order = list(bound)
    assert all(
        order.index(a) < order.index(b) for a in beyond for b in beyond if b.startswith(f"{a}/")
    )


async def test_without_a_sandbox_the_limits_hold_and_the_reason_is_told(
    no_sandbox: None, tmp_path: Path
) -> None:
    ended = await run("/bin/sleep 1000", cwd=tmp_path, wall_s=0.5)

    assert (ended.cut, ended.is_confined) == ("time", False)
    assert ended.notes == ("bubblewrap is not installed: only limits hold",)
    assert verdict(NOTHING, "auto").why == "bubblewrap is not installed: only its limits hold"


async def test_what_must_be_confined_does_not_run_without_a_sandbox(
    no_sandbox: None, tmp_path: Path
) -> None:
    with pytest.raises(SandboxError, match="bubblewrap is not installed"):
        async with launch(
            ["/bin/true"], name="p", env={}, cwd=tmp_path, close_s=1, policy="required"
        ):
            pass

    assert verdict(None, "required").confined is False


def test_a_policy_says_which_servers_are_confined() -> None:
    own = SandboxOptions(network=True)

    assert wanted_sandbox(None, "auto") is None
    assert wanted_sandbox(own, "auto") is own
    assert wanted_sandbox(None, "required") == NOTHING
    assert wanted_sandbox(own, "off") is None
    assert verdict(None, "auto").why == "it is not asked for"
    assert verdict(own, "off").why == "`sandbox` is `off`"


@needs_sandbox
async def test_a_server_that_cannot_see_its_folder_is_told_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / "notes").mkdir()
    command = f"/bin/sh -c 'ls {tmp_path}/notes && exec cat' {tmp_path}/notes"
    async with PlugBoard(Catalog(), limits=PlugLimits(close_s=0.2), folder=tmp_path) as board:
        with anyio.fail_after(30), pytest.raises(PlugError) as refusal:
            await board.plug(command, "notes", options=PlugOptions(sandbox=NOTHING))

    assert refusal.value.cure == (
        f"`{tmp_path}/notes` is not seen in the sandbox: add it to `read` or `write`"
    )


async def test_a_confined_command_ends_with_whoever_started_it(tmp_path: Path) -> None:
    """As it is, without a channel to its supervisor."""
    made = confined(
        ["/bin/sh", "-c", "sleep 1000 & echo begun; wait"],
        NOTHING,
        cwd=tmp_path,
        env=inherited_environment(),
    )
    process = await anyio.open_process(made.command, env=made.env, cwd=tmp_path)
    with anyio.fail_after(20):
        assert process.stdout is not None
        begun = await process.stdout.receive()
        process.terminate()
        rest = [chunk async for chunk in process.stdout]  # until nobody holds it
        await process.wait()
    await process.aclose()

    assert (begun, rest) == (b"begun\n", [])


async def test_a_supervisor_without_a_command_says_what_it_takes() -> None:
    told = await anyio.run_process(supervised([]), check=False)

    assert told.returncode == 64
    assert b"-- COMMAND" in told.stderr

"""Real MCP servers, both eras, over stdio and HTTP; broken ones die, hang and babble for real."""

import os
import shlex
import signal
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.abc
import pytest
from anyio.streams.text import TextReceiveStream

from guildry.errors import PlugError, ToolFailed, ToolRetry
from guildry.tools.base import (
    Block,
    Call,
    Effects,
    Embedded,
    Json,
    Link,
    Media,
    Outcome,
    Text,
)
from guildry.tools.plugs.board import PlugBoard
from guildry.tools.plugs.options import PlugOptions
from guildry.tools.plugs.plug import PlugLimits, Quarantined
from guildry.tools.registry import Catalog, Change

SERVERS = Path(__file__).parent / "servers"
PYTHON = shlex.quote(sys.executable)
QUICK = PlugLimits(start_s=10, call_s=20, close_s=0.5, backoff_s=0.01, backoff_max_s=0.1)


def command(name: str, *words: str) -> str:
    return shlex.join([sys.executable, str(SERVERS / f"{name}.py"), *words])


@dataclass
class Heard:
    """Progress as a caller hears it."""

    words: list[tuple[float, float | None, str | None]] = field(
        default_factory=list[tuple[float, float | None, str | None]]
    )
    first: anyio.Event = field(default_factory=anyio.Event)

    async def __call__(
        self, done: float, total: float | None = None, message: str | None = None
    ) -> None:
        self.words.append((done, total, message))
        self.first.set()


async def ask(
    catalog: Catalog,
    name: str,
    arguments: dict[str, Json] | None = None,
    heard: Heard | None = None,
) -> Outcome:
    tool = catalog.current.get(name)
    return await tool.invoke(arguments or {}, Call(tool, None, heard))


def said(outcome: Outcome) -> str:
    assert [type(block) for block in outcome.blocks] == [Text]
    block = outcome.blocks[0]
    assert isinstance(block, Text)
    return block.text


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


class Changes:
    """The changes of a catalog, one after another."""

    def __init__(self, catalog: Catalog) -> None:
        self._send, self._receive = anyio.create_memory_object_stream[Change](100)
        self._stop = catalog.subscribe(self._send.send_nowait)

    async def next(self) -> Change:
        return await self._receive.receive()

    def close(self) -> None:
        self._stop()
        self._send.close()
        self._receive.close()


@asynccontextmanager
async def http_server(name: str = "modern") -> AsyncGenerator[str]:
    """Run a server over HTTP in a process of its own."""
    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
    process = await anyio.open_process(
        [sys.executable, str(SERVERS / f"{name}.py"), str(port)], start_new_session=True
    )
    try:
        assert process.stderr is not None
        with anyio.fail_after(20):
            async for text in TextReceiveStream(process.stderr):
                if "running" in text:
                    break
        yield f"http://127.0.0.1:{port}/mcp"
    finally:
        with anyio.CancelScope(shield=True):
            process.kill()
            await process.aclose()


async def test_a_real_server_is_plugged_called_and_leaves_no_process() -> None:
    catalog = Catalog()
    with anyio.fail_after(60):
        async with PlugBoard(catalog, limits=QUICK) as board:
            report = await board.plug(f"{PYTHON} -m mcp_server_time --local-timezone=UTC")

            outcome = await ask(catalog, "get_current_time", {"timezone": "UTC"})
            tool = catalog.current.get("get_current_time")

    assert report.plug == "time"
    assert report.tools == ("get_current_time", "convert_time")
    assert outcome.structured["timezone"] == "UTC"
    assert tool.effects == Effects(writes=False, egress=False, destructive=False, idempotent=True)
    assert children() == set()


def children() -> set[int]:
    """Return the living processes below this one, as /proc tells of them."""
    found = {os.getpid()}
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and is_alive(int(entry.name)):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            parents[int(entry.name)] = int(fields[1])
    for pid in sorted(parents):
        if parents[pid] in found:
            found.add(pid)
    return found - {os.getpid()}


async def test_git_is_plugged_beside_it_and_reads_a_repository(tmp_path: Path) -> None:
    catalog = Catalog()
    await anyio.run_process(["git", "init", "-q", str(tmp_path)])
    with anyio.fail_after(60):
        async with PlugBoard(catalog, limits=QUICK) as board:
            await board.plug(f"{PYTHON} -m mcp_server_git", "git")

            outcome = await ask(catalog, "git_status", {"repo_path": str(tmp_path)})

    assert "No commits yet" in said(outcome)


async def test_every_kind_of_content_comes_through_as_it_is() -> None:
    catalog = Catalog()
    with anyio.fail_after(30):
        async with PlugBoard(catalog, limits=QUICK) as board:
            await board.plug(command("legacy"))

            outcome = await ask(catalog, "everything")

    blocks: tuple[Block, ...] = (
        Text("words"),
        Media(b"\x89PNG\r\n\x1a\nrest", "image/png"),
        Media(b"RIFF....WAVE", "audio/wav"),
        Link("file:///a.txt", "a", "text/plain"),
        Embedded("x://t", "text/plain", text="inside"),
        Embedded("x://b", "a/b", data=b"\x00\x01"),
    )
    assert outcome == Outcome(blocks, structured={"n": 1}, has_structured=True)


@pytest.mark.requirement("tools.hints")
async def test_annotations_become_effects_and_are_passed_on() -> None:
    catalog = Catalog()
    with anyio.fail_after(30):
        async with PlugBoard(catalog, limits=QUICK) as board:
            await board.plug(command("legacy"))

            echo, child = catalog.current.get("echo"), catalog.current.get("child")

    assert echo.effects == Effects(writes=False, egress=False, destructive=False, idempotent=True)
    assert echo.title == "Echo it"
    assert echo.annotations == {
        "title": "Echo it",
        "readOnlyHint": True,
        "openWorldHint": False,
        "_meta": {"k": "v"},
    }
    assert child.effects == Effects()
    assert child.annotations == {}


@pytest.mark.parametrize(
    ("tool", "kind", "words"),
    [
        ("refuse", ToolRetry, "`n` must be odd"),
        ("whole", ToolFailed, "no valid result"),
        ("promise", ToolFailed, "output schema"),
    ],
)
async def test_an_answer_that_is_none_tells_the_caller_why(
    tool: str, kind: type[Exception], words: str
) -> None:
    catalog = Catalog()
    with anyio.fail_after(30):
        async with PlugBoard(catalog, limits=QUICK) as board:
            await board.plug(command("legacy"))

            with pytest.raises(kind, match=words):
                await ask(catalog, tool)
            after = await ask(catalog, "echo", {"text": "still here"})

    assert said(after) == "still here"


@pytest.mark.requirement("tools.failed")
async def test_an_error_result_is_an_outcome_and_no_exception() -> None:
    catalog = Catalog()
    with anyio.fail_after(30):
        async with PlugBoard(catalog, limits=QUICK) as board:
            await board.plug(command("legacy"))

            outcome = await ask(catalog, "fail")

    assert outcome == Outcome((Text("no luck"),), is_error=True)


@pytest.mark.parametrize(
    ("server", "steps"),
    [
        ("legacy", [(1.0, 2.0, "step 1"), (2.0, 2.0, "step 2")]),
        ("modern", [(1.0, 2.0, "half")]),
    ],
)
async def test_progress_is_passed_on_in_order(
    server: str, steps: list[tuple[float, float | None, str | None]]
) -> None:
    catalog, heard = Catalog(), Heard()
    with anyio.fail_after(30):
        async with PlugBoard(catalog, limits=QUICK) as board:
            await board.plug(command(server))

            outcome = await ask(catalog, "steps", heard=heard)

    assert said(outcome) == "done"
    assert heard.words == steps


@pytest.mark.parametrize("server", ["legacy", "modern"])
async def test_cancelling_a_call_cancels_it_in_the_server(server: str) -> None:
    catalog, heard = Catalog(), Heard()
    with anyio.fail_after(30):
        async with PlugBoard(catalog, limits=QUICK) as board:
            await board.plug(command(server))

            async with anyio.create_task_group() as calls:
                calls.start_soon(ask, catalog, "wait", None, heard)
                await heard.first.wait()
                calls.cancel_scope.cancel()

            while said(await ask(catalog, "cancelled")) != "1":
                pass


async def test_calls_run_side_by_side_and_are_never_crossed() -> None:
    catalog, heard = Catalog(), Heard()
    answers: dict[int, str] = {}

    async def one(n: int) -> None:
        answers[n] = said(await ask(catalog, "echo", {"text": f"call {n}"}))

    with anyio.fail_after(30):
        async with PlugBoard(catalog, limits=QUICK) as board:
            await board.plug(command("legacy"))
            async with anyio.create_task_group() as waiting:
                waiting.start_soon(ask, catalog, "wait", None, heard)
                await heard.first.wait()
                async with anyio.create_task_group() as calls:
                    for n in range(100):
                        calls.start_soon(one, n)
                waiting.cancel_scope.cancel()

    assert answers == {n: f"call {n}" for n in range(100)}


@pytest.mark.parametrize(("server", "late"), [("growing", "grown_1"), ("modern", "late")])
async def test_a_tool_that_appears_while_serving_is_announced_and_served(
    server: str, late: str
) -> None:
    catalog = Catalog()
    with anyio.fail_after(30):
        async with PlugBoard(catalog, limits=QUICK) as board:
            await board.plug(command(server))
            changes = Changes(catalog)

            await ask(catalog, "grow")
            change = await changes.next()
            await ask(catalog, late)

    changes.close()
    assert change.added == (late,)
    assert change.removed == ()


async def test_a_server_gets_the_usual_variables_and_the_declared_ones_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("GUILDRY_SECRET_KEY", "s3cret")
    catalog = Catalog()
    with anyio.fail_after(30):
        async with PlugBoard(catalog, limits=QUICK) as board:
            await board.plug(command("legacy"), options=PlugOptions(env={"DECLARED": "1"}))

            names = said(await ask(catalog, "environment")).split()

    assert "DECLARED" in names
    assert "PATH" in names
    assert "GUILDRY_SECRET_KEY" not in names


async def test_a_server_that_takes_only_initialize_first_is_plugged_all_the_same() -> None:
    catalog = Catalog()
    with anyio.fail_after(30):
        async with PlugBoard(catalog, limits=QUICK) as board:
            await board.plug(command("strict"))

            outcome = await ask(catalog, "hello")

    assert said(outcome) == "hello"


async def test_broken_definitions_are_quarantined_alone_with_their_reasons() -> None:
    catalog = Catalog()
    with anyio.fail_after(30):
        async with PlugBoard(catalog, limits=QUICK) as board:
            report = await board.plug(command("faulty"), "faulty")

            odd = said(await ask(catalog, "odd_name_2"))

    reasons = {each.tool: each.reason for each in report.quarantined}
    assert report.tools == ("good", "odd_name", "odd_name_2")
    assert odd == "odd.name."
    assert set(reasons) == {"broken", "shapeless", "bare", "number 5", "good", "promise"}
    assert "strng" in reasons["broken"]
    assert "inputSchema" in reasons["bare"]
    assert "two tools of this name" in reasons["good"]
    assert reasons["promise"].startswith("the output schema is not valid")


@pytest.mark.parametrize(
    ("source", "reason", "cure"),
    [
        (command("gone"), "exit code 4; its last words: 'no licence'", "in a terminal"),
        (command("garbage"), "'Loading model weights...'", "send its logs to stderr"),
        ("no-such-command --stdio", "`no-such-command` is no command", "Install it"),
        ("http://127.0.0.1:9/mcp", "connection failed", "Check that the server runs"),
    ],
)
async def test_a_server_that_cannot_be_plugged_is_named_with_reason_and_cure(
    source: str, reason: str, cure: str
) -> None:
    catalog = Catalog()
    with anyio.fail_after(30):
        async with PlugBoard(catalog, limits=QUICK) as board:
            with pytest.raises(PlugError) as caught:
                await board.plug(source, "bad")
            good = await board.plug(command("crash"), "good")

            assert board.listing()[0].name == "good"

    assert caught.value.source == source
    assert reason in caught.value.reason
    assert cure in caught.value.cure
    assert good.tools == ("crash", "pid")
    assert children() == set()


async def test_a_server_that_hangs_at_its_start_is_given_up_and_killed() -> None:
    limits = PlugLimits(start_s=0.5, close_s=0.2)
    with anyio.fail_after(30):
        async with PlugBoard(Catalog(), limits=limits) as board:
            with pytest.raises(PlugError, match="did not answer within 0.5 s"):
                await board.plug(command("hang"))

            assert children() == set()


async def test_a_banner_on_stdout_does_not_keep_a_server_from_being_plugged() -> None:
    catalog = Catalog()
    with anyio.fail_after(30):
        async with PlugBoard(catalog, limits=QUICK) as board:
            report = await board.plug(command("garbage", "banner"))

    assert report.tools == ("hello",)


async def test_a_crash_fails_the_calls_in_flight_and_the_next_call_finds_a_new_server() -> None:
    catalog = Catalog()
    with anyio.fail_after(30):
        async with PlugBoard(catalog, limits=QUICK) as board:
            await board.plug(command("crash"), "cheese")
            before = said(await ask(catalog, "pid"))

            with pytest.raises(ToolFailed) as caught:
                await ask(catalog, "crash")
            after = said(await ask(catalog, "pid"))

    text = str(caught.value)
    assert "`cheese` stopped while `crash` ran" in text
    assert "exit code 3" in text
    assert "out of cheese" in text
    assert "started again" in text
    assert before != after
    assert not is_alive(int(before))
    assert not is_alive(int(after))


async def test_a_killed_server_fails_only_its_own_calls() -> None:
    catalog, heard = Catalog(), Heard()
    failed: list[ToolFailed] = []

    async def wait() -> None:
        try:
            await ask(catalog, "wait", heard=heard)
        except ToolFailed as error:
            failed.append(error)

    with anyio.fail_after(30):
        async with PlugBoard(catalog, limits=QUICK) as board:
            await board.plug(command("legacy"), "victim")
            await board.plug(command("crash"), "other")
            child = int(said(await ask(catalog, "child")))
            async with anyio.create_task_group() as calls:
                calls.start_soon(wait)
                await heard.first.wait()
                os.killpg(os.getpgid(child), signal.SIGKILL)

            other = said(await ask(catalog, "pid"))
            again = said(await ask(catalog, "echo", {"text": "again"}))

    assert "`victim` stopped while `wait` ran" in str(failed[0])
    assert "signal 9" in str(failed[0])
    assert other.isdigit()
    assert again == "again"


async def test_a_server_that_keeps_crashing_waits_for_a_call_and_is_then_started_once_more() -> (
    None
):
    limits = PlugLimits(start_s=10, close_s=0.5, backoff_s=0.01, restarts=1)
    catalog = Catalog()
    with anyio.fail_after(60):
        async with PlugBoard(catalog, limits=limits) as board:
            await board.plug(command("crash"), "cheese")
            for _ in range(4):
                with pytest.raises(ToolFailed, match="stopped while"):
                    await ask(catalog, "crash")

            pid = said(await ask(catalog, "pid"))
            state = board.listing()[0].state

    assert pid.isdigit()
    assert state == "ready"


@pytest.mark.requirement("timeouts.calls")
async def test_a_call_that_gets_no_answer_ends_at_its_limit_and_a_hung_server_is_replaced() -> None:
    limits = PlugLimits(start_s=1, call_s=0.3, close_s=0.2, backoff_s=0.01)
    catalog = Catalog()
    with anyio.fail_after(30):
        async with PlugBoard(catalog, limits=limits) as board:
            await board.plug(command("hang", "call"), "sleepy")
            before = int(said(await ask(catalog, "pid")))

            with pytest.raises(ToolFailed, match="no answer within 0.3 s"):
                await ask(catalog, "hang")
            after = before
            while after == before:
                try:
                    after = int(said(await ask(catalog, "pid")))
                except ToolFailed:
                    continue

    assert not is_alive(before)


async def test_unplugging_kills_the_whole_group_of_a_server() -> None:
    catalog = Catalog()
    with anyio.fail_after(30):
        async with PlugBoard(catalog, limits=QUICK) as board:
            await board.plug(command("legacy"), "parent")
            child = int(said(await ask(catalog, "child")))
            was_alive = is_alive(child)

            await board.unplug("parent")

            assert was_alive
            assert not is_alive(child)
            assert children() == set()


async def test_cancelling_a_start_leaves_no_process() -> None:
    with anyio.fail_after(30):
        async with PlugBoard(Catalog(), limits=QUICK) as board:
            with anyio.move_on_after(0.3) as scope:
                await board.plug(command("hang"))

            assert scope.cancelled_caught
            assert board.listing() == []
            assert children() == set()


async def test_cancelling_the_host_in_the_middle_of_calls_leaves_no_process_and_no_error() -> None:
    catalog, heard = Catalog(), Heard()
    with anyio.fail_after(30):
        async with anyio.create_task_group() as host:
            async with PlugBoard(catalog, limits=QUICK) as board:
                await board.plug(command("legacy"))
                await board.plug(command("modern"))
                await board.plug(command("hang", "call"))
                host.start_soon(ask, catalog, "hang")
                host.start_soon(ask, catalog, "wait", None, heard)
                await heard.first.wait()
                host.cancel_scope.cancel()
                await anyio.sleep_forever()

    assert children() == set()


async def test_when_this_process_is_killed_its_servers_die_too(tmp_path: Path) -> None:
    """A host process plugs a server that ignores SIGTERM and never reads, and is killed."""
    host = tmp_path / "host.py"
    host.write_text(HOST)
    words = [sys.executable, str(host), command("hang", "call")]
    async with await anyio.open_process(words, stderr=None) as process:
        assert process.stdout is not None
        with anyio.fail_after(30):
            told = ""
            async for text in TextReceiveStream(process.stdout):
                told += text
                if "hangs:" in told and told.endswith("\n"):
                    break
            pid = int(told.rpartition("hangs:")[2])
            watch = os.pidfd_open(pid)
            process.kill()
            await process.wait()

            await anyio.wait_readable(watch)
    os.close(watch)
    assert not is_alive(pid)


HOST = """
import sys
import anyio
from guildry.tools.base import Call
from guildry.tools.plugs.board import PlugBoard
from guildry.tools.registry import Catalog

async def main():
    catalog = Catalog()
    async with PlugBoard(catalog) as board:
        await board.plug(sys.argv[1], "sleepy")
        tool = catalog.current.get("pid")
        outcome = await tool.invoke({}, Call(tool, None))
        async with anyio.create_task_group() as calls:
            hang = catalog.current.get("hang")
            calls.start_soon(hang.invoke, {}, Call(hang, None))
            await anyio.lowlevel.checkpoint()
            print("hangs:", outcome.blocks[0].text, flush=True)

anyio.run(main)
"""


async def test_a_url_is_plugged_called_cancelled_and_followed() -> None:
    catalog, heard = Catalog(), Heard()
    with anyio.fail_after(60):
        async with http_server() as url, PlugBoard(catalog, limits=QUICK) as board:
            report = await board.plug(url, "remote")
            changes = Changes(catalog)
            total = await ask(catalog, "add", {"a": 1, "b": 2})
            async with anyio.create_task_group() as calls:
                calls.start_soon(ask, catalog, "wait", None, heard)
                await heard.first.wait()
                calls.cancel_scope.cancel()
            while said(await ask(catalog, "cancelled")) != "1":
                pass
            await ask(catalog, "grow")
            change = await changes.next()
            late = await ask(catalog, "late")

    changes.close()
    assert report.tools == ("grow", "add", "steps", "wait", "cancelled", "pid")
    assert total.structured == {"result": 3}
    assert change.added == ("late",)
    assert late.structured == {"result": "here I am"}


async def test_a_url_that_goes_away_fails_calls_with_the_cure() -> None:
    limits = PlugLimits(start_s=5, close_s=0.5, backoff_s=0.01, restarts=1)
    catalog = Catalog()
    with anyio.fail_after(60):
        async with PlugBoard(catalog, limits=limits) as board:
            async with http_server() as url:
                await board.plug(url, "remote")

            with pytest.raises(ToolFailed, match="remote"):
                await ask(catalog, "pid")
            with pytest.raises(ToolFailed, match="Check that the server runs"):
                await ask(catalog, "pid")


async def test_a_session_that_a_server_forgot_is_opened_anew_and_the_call_goes_through() -> None:
    catalog = Catalog()
    with anyio.fail_after(60):
        async with http_server("sessions") as url, PlugBoard(catalog, limits=QUICK) as board:
            await board.plug(url, "remote")
            first = said(await ask(catalog, "session"))
            await ask(catalog, "forget")

            second = said(await ask(catalog, "session"))

    assert (first, second) == ("session-0", "session-2")


@pytest.mark.requirement("http.param-annotations")
async def test_a_tool_whose_header_annotations_are_wrong_is_quarantined() -> None:
    with anyio.fail_after(30):
        async with PlugBoard(Catalog(), limits=QUICK) as board:
            report = await board.plug(command("headers"))

    assert report.tools == ("good",)
    assert report.quarantined == (
        Quarantined("misled", "its `x-mcp-header` annotations are not valid"),
    )


async def test_a_server_without_tools_is_refused() -> None:
    with anyio.fail_after(30):
        async with PlugBoard(Catalog(), limits=QUICK) as board:
            with pytest.raises(PlugError, match="it gave no list of tools"):
                await board.plug(command("headers", "none"))

            assert children() == set()


async def test_bytes_that_are_no_base64_fail_the_call_alone() -> None:
    with anyio.fail_after(30):
        catalog = Catalog()
        async with PlugBoard(catalog, limits=QUICK) as board:
            await board.plug(command("legacy"))

            with pytest.raises(
                ToolFailed, match="`spoiled` answered with bytes that are no base64"
            ):
                await ask(catalog, "spoiled")


async def test_reading_the_tools_of_a_server_that_is_gone_says_why() -> None:
    limits = PlugLimits(start_s=0.5, close_s=0.2, backoff_s=0.01, restarts=1)
    catalog = Catalog()
    with anyio.fail_after(30):
        async with PlugBoard(catalog, limits=limits) as board:
            async with http_server() as url:
                await board.plug(url, "remote")
            with pytest.raises(ToolFailed):
                await ask(catalog, "pid")

            with pytest.raises(PlugError) as caught:
                await board.reload("remote")
            status = board.listing()[0]

    assert caught.value.source == url
    assert "Check that the server runs" in caught.value.cure
    assert status.state == "restarting"
    assert "pid" in status.tools

"""What one server may cost the others: turns, time, headers, floods. The servers are real."""

import os
import shlex
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import anyio.abc
import pytest
from anyio.streams.buffered import BufferedByteReceiveStream
from structlog.testing import capture_logs

from guildry.errors import PlugError, ToolFailed
from guildry.tools.plugs.board import PlugBoard
from guildry.tools.plugs.options import PlugOptions
from guildry.tools.plugs.plug import PlugLimits
from guildry.tools.registry import Catalog

from .test_mcp_plug import ask, command, is_alive, said

SERVERS = Path(__file__).parent / "servers"
QUICK = PlugLimits(start_s=10, call_s=20, close_s=0.5, backoff_s=0.01, backoff_max_s=0.1)


@asynccontextmanager
async def plugged(
    source: str, options: PlugOptions, limits: PlugLimits = QUICK
) -> AsyncGenerator[Catalog]:
    catalog = Catalog()
    with anyio.fail_after(60):
        async with PlugBoard(catalog, limits=limits) as board:
            await board.plug(source, "up", options=options)
            yield catalog


async def test_no_more_calls_are_in_flight_than_a_server_may_have() -> None:
    found: list[object] = []
    async with plugged(command("busy"), PlugOptions(calls_at_once=2)) as catalog:

        async def call() -> None:
            found.append((await ask(catalog, "pass_by")).structured)

        async with anyio.create_task_group() as calls:
            for _ in range(12):
                calls.start_soon(call)

    assert len(found) == 12
    assert max(each["result"] for each in found) <= 2  # type: ignore[index]


async def test_calls_go_side_by_side_where_nothing_is_said() -> None:
    done: list[object] = []
    async with (
        plugged(command("busy"), PlugOptions()) as catalog,
        anyio.create_task_group() as calls,
    ):

        async def hold() -> None:
            done.append((await ask(catalog, "hold")).structured)

        for _ in range(3):
            calls.start_soon(hold)
        while True:
            result = (await ask(catalog, "pass_by")).structured
            if result == {"result": 4}:
                break
        await ask(catalog, "release")

    assert len(done) == 3


async def test_a_call_whose_turn_does_not_come_says_so_and_was_not_sent() -> None:
    failed: list[str] = []
    options = PlugOptions(calls_at_once=1, call_timeout_s=0.3)
    async with plugged(command("busy"), options) as catalog, anyio.create_task_group() as calls:

        async def hold() -> None:
            with pytest.raises(ToolFailed) as caught:
                await ask(catalog, "hold")
            failed.append(str(caught.value))

        for _ in range(2):
            calls.start_soon(hold)

    first, second = sorted(failed)
    assert "gave no answer within 0.3 s" in first
    assert "waited 0.3 s for its turn, and was not sent: 1 calls are in flight" in second


async def test_the_time_that_a_call_may_take_is_known_with_the_tool() -> None:
    async with plugged(command("busy"), PlugOptions(call_timeout_s=7)) as catalog:
        assert catalog.current.get("hold").timeout_s == 7


async def test_a_hung_server_is_replaced_though_calls_keep_coming() -> None:
    limits = PlugLimits(start_s=0.4, call_s=0.3, close_s=0.2, backoff_s=0.01)
    catalog = Catalog()
    with anyio.fail_after(60):
        async with PlugBoard(
            catalog, limits=PlugLimits(start_s=20, call_s=20, close_s=0.2)
        ) as first:
            await first.plug(command("hang", "call"), "warm")
        async with PlugBoard(catalog, limits=limits) as board:
            while True:
                try:
                    await board.plug(command("hang", "call"), "sleepy")
                    break
                except PlugError:  # this machine is slow at the moment
                    continue
            before = int(said(await ask(catalog, "pid")))

            async with anyio.create_task_group() as calls:

                async def keep_calling() -> None:
                    while is_alive(before):
                        with pytest.raises(ToolFailed):
                            await ask(catalog, "hang")

                for _ in range(3):
                    calls.start_soon(keep_calling)

            assert not is_alive(before)


@pytest.mark.parametrize("kind", ["changes", "logs", "answers", "garbage", "requests"])
async def test_a_server_that_floods_keeps_nobody_from_calling(kind: str) -> None:
    catalog = Catalog()
    with anyio.fail_after(60), capture_logs() as logs:
        async with PlugBoard(catalog, limits=QUICK) as board:
            await board.plug(command("flooding"), "loud")
            await board.plug(command("crash"), "quiet")
            await ask(catalog, kind)
            while not any(entry["event"] == "server_flooded" for entry in logs):
                assert said(await ask(catalog, "pid")).isdigit()

            other = said(await ask(catalog, "pid"))

    assert other.isdigit()
    assert len([entry for entry in logs if entry["log_level"] != "debug"]) < 100


async def test_a_line_without_end_fails_its_own_call_with_the_reason() -> None:
    catalog = Catalog()
    with anyio.fail_after(60):
        async with PlugBoard(catalog, limits=QUICK) as board:
            await board.plug(command("flooding"), "loud")
            await board.plug(command("crash"), "quiet")

            with pytest.raises(ToolFailed, match="it wrote a line of over 64 MiB"):
                await ask(catalog, "giant")
            other = said(await ask(catalog, "pid"))
            again = said(await ask(catalog, "calm"))

    assert other.isdigit()
    assert again.isdigit()


@asynccontextmanager
async def noting_http(answer: bytes) -> AsyncGenerator[tuple[str, list[bytes]]]:
    """Answer every request the same way, and note its head."""
    heads: list[bytes] = []

    async def handle(stream: anyio.abc.SocketStream) -> None:
        async with stream:
            reader = BufferedByteReceiveStream(stream)
            heads.append(await reader.receive_until(b"\r\n\r\n", 65_536))
            await stream.send(answer)

    async with await anyio.create_tcp_listener(local_host="127.0.0.1") as listener:
        port = listener.extra(anyio.abc.SocketAttribute.local_port)
        async with anyio.create_task_group() as serving:
            serving.start_soon(listener.serve, handle)
            yield f"http://127.0.0.1:{port}/mcp", heads
            serving.cancel_scope.cancel()


async def test_headers_reach_the_server_and_no_error_and_no_log() -> None:
    refused = b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    options = PlugOptions(
        headers={"Authorization": "Bearer tok-4711-secret", "X-Team": "blue-team"}
    )
    with anyio.fail_after(30), capture_logs() as logs:
        async with (
            noting_http(refused) as (url, heads),
            PlugBoard(Catalog(), limits=QUICK) as board,
        ):
            with pytest.raises(PlugError) as caught:
                await board.plug(url, "remote", options=options)

    assert heads
    assert all(b"Bearer tok-4711-secret" in head for head in heads)
    assert all(b"blue-team" in head for head in heads)
    assert "tok-4711" not in f"{caught.value}{logs}"


async def test_headers_do_not_follow_a_redirect_to_another_origin() -> None:
    options = PlugOptions(headers={"X-Key": "key-4711-secret"})
    with anyio.fail_after(30):
        async with noting_http(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n") as other:
            where = other[0].encode()
            moved = b"HTTP/1.1 307 Moved\r\ncontent-length: 0\r\nlocation: " + where + b"\r\n\r\n"
            async with (
                noting_http(moved) as (url, heads),
                PlugBoard(Catalog(), limits=QUICK) as board,
            ):
                with pytest.raises(PlugError):
                    await board.plug(url, "remote", options=options)

    assert heads
    assert other[1] == []


@pytest.mark.parametrize(
    ("headers", "reason"),
    [
        ({"X-Key": "key\r\nX-Other: 1"}, "the value of the header `X-Key` cannot be sent"),
        ({"X-Key": "schlüssel"}, "the value of the header `X-Key` cannot be sent"),
        ({"X Key": "key"}, "'X Key' is no name of an HTTP header"),
    ],
)
async def test_a_header_that_cannot_be_sent_is_refused_without_its_value(
    headers: dict[str, str], reason: str
) -> None:
    async with PlugBoard(Catalog(), limits=QUICK) as board:
        with pytest.raises(PlugError) as caught:
            await board.plug("http://127.0.0.1:9/mcp", options=PlugOptions(headers=headers))

    assert reason in caught.value.reason
    assert "key\r" not in str(caught.value)


async def test_the_environment_of_a_server_is_not_told_when_it_fails() -> None:
    words = "import os,sys; sys.stderr.write('bad key ' + os.environ['API_KEY']); sys.exit(1)"
    source = shlex.join([sys.executable, "-c", words])
    options = PlugOptions(env={"API_KEY": "key-4711-secret"})
    with anyio.fail_after(30):
        async with PlugBoard(Catalog(), limits=QUICK) as board:
            with pytest.raises(PlugError) as caught:
                await board.plug(source, "up", options=options)

    assert "bad key [redacted]" in caught.value.reason
    assert "key-4711" not in str(caught.value)
    assert "API_KEY" not in os.environ

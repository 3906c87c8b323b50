"""Send broken messages to a real server: `python tests/fuzz/fuzzer.py --cases 100000 --seed 1`.

Whatever comes, the server answers or closes the connection, goes on serving, and tells no secret.
What is wrong is printed with its seed, and the exit code is 1.
"""

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anyio
from anyio.abc import ByteStream, Process, TaskStatus
from anyio.streams.buffered import BufferedByteReceiveStream
from mutate import broken_bytes, broken_headers, broken_message, members_of

HERE: Final = Path(__file__).parent
WAIT_S: Final = 30.0
TOGETHER: Final = 25
ON_ONE_LINE: Final = 200
MODERN: Final = "2026-07-28"
ENVELOPE: Final[dict[str, Any]] = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
}
SECRETS: Final = re.compile(rb'Traceback|File \\?"|site-packages|\.py\b|pydantic|sqlite3?\.')
GONE: Final = (anyio.EndOfStream, anyio.BrokenResourceError, anyio.IncompleteRead, OSError)

SEEDS: Final = [
    json.loads(line)
    for line in (HERE / "seeds" / "messages.jsonl").read_text(encoding="utf-8").splitlines()
]
KEPT: Final = [
    json.loads(line)
    for line in (HERE / "seeds" / "found.jsonl").read_text(encoding="utf-8").splitlines()
]


class Wrong(Exception):
    """Report that the server did what it must not do."""


@dataclass
class Tally:
    """What has been done and seen."""

    cases: int = 0
    answers: int = 0
    errors: int = 0
    closed: int = 0
    wrong: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Served:
    """A server to be fuzzed."""

    port: int
    control: Path
    secrets: tuple[bytes, ...]


def fitting(message: Any, era: str) -> Any:
    """Return a good message as a connection of an era takes it."""
    if era == "modern" and "params" in message:
        return {**message, "params": {"_meta": ENVELOPE, **message["params"]}}
    return message


def case_of(seed: str, era: str = "any") -> bytes:
    """Return the message of a case, as bytes without a newline."""
    chance = random.Random(seed)
    seeds = [each for each in SEEDS if MODERN not in str(each)] if era == "legacy" else SEEDS
    message = fitting(chance.choice(seeds), era)
    if chance.random() < 0.85:
        try:
            message = broken_message(chance, message) if chance.random() < 0.8 else message
            members = members_of(message)
            if members is not None and type(members.get("id")) in (int, str):
                members["id"] = seed
            return encoded(message)
        except RecursionError:  # deeper than Python itself writes
            return b'{"a":[' * 5_000
    return broken_bytes(chance, encoded(message))


def encoded(message: Any) -> bytes:
    """Return JSON as it goes on the wire, lone surrogates and all."""
    return json.dumps(message, separators=(",", ":")).encode()


def checked(served: Served, text: bytes) -> None:
    """Raise when a text for a client tells what it should not.

    The message was sent by us, so that words of ours may come back; stack traces are not ours.
    """
    if (found := SECRETS.search(text)) or any(secret in text for secret in served.secrets):
        raise Wrong(f"it tells {found[0] if found else 'its folder'!r}: {text[:600]!r}")


def answered(served: Served, line: bytes) -> tuple[Any, bool]:
    """Check one JSON-RPC message from the server; return its id, and whether it is an answer."""
    checked(served, line)
    try:
        message = members_of(json.loads(line))
    except ValueError:
        raise Wrong(f"it wrote what is no JSON: {line[:300]!r}") from None
    if message is None or message.get("jsonrpc") != "2.0":
        raise Wrong(f"it wrote what is no JSON-RPC: {line[:300]!r}")
    if message.get("error", {}).get("code") == -32603:
        raise Wrong(f"it broke inside: {line[:300]!r}")
    return message.get("id"), "method" not in message


class Lines:
    """A connection over lines of JSON."""

    def __init__(self, served: Served, stream: ByteStream, tally: Tally) -> None:
        self._served = served
        self._stream = stream
        self._reader = BufferedByteReceiveStream(stream)
        self._tally = tally
        self._asked: dict[str, bytes] = {}
        self._nameless = 0

    async def send(self, line: bytes) -> None:
        """Send one line; note whether it is a request that wants an answer."""
        with suppress(ValueError, RecursionError):
            message = members_of(json.loads(line))
            if message is not None and message.get("jsonrpc") == "2.0":
                id, method = message.get("id"), message.get("method")
                if isinstance(id, str) and isinstance(method, str):
                    if not {"result", "error"} & message.keys():
                        self._asked[id] = line
        await self._stream.send(line + b"\n")

    async def heard(self, until: str | None) -> None:
        """Read until the answer to `until`, or to everything that was asked, has come."""
        while until in self._asked if until else len(self._asked) > self._nameless:
            line = await self._reader.receive_until(b"\n", 64 * 2**20)
            id, is_answer = answered(self._served, line)
            if is_answer:
                self._tally.answers += 1
                self._tally.errors += b'"error":' in line
                self._asked.pop(id, None) if isinstance(id, str) else None
                self._nameless += id is None
            elif id is not None:
                refused = {"jsonrpc": "2.0", "id": id, "error": {"code": -1, "message": "no"}}
                await self._stream.send(encoded(refused) + b"\n")

    def left(self) -> list[bytes]:
        """Return what was asked and has no answer."""
        return [line for line in self._asked.values() if b"subscriptions/listen" not in line]

    def forgive_subscriptions(self) -> None:
        """A subscription is open until somebody ends it: it wants no answer."""
        for id in [id for id, line in self._asked.items() if b"subscriptions/listen" in line]:
            del self._asked[id]


async def fuzz_line(served: Served, seeds: list[str], tally: Tally) -> None:
    """Send some cases over one connection, in one era or before any handshake."""
    chance = random.Random(f"line {seeds[0]}")
    async with await anyio.connect_unix(str(served.control)) as stream:
        lines = Lines(served, stream, tally)
        era = chance.choice(("legacy",) * 5 + ("modern",) * 4 + ("none",))
        if era == "legacy":
            await lines.send(encoded({**SEEDS[0], "id": "hello"}))
            await lines.heard("hello")
            await lines.send(encoded(SEEDS[1]))
        for number, seed in enumerate(seeds):
            await lines.send(case_of(seed, era))
            tally.cases += 1
            if number % TOGETHER == TOGETHER - 1:
                probe = {"jsonrpc": "2.0", "id": f"probe {seed}", "method": "tools/list"}
                params: dict[str, Any] = {"params": {"_meta": ENVELOPE}} if era == "modern" else {}
                await lines.send(encoded({**probe, **params}))
                await lines.heard(f"probe {seed}")
        lines.forgive_subscriptions()
        try:
            with anyio.fail_after(WAIT_S):
                await lines.heard(None)
        except TimeoutError:
            raise Wrong(f"it never answered {lines.left()[:3]!r}") from None


async def opened_session(served: Served) -> bytes:
    """Open a session of the handshake era over HTTP and return its id."""
    body = encoded(SEEDS[0])
    head = b"\r\n".join([b"POST /mcp HTTP/1.1", *(b": ".join(h) for h in headers_of(served, body))])
    async with await anyio.connect_tcp("127.0.0.1", served.port) as stream:
        await stream.send(head + b"\r\n\r\n" + body)
        with anyio.fail_after(WAIT_S):
            answer = await BufferedByteReceiveStream(stream).receive_until(b"\r\n\r\n", 64 * 1024)
    found = re.search(rb"mcp-session-id: (\S+)", answer, re.IGNORECASE)
    if found is None:
        raise Wrong(f"it opened no session: {answer[:300]!r}")
    return found[1]


async def fuzz_http(served: Served, seed: str, session: bytes, tally: Tally) -> int:
    """Send one case over HTTP, broken in its body, its headers or both; return the status."""
    chance = random.Random(f"http {seed}")
    body = case_of(seed) if chance.random() < 0.6 else encoded(chance.choice(SEEDS))
    headers = headers_of(served, body)
    if MODERN.encode() not in body:
        headers += [(b"mcp-session-id", session), (b"mcp-protocol-version", b"2025-11-25")]
    if chance.random() < 0.4:
        headers = broken_headers(chance, headers)
    method = chance.choice((b"POST",) * 40 + (b"GET", b"DELETE", b"PUT", b"OPTIONS", b"\x00"))
    path = chance.choice((b"/mcp",) * 40 + (b"/", b"/health", b"/ready", b"/mcp/server-card", b"*"))
    head = b"\r\n".join([b"%s %s HTTP/1.1" % (method, path), *(b": ".join(h) for h in headers)])
    async with await anyio.connect_tcp("127.0.0.1", served.port) as stream:
        tally.cases += 1
        with suppress(anyio.BrokenResourceError):
            await stream.send(head + b"\r\n\r\n" + body)
        try:
            return await read_answer(served, stream, tally)
        except GONE:
            tally.closed += 1
            return 0


def headers_of(served: Served, body: bytes) -> list[tuple[bytes, bytes]]:
    """Return the headers that a good client would send with a body."""
    headers = [
        (b"host", b"127.0.0.1:%d" % served.port),
        (b"accept", b"application/json, text/event-stream"),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
    ]
    with suppress(ValueError, RecursionError):
        message = members_of(json.loads(body))
        if MODERN.encode() in body and message is not None:
            params = members_of(message.get("params")) or {}
            about: dict[bytes, Any] = {
                b"mcp-protocol-version": MODERN,
                b"mcp-method": message.get("method"),
            }
            if name := params.get("name", params.get("uri", params.get("taskId"))):
                about[b"mcp-name"] = name
            for key, value in about.items():
                text = str(value).encode("utf-8", "replace")
                headers.append((key, re.sub(rb"[^\x21-\x7e]", b"?", text)[:2_000]))
    return headers


async def read_answer(served: Served, stream: ByteStream, tally: Tally) -> int:
    """Read an answer to its end, or of a stream what comes at once; return its status."""
    reader = BufferedByteReceiveStream(stream)
    try:
        with anyio.fail_after(WAIT_S):
            head = (await reader.receive_until(b"\r\n\r\n", 64 * 1024)).lower()
    except TimeoutError:
        raise Wrong("it neither answered nor closed the connection") from None
    status = int(head[9:12])
    tally.answers += 1
    tally.errors += status >= 400
    if status >= 500 and status not in (501, 503, 505):
        raise Wrong(f"it broke inside: {head[:200]!r}")
    checked(served, head)
    rest = b""
    with anyio.move_on_after(0.2 if b"text/event-stream" in head else WAIT_S):
        if found := re.search(rb"content-length: (\d+)", head):
            rest = await reader.receive_exactly(int(found[1]))
        else:
            with suppress(*GONE):
                while b"\r\n0\r\n\r\n" not in rest:
                    rest += await reader.receive()
    checked(served, rest)
    if b'"code":-32603' in rest.replace(b" ", b""):
        raise Wrong(f"it broke inside: {rest[:300]!r}")
    return status


@asynccontextmanager
async def serving() -> AsyncGenerator[Served]:
    """Start a server in a folder of its own, and end its whole process group afterwards."""
    with tempfile.TemporaryDirectory(prefix="fuzz") as name:
        folder = Path(name)
        shutil.copytree(HERE / "served", folder / "served")
        guildry = str(Path(sys.executable).parent / "guildry")
        process = await anyio.open_process(
            [guildry, "serve", "--home", str(folder / "home"), "--port", "0"],
            cwd=folder / "served",
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        log = Log(process)
        try:
            async with anyio.create_task_group() as tasks:
                with anyio.fail_after(WAIT_S):
                    port = await tasks.start(log.read)
                control = folder / "home" / "servers" / f"{process.pid}.sock"
                yield Served(port, control, (name.encode(),))
                if process.returncode is not None:
                    raise Wrong(f"the server ended with {process.returncode}: {log.last()}")
                tasks.cancel_scope.cancel()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()


class Log:
    """What a server logs: its port, and the crashes that it hides from clients."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._lines: deque[bytes] = deque(maxlen=20)

    async def read(self, *, task_status: TaskStatus[int]) -> None:
        """Read to the end; started with the port once the server listens."""
        stderr = self._process.stderr
        assert stderr is not None
        reader = BufferedByteReceiveStream(stderr)
        with suppress(*GONE):
            while True:
                line = await reader.receive_until(b"\n", 2**24)
                self._lines.append(line[:2_000])
                if b'"http_started"' in line:
                    task_status.started(json.loads(line)["port"])
        raise Wrong(f"the server ended: {self.last()}")

    def last(self) -> str:
        """Return the last lines."""
        return b"\n".join(self._lines).decode(errors="replace")[-3_000:]


def noted(tally: Tally, seed: str, error: Exception) -> None:
    """Keep what went wrong, and print it at once."""
    tally.wrong.append(seed)
    sys.stderr.write(f"case {seed}: {error}\n")


async def fuzz(cases: int, seed: int, tally: Tally) -> None:
    """Send that many cases: kept ones first, then half over lines and half over HTTP."""
    async with serving() as served:
        left = iter(range(cases))
        over_lines = [f"{seed}:{n}" for n in left if n % 2]
        over_http = [*KEPT, *(f"{seed}:{n}" for n in range(0, cases, 2))]
        groups = [
            KEPT,
            *(over_lines[n : n + ON_ONE_LINE] for n in range(0, len(over_lines), ON_ONE_LINE)),
        ]
        waiting = iter(over_http)

        async def by_line() -> None:
            for group in filter(None, groups):
                try:
                    await fuzz_line(served, group, tally)
                except Wrong as error:
                    noted(tally, group[0], error)
                except GONE as error:
                    noted(tally, group[0], Wrong(f"the connection was lost: {error!r}"))

        async def by_http() -> None:
            session = b""
            for one in waiting:
                try:
                    session = session or await opened_session(served)
                    if await fuzz_http(served, one, session, tally) == 404:
                        session = b""  # some case has ended it
                except Wrong as error:
                    noted(tally, one, error)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(by_line)
            for _ in range(4):
                tasks.start_soon(by_http)
        with anyio.fail_after(WAIT_S):
            await fuzz_line(served, [f"last:{seed}"], tally)


def main() -> int:
    """Fuzz as the command line asks; return 1 when anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    tally = Tally()
    try:
        anyio.run(fuzz, options.cases, options.seed, tally)
    except* Wrong as errors:
        for error in errors.exceptions:
            noted(tally, "the server", error)
    sys.stdout.write(
        f"{tally.cases:,} cases: {tally.answers:,} answers ({tally.errors:,} errors),"
        f" {tally.closed:,} closed, {len(tally.wrong):,} wrong\n"
    )
    return 1 if tally.wrong else 0


if __name__ == "__main__":
    sys.exit(main())

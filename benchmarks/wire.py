"""Lean MCP clients on raw asyncio streams, so that the server is what is measured.

They speak both protocol eras: `legacy` opens with `initialize` (2025-11-25), `modern` sends the
2026-07-28 envelope with each request.
"""

import asyncio
import itertools
import json
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final, Literal

from benchmarks.environments import clean_environment

Era = Literal["legacy", "modern"]
Json = dict[str, Any]

LEGACY: Final = "2025-11-25"
MODERN: Final = "2026-07-28"
START_TIMEOUT_S: Final = 60
CALL_TIMEOUT_S: Final = 60
_CLIENT: Final = {"name": "benchmark", "version": "1"}
_ENVELOPE: Final = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": _CLIENT,
}
_MAX_LINE: Final = 64 * 2**20


class WireError(Exception):
    """Report a reply that is no result."""


def request(era: Era, number: int, method: str, params: Json) -> bytes:
    """Return a request as JSON, in the form of its era."""
    if era == "modern":
        params = {**params, "_meta": _ENVELOPE}
    message = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
    return json.dumps(message, separators=(",", ":")).encode()


def opening(era: Era) -> tuple[str, Json]:
    """Return the first request of a client: its method and parameters."""
    if era == "modern":
        return "server/discover", {}
    return "initialize", {"protocolVersion": LEGACY, "capabilities": {}, "clientInfo": _CLIENT}


INITIALIZED: Final = b'{"jsonrpc":"2.0","method":"notifications/initialized"}'


class StdioClient:
    """JSON lines over the pipes of a child process; any number of requests in flight."""

    def __init__(self, process: asyncio.subprocess.Process, era: Era) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self.pid = process.pid
        self.tool_calls = 0
        self._era = era
        self._stdin, self._stdout = process.stdin, process.stdout
        self._numbers = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[Json]] = {}
        self.heard: Callable[[str], None] = lambda method: None
        self.last = 0
        self._reader = asyncio.ensure_future(self._read())

    async def _read(self) -> None:
        error: Exception = WireError("the server closed its stdout")
        try:
            while line := await self._stdout.readline():
                message = json.loads(line)
                if "id" not in message:
                    self.heard(message["method"])
                    continue
                future = self._waiting.pop(message.get("id"), None)
                if future is not None and not future.done():
                    future.set_result(message)
        except (ValueError, OSError) as broken:
            error = WireError(f"the server wrote no JSON line: {broken}")
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()

    async def ask(self, method: str, params: Json, lane: int = 0) -> Json:
        """Send a request and return its result. `lane` is for HTTP."""
        if self._reader.done():
            raise WireError("the server closed its stdout")
        number = self.last = next(self._numbers)
        self.tool_calls += method == "tools/call"
        future = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._stdin.write(request(self._era, number, method, params) + b"\n")
        return _result(await future)

    async def open(self) -> Json:
        """Say hello and return the server's answer."""
        method, params = opening(self._era)
        answer = await self.ask(method, params)
        if self._era == "legacy":
            self._stdin.write(INITIALIZED + b"\n")
        return answer

    def tell(self, method: str, params: Json) -> None:
        """Send a notification."""
        message = {"jsonrpc": "2.0", "method": method, "params": params}
        self._stdin.write(json.dumps(message, separators=(",", ":")).encode() + b"\n")

    async def refresh(self) -> None:
        """Do nothing: pipes stay open."""

    async def close(self) -> None:
        """Close the pipes."""
        self._reader.cancel()
        self._stdin.close()


class HttpClient:
    """Keep-alive HTTP/1.1, one connection a lane, over JSON and event-stream answers alike."""

    def __init__(self, pid: int, port: int, era: Era, lanes: int) -> None:
        self.pid = pid
        self.tool_calls = 0
        self._port = port
        self._era = era
        self._lanes = lanes
        self._numbers = itertools.count(1)
        self._streams: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self._session = b""

    async def refresh(self) -> None:
        """Connect each lane anew, as servers close connections that are idle for seconds."""
        await self.close()
        self._streams = [
            await asyncio.open_connection("127.0.0.1", self._port, limit=_MAX_LINE)
            for _ in range(self._lanes)
        ]

    async def open(self) -> Json:
        """Connect each lane, say hello and return the server's answer."""
        await self.refresh()
        method, params = opening(self._era)
        answer = await self.ask(method, params)
        if self._era == "legacy":
            await self._post(0, INITIALIZED, b"", b"")
        return answer

    async def ask(self, method: str, params: Json, lane: int = 0) -> Json:
        """Send a request on a lane and return its result."""
        number = next(self._numbers)
        self.tool_calls += method == "tools/call"
        name = str(params.get("name", ""))
        body = request(self._era, number, method, params)
        headers, payload = await self._post(lane, body, method.encode(), name.encode())
        if method == "initialize":
            self._session = _header(headers, b"mcp-session-id:")
        return _result(_message(payload, number, event_stream=b"text/event-stream" in headers))

    async def _post(
        self, lane: int, body: bytes, method: bytes, name: bytes
    ) -> tuple[bytes, bytes]:
        reader, writer = self._streams[lane]
        head = [
            b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1:%d\r\n" % self._port,
            b"Accept: application/json, text/event-stream\r\n",
            b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body),
        ]
        if self._era == "modern":
            head.append(
                b"MCP-Protocol-Version: %s\r\nMcp-Method: %s\r\n" % (MODERN.encode(), method)
            )
            if name:
                head.append(b"Mcp-Name: %s\r\n" % name)
        elif method != b"initialize":
            head.append(b"MCP-Protocol-Version: %s\r\n" % LEGACY.encode())
            if self._session:
                head.append(b"Mcp-Session-Id: %s\r\n" % self._session)
        writer.write(b"".join(head) + b"\r\n" + body)
        return await _response(reader)

    async def close(self) -> None:
        """Close the connections."""
        for _, writer in self._streams:
            writer.close()


Client = StdioClient | HttpClient


async def _response(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    headers = (await reader.readuntil(b"\r\n\r\n")).lower()
    status = headers[9:12]
    length = _header(headers, b"content-length:")
    if length:
        payload = await reader.readexactly(int(length))
    elif b"transfer-encoding: chunked" in headers:
        chunks = []
        while size := int((await reader.readline()).split(b";")[0], 16):
            chunks.append((await reader.readexactly(size + 2))[:-2])
        await reader.readline()
        payload = b"".join(chunks)
    else:
        payload = b""
    if not status.startswith(b"2"):
        raise WireError(f"HTTP {status.decode()}: {payload[:500]!r}")
    return headers, payload


def _header(headers: bytes, name: bytes) -> bytes:
    at = headers.find(b"\r\n" + name)
    if at < 0:
        return b""
    start = at + 2 + len(name)
    return headers[start : headers.index(b"\r\n", start)].strip()


def _message(payload: bytes, number: int, *, event_stream: bool) -> Json:
    if not event_stream:
        return dict(json.loads(payload))
    for line in payload.splitlines():
        if line.startswith(b"data:") and len(line) > 6:
            message = json.loads(line[5:])
            if message.get("id") == number:
                return dict(message)
    raise WireError(f"no answer in the event stream: {payload[:500]!r}")


def _result(message: Json) -> Json:
    if "error" in message:
        raise WireError(f"the server answered with an error: {message['error']}")
    result: Json = message["result"]
    return result


async def burst(
    count: int, in_flight: int, call: Callable[[int], Awaitable[None]]
) -> tuple[float, list[float]]:
    """Make `count` calls, `in_flight` at a time; return wall seconds and each latency."""
    left = iter(range(count))
    latencies: list[float] = []

    async def lane(number: int) -> None:
        for _ in left:
            began = time.perf_counter()
            await call(number)
            latencies.append(time.perf_counter() - began)

    began = time.perf_counter()
    async with asyncio.timeout(CALL_TIMEOUT_S):
        await asyncio.gather(*(lane(number) for number in range(in_flight)))
    return time.perf_counter() - began, latencies


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@asynccontextmanager
async def stdio_server(
    command: list[str], cwd: Path, era: Era, *, hello: bool = True
) -> AsyncIterator[StdioClient]:
    """Start a server on pipes and yield a client of it; kill its process group at the end."""
    with (cwd / "stderr.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
            cwd=cwd,
            env=clean_environment(),
            start_new_session=True,
            limit=_MAX_LINE,
        )
    client = StdioClient(process, era)
    try:
        if hello:
            async with asyncio.timeout(START_TIMEOUT_S):
                await client.open()
        yield client
    except (WireError, TimeoutError) as error:
        raise SystemExit(f"`{command}`: {error!r}\n{tail(cwd)}") from error
    finally:
        await client.close()
        kill_group(process.pid)
        await process.wait()


@asynccontextmanager
async def http_server(
    command: list[str], cwd: Path, port: int, era: Era, lanes: int
) -> AsyncIterator[HttpClient]:
    """Start a server on a port and yield a client of it; kill its process group at the end."""
    with (cwd / "stderr.log").open("ab") as log:
        process = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=cwd,
            env=clean_environment(),
            start_new_session=True,
        )
    client = HttpClient(process.pid, port, era, lanes)
    try:
        await listening(port, process)
        async with asyncio.timeout(START_TIMEOUT_S):
            await client.open()
        yield client
    except (WireError, TimeoutError, OSError, asyncio.IncompleteReadError) as error:
        raise SystemExit(f"`{command}`: {error!r}\n{tail(cwd)}") from error
    finally:
        await client.close()
        kill_group(process.pid)
        await process.wait()


async def listening(port: int, process: asyncio.subprocess.Process) -> None:
    """Wait until somebody listens on a port."""
    async with asyncio.timeout(START_TIMEOUT_S):
        while True:
            if process.returncode is not None:
                raise WireError(f"the server ended with {process.returncode}")
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except OSError:
                await asyncio.sleep(0.02)
            else:
                writer.close()
                return


def kill_group(pid: int) -> None:
    """Kill a process that leads its group, and the whole group."""
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def tail(cwd: Path) -> str:
    """Return the end of what the server in `cwd` wrote to stderr."""
    log = cwd / "stderr.log"
    return log.read_text(encoding="utf-8", errors="replace")[-3000:] if log.exists() else ""

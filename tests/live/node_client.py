"""The official clients for Node, in a process of `driver.mjs`."""

import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from subprocess import DEVNULL, PIPE
from typing import Any

import anyio
import anyio.abc
from anyio.streams.memory import MemoryObjectReceiveStream
from connected import LISTENED, Box, CallError, Ongoing, refuse
from serving import NODE, PROGRAMS, WAIT_S, Json, Place, environment, lines_of

__all__ = ["NodeClient", "node_client"]


@dataclass
class NodeCall:
    id: int
    send: Callable[[Json], None]
    words: Box[Json]

    async def progress(self) -> Json:
        word = await self.words.take()
        assert "progress" in word, word
        return dict(word["progress"])

    def cancel(self) -> None:
        self.send({"cancel": self.id})

    async def result(self) -> Json:
        word = await self.words.take(lambda word: "progress" not in word)
        if "error" in word:
            raise CallError(**word["error"])
        return dict(word["result"] or {})


class NodeClient:
    """One of the two clients for Node, in a process of `driver.mjs`."""

    def __init__(self, send: Callable[[Json], None]) -> None:
        self.hello: Json = {}
        self.answer: Callable[[str, Json], Json] = refuse
        self.connected = anyio.Event()
        self._send = send
        self._heard = Box[str]()
        self._calls: dict[int, Box[Json]] = {}

    def begin(self, method: str, params: Json) -> Ongoing:
        id = len(self._calls) + 1
        self._calls[id] = words = Box[Json]()
        self._send({"id": id, "call": method, "params": params})
        return NodeCall(id, self._send, words)

    async def call(self, method: str, params: Json | None = None) -> Json:
        return await self.begin(method, params or {}).result()

    async def listen(self, *uris: str) -> None:
        """Ask for announcements, as a client of the modern era has to, and follow resources."""
        await self.call("listen", {**LISTENED, "resourceSubscriptions": [*uris]})

    async def heard(self, method: str) -> None:
        """Wait for a notification."""
        await self._heard.take(lambda each: each == method)

    def take(self, word: Json) -> None:
        """Take a line of the driver."""
        if "connected" in word:
            self.hello = word
            self.connected.set()
        elif "asked" in word:
            result = self.answer(word["method"], word.get("params") or {})
            self._send({"answer": word["asked"], "result": result})
        elif "heard" in word:
            self._heard.put(word["heard"])
        elif "id" in word:
            self._calls[word["id"]].put(word)


@asynccontextmanager
async def node_client(flavor: str, place: Place, mode: str) -> AsyncGenerator[NodeClient]:
    pinned = mode not in ("legacy", "auto")
    negotiation: Any = {"mode": {"pin": mode} if pinned else mode}
    options = {"versionNegotiation": negotiation} if flavor == "client" else {}
    command, *arguments = [*place.command, "--stdio"]
    child = {
        "command": command,
        "args": arguments,
        "env": environment(),
        "cwd": str(place.folder),
    }
    how = {"options": options, "url": place.url, "command": child}
    process = await anyio.open_process(
        [str(NODE), str(PROGRAMS / "driver.mjs"), flavor, json.dumps(how)],
        stdin=PIPE,
        stdout=PIPE,
        stderr=DEVNULL,
        env=environment(),
    )
    assert process.stdin is not None and process.stdout is not None
    lines, outgoing = anyio.create_memory_object_stream[Json](1000)
    client = NodeClient(lines.send_nowait)
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(_write_lines, outgoing, process.stdin)
        tasks.start_soon(_take_lines, process.stdout, client, ending := anyio.Event())
        try:
            with anyio.fail_after(WAIT_S):
                await client.connected.wait()
            yield client
        finally:
            ending.set()
            lines.close()  # which ends the driver, and that the server
            with anyio.CancelScope(shield=True), anyio.fail_after(WAIT_S):
                await process.wait()
            tasks.cancel_scope.cancel()


async def _write_lines(
    outgoing: MemoryObjectReceiveStream[Json], pipe: anyio.abc.ByteSendStream
) -> None:
    async with pipe, outgoing:
        async for message in outgoing:
            await pipe.send(json.dumps(message).encode() + b"\n")


async def _take_lines(
    pipe: anyio.abc.ByteReceiveStream, client: NodeClient, ending: anyio.Event
) -> None:
    async for line in lines_of(pipe):
        client.take(json.loads(line))
    if not ending.is_set():
        raise RuntimeError("the driver ended: the server did not start, or went away")

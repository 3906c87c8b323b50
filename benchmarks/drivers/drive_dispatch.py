"""Calls of an echo tool, directly and through dispatch, in one process."""

import argparse
import asyncio
import gc
import json
import resource
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from assembled import Parts, assemble

from guildry.tools.base import Call, Tool
from guildry.tools.caller import Caller
from guildry.tools.grants import Grant
from guildry.tools.python.functions import effects, reads, tool_from
from guildry.tools.python.threads import DaemonThreads

TEXT = "a short text"
LONG = "0123456789" * 1024


@reads
async def read_echo(text: str) -> str:
    """Return the text that was given."""
    return text


@effects()
async def write_echo(text: str) -> str:
    """Return the text that was given."""
    return text


@reads
async def length(text: str) -> int:
    """Return the length of a text."""
    return len(text)


async def timed(
    calls: int,
    in_flight: int,
    call: Callable[[], Awaitable[object]],
    flush: Callable[[], Awaitable[None]],
) -> dict[str, float]:
    """Return milliseconds of CPU, of its kernel part and of wall time for each call."""
    left = iter(range(calls))

    async def lane() -> None:
        for _ in left:
            await call()

    gc.collect()
    cpu, wall, kernel = time.process_time(), time.perf_counter(), _kernel_s()
    await asyncio.gather(*(lane() for _ in range(in_flight)))
    await flush()
    return {
        "cpu_ms": (time.process_time() - cpu) / calls * 1e3,
        "kernel_ms": (_kernel_s() - kernel) / calls * 1e3,
        "wall_ms": (time.perf_counter() - wall) / calls * 1e3,
    }


def _kernel_s() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_stime


async def measure(parts: Parts, case: str, calls: int) -> dict[str, Any]:
    """Measure one case."""
    threads = DaemonThreads(4)
    functions = (read_echo, write_echo, length)
    parts.catalog.replace("bench", [tool_from(f, plug="bench", threads=threads) for f in functions])
    grant = Grant.root("local").narrow("r1/1", tools=["read_echo", "write_echo", "length"])
    caller = Caller(grant=grant, run="r1", durable=case.startswith("writes"))
    name, shown, value, expected = "read_echo", TEXT, TEXT, TEXT
    if case.startswith("writes"):
        name = "write_echo"
    elif case == "reference":
        reference = await parts.objects.put(
            LONG.encode(), media_type="text/plain", name="long", namespace="r1", owner="r1/1"
        )
        name, shown, value, expected = "length", reference.short, LONG, str(len(LONG))
    tool: Tool = parts.catalog.current.get(name)

    async def direct() -> None:
        await tool.invoke({"text": value}, Call(tool, caller))

    async def through() -> None:
        result = await parts.dispatch.call(caller, name, {"text": shown})
        if result.is_error or result.text != expected:
            raise SystemExit(f"wrong answer: {result}")

    in_flight = 32 if case.endswith("32") else 1
    await timed(200, 1, direct, _nothing)
    await timed(200, in_flight, through, parts.journal.flush)
    return {
        "direct": await timed(calls, 1, direct, _nothing),
        "through": await timed(calls, in_flight, through, parts.journal.flush),
    }


async def _nothing() -> None:
    """Have nothing to flush."""


async def run(options: argparse.Namespace) -> None:
    """Measure and print."""
    async with assemble(Path(options.folder)) as parts:
        print(json.dumps(await measure(parts, options.case, options.calls)))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", required=True)
    parser.add_argument("--calls", type=int, required=True)
    parser.add_argument("--folder", required=True)
    asyncio.run(run(parser.parse_args()))

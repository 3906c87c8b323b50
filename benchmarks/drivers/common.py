"""What the drivers of all frameworks share: the scenarios, the tools' bodies and the clock.

Runs in the environment of each framework, so it needs the standard library alone.
"""

import argparse
import asyncio
import gc
import http.client
import json
import re
import time
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, Protocol, runtime_checkable
from urllib.parse import urlsplit

INSTRUCTIONS = "Do the task with the tools that you have."
LOOKUP = "Look a value up by its key."
DELEGATE = "Hand a task to a helper and return its answer."
MAKE_TABLE = "Return a table of payments."
COUNT_ROWS = "Count the rows of a table."
SUM_COLUMN = "Add up a column of a table."
TURNS_LIMIT = 50


class Driver(Protocol):
    """A framework, ready to run agents against an endpoint."""

    async def chain(self, task: str) -> str:
        """Run one agent that has `lookup`; return its answer."""
        ...

    async def parent(self, task: str) -> str:
        """Run one agent that has a tool which runs a `chain` agent; return its answer."""
        ...

    async def many(self, tasks: list[str]) -> list[str]:
        """Run many `chain` agents at once; return their answers."""
        ...

    async def table(self, task: str) -> str:
        """Run one agent that has the three table tools; return its answer."""
        ...


Open = Callable[[str, str], AbstractAsyncContextManager[Driver]]


def rows() -> list[dict[str, Any]]:
    """Return 2,000 payments: 198 KB as JSON, amounts adding up to 999,000."""
    return [
        {
            "id": 10000 + i,
            "customer": f"customer-{i:05d}",
            "city": "Aix",
            "amount": i % 1000,
            "note": "paid in full",
        }
        for i in range(2000)
    ]


def make_table_text() -> str:
    """Return the table as JSON."""
    return json.dumps(rows())


def count_rows_of(table: str) -> int:
    """Count the rows of a table given as JSON."""
    return len(json.loads(table))


def sum_column_of(table: str, column: str) -> int:
    """Add up a column of a table given as JSON."""
    return sum(row[column] for row in json.loads(table))


def main(opened: Open) -> None:
    """Run one scenario as the command line asks and print what it took as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--url", required=True)
    parser.add_argument("--scenario", required=True, choices=sorted(SCENARIOS))
    parser.add_argument("--agents", type=int, default=32)
    parser.add_argument("--latency-ms", type=int, default=0)
    parser.add_argument("--folder", default="", help="where a framework may keep its state")
    options = parser.parse_args()
    print(json.dumps(asyncio.run(_scenario(opened, options))))


@runtime_checkable
class Journaled(Driver, Protocol):
    """A framework that keeps a journal."""

    def journaled(self) -> int:
        """Return how many model calls are on the disk."""
        ...


async def _scenario(opened: Open, options: argparse.Namespace) -> dict[str, Any]:
    work = SCENARIOS[options.scenario]
    async with opened(options.url, options.folder) as driver:
        answer = await driver.chain("BENCH:chain:turns=1:ms=0:id=warm")
        if "done warm" not in answer:
            raise SystemExit(f"the first agent answered {answer!r}")
        _ask(options.url, "POST", "/reset")
        journaled = driver.journaled() if isinstance(driver, Journaled) else 0
        gc.collect()
        rss_kb = _memory_kb("VmRSS")
        _forget_peak()
        cpu, wall = time.process_time(), time.perf_counter()
        errors, walls = await work(driver, options)
        wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
        peak_kb = _memory_kb("VmHWM")
        stats = json.loads(_ask(options.url, "GET", "/stats"))
        if isinstance(driver, Journaled) and driver.journaled() - journaled != stats["requests"]:
            stats["faults"].append(f"{driver.journaled() - journaled} turns in the journal")
            stats["fault_count"] += 1
    return {
        "wall_s": wall_s,
        "cpu_s": cpu_s,
        "walls_s": walls,
        "rss_kb": rss_kb,
        "peak_kb": peak_kb,
        "errors": errors + stats["fault_count"],
        "endpoint": stats,
    }


async def _s1(driver: Driver, options: argparse.Namespace) -> tuple[int, list[float]]:
    errors, walls = 0, []
    for number in range(options.agents):
        began = time.perf_counter()
        answer = await _guarded(driver.chain(f"BENCH:chain:turns=10:ms=0:id={number}"))
        walls.append(time.perf_counter() - began)
        errors += f"done {number}" not in answer
    return errors, walls


async def _s2(driver: Driver, options: argparse.Namespace) -> tuple[int, list[float]]:
    count = options.agents
    answer = await _guarded(
        driver.parent(f"BENCH:parent:n={count}:turns=3:ms={options.latency_ms}")
    )
    return int(f"joined {count}" not in answer), []


async def _s3(driver: Driver, options: argparse.Namespace) -> tuple[int, list[float]]:
    count = options.agents
    tasks = [f"BENCH:chain:turns=2:ms={options.latency_ms}:id={i}" for i in range(count)]
    answers = await driver.many(tasks)
    wrong = sum(not re.search(rf"done {i}\b", answer) for i, answer in enumerate(answers))
    return wrong + count - len(answers), []


async def _s4(driver: Driver, options: argparse.Namespace) -> tuple[int, list[float]]:
    answer = await _guarded(driver.table("BENCH:table:ms=0"))
    return int("2000" not in answer or "999000" not in answer), []


SCENARIOS = {"S1": _s1, "S2": _s2, "S3": _s3, "S4": _s4}


async def _guarded(work: Awaitable[str]) -> str:
    try:
        return str(await work)
    except Exception as error:  # an error is a figure here
        return f"error: {error!r}"


async def gather(driver: Driver, tasks: list[str]) -> list[str]:
    """Run many agents at once as plain asyncio tasks; an error is an answer."""
    return list(await asyncio.gather(*(_guarded(driver.chain(task)) for task in tasks)))


def _memory_kb(name: str) -> int:
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1])
    raise LookupError(name)


def _forget_peak() -> None:
    """Set the high-water mark of the resident size to what is resident now."""
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")


def _ask(url: str, method: str, path: str) -> bytes:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    connection.request(method, path)
    payload = connection.getresponse().read()
    connection.close()
    return payload

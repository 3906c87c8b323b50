"""Hot plug: how soon a change is told, and whether calls survive a thousand changes."""

import asyncio
import json
import random
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.environments import HERE, python_of
from benchmarks.machine import usage_of
from benchmarks.report import Outcome, Section, Target, spread
from benchmarks.served import guildry_command, guildry_folder
from benchmarks.wire import (
    Client,
    Era,
    StdioClient,
    WireError,
    free_port,
    http_server,
    stdio_server,
)

SAVED_MS = 100.0
PLUGGED_MS = 300.0
CALLERS = 32
ERAS: tuple[Era, ...] = ("legacy", "modern")
WAIT_S = 20.0
SLOPE_KB = 1.0


class Listener:
    """Wait for the next announcement of a client."""

    def __init__(self) -> None:
        self._heard: asyncio.Queue[float] = asyncio.Queue()

    def __call__(self, method: str) -> None:
        """Take the method of a notification."""
        if method == "notifications/tools/list_changed":
            self._heard.put_nowait(time.perf_counter())

    async def next(self) -> float:
        """Wait for the next that was not waited for yet; return when it came."""
        async with asyncio.timeout(WAIT_S):
            return await self._heard.get()

    async def until(self, client: Client, tool: str, *, there: bool = True) -> float:
        """Wait for the announcement after which `tool` is listed, or is not; return its time."""
        while True:
            came = await self.next()
            listed = (await client.ask("tools/list", {}))["tools"]
            if any(each["name"] == tool for each in listed) is there:
                return came


@asynccontextmanager
async def listening(cwd: Path, era: Era) -> AsyncIterator[tuple[StdioClient, Listener]]:
    """Serve from `cwd` on stdio; yield a client that hears of changes."""
    listener = Listener()
    async with stdio_server(guildry_command("stdio", 0, cwd), cwd, era) as client:
        client.heard = listener
        await plugs_of(client)
        subscription = None
        if era == "modern":
            wanted = {"notifications": {"toolsListChanged": True}}
            subscription = asyncio.ensure_future(client.ask("subscriptions/listen", wanted))
        await asyncio.sleep(0.5)
        try:
            yield client, listener
        finally:
            if subscription is not None:
                subscription.cancel()


async def plugs_of(client: Client) -> list[dict[str, Any]]:
    """Wait until every plug is served or has failed; return them."""
    while True:
        plugs: list[dict[str, Any]] = (await told(client, "list_plugs"))["plugs"]
        if all(plug["state"] != "starting" for plug in plugs):
            return plugs
        await asyncio.sleep(0.05)


async def told(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool and return its structured answer."""
    result = await client.ask("tools/call", {"name": tool, "arguments": arguments})
    if result.get("isError"):
        raise RuntimeError(f"`{tool}`: {result['content']}")
    answer: dict[str, Any] = result["structuredContent"]
    return answer


async def saves(folder: Path, era: Era, count: int) -> list[float]:
    """Save a file again and again; return the ms until the connected client was told."""
    cwd = folder / f"saves-{era}"
    cwd.mkdir()
    guildry_folder(cwd, "echo.py")
    took: list[float] = []
    async with listening(cwd, era) as (client, listener):
        source = (cwd / "echo.py").read_text(encoding="utf-8")
        for n in range(count):
            added = f"\n\n@reads\nasync def added_{n}() -> int:\n    return {n}\n"
            began = time.perf_counter()
            (cwd / "echo.py").write_text(source + added, encoding="utf-8")
            took.append((await listener.until(client, f"added_{n}") - began) * 1e3)
            await asyncio.sleep(random.uniform(0.05, 0.25))
    return took


async def urls(folder: Path, count: int) -> list[float]:
    """Plug a running HTTP server again and again; return the ms until it was told and callable."""
    cwd = folder / "urls"
    cwd.mkdir()
    (cwd / "guildry.toml").write_text("", encoding="utf-8")
    port = free_port()
    bare = [python_of("bare"), str(HERE / "servers" / "bare.py"), "http", str(port)]
    took: list[float] = []
    async with (
        http_server(bare, folder, port, "legacy", 1),
        listening(cwd, "legacy") as (client, listener),
    ):
        for _ in range(count):
            began = time.perf_counter()
            plugging = asyncio.ensure_future(
                told(client, "plug", source=f"http://127.0.0.1:{port}/mcp", name="far")
            )
            report = await plugging
            answered = time.perf_counter()
            name = report["tools"][0]
            told_at = await listener.until(client, name)
            took.append((max(told_at, answered) - began) * 1e3)
            await client.ask("tools/call", {"name": name, "arguments": {"text": "hello"}})
            await told(client, "unplug", name="far")
            await listener.until(client, name, there=False)
    return took


@dataclass
class Churn:
    """What callers saw while plugs came and went.

    Args:
        live: versions that may answer at this moment.
        calls: answered calls, refusals included.
        gone: calls that were refused because nothing of that name was plugged.
        wrong: answers of a version that was not there between the call and its answer.
        lost: calls that failed in any other way.
    """

    live: set[int] = field(default_factory=set)
    seen: list[set[int]] = field(default_factory=list)
    calls: int = 0
    gone: int = 0
    wrong: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)

    def begin(self, version: int) -> None:
        """Let a version answer from now on, in calls that are in flight too."""
        self.live.add(version)
        for each in self.seen:
            each.add(version)


async def caller(client: Client, churn: Churn, over: asyncio.Event) -> None:
    """Call the tool all the time, and check what answers."""
    while not over.is_set():
        possible = set(churn.live)
        churn.seen.append(possible)
        arguments = {"wait_s": random.choice((0.0, 0.0, 0.005, 0.02))}
        try:
            result = await client.ask("tools/call", {"name": "version", "arguments": arguments})
        except WireError as error:
            churn.gone += "no tool" in str(error) or "nknown tool" in str(error)
            if not ("no tool" in str(error) or "nknown tool" in str(error)):
                churn.lost.append(str(error))
            continue
        finally:
            churn.seen = [each for each in churn.seen if each is not possible]
            churn.calls += 1
        text = result["content"][0]["text"]
        if result.get("isError"):
            (churn.lost if "unplugged" not in text else []).append(text)
            churn.gone += "unplugged" in text
        elif json.loads(text) not in possible:
            churn.wrong.append(f"{text} answered, of {sorted(possible)}")


def write(cwd: Path, version: int) -> Path:
    """Write one version of the plug and return its file."""
    file = cwd / f"versioned_{version}.py"
    source = (HERE / "plugs" / "versioned.py").read_text(encoding="utf-8")
    file.write_text(source.replace("VERSION  # noqa", f"{version}  # noqa"), encoding="utf-8")
    return file


async def churned(folder: Path, cycles: int) -> tuple[Churn, list[tuple[int, float]], list[float]]:
    """Plug and unplug under callers; return what they saw, memory along the way, and ms a cycle."""
    cwd = folder / "churn"
    cwd.mkdir()
    (cwd / "guildry.toml").write_text('log_level = "warning"\n', encoding="utf-8")
    churn, over = Churn(), asyncio.Event()
    samples: list[tuple[int, float]] = []
    took: list[float] = []
    async with stdio_server(guildry_command("stdio", 0, cwd), cwd, "modern") as client:
        callers = [asyncio.ensure_future(caller(client, churn, over)) for _ in range(CALLERS)]
        for version in range(cycles):
            file = write(cwd, version)
            began = time.perf_counter()
            churn.begin(version)
            await told(client, "plug", source=str(file), name="versioned")
            await asyncio.sleep(0.01)
            await told(client, "unplug", name="versioned")
            churn.live.discard(version)
            took.append((time.perf_counter() - began) * 1e3)
            file.unlink()
            if version % 20 == 19:
                samples.append((version + 1, usage_of(client.pid).rss_mb))
        over.set()
        await asyncio.gather(*callers)
    return churn, samples, took


async def swapped(folder: Path, cycles: int) -> tuple[Churn, list[float]]:
    """Put a new version in the place of the old under callers; nothing may be refused."""
    cwd = folder / "swap"
    cwd.mkdir()
    (cwd / "guildry.toml").write_text('log_level = "warning"\n', encoding="utf-8")
    churn, over = Churn(), asyncio.Event()
    took: list[float] = []
    async with stdio_server(guildry_command("stdio", 0, cwd), cwd, "modern") as client:
        churn.begin(0)
        await told(client, "plug", source=str(write(cwd, 0)), name="versioned")
        callers = [asyncio.ensure_future(caller(client, churn, over)) for _ in range(CALLERS)]
        for version in range(1, cycles + 1):
            file = write(cwd, version)
            began = time.perf_counter()
            churn.begin(version)
            await told(client, "plug", source=str(file), name="versioned", replace=True)
            churn.live.discard(version - 1)
            took.append((time.perf_counter() - began) * 1e3)
        over.set()
        await asyncio.gather(*callers)
    return churn, took


def p95(values: list[float]) -> float:
    """Return the 95th percentile."""
    return statistics.quantiles(values, n=20, method="inclusive")[-1]


async def announced(outcome: Outcome, folder: Path, count: int) -> Section:
    """Measure how soon changes are told."""
    times = Section("How soon", ["what", "ms: median (min..max)", "p95"])
    for era in ERAS:
        print(f"hotplug: saves, {era}", file=sys.stderr, flush=True)
        took = await saves(folder, era, count)
        what = f"file saved to list_changed, {era}"
        times.rows.append([what, spread(took, 1), f"{p95(took):.1f}"])
        outcome.targets.append(Target(f"{what}, p95", SAVED_MS, p95(took), "ms"))
    print("hotplug: a running HTTP server", file=sys.stderr, flush=True)
    took = await urls(folder, max(count // 5, 10))
    what = "`plug` of a running HTTP server"
    times.rows.append([what, spread(took, 1), f"{p95(took):.1f}"])
    times.rows.append(["the first of them in a process", f"{took[0]:.1f}", "-"])
    outcome.targets.append(Target(f"{what}, p95", PLUGGED_MS, p95(took), "ms"))
    return times


async def run(only: set[str], *, quick: bool) -> Outcome:
    """Measure announcements, plugging by URL, and a thousand changes under load."""
    count, cycles = (20, 100) if quick else (200, 1_000)
    outcome = Outcome("hotplug", "Plugs that come and go", quick=quick)
    header = ["changes", "calls", "refused", "lost", "wrong", "ms a change"]
    seen = Section("What callers saw", header)
    with tempfile.TemporaryDirectory(prefix="hotplug") as name:
        folder = Path(name)
        times = await announced(outcome, folder, count)
        print("hotplug: plugged and unplugged under callers", file=sys.stderr, flush=True)
        churn, samples, took = await churned(folder, cycles)
        print("hotplug: swapped under callers", file=sys.stderr, flush=True)
        swap, swap_took = await swapped(folder, cycles)
    half = samples[len(samples) // 2 :]
    rising = statistics.linear_regression([n for n, _ in half], [mb * 1e3 for _, mb in half]).slope
    for kind, each, ms in (("plug and unplug", churn, took), ("swap", swap, swap_took)):
        counts = (each.calls, each.gone, len(each.lost), len(each.wrong))
        row = [f"{cycles:,} x {kind}", *(f"{count:,}" for count in counts), spread(ms, 1)]
        seen.rows.append(row)
        seen.notes += [*each.lost[:3], *each.wrong[:3]]
        outcome.targets += [
            Target(f"calls lost in {cycles:,} x {kind}", 0, len(each.lost)),
            Target(f"answers of a wrong version in {cycles:,} x {kind}", 0, len(each.wrong)),
        ]
    outcome.targets += [
        Target(f"calls refused in {cycles:,} x swap", 0, swap.gone),
        Target("memory for each plug and unplug", SLOPE_KB, rising, "KB"),
    ]
    outcome.sections += [times, seen]
    outcome.method = [
        "Saves: a function is added to a watched Python file; the time runs from before the write"
        " to the announcement at a connected stdio client of each era.",
        "URL: a bare `mcp` HTTP server runs; the time runs from the call of `plug` to both its"
        " answer and the announcement. The plugged tool is called, then unplugged.",
        f"Under callers: {CALLERS} calls of the plugged tool are always in flight, some for 20 ms."
        " A refusal because nothing is plugged at that moment is right in the first kind, and"
        " wrong in the second. A call is answered by the wrong version when that version was not"
        " there at any time between the call and its answer. Memory: the line through the second"
        " half.",
    ]
    return outcome

"""A long life: many calls, many clients that vanish; memory stays flat and nothing is left."""

import asyncio
import os
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.machine import usage_of
from benchmarks.report import Outcome, Section, Target
from benchmarks.served import guildry_command, guildry_folder, journaled
from benchmarks.vanishing import WAYS, Door, counted
from benchmarks.wire import Client, Era, burst, free_port, http_server, stdio_server

SLOPE_KB = 1.0
IDLE_S = 10
SESSIONS = 100
SETTLE_S = 60.0
AT_ONCE = 8


@dataclass(frozen=True)
class Plan:
    """How much is done: calls on each transport and era, clients in all, and those before them."""

    calls: int
    clients: int
    before: int


@dataclass(frozen=True)
class Held:
    """What a server process holds."""

    files: int
    threads: int
    children: int
    tasks: int

    def row(self, when: str) -> list[str]:
        """Return the counts as a row."""
        return [when, str(self.files), str(self.threads), str(self.children), str(self.tasks)]


async def held(pid: int, door: Door) -> Held:
    """Count what a server process holds: descriptors, threads, children and tasks."""
    proc = Path(f"/proc/{pid}")
    inside = await counted(door)
    children = (proc / "task" / str(pid) / "children").read_text(encoding="ascii").split()
    threads = len(os.listdir(proc / "task"))
    return Held(len(os.listdir(proc / "fd")), threads, len(children), inside["tasks"])


def slope(samples: list[tuple[int, float]]) -> float:
    """Return the KB of memory by which each hundred clients (or calls) raise the line through."""
    xs, ys = [n / 100 for n, _ in samples], [mb * 1e3 for _, mb in samples]
    return statistics.linear_regression(xs, ys).slope


async def calling(client: Client, count: int, in_flight: int = AT_ONCE) -> list[tuple[int, float]]:
    """Make calls as one client; return the memory along the way."""
    samples: list[tuple[int, float]] = []
    step = max(count // 50, 1)

    async def call(lane: int) -> None:
        await client.ask("tools/call", {"name": "echo", "arguments": {"text": "hello"}}, lane)

    for done in range(step, count + 1, step):
        await client.refresh()
        await burst(step, in_flight, call)
        samples.append((done, usage_of(client.pid).rss_mb))
    return samples


async def calls(transport: str, era: Era, plan: Plan, folder: Path) -> list[tuple[int, float]]:
    """Serve one client for a long time."""
    cwd = folder / f"{transport}-{era}"
    cwd.mkdir()
    guildry_folder(cwd, "echo.py")
    port = free_port()
    command = guildry_command(transport, port, cwd)
    if transport == "stdio":
        async with stdio_server(command, cwd, era) as client:
            await calling(client, plan.before * 2)
            samples = await calling(client, plan.calls)
            await journaled(cwd, client.tool_calls)
        return samples
    async with http_server(command, cwd, port, era, AT_ONCE) as served:
        await calling(served, plan.before * 2)
        samples = await calling(served, plan.calls)
        await journaled(cwd, served.tool_calls)
    return samples


async def vanishing(plan: Plan, folder: Path) -> tuple[list[tuple[int, float]], Held, Held, float]:
    """Let clients come and vanish; return memory along the way, and what is held before, after."""
    cwd = folder / "vanishing"
    cwd.mkdir()
    guildry_folder(cwd, "echo.py", "inside.py")
    with (cwd / "guildry.toml").open("a", encoding="utf-8") as file:
        file.write(f"[http]\nsession_idle_s = {IDLE_S}\nmax_sessions = {SESSIONS}\n")
    port = free_port()
    async with http_server(guildry_command("http", port, cwd), cwd, port, "modern", 1) as client:
        door = Door(port, cwd / "home" / "servers" / f"{client.pid}.sock")
        await come_and_go(door, 10 * len(WAYS))
        await settle(client.pid, door, None)
        start = await held(client.pid, door)
        await calling(client, plan.before * 3, in_flight=1)
        await come_and_go(door, plan.before)
        samples: list[tuple[int, float]] = []
        for done in range(100, plan.clients + 1, 100):
            await come_and_go(door, 100)
            samples.append((done, usage_of(client.pid).rss_mb))
        began = time.perf_counter()
        end = await settle(client.pid, door, start)
        return samples, start, end, time.perf_counter() - began


async def come_and_go(door: Door, count: int) -> None:
    """Let some clients vanish in each of the ways, a few at a time."""
    left = iter(range(count))

    async def lane() -> None:
        for number in left:
            await WAYS[number % len(WAYS)](door)

    await asyncio.gather(*(lane() for _ in range(AT_ONCE)))


async def settle(pid: int, door: Door, start: Held | None) -> Held:
    """Wait until no more is held than at the start, or for a while; return what is held then."""
    until = time.perf_counter() + SETTLE_S
    while True:
        now = await held(pid, door)
        if start is None:
            await asyncio.sleep(2)
            return await held(pid, door)
        over = (now.files > start.files, now.children > start.children, now.tasks > start.tasks)
        if not any(over) or time.perf_counter() > until:
            return now
        await asyncio.sleep(0.2)


async def run(only: set[str], *, quick: bool) -> Outcome:
    """Measure calls on each transport and era, then clients that vanish."""
    plan = Plan(2_500, 700, 350) if quick else Plan(25_000, 10_500, 21_000)
    outcome = Outcome("soak", "A long life of a server", quick=quick)
    memory = Section("Memory", ["what", "first MB", "last MB", "KB for each 100"])
    with tempfile.TemporaryDirectory(prefix="soak") as name:
        folder = Path(name)
        for transport in ("stdio", "http"):
            for era in ("legacy", "modern"):
                print(f"soak: {transport}, {era}", file=sys.stderr, flush=True)
                samples = await calls(transport, era, plan, folder)
                rising = slope(samples)
                what = f"{plan.calls:,} calls, {transport}, {era}"
                memory.rows.append(
                    [what, f"{samples[0][1]:.1f}", f"{samples[-1][1]:.1f}", f"{rising:.3f}"]
                )
                outcome.targets.append(
                    Target(f"memory for each 100 of {what}", SLOPE_KB, rising, "KB")
                )
        print("soak: clients that vanish", file=sys.stderr, flush=True)
        samples, start, end, waited_s = await vanishing(plan, folder)
    rising = slope(samples)
    what = f"{plan.clients:,} clients that vanish"
    memory.rows.append([what, f"{samples[0][1]:.1f}", f"{samples[-1][1]:.1f}", f"{rising:.3f}"])
    outcome.targets.append(Target(f"memory for each 100 of {what}", SLOPE_KB, rising, "KB"))
    for name in ("files", "children", "tasks"):
        more = float(getattr(end, name) - getattr(start, name))
        outcome.targets.append(Target(f"{name} left behind by {what}", 0, more))
    left = Section("What is held", ["when", "files", "threads", "children", "tasks"])
    left.rows += [start.row("before"), end.row(f"after, {waited_s:.1f} s later")]
    outcome.sections += [memory, left]
    outcome.method = [
        f"Calls: {AT_ONCE} in flight at all times; {2 * plan.before:,} come first, so that the"
        " database's pages that are kept in memory are full, then memory is read fifty times. The"
        " journal is read afterwards and has every call.",
        f"A session of the handshake era ends after {IDLE_S} s without a request, and the one"
        f" unused for longest makes room when there are {SESSIONS} (settings; by default 1,800 s"
        " and 1,000).",
        f"Clients: {AT_ONCE} at a time, in turn in {len(WAYS)} ways: "
        + "; ".join((way.__doc__ or "").rstrip(".").lower() for way in WAYS)
        + f". {3 * plan.before:,} calls and {plan.before:,} such clients come first, so that what"
        " is kept up to a bound (the database's pages, idle sessions) is full; the line is fitted"
        " through all after them.",
        "Tasks are counted inside the process, by a tool.",
    ]
    return outcome

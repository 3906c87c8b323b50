"""Ending: how soon the processes of a cancelled call are dead, and those of a killed Guildry."""

import asyncio
import os
import random
import select
import shutil
import signal
import statistics
import sys
import tempfile
import time
import uuid
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from benchmarks.environments import HERE
from benchmarks.report import Outcome, Section, Target, spread
from benchmarks.served import guildry_command
from benchmarks.wire import StdioClient, stdio_server

CANCEL_S: Final = 1.0
KILLED_S: Final = 2.0
SERVERS: Final = 20
KINDS: Final = ("alone", "child", "session", "daemon")
WAIT_S: Final = 60.0
_SCRIPT: Final = (
    "(trap '' TERM; setsid sleep {0})& setsid sh -c 'sleep {0}& sleep {0}'& sleep {0}& sleep {0}"
)
_SLEEPS: Final = 5


@dataclass
class Killed:
    """What came of killing Guildry again and again."""

    took: list[float] = field(default_factory=list)
    processes: list[int] = field(default_factory=list)
    alive: list[int] = field(default_factory=list)

    @property
    def clean(self) -> int:
        """In how many rounds nothing lived on."""
        return sum(not each for each in self.alive)


def marked(mark: str) -> dict[int, str]:
    """Return the processes, zombies aside, whose command line has a mark."""
    found: dict[int, str] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            with suppress(OSError):
                line = Path(f"/proc/{entry}/cmdline").read_bytes()
                if mark.encode() in line:
                    found[int(entry)] = line.replace(b"\0", b" ").decode(errors="replace")
    return found


def until_dead(descriptors: list[int], began: float, limit_s: float) -> tuple[float, int]:
    """Wait for the end of processes; return when the last died, and how many outlived the limit."""
    alive = 0
    for each in descriptors:
        poll = select.poll()
        poll.register(each, select.POLLIN)
        left_s = max(0.0, began + limit_s - time.perf_counter())
        alive += not poll.poll(left_s * 1000)
    took = time.perf_counter() - began
    for each in descriptors:
        os.close(each)
    return took, alive


def opened(pids: list[int]) -> list[int]:
    """Return descriptors of processes that have not ended yet."""
    found = []
    for pid in pids:
        with suppress(ProcessLookupError):
            found.append(os.pidfd_open(pid))
    return found


async def cancelled(cwd: Path, sandbox: str, count: int) -> list[float]:
    """Cancel calls that have started processes; return the seconds until the last was dead."""
    _settings(cwd, ["shell = true", f'sandbox = "{sandbox}"', 'ask_destructive = "never"'])
    async with stdio_server(guildry_command("stdio", 0, cwd), cwd, "legacy") as client:
        return [await _cancelled_once(client) for _ in range(count)]


def _settings(cwd: Path, lines: list[str]) -> None:
    cwd.mkdir()
    (cwd / "guildry.toml").write_text("\n".join(lines), encoding="utf-8")


async def _cancelled_once(client: StdioClient) -> float:
    mark = f"{random.randrange(10**6, 10**7)}.{random.randrange(10**8, 10**9)}"
    arguments = {"command": _SCRIPT.format(mark), "timeout_s": 600}
    call = asyncio.ensure_future(
        client.ask("tools/call", {"name": "run_shell", "arguments": arguments})
    )
    async with asyncio.timeout(WAIT_S):
        while True:
            found = await asyncio.to_thread(marked, mark)
            if sum(line.startswith("sleep") for line in found.values()) >= _SLEEPS:
                break
            if call.done():
                raise RuntimeError(f"the command ended: {call.result()}")
            await asyncio.sleep(0.01)
    descriptors = opened(list(found))
    began = time.perf_counter()
    client.tell("notifications/cancelled", {"requestId": client.last})
    took, alive = await asyncio.to_thread(until_dead, descriptors, began, WAIT_S)
    call.cancel()
    if alive or marked(mark):
        raise RuntimeError(f"processes of a cancelled call are alive: {marked(mark)}")
    return took


def _twenty_servers(cwd: Path, mark: str) -> None:
    """Write the settings of servers of every kind, every fifth of them in a sandbox."""
    script = HERE / "servers" / "branching.py"
    lines = ["inline_tokens = 100_000"]
    for n in range(SERVERS):
        kind = KINDS[n % len(KINDS)]
        command = f"{sys.executable} -I -S {script} {mark} {kind}"
        lines += [f"[plugs.s{n}]", f'source = "{command}"', "lazy = false"]
        if n % 5 == 4:
            lines += [f"[plugs.s{n}.sandbox]", "memory_mb = 512"]
    _settings(cwd, lines)


async def killed(folder: Path, count: int, *, halfway: bool) -> Killed:
    """Kill Guildry with its servers at work, or while it starts them; see what lives on."""
    found = Killed()
    for n in range(count):
        mark = f"mark-{uuid.uuid4().hex}"
        cwd = folder / f"{'halfway' if halfway else 'ready'}-{n}"
        _twenty_servers(cwd, mark)
        try:
            await _killed_once(cwd, mark, found, halfway=halfway)
        finally:
            for pid in marked(mark):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shutil.rmtree(cwd)
    return found


async def _killed_once(cwd: Path, mark: str, found: Killed, *, halfway: bool) -> None:
    async with stdio_server(guildry_command("stdio", 0, cwd), cwd, "legacy") as client:
        if halfway:
            await asyncio.sleep(random.uniform(0.0, 2.0))
        else:
            await _all_ready(client)
        pids = await asyncio.to_thread(marked, mark)
        if not halfway and len(pids) < SERVERS:
            raise RuntimeError(f"only {len(pids)} processes of {SERVERS} servers are there")
        descriptors = opened(list(pids))
        began = time.perf_counter()
        os.kill(client.pid, signal.SIGKILL)
        took, _ = await asyncio.to_thread(until_dead, descriptors, began, KILLED_S)
        while halfway and marked(mark) and time.perf_counter() < began + KILLED_S:
            await asyncio.sleep(0.02)  # what was just being started
            took = time.perf_counter() - began
        await asyncio.sleep(max(0.0, began + KILLED_S - time.perf_counter()))
        found.took.append(took)
        found.processes.append(len(pids))
        found.alive.append(len(marked(mark)))


async def _all_ready(client: StdioClient) -> None:
    async with asyncio.timeout(WAIT_S):
        while True:
            answer = await client.ask("tools/call", {"name": "list_plugs", "arguments": {}})
            states = [each["state"] for each in answer["structuredContent"]["plugs"]]
            if "failed" in states:
                raise RuntimeError(f"a server failed: {answer['structuredContent']}")
            if len(states) >= SERVERS and set(states) == {"ready"}:
                return
            await asyncio.sleep(0.05)


def _p99(values: list[float]) -> float:
    return statistics.quantiles(values, n=100, method="inclusive")[98]


async def run(only: set[str], *, quick: bool = False) -> Outcome:
    """Measure; `only` has no meaning here, as nobody else is measured."""
    cancels, kills, halves = (10, 3, 3) if quick else (200, 100, 50)
    outcome = Outcome("ending", "Ending: nothing is left of what was started", quick=quick)
    with tempfile.TemporaryDirectory(prefix="guildry-ending-") as folder:
        calls = {
            policy: await cancelled(Path(folder) / policy, policy, cancels)
            for policy in ("auto", "off")
        }
        ready = await killed(Path(folder), kills, halfway=False)
        half = await killed(Path(folder), halves, halfway=True)
    for policy, took in calls.items():
        name = "in a sandbox" if policy == "auto" else "without a sandbox"
        what = f"cancel of a call to its last process dead, {name}, p99"
        outcome.targets.append(Target(what, CANCEL_S, _p99(took), "s"))
    what = f"rounds of {kills} in which nothing lived {KILLED_S:g} s after a SIGKILL"
    outcome.targets.append(Target(what, kills, ready.clean, at_least=True))
    what = f"the same while the servers are being started, of {halves}"
    outcome.targets.append(Target(what, halves, half.clean, at_least=True))
    outcome.sections.append(_section(calls, ready, half))
    outcome.method += [
        f"A call is `run_shell` with {_SLEEPS} processes: in its group, in sessions of their own,"
        " deaf to SIGTERM. It is cancelled by `notifications/cancelled` on stdio; the clock stops"
        " when the last process with its mark is dead, supervisor and sandbox included (pidfd).",
        f"{SERVERS} stdio servers, a quarter each: alone, with a child, with a child in its own"
        " session, with a daemon (forked twice); the left ones ignore SIGTERM; a fifth is in a"
        " sandbox. Guildry alone gets SIGKILL, and processes with the mark are counted after"
        f" {KILLED_S:g} s. Halfway: at a random moment of the first 2 s.",
    ]
    return outcome


def _section(calls: dict[str, list[float]], ready: Killed, half: Killed) -> Section:
    rows = [
        [f"cancel, `sandbox = {policy}`", str(len(took)), "-", spread([t * 1e3 for t in took], 0)]
        for policy, took in calls.items()
    ]
    for name, each in (("SIGKILL, servers ready", ready), ("SIGKILL, halfway", half)):
        count = spread([float(n) for n in each.processes], 0)
        rows.append([name, str(len(each.took)), count, spread([t * 1e3 for t in each.took], 0)])
    header = ["what", "rounds", "processes", "ms to the last one's death: median (min..max)"]
    return Section("Times", header, rows)

"""Spawn to first reply on stdio: Guildry beside a bare SDK server and fastmcp."""

import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.calls import NAMES, command_of, prepare
from benchmarks.environments import python_of
from benchmarks.machine import usage_of
from benchmarks.report import Outcome, Section, Target, median, spread
from benchmarks.wire import Era, WireError, opening, stdio_server

SERVERS = ("bare", "fastmcp", "guildry")


@dataclass
class Series:
    """What was measured of one server: from its spawn, in milliseconds."""

    reply_ms: list[float] = field(default_factory=list)
    call_ms: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    rss_mb: list[float] = field(default_factory=list)


async def once(command: list[str], cwd: Path, era: Era, into: Series) -> None:
    """Start a server, wait for its first reply, then for its first tool result, and end it."""
    began = time.perf_counter()
    async with stdio_server(command, cwd, era, hello=False) as client:
        await client.ask(*opening(era)) if era == "modern" else await client.open()
        into.reply_ms.append((time.perf_counter() - began) * 1e3)
        listed = await client.ask("tools/list", {})
        if not any(tool["name"] == "echo" for tool in listed["tools"]):
            raise WireError(f"no `echo` in the list: {listed}")
        result = await client.ask("tools/call", {"name": "echo", "arguments": {"text": "hello"}})
        if result["content"][0]["text"] != "hello":
            raise WireError(f"not the echo: {result}")
        into.call_ms.append((time.perf_counter() - began) * 1e3)
        usage = usage_of(client.pid)
        into.cpu_ms.append(usage.cpu_s * 1e3)
        into.rss_mb.append(usage.rss_mb)


async def measure(names: list[str], era: Era, rounds: int) -> dict[str, Series]:
    """Start each server once a round, in random order."""
    series = {name: Series() for name in names}
    with tempfile.TemporaryDirectory(prefix="startup") as folder:
        cwds = {name: prepare(name, Path(folder)) for name in names}
        for number in range(rounds + 1):
            for name in random.sample(names, len(names)):
                # The first round fills the caches of the disk and of compiled modules.
                into = series[name] if number else Series()
                command = command_of(name, "stdio", 0, cwds[name])
                await once(command, cwds[name], era, into)
    return series


async def run(only: set[str], *, quick: bool) -> Outcome:
    """Measure both eras."""
    rounds = 3 if quick else 12
    names = [name for name in SERVERS if name in only]
    for name in names:
        python_of(name)
    outcome = Outcome("startup", "Spawn to first reply on stdio", quick=quick)
    header = ["server", "first reply ms", "vs bare", "first tool result ms", "CPU ms", "RSS MB"]
    for era in ("legacy", "modern"):
        print(f"startup: {era}", file=sys.stderr, flush=True)
        series = await measure(names, era, rounds)
        section = Section(era, header)
        bare = median(series["bare"].reply_ms) if "bare" in series else None
        for name, one in series.items():
            mine = median(one.reply_ms)
            ratio = mine / bare if mine and bare else None
            versus = "-" if ratio is None else f"{ratio:.2f}"
            row = [NAMES[name], spread(one.reply_ms, 0), versus, spread(one.call_ms, 0)]
            section.rows.append([*row, spread(one.cpu_ms, 0), spread(one.rss_mb, 0)])
            if name == "guildry":
                what = f"spawn to first reply vs bare: {era}"
                outcome.targets.append(Target(what, 1.3, ratio, "x"))
        outcome.sections.append(section)
    outcome.method = [
        f"{rounds} starts of each server, interleaved in random order after one start that is not"
        " counted; median (min..max).",
        "First reply: the answer to `initialize` (legacy) or `server/discover` (modern)."
        " First tool result: `tools/list` showed the echo tool and a call of it was answered.",
        "The clock starts before the process does. Guildry is started as its user starts it:"
        " `guildry serve --stdio` in a folder whose `guildry.toml` names a Python file plug.",
    ]
    return outcome

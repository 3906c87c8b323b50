"""`tools/list` of 1,000 tools: Guildry beside a bare SDK server with the same tools."""

import random
import statistics
import sys
import tempfile
import time
from contextlib import AsyncExitStack
from pathlib import Path

from benchmarks.environments import HERE, python_of
from benchmarks.machine import usage_of
from benchmarks.report import Outcome, Section, Target, spread
from benchmarks.served import guildry_command
from benchmarks.wire import Client, Era, WireError, free_port, http_server, stdio_server

TOOLS = 1_000
NAMES = {"bare": "mcp MCPServer", "guildry": "Guildry"}


def prepare(name: str, folder: Path) -> Path:
    """Make the working folder of a server; Guildry gets the tools as a Python file plug."""
    cwd = folder / name
    cwd.mkdir()
    if name == "guildry":
        lines = ["from guildry.tools.python import reads"]
        for number in range(TOOLS):
            lines += ["", "@reads", f"async def tool_{number}(text: str, times: int = 1) -> str:"]
            lines += [f'    """Return the text, as many times as asked, way {number}."""']
            lines += ["    return text * times"]
        (cwd / "many.py").write_text("\n".join(lines) + "\n", encoding="utf-8")
        settings = (
            f'listed_tools = {TOOLS}\nstartup_wait_s = 60\n[plugs.many]\nsource = "many.py"\n'
        )
        (cwd / "guildry.toml").write_text(settings, encoding="utf-8")
    return cwd


async def start(stack: AsyncExitStack, name: str, transport: str, era: Era, folder: Path) -> Client:
    """Start a server and return a client of it; the stack ends both."""
    cwd, port = prepare(name, folder), free_port()
    tail = ["http", str(port)] if transport == "http" else ["stdio", "0"]
    bare = [python_of("bare"), str(HERE / "servers" / "bare_many.py"), *tail, str(TOOLS)]
    command = guildry_command(transport, port, cwd) if name == "guildry" else bare
    if transport == "stdio":
        return await stack.enter_async_context(stdio_server(command, cwd, era))
    return await stack.enter_async_context(http_server(command, cwd, port, era, 1))


async def listed(client: Client) -> float:
    """List all tools, page by page; return the seconds that it took."""
    await client.refresh()
    names: set[str] = set()
    params: dict[str, str] = {}
    began = time.perf_counter()
    while True:
        page = await client.ask("tools/list", params)
        names |= {tool["name"] for tool in page["tools"]}
        if not page.get("nextCursor"):
            break
        params = {"cursor": page["nextCursor"]}
    took = time.perf_counter() - began
    if not names >= {f"tool_{number}" for number in range(TOOLS)}:
        raise WireError(f"only {len(names)} tools were listed")
    return took


async def run(only: set[str], *, quick: bool) -> Outcome:
    """Measure every transport and era."""
    rounds = 3 if quick else 15
    names = [name for name in NAMES if name in only]
    outcome = Outcome("listing", f"tools/list of {TOOLS:,} tools", quick=quick)
    header = ["transport", "era", "server", "ms", "CPU ms a listing", "vs bare"]
    section = Section("Whole listings", header)
    for transport in ("stdio", "http"):
        for era in ("legacy", "modern"):
            print(f"listing: {transport}, {era}", file=sys.stderr, flush=True)
            took: dict[str, list[float]] = {name: [] for name in names}
            cpu: dict[str, float] = {}
            with tempfile.TemporaryDirectory(prefix="listing") as folder:
                async with AsyncExitStack() as stack:
                    clients = {
                        name: await start(stack, name, transport, era, Path(folder))
                        for name in names
                    }
                    for client in clients.values():
                        await listed(client)
                    before = {name: usage_of(client.pid).cpu_s for name, client in clients.items()}
                    for _ in range(rounds):
                        for name in random.sample(names, len(names)):
                            took[name].append(await listed(clients[name]))
                    for name, client in clients.items():
                        cpu[name] = (usage_of(client.pid).cpu_s - before[name]) / rounds
            both = set(names) == set(NAMES)
            ratios = (
                [g / b for g, b in zip(took["guildry"], took["bare"], strict=True)] if both else []
            )
            for name in names:
                versus = f"{statistics.median(ratios):.2f}" if ratios and name == "guildry" else "-"
                ms = spread([each * 1e3 for each in took[name]], 1)
                row = [transport, era, NAMES[name], ms, f"{cpu[name] * 1e3:.1f}", versus]
                section.rows.append(row)
            if ratios:
                what = f"time to list {TOOLS:,} tools vs bare: {transport}, {era}"
                outcome.targets.append(Target(what, 1.0, statistics.median(ratios), "x"))
    outcome.sections.append(section)
    outcome.method = [
        f"{rounds} rounds; in each, every server in random order lists all of its tools once, over"
        " as many pages as it gives. Guildry lists its built-in tools as well, and is set to list"
        " all plugged tools. The client is raw asyncio streams and checks that every tool came.",
        "ms: median (min..max). vs bare: median of the ratios of the rounds.",
    ]
    return outcome

"""An ocean of tools: 70 servers with 527 tools, ready for a search without starting any of them."""

import asyncio
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.environments import HERE
from benchmarks.machine import usage_of
from benchmarks.report import Outcome, Section, Target, spread
from benchmarks.served import guildry_command
from benchmarks.toolsets import Definition, definitions
from benchmarks.wire import Client, stdio_server

SERVERS = 70
TOOLS = 527
READY_S = 2.0
MEMORY_MB = 150.0
SETTLE_S = 120.0


def prepare(cwd: Path) -> dict[str, list[Definition]]:
    """Write stand-ins and a `guildry.toml` that names them all; return the tools of each."""
    found = definitions(TOOLS)
    servers: dict[str, list[Definition]] = {f"server_{n:02}": [] for n in range(SERVERS)}
    names = list(servers)
    for n, definition in enumerate(found):
        servers[names[n % SERVERS]].append(definition)
    lines = []
    for name, tools in servers.items():
        (cwd / f"{name}.json").write_text(json.dumps(tools), encoding="utf-8")
        command = f"{sys.executable} -S {HERE / 'plugs' / 'standin.py'} {cwd / name}.json"
        lines += [f"[plugs.{name}]", f"source = {json.dumps(command)}", ""]
    (cwd / "guildry.toml").write_text("\n".join(lines), encoding="utf-8")
    return servers


async def told(client: Client, tool: str, **arguments: Any) -> dict[str, Any]:
    """Call a tool and return its structured answer."""
    result = await client.ask("tools/call", {"name": tool, "arguments": arguments})
    if result.get("isError"):
        raise RuntimeError(f"`{tool}`: {result['content']}")
    answer: dict[str, Any] = result["structuredContent"]
    return answer


def children(pid: int) -> int:
    """Return how many stand-ins run below a process."""
    parents: dict[int, int] = {}
    standins: set[int] = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text(encoding="utf-8", errors="replace")
            line = (entry / "cmdline").read_bytes()
        except OSError:  # it just ended
            continue
        parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
        if b"standin.py" in line and b"supervisor.py" not in line:
            standins.add(int(entry.name))
    return sum(_is_below(each, pid, parents) for each in standins)


def _is_below(pid: int, ancestor: int, parents: dict[int, int]) -> bool:
    while pid in parents:
        pid = parents[pid]
        if pid == ancestor:
            return True
    return False


async def learn(cwd: Path) -> float:
    """Serve once until every server has been listed; return the seconds that it took."""
    began = time.perf_counter()
    command = [*guildry_command("stdio", 0, cwd), "--set", "inline_tokens=1000000"]
    async with stdio_server(command, cwd, "modern") as client:
        async with asyncio.timeout(SETTLE_S):
            while True:
                plugs = (await told(client, "list_plugs"))["plugs"]
                if sum(len(plug["tools"]) for plug in plugs) >= TOOLS:
                    return time.perf_counter() - began
                await asyncio.sleep(0.1)


async def warm(cwd: Path, wanted: Definition) -> dict[str, float]:
    """Start from what is known; return seconds and memory of the first search and call."""
    began = time.perf_counter()
    async with stdio_server(guildry_command("stdio", 0, cwd), cwd, "modern", hello=False) as client:
        found = await told(client, "find_tools", queries=[wanted["description"]], limit=10)
        ready = time.perf_counter() - began
        hits = {hit["tool"]: hit for hit in found["tools"]}
        if wanted["name"] not in hits:
            raise RuntimeError(f"{wanted['name']} was not among {list(hits)}")
        started, memory = children(client.pid), usage_of(client.pid).rss_mb
        called = time.perf_counter()
        result = await client.ask(
            "tools/call",
            {
                "name": "call_tool",
                "arguments": {"name": hits[wanted["name"]]["name"], "arguments": {}},
            },
        )
        if wanted["name"] not in str(result["content"]):
            raise RuntimeError(f"the wrong answer: {result}")
        first_call = time.perf_counter() - called
        return {
            "ready": ready,
            "started": started,
            "memory": memory,
            "first_call": first_call,
            "started_then": children(client.pid),
            "memory_then": usage_of(client.pid).rss_mb,
        }


def without_needs(definition: Definition) -> bool:
    """Tell whether a tool can be called with no arguments."""
    return not definition["inputSchema"].get("required")


async def run(only: set[str], *, quick: bool) -> Outcome:
    """Measure the start from cached manifests."""
    rounds = 3 if quick else 15
    outcome = Outcome("ocean", f"{SERVERS} servers with {TOOLS} tools", quick=quick)
    with tempfile.TemporaryDirectory(prefix="ocean") as name:
        cwd = Path(name)
        servers = prepare(cwd)
        callable_tools = [
            tool
            for tools in servers.values()
            for tool in tools
            if without_needs(tool) and len(tool["description"]) > 40
        ]
        print("ocean: the first start, which lists every server", file=sys.stderr, flush=True)
        cold_s = await learn(cwd)
        print("ocean: starts from what is known", file=sys.stderr, flush=True)
        runs = [await warm(cwd, callable_tools[n % len(callable_tools)]) for n in range(rounds)]
    ready = [run["ready"] for run in runs]
    memory = [run["memory"] for run in runs]
    outcome.targets += [
        Target("from spawn to the first search answered", READY_S, statistics.median(ready), "s"),
        Target("servers started by then", 0, max(run["started"] for run in runs)),
        Target("resident memory then", MEMORY_MB, max(memory), "MB"),
    ]

    def column(what: str, digits: int) -> str:
        return spread([run[what] for run in runs], digits)

    section = Section("Starts", ["what", "median (min..max)"])
    section.rows += [
        ["first start ever, all servers listed, s", f"{cold_s:.2f}"],
        ["spawn to first search, s", column("ready", 2)],
        ["first call of a tool, its server started for it, s", column("first_call", 2)],
        ["servers running after that call", column("started_then", 0)],
        ["resident MB after the search", column("memory", 1)],
        ["resident MB after the call", column("memory_then", 1)],
    ]
    outcome.sections.append(section)
    outcome.method = [
        f"{SERVERS} stand-in servers (`plugs/standin.py`, stdio, the standard library only) with"
        f" {TOOLS} definitions among them; the first start lists them all and keeps the lists."
        f" Then {rounds} fresh processes: the client's first message is a `find_tools` with the"
        " description of a tool, which must be among the ten found; then that tool is called.",
        "Servers started: stand-in processes below the server at the moment of the answer.",
    ]
    return outcome

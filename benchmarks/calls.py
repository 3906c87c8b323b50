"""`tools/call` of an echo tool: Guildry beside a bare SDK server and fastmcp."""

import random
import statistics
import sys
import tempfile
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.environments import HERE, python_of
from benchmarks.machine import usage_of
from benchmarks.report import Outcome, Section, Target, median, spread
from benchmarks.served import guildry_command, guildry_folder, journaled
from benchmarks.wire import Client, Era, WireError, burst, free_port, http_server, stdio_server

IN_FLIGHT = 32
NAMES = {
    "bare": "mcp MCPServer",
    "fastmcp": "fastmcp",
    "guildry": "Guildry, echo declared read-only",
    "guildry-undeclared": "Guildry, echo undeclared",
    "guildry-fast": "Guildry with its extra `fast`",
}
PEERS = {"bare": "bare", "fastmcp": "fastmcp", "guildry-fast": "fast"}
LIMITS = {  # of calls a second against the bare server
    ("stdio", "guildry"): 1.5,
    ("stdio", "guildry-undeclared"): 1.5,
    ("stdio", "guildry-fast"): 1.5,
    ("http", "guildry"): 1.0,
    ("http", "guildry-undeclared"): 1.0,
    ("http", "guildry-fast"): 1.2,
}


@dataclass(frozen=True)
class Plan:
    """How much is measured."""

    rounds: int
    alone: int
    together: int


@dataclass
class Series:
    """What was measured of one server in one mode (alone, or many calls in flight)."""

    rps: list[float] = field(default_factory=list)
    p99s: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    cpu_s: float = 0.0
    waited_s: float = 0.0
    calls: int = 0

    @property
    def cpu_us(self) -> float:
        """CPU time of the server for each call."""
        return self.cpu_s / max(self.calls, 1) * 1e6

    def quantile_ms(self, share: float) -> float:
        """Return the latency that `share` of the calls stayed under."""
        ordered = sorted(self.latencies)
        return ordered[min(int(len(ordered) * share), len(ordered) - 1)] * 1e3


Modes = dict[str, dict[int, Series]]


def command_of(name: str, transport: str, port: int, folder: Path) -> list[str]:
    """Return the command that starts a server."""
    if name.startswith("guildry"):
        return guildry_command(transport, port, folder, python_of(PEERS.get(name, "guildry")))
    script = {"bare": "bare.py", "fastmcp": "with_fastmcp.py"}[name]
    tail = ["http", str(port)] if transport == "http" else []
    return [python_of(name), str(HERE / "servers" / script), *tail]


def prepare(name: str, folder: Path) -> Path:
    """Make the working folder of a server."""
    cwd = folder / name
    cwd.mkdir()
    if name.startswith("guildry"):
        guildry_folder(cwd, "echo_undeclared.py" if name.endswith("undeclared") else "echo.py")
    return cwd


async def start(stack: AsyncExitStack, name: str, transport: str, era: Era, folder: Path) -> Client:
    """Start a server and return a client of it; the stack ends both."""
    cwd, port = prepare(name, folder), free_port()
    command = command_of(name, transport, port, cwd)
    if transport == "stdio":
        return await stack.enter_async_context(stdio_server(command, cwd, era))
    server = http_server(command, cwd, port, era, IN_FLIGHT)
    return await stack.enter_async_context(server)


async def segment(client: Client, count: int, in_flight: int, into: Series) -> None:
    """Make some calls of one server and add what they took."""

    async def call(lane: int) -> None:
        text = f"a short text, number {client.tool_calls}"
        params = {"name": "echo", "arguments": {"text": text}}
        result = await client.ask("tools/call", params, lane)
        if result.get("isError") or result["content"][0]["text"] != text:
            raise WireError(f"not the echo: {result}")

    await client.refresh()
    await burst(in_flight, in_flight, call)  # a call on each lane before the clock starts
    before = usage_of(client.pid)
    wall_s, latencies = await burst(count, in_flight, call)
    after = usage_of(client.pid)
    into.rps.append(count / wall_s)
    into.p99s.append(sorted(latencies)[int(len(latencies) * 0.99)])
    into.latencies += latencies
    into.cpu_s += after.cpu_s - before.cpu_s
    into.waited_s += after.waited_s - before.waited_s
    into.calls += count


async def measure(
    names: list[str], transport: str, era: Era, plan: Plan
) -> tuple[Modes, dict[str, str]]:
    """Measure all servers on one transport and era, interleaved; return series and memory."""
    modes: Modes = {name: {1: Series(), IN_FLIGHT: Series()} for name in names}
    memory: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="calls") as folder:
        async with AsyncExitStack() as stack:
            clients = {
                name: await start(stack, name, transport, era, Path(folder)) for name in names
            }
            for client in clients.values():
                await segment(client, 40, 1, Series())
                await segment(client, 64, IN_FLIGHT, Series())
            before = {name: usage_of(client.pid).rss_mb for name, client in clients.items()}
            for _ in range(plan.rounds):
                for name in random.sample(names, len(names)):
                    await segment(clients[name], plan.alone, 1, modes[name][1])
                    await segment(clients[name], plan.together, IN_FLIGHT, modes[name][IN_FLIGHT])
            for name, client in clients.items():
                memory[name] = f"{before[name]:.0f} -> {usage_of(client.pid).rss_mb:.0f}"
                if name.startswith("guildry"):
                    await journaled(Path(folder) / name, client.tool_calls)
    return modes, memory


def ratios(modes: Modes, of: str, to: str, in_flight: int, what: str = "rps") -> list[float]:
    """Return the ratio of calls per second, or of another figure, in each round."""
    if of not in modes or to not in modes:
        return []
    mine, theirs = getattr(modes[of][in_flight], what), getattr(modes[to][in_flight], what)
    return [one / other for one, other in zip(mine, theirs, strict=True)]


def table(modes: Modes, memory: dict[str, str], transport: str, era: Era) -> Section:
    """Return the figures of one transport and era."""
    header = [
        "server",
        "in flight",
        "calls/s",
        "vs bare",
        "p50 ms",
        "p95 ms",
        "p99 ms",
        "CPU us a call",
    ]
    section = Section(f"{transport}, {era}", [*header, "waited", "RSS MB"])
    for in_flight in (1, IN_FLIGHT):
        for name, series in modes.items():
            one = series[in_flight]
            versus = median(ratios(modes, name, "bare", in_flight))
            section.rows.append(
                [
                    NAMES[name],
                    str(in_flight),
                    spread(one.rps, 0),
                    "-" if versus is None else f"{versus:.2f}",
                    f"{one.quantile_ms(0.5):.2f}",
                    f"{one.quantile_ms(0.95):.2f}",
                    f"{one.quantile_ms(0.99):.2f}",
                    f"{one.cpu_us:.0f}",
                    f"{one.waited_s / max(one.cpu_s + one.waited_s, 1e-9):.0%}",
                    memory[name],
                ]
            )
    return section


def targets(modes: Modes, transport: str, era: Era) -> list[Target]:
    """Return what Guildry must reach on one transport and era."""
    found = []
    for variant in ("guildry", "guildry-undeclared", "guildry-fast"):
        where = f"{transport}, {era}, {{}} in flight, {NAMES[variant]}"
        for in_flight in (1, IN_FLIGHT):
            for peer, limit in (("bare", LIMITS[transport, variant]), ("fastmcp", 1.5)):
                if got := ratios(modes, variant, peer, in_flight):
                    what = f"calls/s vs {peer}: {where.format(in_flight)}"
                    found.append(Target(what, limit, statistics.median(got), "x", at_least=True))
            if got := ratios(modes, variant, "bare", in_flight, "p99s"):
                what = f"p99 vs bare: {where.format(in_flight)}"
                found.append(Target(what, 1.0, statistics.median(got), "x"))
    return found


async def run(only: set[str], *, quick: bool) -> Outcome:
    """Measure every transport and era."""
    plan = Plan(2, 40, 64) if quick else Plan(13, 250, 256)
    names = [name for name in NAMES if name in only or name.partition("-")[0] in only]
    for name in names:
        python_of(PEERS.get(name, "guildry"))
    outcome = Outcome("calls", "tools/call of an echo tool", quick=quick)
    for transport in ("stdio", "http"):
        for era in ("legacy", "modern"):
            print(f"calls: {transport}, {era}", file=sys.stderr, flush=True)
            modes, memory = await measure(names, transport, era, plan)
            outcome.sections.append(table(modes, memory, transport, era))
            outcome.targets += targets(modes, transport, era)
    outcome.method = [
        f"{plan.rounds} rounds; in each, every server in random order: {plan.alone} calls one at a"
        f" time, then {plan.together} with {IN_FLIGHT} in flight. On HTTP a connection for each"
        " call in flight; on stdio one pipe.",
        "calls/s: median (min..max) of the rounds. A ratio is the median of the ratios of the"
        " rounds, so both sides of it were measured within a second or two.",
        "CPU: user and system time of the server process. waited: the share of its ready time"
        " that the server stood without a processor; above 10 % the machine was too busy.",
        "The client is raw asyncio streams. Every answer is compared with the text sent."
        " Each server runs with its defaults; Guildry serves a Python file plug; its"
        " journal is read afterwards and has every call that was made.",
    ]
    return outcome

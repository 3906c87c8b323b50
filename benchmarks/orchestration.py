"""Agents that cost nothing but the framework: Guildry, a hand-written loop and four frameworks."""

import random
import sys
from typing import Any

from benchmarks.frameworks import FRAMEWORKS, Scenario, endpoint, measure, versions_of
from benchmarks.report import Outcome, Section, Target, median, spread

Runs = dict[str, list[dict[str, Any]]]

S1 = Scenario("S1: one agent, 11 turns, 0 ms", "S1", 5, 0, 0.0)
S2_0 = Scenario("S2: a parent and 32 sub-agents x 4 turns, 0 ms", "S2", 32, 0, 0.0)
S2_200 = Scenario("S2: a parent and 32 sub-agents x 4 turns, 200 ms", "S2", 32, 200, 1.2)
S3 = Scenario("S3: 1,000 agents at once x 3 turns, 200 ms", "S3", 1000, 200, 0.6)
S3_QUICK = Scenario("S3: 200 agents at once x 3 turns, 200 ms", "S3", 200, 200, 0.6)


def column(runs: list[dict[str, Any]], key: str, factor: float = 1.0) -> list[float]:
    """Return one figure of each run that succeeded."""
    return [run[key] * factor for run in runs if "failed" not in run]


def turns(run: dict[str, Any]) -> int:
    """Return how many model calls a run made."""
    return max(int(run["endpoint"]["requests"]), 1)


def cpu_per_turn_ms(runs: list[dict[str, Any]]) -> list[float]:
    """Return CPU milliseconds of the client process for each model call."""
    return [run["cpu_s"] * 1e3 / turns(run) for run in runs if "failed" not in run]


def growth_kb(runs: list[dict[str, Any]], agents: int) -> list[float]:
    """Return how much the resident size grew at its peak, for each agent."""
    return [(run["peak_kb"] - run["rss_kb"]) / agents for run in runs if "failed" not in run]


def wall_s(run: dict[str, Any]) -> float:
    """Return the wall time of a run: of its middle loop, where it made several."""
    return median(run["walls_s"]) or run["wall_s"]


def errors(runs: list[dict[str, Any]]) -> int:
    """Return how many answers were wrong or missing in all runs."""
    return sum(int(run.get("errors", 1)) for run in runs)


def first_prompt(runs: list[dict[str, Any]], kind: str) -> float | None:
    """Return the tokens of the first request of an agent of a kind."""
    found = [run["endpoint"]["first_prompt"] for run in runs if "failed" not in run]
    return median([one[kind] for one in found if kind in one])


def section(scenario: Scenario, runs: Runs) -> Section:
    """Return the figures of a scenario."""
    header = ["", "wall s", "over ideal s", "CPU ms a turn", "RSS MB", "KB an agent", "in flight"]
    table = Section(scenario.name, [*header, "prompt tokens", "turns", "errors", "runs"])
    for name, mine in runs.items():
        done = [run for run in mine if "failed" not in run]
        walls = [wall_s(run) for run in done]
        sent = [run["endpoint"]["prompt_tokens"] for run in done]
        together = [run["endpoint"]["most_in_flight"] for run in done]
        table.rows.append(
            [
                FRAMEWORKS[name].label,
                spread(walls, 4 if scenario.kind == "S1" else 2),
                spread([wall - scenario.ideal_s for wall in walls]) if scenario.ideal_s else "-",
                spread(cpu_per_turn_ms(mine)),
                spread(column(mine, "peak_kb", 1 / 1000), 0),
                spread(growth_kb(mine, scenario.agents), 0) if scenario.kind != "S1" else "-",
                f"{max(together, default=0)}",
                f"{median(sent) or 0:,.0f}",
                f"{median([turns(run) for run in done]) or 0:,.0f}",
                f"{errors(mine)}",
                f"{len(done)} of {len(mine)}",
            ]
        )
        table.notes += [
            f"{FRAMEWORKS[name].label} failed: `{run['failed'].strip().splitlines()[-1][:200]}`"
            for run in mine
            if run.get("failed", "").strip()
        ][:1]
    return table


def overhead(runs: Runs) -> Section:
    """Return what each framework adds to an agent's first prompt, the floor being none."""
    header = ["", "worker's first prompt", "over the floor", "parent's first prompt"]
    table = Section("Prompt of an agent, in tokens (S2)", [*header, "over the floor"])
    floor = {kind: first_prompt(runs.get("floor", []), kind) for kind in ("chain", "parent")}
    for name, mine in runs.items():
        row = [FRAMEWORKS[name].label]
        for kind in ("chain", "parent"):
            prompt, least = first_prompt(mine, kind), floor[kind]
            row.append("-" if prompt is None else f"{prompt:.0f}")
            row.append("-" if prompt is None or least is None else f"{prompt - least:+.0f}")
        table.rows.append(row)
    table.notes = [
        "Both have the same task, instructions and tools; the floor sends nothing else. The"
        " parent's tool is the framework's own way to start a sub-agent; Guildry's parent has the"
        " worker's tool as well, because an agent can hand on only what it holds."
    ]
    return table


def targets(found: dict[Scenario, Runs]) -> list[Target]:
    """Return what Guildry must reach."""
    wanted = []
    for scenario, runs in found.items():
        mine = runs.get("guildry", [])
        if not mine:
            continue
        name = scenario.name.partition(":")[0] + f" at {scenario.latency_ms} ms"
        wanted.append(Target(f"CPU a turn: {name}", 1.0, median(cpu_per_turn_ms(mine)), "ms"))
        wanted.append(Target(f"errors: {name}", 0, errors(mine)))
        walls = [wall_s(run) for run in mine if "failed" not in run]
        wall = median(walls)
        if scenario is S2_200:
            over = None if wall is None else wall / scenario.ideal_s
            wanted.append(Target(f"wall over the ideal: {name}", 1.1, over, "x"))
            wanted += prompts(runs)
        if scenario.kind == "S3":
            floor = median(column(runs.get("floor", []), "wall_s"))
            over = wall / floor if wall and floor else None
            wanted.append(Target(f"wall over the floor's: {name}", 3, over, "x"))
            kilobytes = median(growth_kb(mine, scenario.agents))
            wanted.append(Target(f"memory an agent: {name}", 40, kilobytes, "KB"))
    return wanted


def prompts(runs: Runs) -> list[Target]:
    """Return the targets on what a team adds to its agents' prompts."""
    found = []
    for kind, label in (("chain", "a sub-agent"), ("parent", "the parent")):
        mine, floor = (first_prompt(runs.get(name, []), kind) for name in ("guildry", "floor"))
        over = None if mine is None or floor is None else mine - floor
        found.append(Target(f"prompt overhead of {label}", 300, over, "tokens"))
    return found


async def run(only: set[str], *, quick: bool) -> Outcome:
    """Measure every scenario, frameworks in shuffled order within each repetition."""
    names = [name for name in FRAMEWORKS if name in only]
    outcome = Outcome("orchestration", "Orchestration with a model that costs nothing", quick=quick)
    outcome.versions = versions_of(names)
    repetitions = 1 if quick else 5
    found: dict[Scenario, Runs] = {}
    with endpoint() as url:
        for scenario in (S1, S2_0, S2_200, S3_QUICK if quick else S3):
            runs: Runs = {name: [] for name in names}
            found[scenario] = runs
            for number in range(repetitions):
                print(f"orchestration: {scenario.name}, {number + 1}", file=sys.stderr, flush=True)
                for name in random.sample(names, len(names)):
                    runs[name].append(await measure(name, scenario, url))
            outcome.sections.append(section(scenario, runs))
    outcome.sections.append(overhead(found[S2_200]))
    outcome.targets = targets(found)
    outcome.method = [
        f"{repetitions} repetitions, each framework in a fresh process, in shuffled order; median"
        " (min..max). One agent with one tool call runs before the clock starts.",
        "The endpoint is a process of its own. It answers by a marker in the user message, so"
        " every framework makes the same turns; it checks every tool result that it is shown and"
        " counts tokens as characters / 4 over messages, tool calls and tool schemas.",
        "CPU: user and system time of the client process, all threads. S1 is five loops one after"
        " another in one process; its wall is that of the middle loop. KB an agent: growth of the"
        " resident size at its peak over the scenario, divided by the agents.",
        "Sub-agents in S2 are started by parallel tool calls of the parent's model; in S3 by code."
        " Guildry runs with a database file, journal and budgets on, each S1 loop being a run of"
        " its own; its journal is flushed before the clock stops, and must have every turn.",
    ]
    return outcome

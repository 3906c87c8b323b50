"""CPU that dispatch adds to a call: grant, references in, validation, ledger, journal."""

import asyncio
import json
import sys
import tempfile
from typing import Any

from benchmarks.environments import HERE, clean_environment
from benchmarks.report import Outcome, Section, Target, median, spread
from benchmarks.wire import kill_group

RUN_TIMEOUT_S = 300
CASES = {
    "reads": "a tool that only reads",
    "writes": "a tool that writes, in a durable run (intent on the disk before the call)",
    "writes-32": "the same, 32 calls in flight",
    "reference": "a 10 KB argument given by reference",
}


async def once(case: str, calls: int) -> dict[str, Any]:
    """Measure one case in a fresh process."""
    with tempfile.TemporaryDirectory(prefix="dispatch") as folder:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, str(HERE / "drivers" / "drive_dispatch.py")),
            *("--case", case, "--calls", str(calls), "--folder", folder),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=folder,
            env=clean_environment(),
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(RUN_TIMEOUT_S):
                stdout, stderr = await process.communicate()
        finally:
            kill_group(process.pid)
            await process.wait()
    if process.returncode:
        raise RuntimeError(stderr.decode(errors="replace")[-2000:])
    return dict(json.loads(stdout.splitlines()[-1]))


async def run(only: set[str], *, quick: bool) -> Outcome:
    """Measure every case."""
    calls, repetitions = (1_000, 1) if quick else (10_000, 5)
    outcome = Outcome("dispatch", "CPU that dispatch adds to a call", quick=quick)
    header = ["case", "direct ms CPU", "through dispatch ms CPU", "of it kernel", "added ms CPU"]
    section = Section("A call of an echo tool", [*header, "wall ms"])
    found: dict[str, list[dict[str, Any]]] = {case: [] for case in CASES}
    for number in range(repetitions):
        print(f"dispatch: {number + 1} of {repetitions}", file=sys.stderr, flush=True)
        for case in CASES:
            found[case].append(await once(case, calls))
    for case, runs in found.items():
        direct, through = ([one[way] for one in runs] for way in ("direct", "through"))
        added = [b["cpu_ms"] - a["cpu_ms"] for a, b in zip(direct, through, strict=True)]
        section.rows.append(
            [
                CASES[case],
                spread([one["cpu_ms"] for one in direct], 4),
                spread([one["cpu_ms"] for one in through], 4),
                spread([one["kernel_ms"] for one in through], 4),
                spread(added, 4),
                spread([one["wall_ms"] for one in through], 3),
            ]
        )
        outcome.targets.append(Target(f"CPU added: {CASES[case]}", 0.3, median(added), "ms"))
    outcome.sections = [section]
    outcome.method = [
        f"{calls:,} calls, one after another unless said, in a fresh process; {repetitions}"
        " repetitions; median (min..max). `time.process_time()`, so user and system time of all"
        " threads, the database writer's included; the journal is flushed before the clock stops.",
        "Direct: the tool's own `invoke`. Through dispatch: `Dispatch.call` with a database file"
        " that is opened as the server opens it. The tool is an async Python function, plugged as"
        " any other; by reference, dispatch reads the value, and the tool returns its length.",
    ]
    return outcome

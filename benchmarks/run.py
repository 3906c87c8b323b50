"""Run the benchmarks: `python -m benchmarks [part ...] [--quick] [--only guildry,bare]`."""

import argparse
import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))  # when started as a file

from benchmarks import (
    calls,
    dispatch,
    ending,
    finding,
    hotplug,
    listing,
    ocean,
    orchestration,
    references,
    soak,
    startup,
)
from benchmarks.environments import GROUPS, python_of, versions
from benchmarks.machine import describe
from benchmarks.report import Outcome, save, show

Run = Callable[..., Awaitable[Outcome]]

PARTS: dict[str, Run] = {
    "calls": calls.run,
    "listing": listing.run,
    "soak": soak.run,
    "startup": startup.run,
    "dispatch": dispatch.run,
    "references": references.run,
    "orchestration": orchestration.run,
    "ocean": ocean.run,
    "hotplug": hotplug.run,
    "ending": ending.run,
    "finding": finding.run,
}
EVERYONE = ("guildry", "floor", *GROUPS)
MAIN_PACKAGES = ("guildry", "mcp", "anyio", "pydantic", "aiohttp", "uvicorn", "uvloop", "structlog")


def main() -> int:
    """Run what the command line asks for; return 1 when something could not be measured."""
    options = _options()
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # ends what was started, too
    only = set(options.only.split(",")) if options.only else set(EVERYONE)
    unknown = only - set(EVERYONE)
    if unknown:
        raise SystemExit(f"--only: unknown {sorted(unknown)}; there are {', '.join(EVERYONE)}")
    chosen = list(PARTS) if "all" in options.parts else options.parts
    failed = []
    for name in chosen:
        load = os.getloadavg()[0]
        try:
            outcome = asyncio.run(PARTS[name](only, quick=options.quick))
        except (SystemExit, OSError, ImportError, RuntimeError) as error:
            failed.append(name)
            print(f"{name}: {error}", file=sys.stderr, flush=True)
            continue
        found = versions(sys.executable, list(MAIN_PACKAGES)) | _peers(name, only)
        outcome.partial = bool(options.only)
        path = save(outcome, describe(found | outcome.versions, load))
        show(outcome)
        print(f"  -> {path}", flush=True)
    if failed:
        print(f"not measured: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks", description=__doc__)
    parts = [*PARTS, "all"]
    parser.add_argument("parts", nargs="*", default=["all"], help=f"of {', '.join(parts)}")
    parser.add_argument("--quick", action="store_true", help="few repetitions, own result files")
    parser.add_argument("--only", default="", help=f"some of {', '.join(EVERYONE)}")
    options = parser.parse_args()
    unknown = [part for part in options.parts if part not in parts]
    if unknown:
        parser.error(f"unknown part {unknown[0]!r}: choose from {', '.join(parts)}")
    return options


def _peers(part: str, only: set[str]) -> dict[str, str]:
    if part not in ("calls", "startup") or "fastmcp" not in only:
        return {}
    return versions(python_of("fastmcp"), ["fastmcp"])


if __name__ == "__main__":
    sys.exit(main())

"""Run the official conformance suite against `guildry serve`, and print what came of it.

Each leg has a server, a home and a client process of its own, side by side: the frozen requirements
of the two revisions, and everything that the suite has. Ends non-zero where a check fails, or where
one is warned of, skipped or missing that `expected.toml` does not list.
"""

import argparse
import json
import re
import sys
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import DEVNULL, PIPE, STDOUT
from tempfile import TemporaryDirectory
from typing import Any, Final

import anyio
from serving import NODE, PROGRAMS, Place, environment, served

__all__ = ["LEGS", "Report", "Verdict", "faults", "run", "table"]

FIXTURES: Final = Path(__file__).parent.parent / "conformance"
SUITE: Final = PROGRAMS / "node_modules" / ".bin" / "conformance"
LEGS: Final[Mapping[str, Sequence[str]]] = {
    "2025-11-25": ("--requirements", "2025-11-25"),
    "2026-07-28": ("--requirements", "2026-07-28"),
    "all": ("--suite", "all"),
}
LEG_S: Final = 600


@dataclass(frozen=True)
class Verdict:
    """What came of one scenario in one leg: the checks by their status, and what they complain of.

    A scenario is run once for each wire that it applies to; its checks are taken together.
    """

    passed: int
    failed: tuple[str, ...]
    warned: tuple[str, ...]
    skipped: tuple[str, ...]

    @classmethod
    def of(cls, checks: Iterable[Mapping[str, Any]]) -> "Verdict":
        """Sort the checks of a scenario by their status."""
        said: dict[str, list[str]] = {}
        for check in checks:
            why = check.get("errorMessage") or check.get("description", "")
            said.setdefault(check["status"], []).append(f"{check['id']}: {why}")
        passed = len(said.pop("SUCCESS", ()))
        said.pop("INFO", None)
        known = (said.pop(status, []) for status in ("FAILURE", "WARNING", "SKIPPED"))
        failed, warned, skipped = (tuple(each) for each in known)
        return cls(passed, failed + tuple(map(str, said.items())), warned, skipped)


Report = dict[str, dict[str, Verdict]]
"""The verdicts, by leg and scenario."""


async def run(legs: Iterable[str], folder: Path, scenario: str | None = None) -> Report:
    """Run these legs at the same time; whatever they write is kept in `folder`."""
    report: Report = {}

    async def leg(name: str) -> None:
        results = folder / name
        await anyio.Path(results).mkdir(parents=True)
        async with served(Place(results / "home", FIXTURES)) as place:
            asked = LEGS[name] if scenario is None else ("--scenario", scenario)
            await _suite(str(place.url), asked, results)
        report[name] = await anyio.to_thread.run_sync(_verdicts, results)

    async with anyio.create_task_group() as tasks:
        for name in legs:
            tasks.start_soon(leg, name)
    return report


async def _suite(url: str, asked: Sequence[str], results: Path) -> None:
    """Run the suite against `url`; it leaves a file of checks for each scenario in `results`."""
    command = [NODE, SUITE, "server", "--url", url, *asked, "-o", results]
    with anyio.fail_after(LEG_S):
        done = await anyio.run_process(
            [*map(str, command)],
            check=False,
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=STDOUT,
            env=environment(),
        )
    await anyio.Path(results / "suite.log").write_bytes(done.stdout)


def _verdicts(results: Path) -> dict[str, Verdict]:
    """Read the checks that the suite wrote: a folder for each scenario, named with the time."""
    found: dict[str, list[Any]] = {}
    for file in sorted(results.glob("**/checks.json")):
        name = re.sub(r"-\d{4}-\d\d-\d\dT.*", "", file.parent.name).removeprefix("server-")
        found.setdefault(name, []).extend(json.loads(file.read_text(encoding="utf-8")))
    return {name: Verdict.of(checks) for name, checks in found.items()}


def faults(report: Report) -> list[str]:
    """Return what is not as it has to be: one sentence each."""
    text = (FIXTURES / "expected.toml").read_text(encoding="utf-8")
    expected: Any = tomllib.loads(text)
    found: list[str] = []
    for leg, scenarios in report.items():
        if len(scenarios) != expected["scenarios"][leg]:
            found.append(f"{leg}: {len(scenarios)} scenarios were run, not as many as expected")
        for name, verdict in scenarios.items():
            excused = verdict.warned + verdict.skipped
            kept = [each for each in excused if each.split(":")[0] not in expected["excused"]]
            found += [f"{leg} {name}: {each}" for each in (*verdict.failed, *kept)]
    return found


def table(report: Report) -> str:
    """Return the checks of each scenario in each leg, by what came of them."""
    lines: list[str] = []
    for leg, scenarios in report.items():
        lines.append(f"{leg:<50}{'passed':>8}{'failed':>8}{'warned':>8}{'skipped':>8}")
        for name, verdict in sorted(scenarios.items()):
            said = (verdict.failed, verdict.warned, verdict.skipped)
            counts = "".join(f"{len(each) or '':>8}" for each in said)
            lines.append(f"  {name:<48}{verdict.passed:>8}{counts}".rstrip())
    return "\n".join(lines)


def main() -> int:
    """Run the legs that the command line names; return the exit code."""
    parser = argparse.ArgumentParser(description="Run the official conformance suite.")
    parser.add_argument("legs", nargs="*", metavar="LEG", help=f"{', '.join(LEGS)}; default: all")
    parser.add_argument("--scenario", help="run this one alone, at the suite's own choice of wire")
    parser.add_argument("--keep", type=Path, help="a new folder for logs and results")
    given = parser.parse_args()
    if unknown := [leg for leg in given.legs if leg not in LEGS]:
        parser.error(f"unknown leg {unknown[0]!r}: choose from {', '.join(LEGS)}")
    with TemporaryDirectory() as temporary:
        folder = given.keep or Path(temporary)
        report = anyio.run(run, given.legs or LEGS, folder, given.scenario)
    found = [each for each in faults(report) if given.scenario is None or "scenarios" not in each]
    sys.stdout.write("\n".join([table(report), "", *found, ""]))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

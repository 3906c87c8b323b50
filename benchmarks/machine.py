"""What a figure was measured on: commit, date, machine, versions."""

import os
import platform
import subprocess
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.environments import ROOT


def describe(versions: dict[str, str], load_before: float) -> list[str]:
    """Return the lines that say where and on what a result was measured."""
    packages = ", ".join(f"{name} {version}" for name, version in sorted(versions.items()))
    now = datetime.now(tz=UTC).strftime("%Y-%m-%d %H:%M UTC")
    return [
        f"* Commit: {_commit()}",
        f"* Date: {now}",
        f"* Machine: {_cpu_model()}, {len(os.sched_getaffinity(0))} cores, {_memory_gib():.0f} GiB,"
        f" {platform.system()} {platform.release()}",
        f"* Load (1 min): {load_before:.2f} before, {os.getloadavg()[0]:.2f} after",
        f"* Python {platform.python_version()}; {packages}",
    ]


@dataclass(frozen=True)
class Usage:
    """What a process has used so far.

    Args:
        cpu_s: user and system time of all its threads, ended ones included (10 ms steps).
        waited_s: time its living threads stood ready without a processor.
        rss_mb: resident now.
    """

    cpu_s: float
    waited_s: float
    rss_mb: float


def usage_of(pid: int) -> Usage:
    """Read a process's use of the machine from /proc."""
    proc = Path(f"/proc/{pid}")
    fields = (proc / "stat").read_text(encoding="ascii").rpartition(")")[2].split()
    cpu_s = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    pages = int((proc / "statm").read_text(encoding="ascii").split()[1])
    waited_ns = 0
    for task in (proc / "task").iterdir():
        try:
            waited_ns += int((task / "schedstat").read_text(encoding="ascii").split()[1])
        except (FileNotFoundError, ProcessLookupError):  # the thread just ended
            continue
    return Usage(cpu_s, waited_ns / 1e9, pages * os.sysconf("SC_PAGE_SIZE") / 1e6)


def _commit() -> str:
    def git(*arguments: str) -> str:
        done = subprocess.run(
            ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, timeout=20
        )
        return done.stdout.strip() if done.returncode == 0 else ""

    head = git("rev-parse", "--short=12", "HEAD") or "none yet"
    # The results themselves change with every run and say nothing about what was measured.
    changed = git("status", "--porcelain", "--", ".", ":!benchmarks/results")
    return head + (" with uncommitted changes" if changed else "")


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_gib() -> float:
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30

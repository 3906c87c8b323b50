"""Results as Markdown in `results/`, and as a short table on stdout."""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.environments import HERE


@dataclass(frozen=True)
class Target:
    """A figure that Guildry must reach, and the figure measured."""

    what: str
    limit: float
    measured: float | None
    unit: str = ""
    at_least: bool = False

    @property
    def verdict(self) -> str:
        """Say whether the target was reached."""
        if self.measured is None:
            return "not measured"
        met = self.measured >= self.limit if self.at_least else self.measured <= self.limit
        return "reached" if met else "NOT REACHED"

    def row(self) -> list[str]:
        """Return the target as a row: what, wanted, measured, verdict."""
        sign = ">=" if self.at_least else "<="
        unit = f" {self.unit}" if self.unit else ""
        measured = "-" if self.measured is None else f"{_number(self.measured)}{unit}"
        return [self.what, f"{sign} {_number(self.limit)}{unit}", measured, self.verdict]


@dataclass
class Section:
    """A table with a title and the remarks that belong to it."""

    title: str
    header: Sequence[str]
    rows: list[list[str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@dataclass
class Outcome:
    """Everything that one benchmark found."""

    name: str
    title: str
    targets: list[Target] = field(default_factory=list)
    sections: list[Section] = field(default_factory=list)
    method: list[str] = field(default_factory=list)
    versions: dict[str, str] = field(default_factory=dict)
    quick: bool = False
    partial: bool = False


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Return `median (min..max)`."""
    if not values:
        return "-"
    middle, low, high = statistics.median(values), min(values), max(values)
    if len(values) == 1:
        return f"{middle:,.{digits}f}"
    return f"{middle:,.{digits}f} ({low:,.{digits}f}..{high:,.{digits}f})"


def median(values: Sequence[float]) -> float | None:
    """Return the median, or None of nothing."""
    return statistics.median(values) if values else None


def save(outcome: Outcome, machine: list[str]) -> str:
    """Write `results/<name>.md` and return its path within the project."""
    lines = [f"# {outcome.title}", ""]
    if outcome.quick:
        lines += ["**A quick run: few repetitions. Not a measurement to quote.**", ""]
    lines += [*machine, ""]
    if outcome.targets:
        lines += ["## Targets", ""]
        lines += table(
            ["target", "wanted", "measured", ""], [target.row() for target in outcome.targets]
        )
        lines.append("")
    for section in outcome.sections:
        lines += [f"## {section.title}", "", *table(section.header, section.rows), ""]
        lines += [f"* {note}" for note in section.notes]
        lines += [""] if section.notes else []
    lines += ["## Method", "", *[f"* {line}" for line in outcome.method], ""]
    kind = ".quick" if outcome.quick else ".partial" if outcome.partial else ""
    name = f"{outcome.name}{kind}.md"
    path = HERE / "results" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("\n".join(lines), encoding="utf-8")
    return f"benchmarks/results/{name}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a Markdown table."""
    return [
        "| " + " | ".join(header) + " |",
        "|" + "---|" * len(header),
        *("| " + " | ".join(row) + " |" for row in rows),
    ]


def show(outcome: Outcome) -> None:
    """Print the targets, or the first table where there are none, aligned for a terminal."""
    print(f"\n{outcome.title}")
    rows = [target.row() for target in outcome.targets]
    if not rows and outcome.sections:
        rows = [list(outcome.sections[0].header), *outcome.sections[0].rows]
    if not rows:
        return
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        print("  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)))


def _number(value: float) -> str:
    if value == int(value) and abs(value) >= 10:
        return f"{int(value):,}"
    return f"{value:,.1f}" if abs(value) >= 100 else f"{value:.3g}"

"""What large values cost a model: a 1 MB result, and the 198 KB table passed between tools."""

import json
import re
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.environments import python_of
from benchmarks.frameworks import FRAMEWORKS, Scenario, endpoint, measure, versions_of
from benchmarks.report import Outcome, Section, Target
from benchmarks.served import guildry_command, guildry_folder
from benchmarks.wire import CALL_TIMEOUT_S, Era, WireError, stdio_server

S4 = Scenario("S4: a 198 KB table through three tools", "S4", 1, 0, 0.0)
REFERENCE = re.compile(r"ref:[A-Za-z0-9_./-]+")


@dataclass(frozen=True)
class Passed:
    """What a client's model was shown and wrote, in tokens (characters / 4)."""

    shown: float
    text_only: float
    written: float
    by_value: float


def tokens(value: object) -> float:
    """Return the tokens of a value as JSON."""
    return len(json.dumps(value, ensure_ascii=False)) / 4


async def pass_megabyte(era: Era) -> Passed:
    """Get a 1 MB result through the endpoint and hand it to a second tool by its name."""
    with tempfile.TemporaryDirectory(prefix="references") as folder:
        cwd = Path(folder)
        guildry_folder(cwd, "megabyte.py")
        command = guildry_command("stdio", 0, cwd)
        async with stdio_server(command, cwd, era) as client:
            made = await client.ask("tools/call", {"name": "make_megabyte", "arguments": {}})
            reference = _reference_in(made)
            arguments = {"text": reference}
            given = {"name": "count_characters", "arguments": arguments}
            counted = await client.ask("tools/call", given)
    text = "".join(block.get("text", "") for block in counted["content"])
    if "1000000" not in text.replace(",", ""):
        raise WireError(f"the second tool did not get 1,000,000 characters: {text[:300]}")
    shown = "".join(block.get("text", "") for block in made["content"])
    return Passed(tokens(made), len(shown) / 4, len(reference) / 4, 1_000_000 / 4)


def _reference_in(result: dict[str, Any]) -> str:
    structured = result.get("structuredContent") or {}
    if isinstance(structured, dict) and "reference" in structured:
        return str(structured["reference"])
    for block in result["content"]:
        if found := REFERENCE.search(block.get("text", "")):
            return found[0]
    raise WireError(f"no reference in {json.dumps(result)[:500]}")


async def megabyte(outcome: Outcome) -> None:
    """Measure the 1 MB result in both eras."""
    header = ["era", "whole result", "its text alone", "passed on", "by value, each way"]
    section = Section("A 1 MB result, in tokens that a client's model sees", header)
    for era in ("legacy", "modern"):
        print(f"references: 1 MB, {era}", file=sys.stderr, flush=True)
        found = await pass_megabyte(era)
        figures = (found.shown, found.text_only, found.written, found.by_value)
        section.rows.append([era, *(f"{figure:,.0f}" for figure in figures)])
        outcome.targets += [
            Target(f"1 MB result shown to a model: {era}", 300, found.shown, "tokens"),
            Target(f"passing it on: {era}", 20, found.written, "tokens"),
        ]
    section.notes = [
        "Whole result: every character of the JSON-RPC `result`, metadata included, so no client"
        " can show its model more. Passed on: the argument of the next call is the name alone,"
        " and the second tool counted 1,000,000 characters."
    ]
    outcome.sections.append(section)


async def table(outcome: Outcome, names: list[str]) -> None:
    """Measure the table case with every framework."""
    header = ["", "requests", "prompt tokens", "completion tokens", "MB sent", "each request"]
    section = Section(S4.name, [*header, "errors"])
    with endpoint() as url:
        for name in names:
            print(f"references: the table, {name}", file=sys.stderr, flush=True)
            run = await measure(name, S4, url)
            if "failed" in run:
                section.rows.append([FRAMEWORKS[name].label, *["-"] * 5, "failed"])
                section.notes.append(f"{name}: `{run['failed'].strip().splitlines()[-1][:200]}`")
                continue
            stats = run["endpoint"]
            section.rows.append(
                [
                    FRAMEWORKS[name].label,
                    f"{stats['requests']}",
                    f"{stats['prompt_tokens']:,}",
                    f"{stats['completion_tokens']:,}",
                    f"{stats['received_bytes'] / 1e6:.2f}",
                    ", ".join(f"{one:,}" for one in stats["per_request"][:6]),
                    f"{run['errors']}",
                ]
            )
            if name == "guildry":
                outcome.targets += [
                    Target("198 KB table, prompt tokens", 2_000, stats["prompt_tokens"], "tokens"),
                    Target("198 KB table, wrong answers", 0, run["errors"]),
                ]
    section.notes.append(
        "The answers, 2,000 rows and a sum of 999,000, are checked: errors counts wrong ones. The"
        " endpoint passes on what it was shown: the whole table, or the reference."
    )
    outcome.sections.append(section)


async def run(only: set[str], *, quick: bool) -> Outcome:
    """Measure both cases."""
    outcome = Outcome("references", "What large values cost a model", quick=quick)
    names = [name for name in FRAMEWORKS if name in only]
    for name in names:
        python_of(FRAMEWORKS[name].group)
    outcome.versions = versions_of(names)
    if "guildry" in only:
        await megabyte(outcome)
    await table(outcome, names)
    outcome.method = [
        "Tokens are characters / 4. The counts do not vary from run to run, so each is taken once.",
        "1 MB: Guildry is served with `guildry serve --stdio`; a Python tool returns 1,000,000"
        f" characters of text. Each call is bounded by {CALL_TIMEOUT_S} s.",
        "Table: `make_table` returns 2,000 rows (198 KB of JSON), `count_rows` and `sum_column`"
        " take it as an argument; deterministic endpoint, as in the orchestration benchmark.",
    ]
    return outcome

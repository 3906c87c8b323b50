"""Reports within bounds: as text that a model reads, as JSON that a client gets. Runs nothing."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any, Final

from guildry.memory.objects import ObjectStore
from guildry.memory.references import Reference
from guildry.teams.messages import Report, Spent

__all__ = [
    "SUMMARY_CHARACTERS",
    "brief",
    "digest",
    "finished_json",
    "merged",
    "reference_json",
    "report_json",
    "shortened",
]

SUMMARY_CHARACTERS: Final = 2_000
"""Longest summary that travels as text. What is longer is stored, and its beginning travels."""

_RESULT_BYTES: Final = 3_600
_BRIEFED_REFERENCES: Final = 20
_LEAST_ROOM: Final = 800
_ONE_ENTRY: Final = 300


def reference_json(reference: Reference) -> dict[str, Any]:
    """Return a reference as one line of a list, without the preview."""
    form: dict[str, Any] = reference.as_json()
    del form["preview"]
    return form


def report_json(report: Report) -> dict[str, Any]:
    """Return a whole report as a run's record keeps it."""
    form: dict[str, Any] = {
        "status": report.status,
        "report": report.summary,
        "references": [reference_json(reference) for reference in report.references],
        "reason": report.reason,
    }
    if report.answer is not None:
        form["answer"] = report.answer
    return form


def merged(*groups: Iterable[Reference]) -> tuple[Reference, ...]:
    """Return the references of all groups, in order, each once."""
    return tuple({each.id: each for group in groups for each in group}.values())


def brief(name: str, report: Report, characters: int = SUMMARY_CHARACTERS) -> str:
    """Return a report as a colleague reads it: the state, the summary and the references.

    Args:
        name: whose report it is.
        report: what came back.
        characters: longest summary shown; a longer one is cut, with a word that it was.
    """
    lines = [f"[{name}: {report.status}] {_cut(report.summary, characters)}"]
    if report.status != "done":
        lines.append(f"It stopped because: {_cut(report.reason, 300)}")
    shown = [each.short for each in report.references[:_BRIEFED_REFERENCES]]
    if len(report.references) > len(shown):
        shown.append(f"{len(report.references) - len(shown)} more")
    if shown:
        lines.append(f"It made: {', '.join(shown)}")
    return "\n".join(lines)


def digest(reports: Sequence[tuple[str, Report]], characters: int) -> str:
    """Return many reports as one text: each gets an equal share of `characters`, 200 at least."""
    share = max(200, min(SUMMARY_CHARACTERS, characters // max(1, len(reports))))
    return "\n".join(brief(name, report, share) for name, report in reports)


async def shortened(
    report: Report,
    objects: ObjectStore,
    *,
    name: str,
    namespace: str,
    owner: str,
    labels: Iterable[str] = (),
) -> Report:
    """Return a report whose summary can travel as text; a longer one is stored whole."""
    if len(report.summary) <= SUMMARY_CHARACTERS:
        return report
    whole = await objects.put(
        report.summary.encode(),
        media_type="text/plain",
        name=f"{name}_report",
        namespace=namespace,
        owner=owner,
        labels=labels,
    )
    head = report.summary[: SUMMARY_CHARACTERS - 100]
    return replace(
        report,
        summary=f"{head}… [{len(report.summary):,} characters, whole in {whole.short}]",
        references=(*report.references, whole),
    )


async def finished_json(
    run: str, status: str, report: Report, spent: Spent, objects: ObjectStore, holder: str, to: str
) -> dict[str, Any]:
    """Return what a client gets of a run, short enough to stay inline.

    References that do not fit are listed in one more stored object, which is the last entry.

    Args:
        run: the run's id.
        status: how it ended.
        report: what came of it.
        spent: what it cost.
        objects: where a long list of references is kept.
        holder: who gets the answer, and owns that list.
        to: the namespace in which the holder names references.
    """
    form: dict[str, Any] = {
        "run": run,
        "status": status,
        "report": report.summary,
        "references": [],
        "usage": spent.as_json(),
    }
    if report.status != "done":
        form["reason"] = report.reason
    if report.answer is not None:
        form["answer"] = report.answer
    entries = [reference_json(reference) for reference in report.references]
    room = max(_LEAST_ROOM, _RESULT_BYTES - len(json.dumps(form)))
    kept = _fitting(entries, room)
    form["references"] = entries[:kept]
    if kept < len(entries):
        rest = await objects.put(
            json.dumps(entries).encode(),
            media_type="application/json",
            name="references",
            namespace=to,
            owner=holder,
            labels={label for each in report.references for label in each.labels},
        )
        form["references"].append(reference_json(rest))
    return form


def _fitting(entries: Sequence[dict[str, Any]], room: int) -> int:
    """Return how many entries fit, with room left for one more where not all do."""
    sizes = [len(json.dumps(entry)) + 2 for entry in entries]
    if sum(sizes) <= room:
        return len(entries)
    return sum(used <= room for used in accumulate(sizes, initial=_ONE_ENTRY)) - 1


def _cut(text: str, characters: int) -> str:
    return text if len(text) <= characters else f"{text[: characters - 1]}…"

"""The report of a survey: which parts it has, which are missing, where its figures come from."""

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any, Final

from guildry.server.demo.shown import list_of, object_of, objects_in

__all__ = ["PARTS", "leaves", "missing_parts", "read_report", "untraced"]

Report = dict[str, Any]

PARTS: Final = {
    "totals": "size_summary",
    "largest_files": "top_rows",
    "folders": "size_by_folder",
    "languages": "count_languages",
    "functions": "largest_functions",
    "duplicates": "duplicate_files",
    "history": "repository_facts",
    "changes": "changed_files",
    "authors": "authors_of",
    "span": "history_span",
}
"""The parts of a report, and the tool whose answer each one is."""

_OF_GIT: Final = ("changes", "authors", "span")
_TABLES: Final = ("largest_files", "folders", "languages", "functions", "changes", "authors")


def read_report(text: str) -> Report:
    """Return the report that an aggregator wrote; empty where there is none."""
    nothing: Report = {}
    found = [nothing, *(each for each in objects_in(text) if each.keys() & PARTS.keys())]
    return max(found, key=lambda each: len(each.keys() & PARTS.keys()))


def missing_parts(report: Report) -> list[str]:
    """Return the names of the parts that a complete report of this folder would have."""
    facts = object_of(report.get("history"))
    in_git = bool(facts.get("git")) and bool(facts.get("commits"))
    wanted = [name for name in PARTS if in_git or name not in _OF_GIT]
    return [name for name in wanted if not _is_whole(name, report.get(name))]


def _is_whole(name: str, part: object) -> bool:
    found = object_of(part)
    return bool(found) and (name not in _TABLES or isinstance(found.get("rows"), list))


def untraced(report: Report, answers: Iterable[str]) -> tuple[int, list[str]]:
    """Return how many figures a report has, and those that no tool answered.

    A figure is a number; a tool answered it if the same number stands in one of `answers`.
    """
    known = {value for text in answers for each in objects_in(text) for value in leaves(each)}
    figures = Counter(leaves({name: report[name] for name in PARTS if name in report}))
    foreign = [str(value) for value in figures if value not in known]
    return figures.total(), foreign


def leaves(value: object) -> Iterator[int | float]:
    """Yield every number in a JSON value."""
    if isinstance(value, bool):
        return
    if isinstance(value, int | float):
        yield value
    for each in (*object_of(value).values(), *list_of(value)):
        yield from leaves(each)

"""The program that plays the survey team where there is no model.

It knows how a survey goes, as a model would: which goals there are and which tools serve them.
It knows no folder. Paths, tool names, argument names, figures and references are read from the
request that it answers, every time; it keeps nothing between two requests.
"""

import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from guildry.server.demo.shown import Shown, list_of, object_of, objects_in, read_shown
from guildry.teams.model import Request
from guildry.teams.scripted import Reply, call

__all__ = ["survey"]

Arguments = dict[str, Any]

_QUOTED: Final = re.compile(r'"(?:[^"\\]|\\.)*"')
_MOST_COMMITS: Final = 2_000
_SUMMARY: Final = 1_900


@dataclass(frozen=True, slots=True)
class Step:
    """A call towards a goal; its `arguments` are None until what it needs was shown."""

    tool: str
    arguments: Callable[[Shown], Arguments | None]


@dataclass(frozen=True, slots=True)
class Goal:
    """One part of a survey: what is asked for, the calls that lead there, what is told of them."""

    name: str
    task: str
    steps: tuple[Step, ...]
    told: Callable[[Shown], Arguments]
    needs: tuple[str, ...] = ()


def _path(shown: Shown) -> str | None:
    """Return the first absolute path that stands in quotes in the task."""
    for found in _QUOTED.finditer(shown.task):
        try:
            text = json.loads(found[0])
        except ValueError:
            continue
        if os.path.isabs(text):
            return str(text)
    return None


def _in_folder(shown: Shown) -> Arguments | None:
    path = _path(shown)
    return None if path is None else {"path": path}


def _unlisted(shown: Shown) -> Arguments | None:
    return None if shown.passed("list_files") is not None else _in_folder(shown)


def _of_files(shown: Shown) -> Arguments | None:
    files = shown.passed("list_files")
    return None if files is None else {"files": files}


def _in_files(shown: Shown) -> Arguments | None:
    where, files = _in_folder(shown), _of_files(shown)
    return None if where is None or files is None else {**where, **files}


def _top(tool: str, column: str) -> Callable[[Shown], Arguments | None]:
    def arguments(shown: Shown) -> Arguments | None:
        table = shown.passed(tool)
        return None if table is None else {"table": table, "column": column}

    return arguments


def _handle(shown: Shown, tool: str) -> Arguments:
    """Name the reference that holds a tool's answer, which hands it on."""
    return {tool: shown.handles[tool]} if tool in shown.handles else {}


def _kept_in_git(shown: Shown) -> bool:
    facts = shown.value("repository_facts")
    return bool(facts.get("git")) and int(facts.get("commits", 0)) > 0


def _changes(shown: Shown) -> Arguments | None:
    return _in_folder(shown) if _kept_in_git(shown) else None


def _log(shown: Shown) -> Arguments | None:
    facts = shown.value("repository_facts")
    if not _kept_in_git(shown):
        return None
    return {"repo_path": facts["root"], "max_count": min(int(facts["commits"]), _MOST_COMMITS)}


def _authors(shown: Shown) -> Arguments | None:
    log = shown.passed("git_log")
    return None if log is None else {"log": log}


def _span(shown: Shown) -> Arguments | None:
    log, now = _authors(shown), shown.value("get_current_time").get("datetime")
    return None if log is None or now is None else {**log, "now": now}


def _kept(shown: Shown, tool: str, *keys: str) -> Arguments:
    value = shown.value(tool)
    return {key: value[key] for key in keys if key in value}


def _told_history(shown: Shown, **parts: Arguments) -> Arguments:
    facts = _kept(shown, "repository_facts", "git", "commits", "root", "note")
    return {"history": facts} if not _kept_in_git(shown) else {"history": facts, **parts}


_LIST: Final = Step("list_files", _unlisted)
_FACTS: Final = Step("repository_facts", _in_folder)

GOALS: Final = (
    Goal(
        "listing",
        "List the files of {path} and sum up their sizes.",
        (_LIST, Step("size_summary", _of_files)),
        lambda shown: {"totals": shown.value("size_summary"), **_handle(shown, "list_files")},
    ),
    Goal(
        "sizes",
        "Find the largest files and the largest folders of {path}.",
        (_LIST, Step("top_rows", _top("list_files", "bytes")), Step("size_by_folder", _of_files)),
        lambda shown: {
            "largest_files": _kept(shown, "top_rows", "rows", "note"),
            "folders": _kept(shown, "size_by_folder", "rows", "folders"),
        },
        ("listing",),
    ),
    Goal(
        "languages",
        "Count the lines of each language in {path}.",
        (_LIST, Step("count_languages", _in_files)),
        lambda shown: {"languages": shown.value("count_languages")},
        ("listing",),
    ),
    Goal(
        "functions",
        "Find the largest functions in {path}.",
        (_LIST, Step("largest_functions", _in_files)),
        lambda shown: {"functions": shown.value("largest_functions")},
        ("listing",),
    ),
    Goal(
        "duplicates",
        "Find the files of {path} that hold the same bytes.",
        (_LIST, Step("duplicate_files", _in_files)),
        lambda shown: {"duplicates": shown.value("duplicate_files")},
        ("listing",),
    ),
    Goal(
        "changes",
        "Find the files of {path} that changed most often.",
        (
            _FACTS,
            Step("changed_files", _changes),
            Step("top_rows", _top("changed_files", "commits")),
        ),
        lambda shown: _told_history(
            shown, changes=_kept(shown, "top_rows", "rows", "files", "commits", "note")
        ),
    ),
    Goal(
        "authors",
        "Find who wrote {path}, and over which time.",
        (
            _FACTS,
            Step("get_current_time", lambda _: {"timezone": "UTC"}),
            Step("git_log", _log),
            Step("authors_of", _authors),
            Step("history_span", _span),
        ),
        lambda shown: _told_history(
            shown, authors=shown.value("authors_of"), span=shown.value("history_span")
        ),
    ),
)
"""How a survey is split."""


def survey(request: Request) -> Reply:
    """Answer as the planner, a worker or the aggregator, whichever the request speaks to."""
    shown = read_shown(request)
    nodes = _node_schema(request, shown)
    if nodes is not None:
        return _plan(shown, nodes)
    goal = _goal_of(shown)
    return _joined(shown) if goal is None else _worked(goal, shown)


def _named(text: str, word: str) -> bool:
    return re.search(rf"(?<![A-Za-z0-9_]){re.escape(word)}(?![A-Za-z0-9_])", text) is not None


def _node_schema(request: Request, shown: Shown) -> dict[str, Any] | None:
    """Return what a node of a plan may hold where a plan is wanted, else None."""
    for schema in (request.response_schema or {}, *objects_in(shown.task)):
        nodes = object_of(schema.get("properties")).get("nodes")
        if nodes is not None:
            return object_of(object_of(object_of(nodes).get("items")).get("properties"))
    return None


def _plan(shown: Shown, node: dict[str, Any]) -> str:
    """Split the task into the goals whose tools were named, each for a worker that was named."""
    text = f"{shown.system}\n{shown.task}"
    path = json.dumps(_path(shown) or "", ensure_ascii=False)
    roles: list[str] | None = object_of(node.get("worker")).get("enum")
    goals = [
        goal
        for goal in GOALS
        if all(_named(text, step.tool) for step in goal.steps)
        and (roles is None or goal.name in roles)
    ]
    names = {goal.name for goal in goals}
    nodes = [
        {
            "id": goal.name,
            "task": goal.task.format(path=path),
            "tools": _held(goal, shown),
            "needs": [need for need in goal.needs if need in names],
            **({} if roles is None else {"worker": goal.name}),
        }
        for goal in goals
    ]
    return json.dumps({"nodes": nodes})


def _held(goal: Goal, shown: Shown) -> list[str]:
    """Return the tools of the worker for a goal, as they were told, or else those of its steps."""
    line = rf"^- {re.escape(goal.name)}: .*\bholds ([\w, -]+?)\.?$"
    told = re.search(line, shown.task, re.MULTILINE | re.IGNORECASE)
    return told[1].split(", ") if told else [step.tool for step in goal.steps]


def _goal_of(shown: Shown) -> Goal | None:
    """Return the goal that most of the tools shown serve, or None where there are no tools."""
    fits = [goal for goal in GOALS if all(step.tool in shown.tools for step in goal.steps)]
    return max(fits, key=lambda goal: _fit(goal, shown), default=None)


def _fit(goal: Goal, shown: Shown) -> tuple[bool, int]:
    head = goal.task.split("{path}")[0]
    return head in shown.task, len(goal.steps)


def _worked(goal: Goal, shown: Shown) -> Reply:
    """Make every call whose arguments are there by now; when none is left, tell what came of it."""
    calls = [
        call(step.tool, **arguments)
        for step in goal.steps
        if step.tool not in shown.called
        and (arguments := step.arguments(shown)) is not None
        and shown.tools[step.tool] >= arguments.keys()
    ]
    if calls:
        return calls
    return _fitted({"part": goal.name, **goal.told(shown), **_failures(goal, shown)})


def _failures(goal: Goal, shown: Shown) -> Arguments:
    """Tell of calls that were answered by a text where a table was due."""
    tables = [step.tool for step in goal.steps if step.tool != "git_log"]
    said = {
        tool: str(shown.values[tool])[:200]
        for tool in tables
        if tool in shown.values and not shown.value(tool)
    }
    return {"failures": said} if said else {}


def _fitted(told: Arguments) -> str:
    """Return `told` as JSON that is short enough to travel, with its longest list cut to fit."""
    text = json.dumps(told, ensure_ascii=False)
    while len(text) > _SUMMARY:
        lists = [list_of(object_of(part).get("rows")) for part in told.values()]
        lists = [rows for rows in lists if rows]
        if not lists:
            break
        max(lists, key=_length).pop()
        text = json.dumps(told, ensure_ascii=False)
    return text


def _length(rows: list[Any]) -> int:
    return len(json.dumps(rows))


def _joined(shown: Shown) -> str:
    """Join what colleagues told into one report."""
    whole: Arguments = {}
    failures: Arguments = {}
    for told in objects_in(shown.task):
        if "part" in told:
            failures.update(told.pop("failures", {}))
            whole.update({key: value for key, value in told.items() if key != "part"})
    return json.dumps({**whole, **({"failures": failures} if failures else {})}, ensure_ascii=False)

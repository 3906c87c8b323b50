"""The program that plays the survey team: each reply is a function of the request alone."""

import json
from typing import Any

from guildry.server.demo.program import GOALS, survey
from guildry.server.demo.shown import objects_in, read_shown
from guildry.teams.model import Message, Request, ToolCall, ToolSpec
from guildry.teams.scripted import Reply

ARGUMENTS = {
    "list_files": ("path",),
    "size_summary": ("files",),
    "size_by_folder": ("files", "limit"),
    "top_rows": ("table", "column", "limit"),
    "largest_functions": ("path", "files", "limit"),
    "repository_facts": ("path",),
    "changed_files": ("path", "max_commits", "limit"),
    "get_current_time": ("timezone",),
    "git_log": ("repo_path", "max_count"),
    "authors_of": ("log",),
    "history_span": ("log", "now"),
}
PLAN_SCHEMA = {
    "properties": {
        "nodes": {"items": {"properties": {"worker": {"enum": ["listing", "functions", "other"]}}}}
    }
}


def spec(name: str) -> ToolSpec:
    properties: dict[str, Any] = {argument: {} for argument in ARGUMENTS[name]}
    return ToolSpec(name, "", {"type": "object", "properties": properties})


def request(task: str, *names: str, said: tuple[Message, ...] = ()) -> Request:
    return Request(
        messages=(Message("user", task), *said), tools=tuple(spec(name) for name in names)
    )


def exchange(number: int, tool: str, answer: Any) -> tuple[Message, Message]:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    id = f"call_{number}"
    return (
        Message("assistant", "", (ToolCall(id, tool, "{}"),)),
        Message("tool", text, call_id=id),
    )


def calls(reply: Reply) -> dict[str, Any]:
    assert isinstance(reply, list)
    return {each.name: json.loads(each.arguments) for each in reply}


def test_a_plan_has_only_goals_whose_tools_and_workers_were_named() -> None:
    task = 'Survey "/some/where".\n- list_files\n- size_summary\n- largest_functions\n'
    task += "- functions: Find functions; holds largest_functions, list_files, read_reference\n"

    plan = json.loads(
        str(survey(Request(messages=(Message("user", task),), response_schema=PLAN_SCHEMA)))
    )

    assert plan == {
        "nodes": [
            {
                "id": "listing",
                "task": 'List the files of "/some/where" and sum up their sizes.',
                "tools": ["list_files", "size_summary"],
                "needs": [],
                "worker": "listing",
            },
            {
                "id": "functions",
                "task": 'Find the largest functions in "/some/where".',
                "tools": ["largest_functions", "list_files", "read_reference"],
                "needs": ["listing"],
                "worker": "functions",
            },
        ]
    }


def test_a_plan_schema_in_the_text_is_as_good_as_one_beside_it() -> None:
    schema: dict[str, Any] = {"properties": {"nodes": {"items": {}}}}
    task = f'Survey "/p": list_files, size_summary. Schema: {json.dumps(schema)}'

    plan = json.loads(str(survey(Request(messages=(Message("user", task),)))))

    assert [node["id"] for node in plan["nodes"]] == ["listing"]
    assert "worker" not in plan["nodes"][0]


def test_paths_are_taken_from_the_task_whatever_is_in_them() -> None:
    path = '/odd/"quoted" `ticks`\n{braces} caf\xe9'
    task = f"List the files of {json.dumps(path)} and sum up their sizes."

    reply = survey(request(task, "list_files", "size_summary"))

    assert calls(reply) == {"list_files": {"path": path}}


def test_a_reference_that_a_colleague_made_is_passed_on_and_nothing_is_listed_again() -> None:
    task = 'Find the largest functions in "/p".\n- ref:list_files_2 {rows: [9 x {..}]}'

    reply = survey(request(task, "largest_functions", "list_files"))

    assert calls(reply) == {"largest_functions": {"path": "/p", "files": "ref:list_files_2"}}


def test_a_stored_answer_is_passed_by_name_and_a_short_one_by_value() -> None:
    task = 'Find the largest functions in "/p".'
    stored = "[stored as ref:list_files: application/json, 9 bytes, {..}]\n{"
    short = {"rows": [{"path": "a", "bytes": 1}]}
    names = ("largest_functions", "list_files")

    by_name = survey(request(task, *names, said=exchange(1, "list_files", stored)))
    by_value = survey(request(task, *names, said=exchange(1, "list_files", short)))

    assert calls(by_name)["largest_functions"]["files"] == "ref:list_files"
    assert calls(by_value)["largest_functions"]["files"] == short


def test_a_tool_that_takes_other_arguments_than_expected_is_not_called() -> None:
    task = 'Find the largest functions in "/p".\nref:list_files'
    other = ToolSpec("largest_functions", "", {"properties": {"folder": {}}})

    reply = survey(Request(messages=(Message("user", task),), tools=(other, spec("list_files"))))

    assert json.loads(str(reply)) == {"part": "functions", "functions": {}}


def test_history_is_not_asked_for_where_there_is_none() -> None:
    task = 'Find the files of "/p" that changed most often.'
    names = ("repository_facts", "changed_files", "top_rows")
    no_git = {"git": False, "root": "", "commits": 0}
    fresh = {"git": True, "root": "/p", "commits": 0}

    replies = [
        survey(request(task, *names, said=exchange(1, "repository_facts", facts)))
        for facts in (no_git, fresh)
    ]

    assert [json.loads(str(reply)) for reply in replies] == [
        {"part": "changes", "history": no_git},
        {"part": "changes", "history": fresh},
    ]


def test_calls_that_do_not_wait_for_each_other_are_made_in_one_reply() -> None:
    task = 'Find who wrote "/p", and over which time.'
    names = ("repository_facts", "get_current_time", "git_log", "authors_of", "history_span")
    facts = {"git": True, "root": "/top", "commits": 5000}
    now = {"datetime": "2026-01-01T00:00:00+00:00"}
    known = (
        *exchange(1, "repository_facts", facts),
        *exchange(2, "get_current_time", now),
    )
    log = "[stored as ref:git_log: text/plain, 9 bytes, 3 lines]\nCommit"

    first = survey(request(task, *names))
    second = survey(request(task, *names, said=known))
    third = survey(request(task, *names, said=(*known, *exchange(3, "git_log", log))))

    assert calls(first) == {
        "repository_facts": {"path": "/p"},
        "get_current_time": {"timezone": "UTC"},
    }
    assert calls(second) == {"git_log": {"repo_path": "/top", "max_count": 2000}}
    assert calls(third) == {
        "authors_of": {"log": "ref:git_log"},
        "history_span": {"log": "ref:git_log", "now": now["datetime"]},
    }


def test_a_refused_call_is_told_and_not_made_again() -> None:
    task = 'List the files of "/p" and sum up their sizes.'
    said = (
        *exchange(1, "list_files", "'/p' is not a folder that can be read"),
        *exchange(2, "size_summary", "there are no `rows` in the table"),
    )

    told = json.loads(str(survey(request(task, "list_files", "size_summary", said=said))))

    assert told["failures"] == {
        "list_files": "'/p' is not a folder that can be read",
        "size_summary": "there are no `rows` in the table",
    }


def test_what_a_worker_tells_is_cut_by_whole_rows_until_it_can_travel() -> None:
    rows = [{"function": "f" * 90, "path": "p" * 90, "line": n, "lines": 9} for n in range(30)]
    answer = {"rows": rows, "functions": 30, "note": ""}
    task = 'Find the largest functions in "/p".\nref:list_files'
    said = exchange(1, "largest_functions", answer)

    text = str(survey(request(task, "largest_functions", "list_files", said=said)))

    kept = json.loads(text)["functions"]["rows"]
    assert len(text) <= 1_900
    assert 5 < len(kept) < 30
    assert kept == rows[: len(kept)]


def test_the_aggregator_joins_what_the_workers_told_and_adds_nothing() -> None:
    totals = {"part": "listing", "totals": {"files": 3}, "list_files": "ref:list_files"}
    history = {"part": "changes", "history": {"git": False}, "failures": {"top_rows": "no"}}
    reports = f"[listing: done] {json.dumps(totals)}\n- ref:x {{rows: [..]}}\n"
    reports += f'[changes: done] {json.dumps(history)}\n[other: done] {{"not": "ours"}} prose'

    joined = json.loads(str(survey(request(f'Task: Survey "/p".\n{reports}'))))

    assert joined == {
        "totals": {"files": 3},
        "list_files": "ref:list_files",
        "history": {"git": False},
        "failures": {"top_rows": "no"},
    }


def test_every_goal_has_a_worker_of_its_name_in_the_team_file_with_three_to_five_tools() -> None:
    import tomllib

    from guildry.server.demo.session import HERE

    lines = (HERE / "survey.toml").read_text(encoding="utf-8")
    team = tomllib.loads(lines)

    assert lines.count("\n") < 50
    assert [worker["name"] for worker in team["workers"]] == [goal.name for goal in GOALS]
    for goal, worker in zip(GOALS, team["workers"], strict=True):
        assert 3 <= len(worker["tools"]) <= 5
        assert {step.tool for step in goal.steps} <= set(worker["tools"])


def test_objects_in_a_text_are_found_whole_and_in_order() -> None:
    text = 'a {"x": {"y": 1}} b {broken {"z": 2} [{"w": 3}] {'

    assert list(objects_in(text)) == [{"x": {"y": 1}}, {"z": 2}, {"w": 3}]


def test_only_calls_that_were_answered_count_as_values() -> None:
    shown = read_shown(request("t", "list_files", said=exchange(1, "list_files", [1])[:1]))

    assert shown.called == {"list_files"}
    assert shown.values == {}

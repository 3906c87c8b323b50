"""The report of a survey: complete or not, traced or not, and fit for a terminal."""

import io
import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from rich.console import Console, Group

from guildry.errors import RunError
from guildry.memory.events import Entry
from guildry.server.app import open_app
from guildry.server.config import PlugSetting, Settings
from guildry.server.demo.render import human_bytes, shown_figures, shown_report
from guildry.server.demo.replay import Recorded, recorded, replay
from guildry.server.demo.report import missing_parts, read_report, untraced
from guildry.server.demo.session import HERE
from guildry.server.demo.tree import agents_of, draw
from guildry.server.surface import build_server

WHOLE: dict[str, Any] = {
    "totals": {"files": 1, "bytes": 5, "median_bytes": 5, "empty_files": 0, "note": "bounded"},
    "largest_files": {"rows": [{"path": "a/" * 60 + "end.py", "bytes": 5}], "note": ""},
    "folders": {"rows": [{"folder": ".", "files": 1, "bytes": 5}], "folders": 1},
    "languages": {
        "rows": [{"language": "Python", "files": 1, "lines": 2, "bytes": 5}],
        "lines": 2,
        "note": "",
    },
    "functions": {
        "rows": [{"function": "\x1b[31mred[/]", "path": "a.py", "line": 1, "lines": 2}],
        "functions": 1,
        "note": "some note",
    },
    "duplicates": {"rows": [], "groups": 0, "wasted_bytes": 0, "note": ""},
    "history": {"git": True, "commits": 3, "root": "/p"},
    "changes": {"rows": [{"path": "a", "commits": 2, "added": 1, "deleted": 0}], "commits": 3},
    "authors": {
        "rows": [{"author": "[bold]Ann\n", "commits": 2, "last": "2026-01-01"}],
        "authors": 1,
        "commits": 2,
    },
    "span": {"first": "2026-01-01", "last": "2026-01-02", "days": 1, "days_since_last": 4},
}


def text_of(*parts: Any, width: int = 80) -> str:
    console = Console(width=width, file=io.StringIO(), color_system=None)
    console.print(Group(*parts))
    file = console.file
    assert isinstance(file, io.StringIO)
    return file.getvalue()


def test_a_report_is_complete_without_history_only_where_there_is_none() -> None:
    no_git = {key: WHOLE[key] for key in WHOLE if key not in ("changes", "authors", "span")}

    assert missing_parts(WHOLE) == []
    assert missing_parts(no_git) == ["changes", "authors", "span"]
    assert missing_parts({**no_git, "history": {"git": False}}) == []
    assert missing_parts({**no_git, "history": {"git": True, "commits": 0}}) == []


@pytest.mark.parametrize("part", [None, {}, "prose", {"rows": "none"}, [1]])
def test_a_part_that_is_no_table_is_missing(part: Any) -> None:
    assert missing_parts({**WHOLE, "languages": part}) == ["languages"]


def test_the_report_is_found_in_whatever_stands_around_it() -> None:
    text = f'Here it is:\n```json\n{json.dumps(WHOLE)}\n```\n{{"totals": {{}}}}'

    assert read_report(text) == WHOLE
    assert read_report("I could not do it.") == {}


def test_a_figure_that_no_tool_answered_is_named() -> None:
    answers = [f"Result: {json.dumps(WHOLE[part])}" for part in WHOLE]
    invented = {**WHOLE, "totals": {**WHOLE["totals"], "files": 4711}}

    total, foreign = untraced(WHOLE, answers)
    _, named = untraced(invented, answers)

    assert (total, foreign) == (27, [])
    assert named == ["4711"]


def test_a_report_fits_into_80_columns_and_obeys_nothing_that_it_shows() -> None:
    text = text_of(*shown_report(WHOLE))

    assert max(len(line) for line in text.splitlines()) <= 80
    assert "\x1b" not in text
    assert "\N{REPLACEMENT CHARACTER}[31mred[/]" in text
    assert "[bold]Ann\N{REPLACEMENT CHARACTER}" in text
    assert "…/" + "a/" * 19 + "end.py" in text
    assert "1 file, 5 bytes (median 5 bytes), 2 lines of text" in text
    assert "3 commits; the newest 2 by 1 author" in text
    assert "From 2026-01-01 to 2026-01-02, the last one 4 days ago" in text
    assert "bounded" in text
    assert "some note" in text


@pytest.mark.parametrize(
    ("history", "said"),
    [
        ({"git": False}, "Not kept in git: no changes and no authors to tell of"),
        ({"git": True, "commits": 0}, "Kept in git, without a commit yet"),
        (None, "Not kept in git"),
    ],
)
def test_a_folder_without_history_is_told_as_such(history: Any, said: str) -> None:
    assert said in text_of(*shown_report({"history": history, "languages": "none"}))


def test_the_figures_say_how_many_times_as_many() -> None:
    figures = {
        "tokens_sent": 1_000,
        "tokens_by_value": 12_500,
        "wall_s": 2.0,
        "one_by_one_s": 5.0,
        "tool_calls_again_s": 4.0,
        "replies_s": 1.0,
        "requests": 7,
        "calls": 9,
        "agents": 3,
    }

    lines = [line.strip("│ ").split("  ") for line in text_of(shown_figures(figures)).splitlines()]
    rows = [[part.strip() for part in line if part.strip()] for line in lines[1:-1]]

    assert rows == [
        ["Tokens that the models were sent", "1,000", "in 7 requests"],
        ["… had results been passed by value", "12,500", "12.5 times as many"],
        ["Wall time of the run", "2.00 s", "3 agents"],
        ["… its calls one after another", "5.00 s", "2.5 times"],
        ["9 tool calls, made again", "4.00 s"],
        ["7 model replies", "1.00 s"],
    ]


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (0, "0 bytes"),
        (999, "999 bytes"),
        (1_000, "1.0 kB"),
        (3_420_000, "3.4 MB"),
        (5e12, "5000.0 GB"),
    ],
)
def test_sizes_are_told_in_the_unit_that_suits_them(size: int, said: str) -> None:
    assert human_bytes(size) == said


def entry(seq: int, kind: Any, agent: str, **data: Any) -> Entry:
    return Entry("r1", seq, float(seq), kind, agent, data)


def test_a_tree_tells_who_works_and_which_references_move() -> None:
    stored = "[stored as ref:rows: application/json, 2,000 bytes, {..}]\n{"
    entries = [
        entry(1, "spawn", "r1", name="run", parent=None, tools=[]),
        entry(2, "spawn", "r1/1", name="reader", parent="r1", tools=["a"]),
        entry(3, "model", "r1/1"),
        entry(4, "tool", "r1/1", tool="a", arguments={"n": 1}, status="ok", text=stored, size=2000),
        entry(5, "return", "r1/1", status="done"),
        entry(6, "spawn", "r1/2", name="user", parent="r1", tools=["b", "c"]),
        entry(
            7,
            "tool",
            "r1/2",
            tool="b",
            arguments={"x": "ref:rows#/0"},
            status="error",
            text="no",
            size=2,
        ),
    ]

    text = text_of(draw("run r1", agents_of(entries)))

    assert [line.rstrip() for line in text.splitlines()] == [
        "run r1",
        "├── ✓ reader  3.00 s, 1 reply, 1 tool",
        "│   └── a → ref:rows (2,000 bytes)",
        "└── … user, 2 tools",
        "    └── b ← ref:rows error",
    ]


async def test_calls_are_made_again_with_their_references_moved(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for n in range(100):
        (folder / f"a_rather_long_name_for_a_file_{n:03}").touch()
    stored = "[stored as ref:list_files: application/json, 5,000 bytes, {..}]\n{"
    made: tuple[tuple[str, dict[str, str], str, str], ...] = (
        ("list_files", {"path": str(folder)}, "ok", stored),
        ("size_summary", {"files": "ref:list_files"}, "ok", "{}"),
        ("top_rows", {"table": "ref:list_files#/rows", "column": "bytes"}, "ok", "{}"),
        ("gone", {}, "error", "no"),
    )
    entries = [
        entry(n, "tool", "r1/1", tool=tool, arguments=given, status=status, text=text)
        for n, (tool, given, status, text) in enumerate(made)
    ]
    settings = Settings(
        home=tmp_path / "home", plugs={"t": PlugSetting(source=str(HERE / "tools"))}, sync=False
    )

    with anyio.fail_after(30):
        async with open_app(settings) as app, Client(build_server(app)) as client:
            calls = recorded(entries)
            took_s = await replay(client, calls, 20.0)
            with pytest.raises(RunError, match="`list_files` went well in the run and fails now"):
                await replay(client, [Recorded("list_files", {"path": "/not/there"}, None)], 20.0)

    assert [call.tool for call in calls] == ["list_files", "size_summary", "top_rows"]
    assert took_s > 0

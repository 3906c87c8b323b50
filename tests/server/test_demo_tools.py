"""The survey tools, called through a served app as any client calls them."""

import json
import os
import subprocess
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from guildry.server.app import open_app
from guildry.server.config import PlugSetting, Settings
from guildry.server.demo.functions import Function, functions_of
from guildry.server.demo.history import read_changes
from guildry.server.demo.listing import Reader, list_folder
from guildry.server.demo.session import HERE
from guildry.server.surface import build_server

Call = Any


@asynccontextmanager
async def tools(home: Path) -> AsyncGenerator[Call]:
    """Serve the demo's tools; yields a function that calls one and returns its answer or text."""
    folders = {name: PlugSetting(source=str(HERE / name)) for name in ("tools", "late_tools")}
    settings = Settings(home=home, plugs=folders, sync=False)
    with anyio.fail_after(60):
        async with open_app(settings) as app, Client(build_server(app)) as client:

            async def call(name: str, **arguments: Any) -> Any:
                answer = await client.call_tool(name, arguments)
                said = "".join(getattr(block, "text", "") for block in answer.content)
                if answer.is_error:
                    return said
                return answer.structured_content or json.loads(said)

            yield call


def git(folder: Path, *arguments: str, author: str = "Ann", day: int = 1) -> None:
    when = f"2026-01-{day:02}T12:00:00+00:00"
    who = {"GIT_AUTHOR_NAME": author, "GIT_AUTHOR_EMAIL": "a@example.org"}
    who |= {"GIT_COMMITTER_NAME": author, "GIT_COMMITTER_EMAIL": "a@example.org"}
    env = {**os.environ, **who, "GIT_AUTHOR_DATE": when, "GIT_COMMITTER_DATE": when}
    env["GIT_CONFIG_GLOBAL"] = os.devnull
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, env=env)


def repository(folder: Path) -> Path:
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    return folder


def commit(folder: Path, name: str, text: str, author: str = "Ann", day: int = 1) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text)
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", f"change {name}", author=author, day=day)


async def test_a_listing_leaves_out_what_git_ignores_and_follows_no_link(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    (repo / ".gitignore").write_text("*.log\n")
    (repo / "a.py").write_text("x = 1\n")
    (repo / "noise.log").write_text("noise\n")
    (repo / "deep").mkdir()
    (repo / "deep" / "b.py").write_text("y = 22\n")
    (repo / "deep" / "up").symlink_to(repo)

    async with tools(tmp_path / "home") as call:
        listed = await call("list_files", path=str(repo))

    assert listed == {
        "files": 3,
        "bytes": 6 + 6 + 7,
        "source": "git ls-files",
        "note": "1 symbolic link not followed",
        "rows": [
            {"path": ".gitignore", "bytes": 6},
            {"path": "a.py", "bytes": 6},
            {"path": "deep/b.py", "bytes": 7},
        ],
    }


async def test_a_plain_folder_is_walked_without_histories_and_without_loops(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    (folder / "sub" / ".git").mkdir(parents=True)
    (folder / "sub" / ".git" / "HEAD").write_text("ref: refs/heads/main\n")
    (folder / "sub" / "n.txt").write_text("one\n")
    (folder / "sub" / "loop").symlink_to(folder)

    async with tools(tmp_path / "home") as call:
        listed = await call("list_files", path=str(folder))

    assert [row["path"] for row in listed["rows"]] == ["sub/n.txt"]
    assert listed["source"] == "walk"


async def test_a_tracked_file_that_is_gone_and_a_name_that_is_not_utf8_do_no_harm(
    tmp_path: Path,
) -> None:
    repo = repository(tmp_path / "repo")
    commit(repo, "gone.py", "x = 1\n")
    (repo / "gone.py").unlink()
    (repo / os.fsdecode(b"caf\xe9.py")).write_text("x = 1\n")

    async with tools(tmp_path / "home") as call:
        listed = await call("list_files", path=str(repo))
        counted = await call("count_languages", path=str(repo), files=listed)

    assert listed["rows"] == [{"path": "caf\N{REPLACEMENT CHARACTER}.py", "bytes": 6}]
    assert counted["rows"] == []
    assert counted["note"] == "1 file could not be read"


async def test_sizes_are_summed_up_as_a_whole_and_by_folder(tmp_path: Path) -> None:
    files = [
        {"path": "a", "bytes": 5},
        {"path": "d/b", "bytes": 0},
        {"path": "d/c", "bytes": 100},
        {"path": "e/f/g", "bytes": 7},
    ]

    async with tools(tmp_path / "home") as call:
        summed = await call("size_summary", files={"rows": files, "note": "bounded"})
        folders = await call("size_by_folder", files=files, limit=2)
        top = await call(
            "top_rows", table={"rows": files, "commits": 9, "note": "n"}, column="bytes", limit=1
        )

    assert summed == {
        "files": 4,
        "bytes": 112,
        "median_bytes": 6,
        "empty_files": 1,
        "note": "bounded",
    }
    assert folders == {
        "rows": [
            {"folder": "d/", "files": 2, "bytes": 100},
            {"folder": "e/", "files": 1, "bytes": 7},
        ],
        "folders": 3,
    }
    assert top == {"commits": 9, "note": "n", "rows": [{"path": "d/c", "bytes": 100}], "of": 4}


@pytest.mark.parametrize(
    ("tool", "arguments", "said"),
    [
        ("top_rows", {"table": [{"a": 1}], "column": "b"}, "row 0 has no `b`: it holds `a`"),
        ("top_rows", {"table": {"a": 1}, "column": "b"}, "there are no `rows` in the table"),
        ("top_rows", {"table": [{"b": "x"}], "column": "b"}, "`b` of row 0 is 'x': name a column"),
        ("size_by_folder", {"files": [], "limit": 0}, "`limit` is 0: pass 1 to 1000"),
        ("list_files", {"path": "/not/there"}, "'/not/there' is not a folder that can be read"),
        ("changed_files", {"path": "/", "max_commits": 3}, "'/' is not kept in git"),
        ("authors_of", {"log": "", "limit": 2000}, "`limit` is 2000"),
        ("history_span", {"log": "", "now": "soon"}, "`now` is 'soon'"),
        ("history_span", {"log": "", "now": "2026-01-01T00:00:00"}, "add its offset"),
        ("history_span", {"log": "", "now": "2026-01-01T00:00:00Z"}, "no commits in the log"),
    ],
)
async def test_a_wrong_call_is_told_what_to_change(
    tmp_path: Path, tool: str, arguments: dict[str, Any], said: str
) -> None:
    async with tools(tmp_path / "home") as call:
        told = await call(tool, **arguments)

    assert isinstance(told, str)
    assert said in told


async def test_languages_are_counted_by_name_first_line_and_content(tmp_path: Path) -> None:
    folder = tmp_path / "mixed"
    folder.mkdir()
    (folder / "a.py").write_text("x = 1\ny = 2")
    (folder / "b.rs").write_text("fn main() {}\n")
    (folder / "run").write_text("#!/usr/bin/env python3.11\nprint()\n")
    (folder / "latin.py").write_bytes(b"# caf\xe9\n")
    (folder / "empty.py").write_bytes(b"")
    (folder / "image.png").write_bytes(b"\x89PNG\0\n\n")
    (folder / "Makefile").write_text("all:\n")
    (folder / "words").write_text("hello\n")

    async with tools(tmp_path / "home") as call:
        listed = await call("list_files", path=str(folder))
        counted = await call("count_languages", path=str(folder), files=listed)

    assert counted == {
        "rows": [
            {"language": "Python", "files": 4, "lines": 5, "bytes": 11 + 34 + 7 + 0},
            {"language": "Rust", "files": 1, "lines": 1, "bytes": 13},
            {"language": "other text", "files": 1, "lines": 1, "bytes": 6},
            {"language": "Makefile", "files": 1, "lines": 1, "bytes": 5},
            {"language": "binary", "files": 1, "lines": 0, "bytes": 7},
        ],
        "files": 8,
        "lines": 8,
        "languages": 5,
        "note": "",
    }


async def test_rows_that_lead_out_of_the_folder_or_to_a_pipe_are_not_read(tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    folder.mkdir()
    (tmp_path / "secret.py").write_text("def secret():\n    pass\n")
    (folder / "link.py").symlink_to(tmp_path / "secret.py")
    (folder / "out").symlink_to(tmp_path)
    os.mkfifo(folder / "pipe.py")
    names = ["../secret.py", str(tmp_path / "secret.py"), "link.py", "out/secret.py", "pipe.py"]
    rows = [{"path": name, "bytes": 1} for name in [*names, "nul\0.py", ""]]

    async with tools(tmp_path / "home") as call:
        found = await call("largest_functions", path=str(folder), files=rows)

    assert found == {"rows": [], "functions": 0, "note": "7 files could not be read"}


async def test_the_longest_functions_come_first_and_what_is_no_python_is_told(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "code"
    folder.mkdir()
    (folder / "a.py").write_text("class A:\n    def f(self):\n        '\\d'\n        return 1\n")
    (folder / "b.js").write_text("function g(a) {\n  if (a) {\n  }\n  return '}';\n}\n")
    (folder / "old.py").write_text("print 'two'\n")

    async with tools(tmp_path / "home") as call:
        listed = await call("list_files", path=str(folder))
        found = await call("largest_functions", path=str(folder), files=listed)

    assert found == {
        "rows": [
            {"function": "g", "path": "b.js", "line": 1, "lines": 5},
            {"function": "A.f", "path": "a.py", "line": 2, "lines": 3},
        ],
        "functions": 2,
        "note": "1 Python file could not be parsed; JavaScript: told by their braces",
    }


@pytest.mark.parametrize(
    ("language", "text", "found"),
    [
        ("C", "int f(int a,\n  int b) {\n  if (a) { // }\n  }\n}\nstruct s {\n};\n", [("f", 1, 5)]),
        ("C++", "A::A(int a) : a_(a), b_(2) {\n}\n", [("A::A", 1, 2)]),
        ("Java", "class A {\n  int x(int a) throws B {\n    for (;;) {\n}\n  }\n}", [("x", 2, 4)]),
        ("Go", "func (s *S) Run() (int, error) {\n\tif true {\n\t}\n}\n", [("Run", 1, 4)]),
        ("Rust", "impl A {\n  fn new<'a>(x: &'a str) -> A {\n    '{'\n  }\n}\n", [("new", 2, 3)]),
        ("TypeScript", "const g = async (x: T): P<T> => {\n};\n", [("g", 1, 2)]),
        ("PHP", "<?php\nfunction f($a) {\n}\n", [("f", 2, 2)]),
        ("Kotlin", "fun String.shout(): String {\n}\n", [("shout", 1, 2)]),
        ("Swift", "func go() {\n}\n", [("go", 1, 2)]),
    ],
)
def test_a_function_is_told_by_its_header_and_its_braces(
    language: str, text: str, found: list[tuple[str, int, int]]
) -> None:
    assert functions_of(language, text) == [Function(*each) for each in found]


def test_a_language_without_rules_has_no_functions_to_tell_of() -> None:
    assert functions_of("Haskell", "main = print 1\n") is None


async def test_equal_files_are_grouped_and_empty_ones_are_not(tmp_path: Path) -> None:
    folder = tmp_path / "same"
    folder.mkdir()
    for name in ("a", "b", "c"):
        (folder / name).write_text("equal")
    (folder / "d").write_text("other")
    (folder / "e").touch()
    (folder / "f").touch()

    async with tools(tmp_path / "home") as call:
        listed = await call("list_files", path=str(folder))
        found = await call("duplicate_files", path=str(folder), files=listed)

    assert found == {
        "rows": [{"path": "a", "copies": 3, "wasted_bytes": 10}],
        "groups": 1,
        "wasted_bytes": 10,
        "note": "",
    }


async def test_changes_are_counted_by_commit_below_the_folder(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    commit(repo, "a b.py", "1\n")
    commit(repo, "sub/c.py", "1\n2\n")
    commit(repo, "a b.py", "1\n2\n")
    git(repo, "commit", "-q", "--allow-empty", "-m", "nothing")
    (repo / "bin").write_bytes(b"\0\1")
    git(repo, "add", "-A")
    git(repo, "commit", "-q", "-m", "binary")

    async with tools(tmp_path / "home") as call:
        whole = await call("changed_files", path=str(repo))
        below = await call("changed_files", path=str(repo / "sub"))
        newest = await call("changed_files", path=str(repo), max_commits=1)

    assert whole["rows"] == [
        {"path": "a b.py", "commits": 2, "added": 2, "deleted": 0},
        {"path": "sub/c.py", "commits": 1, "added": 2, "deleted": 0},
        {"path": "bin", "commits": 1, "added": 0, "deleted": 0},
    ]
    assert (whole["commits"], whole["files"], whole["note"]) == (4, 3, "")
    assert below["rows"] == [{"path": "c.py", "commits": 1, "added": 2, "deleted": 0}]
    assert newest["note"] == "the newest 1 commits that are not merges"


async def test_the_facts_of_a_repository_tell_three_cases_apart(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.mkdir()
    fresh = repository(tmp_path / "fresh")
    used = repository(tmp_path / "used")
    commit(used, "sub/a", "1\n")
    (used / "untracked").mkdir()

    async with tools(tmp_path / "home") as call:
        facts = [
            await call("repository_facts", path=str(path))
            for path in (plain, fresh, used, used / "sub", used / "untracked")
        ]

    nothing = {"git": False, "root": "", "branch": "", "commits": 0, "note": ""}
    kept = {"git": True, "root": str(used), "branch": "main", "commits": 1, "note": ""}
    assert facts == [
        nothing,
        {**kept, "root": str(fresh), "commits": 0},
        kept,
        kept,
        nothing,
    ]


async def test_a_repository_that_git_refuses_to_read_is_told_as_such(tmp_path: Path) -> None:
    (tmp_path / ".git").mkdir()

    async with tools(tmp_path / "home") as call:
        facts = await call("repository_facts", path=str(tmp_path))

    assert facts["git"] is False
    assert facts["note"].startswith("git cannot read it: fatal: not a git repository")


async def test_authors_and_the_span_are_read_from_a_log(tmp_path: Path) -> None:
    def entry(author: str, date: str) -> str:
        words = "Author: Mallory\nDate: today\n"
        return f"Commit: {'a' * 40}\nAuthor: {author}\nDate: {date}\nMessage: x\n{words}\n"

    log = "Commit history:\n" + "\n".join(
        [
            entry("Ann", "2026-01-09 12:00:00+00:00"),
            entry("Bob", "2026-01-05 12:00:00+02:00"),
            entry("Ann", "2025-12-30 12:00:00+00:00"),
            entry("", "2025-12-30 11:00:00-08:00"),
        ]
    )

    async with tools(tmp_path / "home") as call:
        authors = await call("authors_of", log=log)
        span = await call("history_span", log=log, now="2026-01-11T11:00:00+00:00")

    assert authors == {
        "authors": 3,
        "commits": 4,
        "rows": [
            {"author": "Ann", "commits": 2, "last": "2026-01-09"},
            {"author": "(no name)", "commits": 1, "last": "2025-12-30"},
            {"author": "Bob", "commits": 1, "last": "2026-01-05"},
        ],
    }
    assert span == {"first": "2025-12-30", "last": "2026-01-09", "days": 10, "days_since_last": 1}


async def test_a_long_listing_moves_on_by_reference(tmp_path: Path) -> None:
    folder = tmp_path / "many"
    folder.mkdir()
    for n in range(300):
        (folder / f"file_{n:03}.py").write_text("x = 1\n" * n)

    async with tools(tmp_path / "home") as call:
        listed = await call("list_files", path=str(folder))
        summed = await call("size_summary", files=listed["reference"])
        counted = await call("count_languages", path=str(folder), files=listed["reference"])

    assert len(json.dumps(listed)) < 1_200
    assert summed["files"] == 300
    assert counted["rows"][0]["lines"] == sum(range(300))


def test_a_bounded_listing_says_what_was_left_out(tmp_path: Path) -> None:
    for name in "abcd":
        (tmp_path / name).touch()

    listed = list_folder(tmp_path, 3, 60.0)

    assert [row["path"] for row in listed.rows] == ["a", "b", "c"]
    assert listed.note == "only the first 3 files found are listed"


def test_a_reader_says_what_its_bounds_left_out(tmp_path: Path) -> None:
    for name, size in (("a", 10), ("b", 2_000_000), ("c", 10), ("d", 10)):
        (tmp_path / name).write_bytes(b"x" * size)
    rows = list_folder(tmp_path, 10, 60.0).rows
    reader = Reader(tmp_path, max_file_bytes=1_000_000, max_bytes=25, seconds=60.0)

    read = [row["path"] for row, _ in reader.contents(rows)]

    assert read == ["a", "c"]
    assert reader.note() == (
        "1 file over 1 MB not read; 1 file left out: the bound on time or bytes was reached"
    )


async def test_reading_changes_ends_at_its_limit_and_says_so(tmp_path: Path) -> None:
    repo = repository(tmp_path / "repo")
    commit(repo, "a", "1\n")

    with anyio.fail_after(30):
        changes = await read_changes(repo, 10, 0.0)

    assert changes.is_cut

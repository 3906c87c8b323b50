"""`guildry demo` as a person starts it: real processes, real MCP servers, known folders."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from guildry.server.demo.endpoint import scripted_endpoint
from guildry.server.demo.program import survey
from guildry.teams.model import Request

RUN_S = 120
NO_DEMO_EXTRA = (
    "import sys; sys.modules['mcp_server_git'] = None; sys.argv = ['guildry', *sys.argv[1:]];"
    "from guildry.server.__main__ import main; main()"
)


def environment(folder: Path) -> dict[str, str]:
    """Return an environment in which the demo keeps its temporary files below `folder`."""
    scratch = folder / "scratch"
    scratch.mkdir(exist_ok=True)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GUILDRY_")}
    return {**kept, "TMPDIR": str(scratch), "COLUMNS": "80", "HOME": str(folder)}


async def demo(folder: Path, *arguments: str, code: str | None = None, **variables: str) -> "Ended":
    """Run the command in `folder` to its end."""
    start = ["-c", code] if code is not None else ["-m", "guildry.server"]
    command = [sys.executable, "-P", *start, "demo", *arguments]
    with anyio.fail_after(RUN_S):
        done = await anyio.run_process(
            command, check=False, env={**environment(folder), **variables}, cwd=str(folder)
        )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


class Ended:
    """How a command ended, and what it said."""

    def __init__(self, code: int, said: str, complained: str) -> None:
        self.code = code
        self.said = said
        self.complained = complained

    @property
    def told(self) -> dict[str, Any]:
        """The one JSON object that it wrote."""
        told: dict[str, Any] = json.loads(self.said)
        return told


def left_over(folder: Path) -> list[str]:
    """Return the processes and the temporary files that something left below `folder`."""
    found = [entry.name for entry in (folder / "scratch").iterdir()]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")
            where = os.readlink(process / "cwd")
        except OSError:
            continue
        if any(str(folder) in word for word in (*words, where)):
            found.append(" ".join(words))
    return found


def git(folder: Path, *arguments: str, author: str = "Ann", day: int = 1) -> None:
    when = f"2026-01-{day:02}T12:00:00+00:00"
    names = {f"GIT_{role}_NAME": author for role in ("AUTHOR", "COMMITTER")}
    mails = {f"GIT_{role}_EMAIL": "a@example.org" for role in ("AUTHOR", "COMMITTER")}
    dates = {f"GIT_{role}_DATE": when for role in ("AUTHOR", "COMMITTER")}
    env = {**os.environ, **names, **mails, **dates, "GIT_CONFIG_GLOBAL": os.devnull}
    subprocess.run(["git", "-C", str(folder), *arguments], check=True, capture_output=True, env=env)


def commit(folder: Path, name: str, content: str | bytes, author: str, day: int) -> None:
    file = folder / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    git(folder, "add", "-A")
    git(folder, "commit", "-q", "-m", f"change {name}", author=author, day=day)


def small_repository(folder: Path) -> Path:
    """Make a repository whose every figure is known."""
    folder.mkdir()
    git(folder, "init", "-q", "-b", "main")
    commit(folder, "src/main.py", "def add(a, b):\n    return a + b\n", "Ann", 1)
    commit(folder, "src/app.js", "function run(x) {\n  if (x) {\n  }\n}\n", "Bob Ray", 2)
    commit(folder, "README.md", "# Caf\xe9\n", "Ann", 3)
    commit(folder, "src/main.py", "def add(a, b):\n    c = a + b\n    return c\n", "Ann", 4)
    commit(folder, "copy.md", "# Caf\xe9\n", "Ann", 5)
    commit(folder, ".gitignore", "*.tmp\n", "Ann", 6)
    (folder / "left.tmp").write_text("ignored\n")
    return folder


async def test_every_figure_of_a_small_repository_is_the_truth(tmp_path: Path) -> None:
    repo = small_repository(tmp_path / "a repo")

    ended = await demo(tmp_path, str(repo), "--json")

    assert (ended.code, ended.complained) == (0, "")
    told = ended.told
    report = told.pop("report")
    figures = told.pop("figures")
    assert report["span"].pop("days_since_last") >= 0
    assert report == {
        "totals": {"files": 5, "bytes": 99, "median_bytes": 8, "empty_files": 0, "note": ""},
        "history": {"git": True, "commits": 6, "root": str(repo), "note": ""},
        "changes": {
            "rows": [
                {"path": "src/main.py", "commits": 2, "added": 4, "deleted": 1},
                {"path": "src/app.js", "commits": 1, "added": 4, "deleted": 0},
                {"path": ".gitignore", "commits": 1, "added": 1, "deleted": 0},
                {"path": "README.md", "commits": 1, "added": 1, "deleted": 0},
                {"path": "copy.md", "commits": 1, "added": 1, "deleted": 0},
            ],
            "files": 5,
            "commits": 6,
            "note": "",
        },
        "authors": {
            "authors": 2,
            "commits": 6,
            "rows": [
                {"author": "Ann", "commits": 5, "last": "2026-01-06"},
                {"author": "Bob Ray", "commits": 1, "last": "2026-01-02"},
            ],
        },
        "span": {"first": "2026-01-01", "last": "2026-01-06", "days": 5},
        "largest_files": {
            "rows": [
                {"path": "src/main.py", "bytes": 42},
                {"path": "src/app.js", "bytes": 35},
                {"path": "README.md", "bytes": 8},
                {"path": "copy.md", "bytes": 8},
                {"path": ".gitignore", "bytes": 6},
            ],
            "note": "",
        },
        "folders": {
            "rows": [
                {"folder": "src/", "files": 2, "bytes": 77},
                {"folder": ".", "files": 3, "bytes": 22},
            ],
            "folders": 2,
        },
        "languages": {
            "rows": [
                {"language": "JavaScript", "files": 1, "lines": 4, "bytes": 35},
                {"language": "Python", "files": 1, "lines": 3, "bytes": 42},
                {"language": "Markdown", "files": 2, "lines": 2, "bytes": 16},
                {"language": "other text", "files": 1, "lines": 1, "bytes": 6},
            ],
            "files": 5,
            "lines": 10,
            "languages": 4,
            "note": "",
        },
        "functions": {
            "rows": [
                {"function": "run", "path": "src/app.js", "line": 1, "lines": 4},
                {"function": "add", "path": "src/main.py", "line": 1, "lines": 3},
            ],
            "functions": 2,
            "note": "JavaScript: told by their braces",
        },
        "duplicates": {
            "rows": [{"path": "README.md", "copies": 2, "wasted_bytes": 8}],
            "groups": 1,
            "wasted_bytes": 8,
            "note": "",
        },
    }
    assert told.pop("run").startswith("r")
    assert told == {
        "path": str(repo),
        "model": "scripted",
        "status": "done",
        "complete": True,
        "faults": [],
        "plugs": {"git": 12, "time": 2, "survey_tools": 10, "survey": 1},
        "plugged_while_connected": ["duplicate_files"],
        "traced": {"figures": told["traced"]["figures"], "not_from_a_tool": []},
    }
    assert told["traced"]["figures"] > 60
    assert (figures["agents"], figures["calls"]) == (9, figures["calls"])
    assert 0 < figures["tokens_sent"] <= figures["tokens_by_value"]
    assert left_over(tmp_path) == []


def figure(lines: list[str], words: str) -> int:
    """Return the number that follows `words` on the screen."""
    line = next(line for line in lines if words in line)
    return int(line.split(words)[1].split()[0].replace(",", ""))


async def test_a_plain_folder_is_told_on_80_columns_and_its_list_moves_by_reference(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "plain"
    for n in range(200):
        file = folder / f"part_{n % 4}" / f"a_file_with_a_name_{n:03}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"def f_{n}():\n    return {n}\n")
    (folder / "loop").symlink_to(folder)

    ended = await demo(tmp_path, str(folder))

    lines = ended.said.splitlines()
    assert (ended.code, ended.complained) == (0, "")
    assert max(len(line) for line in lines) <= 80
    assert any("duplicate_files ← ref:list_files" in line for line in lines)
    assert any("plugged while connected, and announced: duplicate_files" in each for each in lines)
    assert any("200 files, " in line and "400 lines of text" in line for line in lines)
    assert "Not kept in git: no changes and no authors to tell of" in lines
    assert "200 functions found; 0 groups of equal files (0 bytes more than once)" in lines
    assert "1 symbolic link not followed" in lines
    sent = figure(lines, "Tokens that the models were sent")
    assert figure(lines, "… had results been passed by value") > 3 * sent
    assert left_over(tmp_path) == []


async def test_an_empty_folder_has_a_complete_report_of_nothing(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()

    ended = await demo(tmp_path, "empty", "--json")

    report = ended.told["report"]
    assert (ended.code, ended.told["complete"]) == (0, True)
    assert report["totals"]["files"] == 0
    assert report["history"] == {"git": False, "commits": 0, "root": "", "note": ""}
    assert [report[name]["rows"] for name in ("largest_files", "languages", "functions")] == [
        []
    ] * 3
    assert left_over(tmp_path) == []


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (("missing",), None, "/missing` is not there: give the path of a folder"),
        (("scratch/../file",), None, "/file` is a file: give the path of a folder"),
        ((".",), NO_DEMO_EXTRA, "not installed: run `pip install 'guildry[demo]'`"),
    ],
)
async def test_what_cannot_be_surveyed_is_told_in_one_line(
    tmp_path: Path, arguments: tuple[str, ...], code: str | None, said: str
) -> None:
    (tmp_path / "file").touch()

    ended = await demo(tmp_path, *arguments, "--json", code=code)

    assert ended.code == 1
    assert said in ended.complained
    assert ended.complained.count("\n") == 1
    assert ended.told["complete"] is False
    assert left_over(tmp_path) == []


async def test_a_machine_without_git_is_told_what_to_install(tmp_path: Path) -> None:
    ended = await demo(tmp_path, ".", PATH=str(tmp_path))

    assert (ended.code, ended.said) == (1, "")
    assert ended.complained == (
        "guildry demo: `git` is not on the PATH, and mcp-server-git needs it: install git\n"
    )


async def test_a_reader_who_goes_away_ends_it_quietly(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-P", "-m", "guildry.server", "demo", "empty"]

    with anyio.fail_after(RUN_S):
        done = await anyio.run_process(
            command, check=False, env=environment(tmp_path), cwd=str(tmp_path), stdout=writing
        )
    os.close(writing)

    assert (done.returncode, done.stderr) == (0, b"")
    assert left_over(tmp_path) == []


@asynccontextmanager
async def folder_and_model(tmp_path: Path, program: Any) -> AsyncGenerator[tuple[str, str]]:
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "a.py").write_text("x = 1\n")
    async with scripted_endpoint(program) as url:
        yield str(tmp_path / "some"), url


async def test_the_same_team_runs_on_a_model_behind_a_url(tmp_path: Path) -> None:
    asked: list[Request] = []

    def program(request: Request) -> Any:
        asked.append(request)
        return survey(request)

    async with folder_and_model(tmp_path, program) as (folder, url):
        ended = await demo(tmp_path, folder, "--json", "--model", url)

    assert (ended.code, ended.told["model"]) == (0, url)
    assert len(asked) == ended.told["figures"]["requests"]
    assert ended.told["report"]["totals"]["files"] == 1


async def test_a_model_that_invents_a_figure_is_found_out(tmp_path: Path) -> None:
    def program(request: Request) -> Any:
        reply = survey(request)
        if isinstance(reply, str) and '"duplicates"' in reply and '"totals"' in reply:
            return reply.replace('"files": 1', '"files": 8151')
        return reply

    async with folder_and_model(tmp_path, program) as (folder, url):
        ended = await demo(tmp_path, folder, "--json", "--model", url)

    assert ended.code == 1
    assert "1 figures came from no tool, such as 8151" in ended.complained
    assert ended.told["traced"]["not_from_a_tool"] == ["8151"]


async def test_a_model_that_writes_prose_gives_an_incomplete_report(tmp_path: Path) -> None:
    def program(_: Request) -> str:
        return "I would rather not."

    async with folder_and_model(tmp_path, program) as (folder, url):
        ended = await demo(tmp_path, folder, "--model", url)

    assert ended.code == 1
    assert ended.complained.startswith("guildry demo: ")
    assert ended.complained.count("\n") == 1
    assert left_over(tmp_path) == []


async def test_an_interrupt_ends_the_server_and_all_that_it_started(tmp_path: Path) -> None:
    asked = anyio.Event()

    async def program(_: Request) -> Any:
        asked.set()
        await anyio.sleep_forever()

    with anyio.fail_after(RUN_S):
        async with folder_and_model(tmp_path, program) as (folder, url):
            command = [sys.executable, "-P", "-m", "guildry.server", "demo", folder]
            process = await anyio.open_process(
                [*command, "--model", url],
                env=environment(tmp_path),
                cwd=str(tmp_path),
                stdout=subprocess.DEVNULL,
            )
            async with process:
                await asked.wait()
                process.send_signal(signal.SIGINT)
                code = await process.wait()

    assert code == 130
    assert left_over(tmp_path) == []

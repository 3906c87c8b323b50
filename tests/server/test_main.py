"""The command as a process: how it starts, what it needs for that, and how it ends."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client, StdioServerParameters

from guildry.server.commands.app import COMMANDS
from guildry.server.commands.options import SERVE, flags_of, quick


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("GUILDRY_")}
    return {**kept, "GUILDRY_HOME": str(home)}


def guildry(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "guildry.server", *args],
        cwd=cwd,
        env=environment(cwd / "home"),
        capture_output=True,
        text=True,
        timeout=60,
        stdin=subprocess.DEVNULL,
    )


async def test_a_real_process_answers_over_stdio_in_a_hostile_directory(tmp_path: Path) -> None:
    """The working directory has its own tools/ and memory/, as any user's checkout may."""
    for name in ("tools", "memory", "server", "teams"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise SystemExit('workspace code ran')")
    (tmp_path / "mine.py").write_text(
        'def twice(n: int) -> int:\n    """Double a number."""\n    return 2 * n\n'
    )
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "guildry.server", "serve", "--stdio", "--plug", "mine.py"],
        cwd=str(tmp_path),
        env=environment(tmp_path / "home"),
    )

    with anyio.fail_after(60):
        async with Client(server) as client:
            names = {tool.name for tool in (await client.list_tools()).tools}
            result = await client.call_tool("twice", {"n": 21})

    assert {"twice", "find_tools", "delegate"} <= names
    assert [block.text for block in result.content if block.type == "text"] == ["42"]


def test_serving_imports_no_more_than_it_must(tmp_path: Path) -> None:
    guildry("runs", cwd=tmp_path)  # makes the database, for which a start needs more
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "guildry.server", "serve", "--stdio"],
        cwd=tmp_path,
        env=environment(tmp_path / "home"),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    imported = {
        line.rsplit("|", 1)[1].strip()
        for line in done.stderr.splitlines()
        if line.startswith("import time:")
    }

    assert "guildry.server.stdio" in imported
    assert imported.isdisjoint(
        {"typer", "rich.console", "aiohttp", "jsonschema", "sqlite_utils", "jmespath"}
    )


def test_what_serving_prints_on_stderr_is_json_and_on_stdout_is_the_wire(tmp_path: Path) -> None:
    (tmp_path / "loud.py").write_text("print('hello from a plug')\n")
    ask = {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "initialize",
        "params": {
            "protocolVersion": "2025-06-18",
            "capabilities": {},
            "clientInfo": {"name": "test", "version": "1"},
        },
    }
    done = subprocess.run(
        [sys.executable, "-m", "guildry.server", "serve", "--stdio", "--plug", "loud.py"],
        cwd=tmp_path,
        env=environment(tmp_path / "home"),
        input=f"{json.dumps(ask)}\n",
        capture_output=True,
        text=True,
        timeout=60,
    )

    assert done.returncode == 0
    (answer,) = map(json.loads, done.stdout.splitlines())
    assert answer["result"]["serverInfo"]["name"] == "guildry"
    logged = [line for line in done.stderr.splitlines() if line != "hello from a plug"]
    assert all("event" in json.loads(line) for line in logged)


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGINT])
async def test_a_server_that_is_told_to_end_ends_well(tmp_path: Path, by: signal.Signals) -> None:
    with anyio.fail_after(60):
        async with await anyio.open_process(
            [sys.executable, "-m", "guildry.server", "serve", "--port", "0"],
            cwd=tmp_path,
            env=environment(tmp_path / "home"),
        ) as process:
            assert process.stderr is not None
            text = b""
            while b"http_started" not in text:
                text += await process.stderr.receive()
            assert len(list((tmp_path / "home/servers").glob("*.sock"))) == 1
            process.send_signal(by)
            code = await process.wait()

    assert code == 0
    assert list((tmp_path / "home/servers").iterdir()) == []


def test_a_wrong_setting_ends_the_start_with_one_line(tmp_path: Path) -> None:
    (tmp_path / "guildry.toml").write_text("prot = 1")

    serving = guildry("serve", "--stdio", cwd=tmp_path)
    asking = guildry("tools", "--json", cwd=tmp_path)

    said = f"`prot` in `{tmp_path / 'guildry.toml'}` is no setting: did you mean `port`?"
    assert (serving.returncode, serving.stdout) == (2, "")
    assert json.loads(serving.stderr)["error"] == said
    assert (asking.returncode, asking.stderr) == (2, f"guildry: {said}\n")
    assert json.loads(asking.stdout) == {"error": said, "exit_code": 2}


def test_wrong_usage_ends_with_2_and_the_help_names_every_command(tmp_path: Path) -> None:
    helped = guildry("--help", cwd=tmp_path)
    unknown = guildry("sevre", cwd=tmp_path)
    option = guildry("serve", "--prot", "1", cwd=tmp_path)
    missing = guildry("serve", "--port", cwd=tmp_path)
    version = guildry("--version", cwd=tmp_path)

    assert helped.returncode == 0
    assert all(f"  {name} " in helped.stdout for name, _, _ in COMMANDS)
    assert "130 interrupted" in helped.stdout
    assert unknown.returncode == option.returncode == missing.returncode == 2
    assert "serve" in unknown.stderr
    assert "--prot" in option.stderr
    assert version.stdout.startswith("guildry ")
    assert "Traceback" not in helped.stderr + unknown.stderr + option.stderr + missing.stderr


def test_the_help_of_serve_and_its_quick_reader_share_one_table(tmp_path: Path) -> None:
    text = " ".join(guildry("serve", "--help", cwd=tmp_path).stdout.split())

    for option in SERVE:
        assert option.flag in text
        assert option.help.split()[0] in text
    assert "Example: guildry serve --stdio" in text


def test_the_quick_reader_takes_what_is_well_formed_and_leaves_the_rest() -> None:
    args = ["--stdio", "--port=1", "--host", "::1", "--plug", "a", "--plug", "n=b c"]

    assert quick(SERVE, args) == {
        "stdio": True,
        "port": "1",
        "host": "::1",
        "plug": ("a", "n=b c"),
    }
    assert quick(SERVE, []) == {}
    for wrong in (["--help"], ["--port"], ["--port", "--stdio"], ["--stdio=1"], ["x"], ["--x=1"]):
        assert quick(SERVE, wrong) is None


@given(st.lists(st.text(alphabet="ab-=_./ ", max_size=8), max_size=6))
def test_the_quick_reader_never_fails(args: list[str]) -> None:
    given_ = quick(SERVE, args)

    assert given_ is None or set(given_) <= {option.name for option in SERVE}


def test_sources_that_are_given_on_the_command_line_get_names() -> None:
    flags = flags_of(
        {"plug": ("x=python a.py", "uvx mcp-server-time", "tools/one.py"), "port": "1"}
    )

    assert flags == {
        "port": "1",
        "plugs": {
            "x": {"source": "python a.py"},
            "time": {"source": "uvx mcp-server-time"},
            "one": {"source": "tools/one.py"},
        },
    }
    twice = flags_of({"plug": ("one.py", "a/one.py")})
    assert twice == {"plugs": {"one": {"source": "one.py"}, "one_2": {"source": "a/one.py"}}}

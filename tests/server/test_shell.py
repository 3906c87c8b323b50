"""The tool `run_shell`: opt-in, confined, and leaving nothing; and what is told of sandboxes."""

import os
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client
from mcp.types import TextContent

from guildry.server.app import App
from guildry.server.config import PlugSetting, Settings
from guildry.server.doctor import Finding, examine
from guildry.server.plug_settings import SandboxSetting
from guildry.server.surface import build_server
from guildry.tools.sandbox.confinement import available

needs_sandbox = pytest.mark.skipif(available() is not None, reason=f"no sandbox: {available()}")
SERVER = Path(__file__).parents[1] / "tools" / "servers" / "legacy.py"


async def run(app: App, **arguments: Any) -> tuple[bool, str]:
    with anyio.fail_after(60):
        async with Client(build_server(app)) as client:
            result = await client.call_tool("run_shell", arguments)
    block = result.content[0]
    assert isinstance(block, TextContent)
    return result.is_error or False, block.text


async def keep(app: App, content: bytes, media_type: str, name: str) -> str:
    kept = await app.objects.put(
        content, media_type=media_type, name=name, namespace="local", owner="local"
    )
    return kept.short


async def test_there_is_no_shell_unless_it_is_wanted(opened: Any) -> None:
    async with opened() as app:
        names = set(app.catalog.current.tools)

    assert "run_shell" not in names


async def test_a_command_works_on_stored_values_and_answers_what_it_prints(opened: Any) -> None:
    async with opened(shell=True) as app:
        table = await keep(app, b"b,2\na,1\n", "text/csv", "table")
        picture = await keep(app, bytes(range(256)), "image/png", "picture")
        words = await keep(app, b"from a reference", "text/plain", "words")
        files = {"table.csv": table, "picture.png": picture}
        command = "sort in/table.csv; wc -c < in/picture.png; cat; touch new && ls"

        told = await run(app, command=command, files=files, stdin=words)

    assert told == (False, "a,1\nb,2\n256\nfrom a referencein\nnew\n")


async def test_a_long_answer_is_stored(opened: Any) -> None:
    async with opened(shell=True) as app:
        is_error, text = await run(app, command="seq 1 100000")

    assert not is_error
    assert text.startswith("Stored as ref:run_shell")


async def test_what_goes_wrong_is_told(opened: Any) -> None:
    async with opened(shell=True) as app:
        failed = await run(app, command="echo out; echo err >&2; exit 3")
        late = await run(app, command="echo begun; sleep 1000", timeout_s=0.5)
        silent = await run(app, command="true")
        odd = await run(app, command="true", files={"x": "no reference"})
        part = await run(app, command="true", files={"x": "ref:table?lines=1-2"})
        broken = await run(app, command="echo \0")
        secret = await run(app, command="true", files={"x": "ref:not_mine"})

    assert failed == (True, "out\n\n[stderr]\nerr\n\n[exit code 3]")
    assert late == (True, "begun\n\n[ended after 0.5 s: ask for less, or raise `timeout_s`]")
    assert silent == (False, "[no output]")
    assert odd[0]
    assert "files.x" in odd[1]
    assert "selects a part" in part[1]
    assert "null byte" in broken[1]
    assert "there is no reference" in secret[1]


@needs_sandbox
async def test_a_confined_shell_is_told_as_one_that_only_reads(opened: Any) -> None:
    async with opened(shell=True) as app:
        tool = app.catalog.current.tools["run_shell"]
        told = await run(app, command=f"ls {Path(__file__).parent} || kill -0 {os.getpid()}")

    assert tool.effects.reads_only
    assert not tool.effects.egress
    assert "in a sandbox" in tool.description
    assert "No such process" in told[1]


async def test_an_unconfined_shell_says_so_and_is_taken_for_what_it_may_do(opened: Any) -> None:
    async with opened(shell=True, sandbox="off", ask_destructive="never") as app:
        tool = app.catalog.current.tools["run_shell"]
        told = await run(app, command="echo there")

    assert told == (False, "there\n")
    assert "NOT confined (`sandbox` is `off`)" in tool.description
    assert tool.effects.writes
    assert tool.effects.egress
    assert tool.effects.admits  # so that a person is asked


@needs_sandbox
async def test_each_plug_with_a_process_says_whether_it_is_confined(opened: Any) -> None:
    command = f"{sys.executable} {SERVER}"
    plugs = {
        "free": PlugSetting(source=command),
        "shut": PlugSetting(source=command, sandbox=SandboxSetting()),
    }
    async with opened(plugs=plugs) as app:
        told = {each.name: each.as_json() for each in app.plugs.listing()}

    assert (told["free"]["confined"], "why" in told["free"]) == (False, False)
    assert (told["shut"]["confined"], told["shut"]["why"]) == (True, "as its options say")


@needs_sandbox
async def test_where_it_is_required_every_server_is_confined(opened: Any) -> None:
    plugs = {"one": PlugSetting(source=f"{sys.executable} {SERVER}")}
    async with opened(plugs=plugs, sandbox="required") as app:
        (told,) = [each.as_json() for each in app.plugs.listing()]

    assert (told["state"], told["confined"]) == ("ready", True)
    assert told["why"] == "`sandbox` is `required`"


async def look(settings: Settings, check: str = "bubblewrap") -> Finding:
    with anyio.fail_after(60):
        found = {each.check: each for each in await examine(settings)}
    return found[check]


@needs_sandbox
async def test_the_doctor_says_of_each_plug_whether_it_is_confined(tmp_path: Path) -> None:
    command = f"{sys.executable} {SERVER}"
    shut = {"one": PlugSetting(source=command, sandbox=SandboxSetting())}

    confined = await look(Settings(home=tmp_path, plugs=shut), "plug one")
    off = await look(Settings(home=tmp_path, plugs=shut, sandbox="off"), "plug one")

    assert (confined.status, confined.detail.endswith(", confined")) == ("ok", True)
    assert (off.status, off.detail.endswith("not confined: `sandbox` is `off`")) == (
        "warning",
        True,
    )


@needs_sandbox
async def test_the_doctor_says_that_sandboxes_work(tmp_path: Path) -> None:
    used = await look(Settings(home=tmp_path))
    unused = await look(Settings(home=tmp_path, sandbox="off", shell=True))

    assert (used.status, used.detail.endswith("; confines what asks for it")) == ("ok", True)
    assert unused.status == "warning"
    assert unused.detail.endswith("not used: `sandbox` is `off`; `run_shell` is not confined")


async def test_the_doctor_says_what_runs_without_a_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    available.cache_clear()
    monkeypatch.setenv("PATH", str(tmp_path))
    try:
        plain = await look(Settings(home=tmp_path))
        shell = await look(Settings(home=tmp_path, shell=True))
        required = await look(Settings(home=tmp_path, sandbox="required"))
    finally:
        available.cache_clear()

    assert plain.status == "absent"
    assert shell.status == "warning"
    assert shell.detail == "bubblewrap is not installed: only limits hold for `run_shell`"
    assert required.status == "failed"
    assert required.cure

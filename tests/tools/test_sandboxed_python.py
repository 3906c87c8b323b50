"""Python plugs in a sandbox: the same tools, served by a process that is confined."""

import json
import os
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from guildry.errors import PlugError
from guildry.tools.base import Call, Outcome, Text
from guildry.tools.plugs.board import PlugBoard
from guildry.tools.plugs.options import PlugOptions, SandboxOptions, SandboxPolicy
from guildry.tools.plugs.plug import PlugLimits
from guildry.tools.registry import Catalog
from guildry.tools.sandbox.confinement import available

pytestmark = pytest.mark.skipif(available() is not None, reason=f"no sandbox: {available()}")

NOTHING = SandboxOptions()

SOURCE = '''
"""Tools that try what they may."""
import os
from pathlib import Path

from guildry.tools.python.decorators import prompt, resource, tool


@tool(timeout_s=7, task="optional")
def where() -> dict[str, str]:
    """Say which process this is."""
    print("to stdout")
    return {"process": str(os.getpid()), "beside": str(os.listdir(Path(__file__).parent))}


def read(path: str) -> str:
    """Read a file."""
    return Path(path).read_text()


def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@prompt
def greet(name: str) -> str:
    """Greet somebody."""
    return f"Say hello to {name}."


@resource("note://{day}")
def note(day: str) -> str:
    """Return the note of a day."""
    return f"note of {day}"
'''


@asynccontextmanager
async def plugged(
    path: Path, sandbox: SandboxOptions | None = NOTHING, policy: SandboxPolicy = "auto"
) -> AsyncGenerator[tuple[Catalog, PlugBoard]]:
    catalog = Catalog()
    given = PlugLimits(start_s=30, close_s=0.5, drain_s=0.1, sandbox=policy)
    with anyio.fail_after(90):
        async with PlugBoard(catalog, limits=given, folder=path.parent) as board:
            await board.plug(path.name, "mine", options=PlugOptions(sandbox=sandbox))
            yield catalog, board


async def call(catalog: Catalog, name: str, **arguments: Any) -> Outcome:
    tool = catalog.current.tools[name]
    return await tool.invoke(arguments, Call(tool, None))


def said(outcome: Outcome) -> dict[str, str]:
    (block,) = outcome.blocks
    assert isinstance(block, Text)
    members: dict[str, str] = json.loads(block.text)
    return members


async def test_a_sandboxed_file_serves_what_it_would_serve_in_this_process(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SOURCE)
    (tmp_path / "other.py").write_text("key = 's3cret'")
    async with plugged(file) as (catalog, _):
        now = catalog.current
        where, add = now.tools["where"], now.tools["add"]
        told = await call(catalog, "where")
        total = await call(catalog, "add", a=2)
        (greet,) = now.prompts.values()
        (note,) = now.templates
        greeting = await greet.get({"name": "Ada"}, None)
        (held,) = await note.read("note://monday", None)

    assert said(told)["process"] != str(os.getpid())
    assert said(told)["beside"] == "['mine.py']"
    assert (where.timeout_s, where.task) == (7, "optional")
    assert add.input_schema["properties"]["b"]["default"] == 1
    assert total.blocks == (Text("3"),)
    assert greeting.messages[0].block == Text("Say hello to Ada.")
    assert held.text == "note of monday"


async def test_a_sandboxed_file_reads_only_what_it_was_given(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SOURCE)
    (tmp_path / "guildry.toml").write_text("key = 's3cret'")
    (tmp_path / "given.txt").write_text("given")
    async with plugged(file, SandboxOptions(read=("given.txt",))) as (catalog, _):
        given = await call(catalog, "read", path=str(tmp_path / "given.txt"))
        secret = await call(catalog, "read", path=str(tmp_path / "guildry.toml"))

    assert given.blocks == (Text("given"),)
    assert secret.is_error
    assert "FileNotFoundError" in str(secret.blocks)


async def test_a_saved_change_is_served_by_a_new_process(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SOURCE)
    async with plugged(file) as (catalog, _):
        changed = anyio.Event()
        catalog.subscribe(lambda change: changed.set())
        before = await call(catalog, "where")
        fresh = tmp_path / "mine.new"
        fresh.write_text(SOURCE + '\n\ndef later() -> str:\n    """Be new."""\n    return "new"\n')
        fresh.replace(file)

        await changed.wait()
        later = await call(catalog, "later")
        after = await call(catalog, "where")

    assert later.blocks == (Text("new"),)
    assert said(before)["process"] and said(after)["process"]


async def test_a_file_that_does_not_import_is_told_with_its_fault(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("import no_such_module\n")

    with pytest.raises(PlugError, match="no_such_module"):
        async with plugged(file):
            pass


async def test_where_a_sandbox_is_required_every_python_file_is_confined(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(SOURCE)
    async with plugged(file, None, "required") as (catalog, _):
        told = await call(catalog, "where")

    assert said(told)["process"] != str(os.getpid())

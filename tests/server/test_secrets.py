"""Secrets of a server: in nothing that a client, a log or a file of the home ever holds."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client

from guildry.errors import PlugError
from guildry.server.app import open_app
from guildry.server.config import Settings
from guildry.server.surface import build_server
from guildry.tools.plugs.options import PlugOptions

KEY = 'leaking-key-5f3Ä"9/1'
SERVER = Path(__file__).parents[1] / "tools" / "servers" / "leaking.py"


def settings(folder: Path, **env: str) -> Settings:
    plug = {"source": f"{sys.executable} {SERVER}", "env": env}
    return Settings.model_validate(
        {"home": folder / "home", "folder": folder, "plugs": {"up": plug}, "sandbox": "off"}
    )


async def test_a_server_that_tells_its_key_everywhere_tells_it_to_nobody(tmp_path: Path) -> None:
    told: list[Any] = []

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        told.append(message)

    with anyio.fail_after(60):
        async with open_app(settings(tmp_path, LEAKING_KEY=KEY)) as app:
            await app.ready.wait()
            async with Client(build_server(app)) as client:
                for name in ("text", "table", "fail", "crash"):
                    told += [await client.call_tool(name, {}, progress_callback=heard)]
                told.append(await client.call_tool("call_tool", {"name": "text"}))
                told.append(await client.call_tool("list_plugs", {}))
                told.append(await client.get_prompt("greet"))
                told.append(await client.read_resource("leak://key"))
            told += [entry.data for entry in await app.journal.read("local")]

    text = str(told)
    forms = (KEY, KEY.replace('"', '\\"'), json.dumps(KEY)[1:-1])
    assert not [form for form in forms if form in text]
    assert text.count("[redacted]") > 8
    kept = b"".join(path.read_bytes() for path in (tmp_path / "home").rglob("*") if path.is_file())
    assert len(kept) > 10_000
    assert not [form for form in forms if form.encode() in kept]


async def test_why_a_plug_cannot_be_opened_is_told_without_its_secrets(tmp_path: Path) -> None:
    script = "import os, sys; sys.exit('bad token ' + os.environ['TOKEN'])"
    source = f'{sys.executable} -c "{script}"'
    with anyio.fail_after(60):
        async with open_app(Settings(home=tmp_path / "home", folder=tmp_path)) as app:
            with pytest.raises(PlugError) as refused:
                await app.plugs.plug(source, "no", options=PlugOptions(env={"TOKEN": "tok-8812-x"}))

    assert "bad token [redacted]" in str(refused.value)


def test_no_line_of_the_log_holds_it(tmp_path: Path) -> None:
    plug = {"source": f"{sys.executable} {SERVER}", "env": {"LEAKING_KEY": KEY}}
    script = f"""
import anyio
from pathlib import Path
from guildry.server.app import open_app
from guildry.server.config import Settings
from guildry.server.log import configure
from guildry.tools.caller import Caller
from guildry.tools.grants import Grant

configure("debug")
settings = Settings(
    home=Path({str(tmp_path / "home")!r}), folder=Path({str(tmp_path)!r}), sandbox="off",
    plugs={{"up": {plug}}},
)

async def main():
    async with open_app(settings) as app:
        await app.ready.wait()
        for name in ("text", "fail", "crash"):
            await app.dispatch.call(Caller(Grant.root("local"), "local"), name, {{}})

anyio.run(main)
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, timeout=60, check=True
    )

    assert b"server_stderr" in done.stderr
    assert b"[redacted]" in done.stderr
    assert KEY.encode() not in done.stderr
    assert json.dumps(KEY)[1:-1].encode() not in done.stderr

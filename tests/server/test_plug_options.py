"""What is said of a plug by hand: kept, followed by other processes, and never told."""

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from mcp import Client

from guildry.errors import ConfigError
from guildry.server.app import App, open_app
from guildry.server.commands.plug_options import confined, pairs, said_of
from guildry.server.config import Settings
from guildry.server.plug_settings import setting_of
from guildry.server.surface import build_server

SERVERS = Path(__file__).parent.parent / "tools" / "servers"
TELLS = """
import os, sys
sys.path.insert(0, {folder!r})
from wire import answer, serve, text, tool


def call(message):
    if message["method"] == "tools/call":
        answer(message, text(os.environ.get("SHOWN", "nothing")[::-1]))


serve(lambda: [tool("shown")], call)
"""


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A server that tells its variable `SHOWN`, backwards: forwards, it would be hidden."""
    file = tmp_path / "tells.py"
    file.write_text(TELLS.format(folder=str(SERVERS)))
    return shlex.join([sys.executable, str(file)])


async def until(claim: Callable[[], bool]) -> None:
    with anyio.fail_after(30):
        while not claim():
            await anyio.lowlevel.checkpoint()


async def call(app: App, tool: str, **arguments: Any) -> Any:
    async with Client(build_server(app)) as client:
        result = await client.call_tool(tool, arguments)
    assert result.content, result
    return result


def text_of(result: Any) -> str:
    return str(result.content[0].text)


async def states(app: App) -> dict[str, str]:
    return {each.name: each.state for each in app.plugs.listing()}


async def test_what_is_said_of_a_plug_is_kept_with_the_name_of_a_variable_and_not_its_value(
    opened: Any, source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_WORD", "first word")
    said = {"env": {"SHOWN": "$MY_WORD"}, "calls_at_once": 1, "lazy": True}
    async with opened() as app:
        done = await call(app, "plug", source=source, name="teller", options=said)
        first = text_of(await call(app, "shown"))
        kept = await app.sources.listing()
    monkeypatch.setenv("MY_WORD", "second word")
    async with open_app(Settings(home=tmp_path / "home")) as again:
        with anyio.fail_after(30):
            await again.ready.wait()
        second = text_of(await call(again, "shown"))
    written = (tmp_path / "home" / "guildry.db").read_bytes()

    assert not done.is_error, done
    assert (first, second) == ("drow tsrif", "drow dnoces")
    assert [(each.name, each.options) for each in kept] == [("teller", said)]
    assert b"first word" not in written


async def test_a_plug_that_is_known_is_idle_at_the_next_start_and_other_settings_forbid_it(
    opened: Any, source: str, tmp_path: Path
) -> None:
    async with opened() as app:
        await call(app, "plug", source=source, name="teller")
        first = await states(app)
    async with open_app(Settings(home=tmp_path / "home")) as again:
        with anyio.fail_after(30):
            await again.ready.wait()
        second = await states(again)
        answer = text_of(await call(again, "shown"))
        third = await states(again)
    async with open_app(Settings(home=tmp_path / "home", lazy_plugs=False)) as eager:
        with anyio.fail_after(30):
            await eager.ready.wait()
        fourth = await states(eager)

    assert (first, second) == ({"teller": "ready"}, {"teller": "idle"})
    assert answer == "gnihton"
    assert (third, fourth) == ({"teller": "ready"}, {"teller": "ready"})


async def test_a_source_that_is_plugged_by_hand_is_started_though_it_is_known(
    opened: Any, source: str, tmp_path: Path
) -> None:
    async with opened() as app:
        await call(app, "plug", source=source, name="teller")
        await call(app, "unplug", name="teller")
        again = await call(app, "plug", source=source, name="teller")
        told = await states(app)
        await call(app, "unplug", name="teller")
        (tmp_path / "tells.py").write_text("raise SystemExit(3)")
        broken = await call(app, "plug", source=source, name="teller")
        left = app.plugs.listing()

    assert not again.is_error
    assert told == {"teller": "ready"}
    assert broken.is_error
    assert "exit code 3" in text_of(broken)
    assert left == []


async def test_other_processes_plug_with_the_same_options_and_follow_a_replacement(
    opened: Any, source: str
) -> None:
    async with opened() as first, opened() as second:
        await until(lambda: len(list(first.settings.home.glob("**/*.word"))) != 1)
        await call(first, "plug", source=source, name="t", options={"env": {"SHOWN": "one"}})
        await until(lambda: "shown" in second.catalog.current.tools)
        one = text_of(await call(second, "shown"))
        replaced = await call(
            first, "plug", source=source, name="t", options={"env": {"SHOWN": "two"}}, replace=True
        )
        here = text_of(await call(first, "shown"))
        there = one
        with anyio.fail_after(30):
            while there != "owt":
                there = text_of(await call(second, "shown"))

    assert not replaced.is_error, replaced
    assert (one, here, there) == ("eno", "owt", "owt")


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"lazzy": True}, "`lazzy` of `x` is wrong"),
        ({"idle_s": -1}, "`idle_s` of `x` is wrong"),
        ({"env": {"KEY": "$GUILDRY_TEST_NOT_SET"}}, "takes `$GUILDRY_TEST_NOT_SET`"),
        ({"pinned": True}, "belongs into guildry.toml"),
    ],
)
async def test_options_that_are_wrong_are_refused_with_the_cure(
    opened: Any, options: dict[str, Any], word: str
) -> None:
    async with opened() as app:
        result = await call(app, "plug", source="no-such-command", name="x", options=options)
        kept = await app.sources.listing()

    assert result.is_error
    assert word in text_of(result)
    assert kept == []


async def test_replacing_needs_a_name_and_leaves_what_is_configured(
    opened: Any, tmp_path: Path
) -> None:
    file = tmp_path / "mine.py"
    file.write_text('def hello() -> str:\n    """Greet."""\n    return "hello"\n')
    async with opened(plugs={"mine": {"source": str(file)}}) as app:
        nameless = await call(app, "plug", source=str(file), replace=True)
        configured = await call(app, "plug", source=str(file), name="mine", replace=True)

    assert "`replace` needs the `name`" in text_of(nameless)
    assert "`mine` is configured" in text_of(configured)


async def test_a_kept_plug_whose_variable_is_not_set_costs_only_itself(
    opened: Any, source: str, tmp_path: Path
) -> None:
    async with opened() as app:
        await app.sources.add("lost", source, {"env": {"SHOWN": "$GUILDRY_TEST_NOT_SET"}})
        await app.sources.add("fine", source)
    async with open_app(Settings(home=tmp_path / "home")) as again:
        with anyio.fail_after(30):
            await again.ready.wait()

        assert await states(again) == {"fine": "ready"}


def test_flags_become_the_keys_of_a_plug() -> None:
    assert pairs("--env", ["A=1", "B", "C=$D"]) == {"A": "1", "B": "$B", "C": "$D"}
    assert pairs("--header", ["Authorization=Bearer $TOKEN"]) == {"Authorization": "Bearer $TOKEN"}
    assert said_of(lazy=False, idle_s=None, tags=[], env={}) == {"lazy": False}
    assert confined(False, False, None, None) is None
    assert confined(True, False, None, None) == {}
    assert confined(False, True, ["a"], None) == {"network": True, "read": ["a"]}
    for flag, words in (("--env", ["=x"]), ("--header", ["Authorization"])):
        with pytest.raises(ConfigError, match="give `NAME=VALUE`"):
            pairs(flag, words)


def test_what_is_said_comes_back_as_it_was_given() -> None:
    said = {"env": {"A": "$B"}, "tags": ["x"], "sandbox": {"network": True}}

    assert setting_of("x", "a.py", said).said() == said


def test_the_command_keeps_what_its_flags_say(source: str, tmp_path: Path) -> None:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GUILDRY_")}
    env = {**kept, "GUILDRY_HOME": str(tmp_path / "home"), "WORD": "from outside"}

    def guildry(*words: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "guildry.server", *words],
            env=env,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    plugged = guildry("plug", source, "--name", "t", "--env", "SHOWN=$WORD", "--lazy", "--json")
    called = guildry("call", "shown", "--json")
    taken = guildry("plug", source + " more", "--name", "t")
    replaced = guildry("plug", source + " more", "--name", "t", "--replace", "--json")

    assert plugged.returncode == 0, plugged.stderr
    assert json.loads(called.stdout)["answer"] == "edistuo morf"
    assert taken.returncode == 1
    assert replaced.returncode == 0, replaced.stderr

"""Team files: what they may say, what is told when they are wrong, and how they are plugged."""

import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from guildry.errors import PlugError
from guildry.memory.journal import Journal
from guildry.memory.ledger import EffectLedger
from guildry.memory.objects import ObjectStore
from guildry.memory.runs import RunStore
from guildry.memory.store import Store
from guildry.teams.orchestrator import Orchestrator
from guildry.teams.plan_and_execute import PlanAndExecute, Worker
from guildry.teams.scripted import ScriptedModel
from guildry.teams.team import Solo
from guildry.teams.team_file import TeamFile, read_team, team_files
from guildry.tools.caller import Caller
from guildry.tools.dispatch import Dispatch
from guildry.tools.grants import Grant, Limits
from guildry.tools.plugs.board import PlugBoard
from guildry.tools.plugs.plug import Watched
from guildry.tools.registry import Catalog, Change

SOLO = """\
name = "clerk"
description = "Counts things."
pattern = "solo"
"""

SURVEY = """\
name = "survey"
description = "Surveys a folder and reports on it."
pattern = "plan_and_execute"
model = "local"
tools = ["git_*", "count_lines"]
max_turns = 20
repairs = 2

[planner]
instructions = "One node a question."
replans = 1

[aggregator]
instructions = "Write one page."
tools = ["read_reference", "count_lines"]

[limits]
tokens = 200000
agents = 12
wall_s = 600.0

[[workers]]
name = "historian"
instructions = "Read the history."
tools = ["git_*"]

[[workers]]
name = "counter"
tools = ["count_lines"]
"""


@dataclass
class Shop:
    catalog: Catalog
    dispatch: Dispatch
    orchestrator: Orchestrator


@asynccontextmanager
async def shop(folder: Path) -> AsyncGenerator[Shop]:
    async with Store.open(folder / "guildry.db") as store:
        objects, journal, catalog = (
            ObjectStore(store, folder / "objects"),
            Journal(store),
            Catalog(),
        )
        dispatch = Dispatch(catalog, objects, journal, EffectLedger(store))
        orchestrator = Orchestrator(
            dispatch=dispatch,
            catalog=catalog,
            objects=objects,
            journal=journal,
            runs=RunStore(store),
            models={"scripted": ScriptedModel(lambda request: request.messages[0].content)},
        )
        with anyio.fail_after(20):
            yield Shop(catalog, dispatch, orchestrator)


def fault(text: str) -> str:
    with pytest.raises(PlugError) as caught:
        read_team(text, "survey.toml")
    assert caught.value.source == "survey.toml"
    return str(caught.value)


def test_a_file_of_under_50_lines_says_a_whole_team() -> None:
    assert SURVEY.count("\n") < 50
    assert read_team(SURVEY, "survey.toml") == PlanAndExecute(
        name="survey",
        description="Surveys a folder and reports on it.",
        model="local",
        tools=("git_*", "count_lines"),
        planner="One node a question.",
        workers=(
            Worker(name="historian", instructions="Read the history.", tools=("git_*",)),
            Worker(name="counter", tools=("count_lines",)),
        ),
        aggregator="Write one page.",
        aggregator_tools=("read_reference", "count_lines"),
        default_limits=Limits(tokens=200_000, agents=12, wall_s=600.0),
        repairs=2,
        replans=1,
        max_turns=20,
    )


def test_what_a_file_does_not_say_is_usual() -> None:
    assert read_team(SOLO, "clerk.toml") == Solo(name="clerk", description="Counts things.")
    assert read_team(SOLO.replace("solo", "plan_and_execute"), "clerk.toml") == PlanAndExecute(
        name="clerk", description="Counts things."
    )
    assert read_team(f'{SOLO}instructions = "Count."\nmay_spawn = true', "") == Solo(
        name="clerk", description="Counts things.", instructions="Count.", may_spawn=True
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{SOLO}modle = 'x'", "unknown key `modle`: did you mean `model`?"),
        (f"{SOLO}[limits]\ntoken = 3", "unknown key `limits.token`: did you mean `tokens`?"),
        (f"{SOLO}[planner]\n", "unknown key `planner`"),
        (
            SURVEY.replace('instructions = "Read', 'instrucions = "Read'),
            "unknown key `workers.0.instrucions`: did you mean `instructions`?",
        ),
        (f"{SOLO}zzz = 1", "unknown key `zzz`: known are asks, description, instructions, limits"),
        (SOLO.replace('name = "clerk"\n', ""), "`name` is missing"),
        (SOLO.replace('pattern = "solo"\n', ""), "`pattern` is missing"),
        (
            SOLO.replace('"solo"', '"debate"'),
            "`pattern` is 'debate': give one of plan_and_execute, solo",
        ),
        (SOLO.replace('"clerk"', '"the clerk"'), "`name` is 'the clerk': string should match"),
        (f"{SOLO}[limits]\nagents = -1", "`limits.agents` is -1: input should be greater than"),
        (SURVEY.replace('"counter"', '"historian"'), "two workers have one name"),
        ("name = ", "it is not TOML (Invalid value"),
    ],
)
def test_a_wrong_file_is_refused_with_the_place_and_the_cure(text: str, said: str) -> None:
    assert said in fault(text)


async def test_only_toml_files_are_opened_as_teams(tmp_path: Path) -> None:
    async with shop(tmp_path) as place:
        opener = team_files(place.orchestrator, tmp_path)

        assert opener("tools.py", "tools") is None
        assert opener("https://example.org/team.toml", "team") is None
        plug = opener("clerk.toml", "clerk")
        assert isinstance(plug, TeamFile)
        assert (plug.kind, plug.name, plug.source, plug.fault) == (
            "team",
            "clerk",
            "clerk.toml",
            None,
        )
        assert plug.watched == (Watched(tmp_path / "clerk.toml", ".toml"),)


async def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "huge.toml").write_text("#" * 200_000)
    async with shop(tmp_path) as place:
        for name, said in (
            ("gone.toml", "cannot be read"),
            ("binary.toml", "cannot be read"),
            ("huge.toml", "far too long"),
        ):
            plug = TeamFile(name, "team", place.orchestrator, tmp_path)
            with pytest.raises(PlugError, match=said):
                await plug.open(lambda: None)
            await plug.close()


async def test_a_team_file_is_plugged_called_changed_and_unplugged(tmp_path: Path) -> None:
    """The model answers with its own system text, so that the answer shows which team ran."""

    def watch(change: Change) -> None:
        changes.append(change)
        if change.changed:
            changed.set()

    changes: list[Change] = []
    changed = anyio.Event()
    file = tmp_path / "clerk.toml"
    file.write_text(f'{SOLO}instructions = "Count."')
    caller = Caller(grant=Grant.root("local"), run="local")
    async with shop(tmp_path) as place:
        place.catalog.subscribe(watch)
        openers = [team_files(place.orchestrator, tmp_path)]
        async with PlugBoard(place.catalog, openers=openers, folder=tmp_path) as board:
            report = await board.plug("clerk.toml")
            first = await place.dispatch.call(caller, "team_clerk", {"task": "Go"})
            file.write_text(
                f'{SOLO}instructions = "Count twice."'.replace("Counts things", "Counts it all")
            )
            await changed.wait()
            second = await place.dispatch.call(caller, "team_clerk", {"task": "Go"})
            await board.unplug("clerk")

        assert (report.plug, report.tools) == ("clerk", ("team_clerk",))
        assert answer(first) == "Count."
        assert answer(second) == "Count twice."
        assert place.catalog.current.tools == {}
        assert [(c.added, c.changed, c.removed) for c in changes] == [
            (("team_clerk",), (), ()),
            ((), ("team_clerk",), ()),
            ((), (), ("team_clerk",)),
        ]


def answer(result: Any) -> str:
    return str(json.loads(result.text)["report"])

"""The folder to begin from: what is in it works, and nothing is overwritten."""

import tomllib
from pathlib import Path

import pytest

from guildry.errors import UsageError
from guildry.server.config import Settings, load_settings
from guildry.server.init import create
from guildry.teams.team_file import read_team
from guildry.tools.plugs.board import PlugBoard
from guildry.tools.registry import Catalog


def test_the_files_are_those_that_the_design_names(tmp_path: Path) -> None:
    files = create(tmp_path / "new")

    names = {file.relative_to(tmp_path / "new").as_posix() for file in files}
    assert names == {"guildry.toml", "tools/hello.py", "teams/survey.toml"}
    assert all(file.is_file() for file in files)


def test_the_settings_are_the_defaults_with_a_plug_and_a_team(tmp_path: Path) -> None:
    create(tmp_path)

    settings = load_settings({"home": str(tmp_path / "home")}, cwd=tmp_path)

    assert {name: plug.source for name, plug in settings.plugs.items()} == {
        "hello": str(tmp_path / "tools")
    }
    assert settings.teams == (tmp_path / "teams",)
    kept = settings.model_copy(update={"plugs": {}, "teams": ()})
    assert kept == Settings(home=tmp_path / "home", folder=tmp_path)


LEFT_TO_TABLES = {"plugs", "models", "http", "home", "folder", "flow_allow"}


def test_every_plain_setting_can_be_switched_on_by_removing_its_hash(tmp_path: Path) -> None:
    create(tmp_path)
    head, _, _ = (tmp_path / "guildry.toml").read_text().partition("[plugs.hello]")
    lines = [line.removeprefix("# ") for line in head.splitlines() if " = " in line]

    told = tomllib.loads("\n".join(lines))

    assert set(told) == set(Settings.model_fields) - LEFT_TO_TABLES
    del told["model"], told["state_key_env"], told["plugs_folder"]  # there is none of them yet
    assert Settings(**told).model_dump(exclude={"home", "folder", "teams"}) == Settings(
        home=tmp_path
    ).model_dump(exclude={"home", "folder", "teams"})


async def test_its_tools_can_be_plugged_and_its_team_be_read(tmp_path: Path) -> None:
    create(tmp_path)

    async with PlugBoard(Catalog()) as board:
        report = await board.plug(str(tmp_path / "tools"), "hello")
    team = read_team((tmp_path / "teams/survey.toml").read_text(), "survey.toml")

    assert set(report.tools) == {"hello", "list_files", "count_lines"}
    assert report.quarantined == ()
    assert team.name == "survey"
    assert set(team.tools) <= {*report.tools, "read_reference"}


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    mine = tmp_path / "tools/hello.py"
    mine.parent.mkdir()
    mine.write_text("mine")

    with pytest.raises(UsageError, match=r"has `tools/hello\.py` already"):
        create(tmp_path)

    assert mine.read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["tools"]


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(UsageError, match="cannot be written"):
        create(tmp_path / "file/inside")

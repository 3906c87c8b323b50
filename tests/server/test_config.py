"""Settings: who wins, what is refused, and what a refusal says."""

import os
from pathlib import Path

import pytest

from guildry.errors import ConfigError
from guildry.server.config import ModelSetting, PlugSetting, Settings, load_settings
from guildry.server.config import unknown_variables as unknown


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith("GUILDRY_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("GUILDRY_HOME", str(tmp_path / "home"))


def write(folder: Path, text: str) -> Path:
    file = folder / "guildry.toml"
    file.write_text(text)
    return file


def refusal(folder: Path, text: str, flags: dict[str, object] | None = None) -> str:
    write(folder, text)
    with pytest.raises(ConfigError) as caught:
        load_settings(flags or {}, cwd=folder)
    return str(caught.value)


def test_without_anything_the_defaults_are_in_force(tmp_path: Path) -> None:
    settings = load_settings({}, cwd=tmp_path)

    assert settings == Settings(home=tmp_path / "home")
    assert (settings.inline_tokens, settings.listed_tools, settings.port) == (1000, 40, 8765)


def test_flags_win_over_the_environment_over_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, "port = 1\nlisted_tools = 1\ninline_tokens = 1\nrun_depth = 1")
    monkeypatch.setenv("GUILDRY_PORT", "2")
    monkeypatch.setenv("GUILDRY_LISTED_TOOLS", "2")
    monkeypatch.setenv("GUILDRY_INLINE_TOKENS", "2")

    flags = {"port": "4", "set": ["port=3", "listed_tools=3"], "host": None}
    settings = load_settings(flags, cwd=tmp_path)

    assert settings.port == 4
    assert settings.listed_tools == 3
    assert settings.inline_tokens == 2
    assert settings.run_depth == 1
    assert settings.host == "127.0.0.1"


def test_tables_of_several_sources_are_joined(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(tmp_path, '[models.a]\nurl = "http://a"\n[models.b]\nurl = "http://b"\nmodel = "old"')
    monkeypatch.setenv("GUILDRY_MODELS__B__MODEL", "new")

    settings = load_settings({"set": ["models.c.url=http://c"]}, cwd=tmp_path)

    assert settings.models == {
        "a": ModelSetting(url="http://a"),
        "b": ModelSetting(url="http://b", model="new"),
        "c": ModelSetting(url="http://c"),
    }


def test_relative_paths_start_where_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, cwd = tmp_path / "project", tmp_path / "cwd"
    (folder / "tools").mkdir(parents=True)
    cwd.mkdir()
    file = write(
        folder, 'home = "state"\nteams = ["teams"]\n[plugs]\nhere = "tools"\npy = "python x"'
    )
    monkeypatch.delenv("GUILDRY_HOME")

    settings = load_settings({"config": "../project/guildry.toml", "teams": "mine"}, cwd=cwd)
    alone = load_settings({"config": str(file)}, cwd=cwd)

    assert settings.home.resolve() == folder / "state"
    assert settings.folder.resolve() == folder
    assert settings.teams == (cwd / "mine",)
    assert alone.teams == (folder / "teams",)
    assert alone.plugs["here"] == PlugSetting(source=str(folder / "tools"))
    assert alone.plugs["py"].source == "python x"


def test_the_file_of_the_home_is_taken_where_the_folder_has_none(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    write(home, "port = 9")

    assert load_settings({}, cwd=tmp_path).port == 9
    write(tmp_path, "port = 8")
    assert load_settings({}, cwd=tmp_path).port == 8


def test_an_unknown_key_is_answered_with_the_nearest_one(tmp_path: Path) -> None:
    text = refusal(tmp_path, "prot = 1")

    assert text == (f"`prot` in `{tmp_path / 'guildry.toml'}` is no setting: did you mean `port`?")
    assert "did you mean `source`?" in refusal(tmp_path, '[plugs.x]\nsource = "a"\nsorce = "b"')
    assert "there are `url`, `model`" in refusal(tmp_path, '[models.x]\nurl = "http://a"\nqqqq = 1')


def test_a_wrong_value_is_answered_with_what_the_key_takes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = f"in `{tmp_path / 'guildry.toml'}`"

    assert refusal(tmp_path, 'port = "abc"') == (
        f"`port` {where} is 'abc': give a whole number of 0 or more and at most 65535. "
        "TCP port of the HTTP endpoint; 0 takes any."
    )
    assert "one of `debug`, `info`, `warning`, `error`" in refusal(tmp_path, 'log_level = "loud"')
    assert "is missing: give text" in refusal(tmp_path, "[plugs.x]\npinned = true")
    assert "`--port` is 'x'" in refusal(tmp_path, "", {"port": "x"})
    assert "`--set run_depth` is 'x'" in refusal(tmp_path, "", {"set": ["run_depth=x"]})
    assert "`--set` is 'run_depth'" in refusal(tmp_path, "", {"set": ["run_depth"]})
    assert "`port` was given a value" in refusal(tmp_path, "", {"set": ["port=1", "port.x=1"]})
    monkeypatch.setenv("GUILDRY_PORT", "99999")
    assert "`GUILDRY_PORT` is '99999'" in refusal(tmp_path, "")


def test_many_faults_are_told_in_four_lines(tmp_path: Path) -> None:
    text = refusal(tmp_path, "a = 1\nb = 1\nc = 1\nd = 1\ne = 1")

    assert len(text.splitlines()) == 4
    assert text.endswith("and 2 more")


def test_a_value_that_may_be_secret_is_not_repeated(tmp_path: Path) -> None:
    text = refusal(tmp_path, '[plugs.x]\nsource = "a"\n[plugs.x.env]\nTOKEN = ["hunter2"]')

    assert "plugs.x.env.TOKEN" in text
    assert "hunter2" not in text


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert f"`{tmp_path / 'guildry.toml'}` cannot be read" in refusal(tmp_path, "port = = 1")
    (tmp_path / "guildry.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="cannot be read"):
        load_settings({}, cwd=tmp_path)
    with pytest.raises(ConfigError, match="is not there"):
        load_settings({"config": "nowhere.toml"}, cwd=tmp_path)


def test_the_default_model_is_a_name_a_url_or_the_only_one(tmp_path: Path) -> None:
    one = {"set": ["models.a.url=http://a"]}
    two = {"set": ["models.a.url=http://a", "models.b.url=http://b"]}

    assert load_settings({}, cwd=tmp_path).default_model is None
    assert load_settings(one, cwd=tmp_path).default_model == ModelSetting(url="http://a")
    assert load_settings(two, cwd=tmp_path).default_model is None
    assert load_settings({**two, "model": "b"}, cwd=tmp_path).default_model == ModelSetting(
        url="http://b"
    )
    assert load_settings({"model": "http://c/v1"}, cwd=tmp_path).default_model == ModelSetting(
        url="http://c/v1"
    )
    assert "(`a`)" in refusal(tmp_path, "", {**one, "model": "z"})


def test_secrets_come_from_the_environment_and_are_known_as_such(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        tmp_path,
        '[models.a]\nurl = "http://a"\napi_key_env = "A_KEY"\n'
        '[plugs.x]\nsource = "x"\nenv = {TOKEN = "$X_TOKEN", MODE = "fast"}',
    )
    monkeypatch.setenv("A_KEY", "key-of-a")
    assert "takes `$X_TOKEN`, which is not set" in refusal(
        tmp_path, (tmp_path / "guildry.toml").read_text()
    )
    monkeypatch.setenv("X_TOKEN", "token-of-x")

    settings = load_settings({}, cwd=tmp_path)

    assert settings.models["a"].api_key() == "key-of-a"
    assert settings.plugs["x"].env == {"TOKEN": "token-of-x", "MODE": "fast"}
    assert settings.secrets() == {"key-of-a", "token-of-x", "fast"}


def test_lists_are_taken_from_one_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUILDRY_PINNED", "a, b")

    assert load_settings({}, cwd=tmp_path).pinned == ("a", "b")
    assert load_settings({"set": ['pinned=["c"]']}, cwd=tmp_path).pinned == ("c",)


def test_variables_that_set_nothing_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUILDRY_PROT", "1")
    monkeypatch.setenv("GUILDRY_MODELS__A__URL", "http://a")
    monkeypatch.setenv("GUILDRY_CONFIG", "x")

    assert unknown() == ["GUILDRY_PROT"]


def test_each_setting_has_a_line_of_help_and_quantities_have_a_unit() -> None:
    units = ("seconds", "tokens", "days", "number", "port", "calls", "agents", "generations")
    for name, about in Settings.model_fields.items():
        assert about.description, name
        assert about.description.endswith("."), name
        if str(about.annotation) in {str(int), str(float)}:
            assert any(unit in about.description.lower() for unit in units), name

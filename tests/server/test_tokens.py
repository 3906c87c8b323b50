"""The command `token` as a process: what it prints and what it ends with."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from guildry.server.http.auth_tokens import read_tokens


def told(folder: Path, *args: str) -> tuple[int, str, str]:
    command = [sys.executable, "-m", "guildry.server", "token", *args, "--home", "home"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60)
    assert "Traceback" not in done.stderr
    return done.returncode, done.stdout, done.stderr


def test_a_token_is_shown_once_and_listed_without_its_text(tmp_path: Path) -> None:
    code, made, hint = told(tmp_path, "new", "ada")
    _, listed, _ = told(tmp_path, "list")

    assert code == 0
    assert made.startswith("guildry_")
    assert "http.tokens=" in hint
    assert listed.split() == ["ada", "tools,teams", "for", "ever"]
    assert made.strip() not in (tmp_path / "home" / "tokens.toml").read_text()


def test_programs_get_json(tmp_path: Path) -> None:
    _, made, _ = told(tmp_path, "new", "ada", "--scopes", "admin, tools", "--days", "2", "--json")
    _, listed, _ = told(tmp_path, "list", "--json")
    _, gone, _ = told(tmp_path, "revoke", "ada", "--json")

    path = tmp_path / "home" / "tokens.toml"
    assert {**json.loads(made), "token": ""} == {
        "name": "ada", "token": "", "scopes": ["admin", "tools"], "file": str(path)
    }  # fmt: skip
    (each,) = json.loads(listed)["tokens"]
    assert (each["name"], each["scopes"]) == ("ada", ["tools", "admin"])
    assert each["expires_at"] > 0
    assert json.loads(gone) == {"name": "ada", "revoked": True}
    assert read_tokens(path) == {}


def test_the_configured_file_is_the_one_that_is_changed(tmp_path: Path) -> None:
    (tmp_path / "guildry.toml").write_text("[http]\ntokens = 'ours.toml'\n")

    _, _, hint = told(tmp_path, "new", "ada", "--days", "1")
    _, listed, _ = told(tmp_path, "list")

    assert "http.tokens=" not in hint
    assert list(read_tokens(tmp_path / "ours.toml")) == ["ada"]
    assert "until 20" in listed


def test_an_expired_token_is_listed_as_such(tmp_path: Path) -> None:
    told(tmp_path, "new", "ada")
    path = tmp_path / "home" / "tokens.toml"
    path.write_text(path.read_text() + "expires = 2020-01-01\n")

    assert "expired 2020-01-01" in told(tmp_path, "list")[1]


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (["new"], 2, "`NAME` is missing"),
        (["revoke"], 2, "`NAME` is missing"),
        (["revoke", "eve"], 3, "no token 'eve'"),
        (["new", "a b"], 2, "cannot be called so"),
        (["new", "eve", "--scopes", "root"], 2, "needs `scopes`"),
        (["new", "eve", "--scopes", ","], 2, "needs `scopes`"),
        (["new", "eve", "--days", "0"], 2, "`--days`"),
        (["make", "eve"], 2, ""),
    ],
)
def test_what_cannot_be_done_is_told(
    tmp_path: Path, args: list[str], code: int, words: str
) -> None:
    ended, _, error = told(tmp_path, *args)

    assert (ended, words in error) == (code, True)


def test_a_home_without_tokens_says_how_to_make_one(tmp_path: Path) -> None:
    code, out, _ = told(tmp_path, "list")
    revoked, _, _ = told(tmp_path, "revoke", "ada")

    assert (code, "guildry token new NAME" in out, revoked) == (0, True, 3)

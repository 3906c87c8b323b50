"""Tokens added to and taken out of a file."""

import stat
from datetime import UTC, datetime
from pathlib import Path

import anyio.to_thread
import pytest

from guildry.errors import ConfigError, UsageError
from guildry.server.http.auth_tokens import TokenFile, read_tokens
from guildry.server.http.token_edits import add_token, remove_token


async def test_a_new_token_is_found_by_its_text_and_written_as_its_digest(tmp_path: Path) -> None:
    path = tmp_path / "home" / "tokens.toml"
    ends = datetime(2030, 1, 1, 12, 30, 15, 999, UTC)

    token = await anyio.to_thread.run_sync(
        lambda: add_token(path, "ada", ["teams", "tools"], expires_at=ends)
    )

    assert token not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = (await TokenFile.open(path)).find(token)
    assert found is not None
    assert (found.name, found.scopes) == ("ada", ("tools", "teams"))
    assert found.expires_at == ends.replace(microsecond=0).timestamp()


def test_what_else_the_file_says_stays(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    path.write_text("# the machines of the office\n\n[tokens.bob] # leaves in May\n"
                    "token = 'a-token-of-many-characters'\nscopes = ['tools']\n")  # fmt: skip
    path.chmod(0o600)
    before = path.read_text()

    add_token(path, "ada", ["tools"])
    both = path.read_text()
    assert remove_token(path, "ada")

    assert both.startswith(before)
    assert path.read_text().strip() == before.strip()
    assert not remove_token(path, "ada")
    assert not remove_token(tmp_path / "none.toml", "ada")


def test_what_cannot_be_added_leaves_the_file_alone(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    add_token(path, "ada", ["tools"])
    before = path.read_text()

    with pytest.raises(UsageError, match="revoke ada"):
        add_token(path, "ada", ["tools"])
    for name, scopes in (("a b", ["tools"]), ("bob", ["root"]), ("bob", []), ("local", ["tools"])):
        with pytest.raises(ConfigError):
            add_token(path, name, scopes)

    assert path.read_text() == before
    assert [each.name for each in tmp_path.iterdir()] == ["tokens.toml"]


def test_a_file_that_others_can_read_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    add_token(path, "ada", ["tools"])
    path.chmod(0o644)

    with pytest.raises(ConfigError, match="chmod 600"):
        add_token(path, "bob", ["tools"])


async def test_tokens_that_are_added_at_once_are_all_there(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    names = [f"n{n}" for n in range(12)]

    async def add(name: str) -> None:
        await anyio.to_thread.run_sync(add_token, path, name, ["tools"])

    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            for name in names:
                tasks.start_soon(add, name)

    assert sorted(read_tokens(path)) == sorted(names)


def test_a_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(ConfigError, match="cannot be"):
        add_token(tmp_path / "file" / "tokens.toml", "ada", ["tools"])

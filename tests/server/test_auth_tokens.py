"""Files of tokens: what they may say, who may read them, and what a change does."""

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildry.errors import ConfigError
from guildry.server.http.auth_tokens import Token, TokenFile, parse_tokens, read_tokens

SECRET = "a-token-of-many-characters"
DIGEST = hashlib.sha256(SECRET.encode()).hexdigest()


def written(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_token_is_listed_by_its_digest_or_itself() -> None:
    found = parse_tokens(
        f"[tokens.ada]\nsha256 = '{DIGEST}'\nscopes = ['admin', 'tools']\n"
        "expires = 2027-01-01T00:00:00Z\n"
        "[tokens.bob]\ntoken = 'another-token-of-many'\nscopes = ['teams']\nexpires = 2027-01-01\n"
    )

    assert found["ada"] == Token("ada", bytes.fromhex(DIGEST), ("tools", "admin"), 1798761600.0)
    assert found["bob"].digest == hashlib.sha256(b"another-token-of-many").digest()
    assert found["bob"].expires_at == 1798761600.0


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[tokens.ada", "no TOML: at end of document"),
        ("x = 'a-token-of-many-characters", "no TOML: at "),
        ("[other]", "other keys"),
        ("tokens = 3", "other keys"),
        ("[tokens]\nada = 3", "must be a table"),
        ("[tokens.local]\nscopes = ['tools']", "cannot be called so"),
        ("[tokens.rabcdefghij]\nscopes = ['tools']", "cannot be called so"),
        ("[tokens.'a b']\nscopes = ['tools']", "cannot be called so"),
        ("[tokens.ada]\nscopes = ['tools']", "needs `sha256`"),
        (f"[tokens.ada]\nsha256 = '{DIGEST}'\ntoken = '{SECRET}'\nscopes = ['tools']", "needs"),
        ("[tokens.ada]\nsha256 = 'abc'\nscopes = ['tools']", "64 hexadecimal"),
        ("[tokens.ada]\nsha256 = 3\nscopes = ['tools']", "64 hexadecimal"),
        ("[tokens.ada]\ntoken = 'short'\nscopes = ['tools']", "too short"),
        ("[tokens.ada]\ntoken = 3\nscopes = ['tools']", "too short"),
        (f"[tokens.ada]\nsha256 = '{DIGEST}'", "needs `scopes`"),
        (f"[tokens.ada]\nsha256 = '{DIGEST}'\nscopes = []", "needs `scopes`"),
        (f"[tokens.ada]\nsha256 = '{DIGEST}'\nscopes = 'tools'", "needs `scopes`"),
        (f"[tokens.ada]\nsha256 = '{DIGEST}'\nscopes = ['root']", "needs `scopes`"),
        (f"[tokens.ada]\nsha256 = '{DIGEST}'\nscopes = ['tools']\nage = 3", "has 'age'"),
        (f"[tokens.ada]\nsha256 = '{DIGEST}'\nscopes = ['tools']\nexpires = 3", "no time"),
        (
            f"[tokens.ada]\nsha256 = '{DIGEST}'\nscopes = ['tools']\nexpires = 2027-01-01T00:00:00",
            "no time",
        ),
        (
            f"[tokens.ada]\nsha256 = '{DIGEST}'\nscopes = ['tools']\n"
            f"[tokens.bob]\nsha256 = '{DIGEST.upper()}'\nscopes = ['tools']",
            "is the token of 'ada'",
        ),
    ],
)
def test_a_file_that_is_no_list_of_tokens_is_refused_with_the_reason(text: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        parse_tokens(text)

    assert told in str(error.value)
    assert SECRET not in str(error.value)


@given(st.one_of(st.text(max_size=300), st.binary(max_size=300).map(lambda b: b.decode("latin-1"))))
def test_any_text_is_a_list_of_tokens_or_refused(text: str) -> None:
    try:
        found = parse_tokens(text)
    except ConfigError:
        return

    assert all(token.name == name for name, token in found.items())


TABLE = st.dictionaries(
    st.sampled_from(["sha256", "token", "scopes", "expires", "more"]),
    st.sampled_from(
        [f"'{DIGEST}'", f"'{SECRET}'", "['tools']", "['tools', 'x']", "[]", "1", "1e400", "true",
         "2027-01-01", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59", "07:32:00", "{}"]
    ),
)  # fmt: skip


@given(st.dictionaries(st.from_regex(r"[a-z0-9_-]{1,12}", fullmatch=True), TABLE, max_size=4))
def test_whatever_the_tables_say_only_whole_tokens_come_of_it(
    tables: dict[str, dict[str, str]],
) -> None:
    text = "".join(
        f"[tokens.{name}]\n" + "".join(f"{key} = {value}\n" for key, value in table.items())
        for name, table in tables.items()
    )
    try:
        found = parse_tokens(text)
    except ConfigError:
        return

    assert all(len(token.digest) == 32 and token.scopes for token in found.values())


@pytest.mark.parametrize("mode", [0o604, 0o644, 0o666, 0o620, 0o601])
def test_a_file_that_others_can_read_or_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path / "tokens.toml", "", mode)

    with pytest.raises(ConfigError, match="chmod 600"):
        read_tokens(path)


def test_a_file_that_cannot_be_read_is_refused_with_the_cure(tmp_path: Path) -> None:
    path = tmp_path / "tokens.toml"
    with pytest.raises(ConfigError, match="guildry token new"):
        read_tokens(path)
    with pytest.raises(ConfigError, match="others can read or change|cannot be read"):
        read_tokens(tmp_path)
    path.write_bytes(b"\xff")
    path.chmod(0o600)
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_tokens(path)
    with path.open("ab") as file:
        file.truncate(5 * 1024 * 1024)
    with pytest.raises(ConfigError, match="larger"):
        read_tokens(path)


def test_a_file_that_the_group_can_read_is_taken(tmp_path: Path) -> None:
    path = written(tmp_path / "tokens.toml", "", 0o640)

    assert read_tokens(path) == {}


ADA = f"[tokens.ada]\nsha256 = '{DIGEST}'\nscopes = ['tools']\n"
BOB = "[tokens.bob]\ntoken = 'another-token-of-many'\nscopes = ['tools']\n"


async def test_a_changed_file_counts_from_the_next_look_on(tmp_path: Path) -> None:
    path = written(tmp_path / "tokens.toml", ADA + BOB)
    tokens = await TokenFile.open(path)
    assert await tokens.look() is None

    written(path, ADA.replace("'tools'", "'tools', 'teams'"))

    assert await tokens.look() == {"ada", "bob"}
    found = tokens.find(SECRET)
    assert found is not None
    assert found.scopes == ("tools", "teams")
    assert tokens.find("another-token-of-many") is None
    assert tokens.find(SECRET + "x") is None


async def test_a_changed_file_that_cannot_be_used_changes_nothing(tmp_path: Path) -> None:
    path = written(tmp_path / "tokens.toml", ADA)
    tokens = await TokenFile.open(path)

    written(path, ADA + "[", 0o600)

    assert await tokens.look() is None
    assert tokens.find(SECRET) is not None
    assert tokens.troubles()
    written(path, ADA)
    assert await tokens.look() == set()
    assert tokens.troubles() == []


async def test_a_file_that_is_gone_takes_its_tokens_with_it(tmp_path: Path) -> None:
    path = written(tmp_path / "tokens.toml", ADA)
    tokens = await TokenFile.open(path)
    os.unlink(path)

    assert await tokens.look() is None  # it may be about to be replaced
    assert tokens.find(SECRET) is not None
    assert await tokens.look() == {"ada"}
    assert (tokens.find(SECRET), await tokens.look()) == (None, None)
    assert tokens.troubles()
    written(path, ADA)
    assert await tokens.look() == set()
    assert tokens.find(SECRET) is not None

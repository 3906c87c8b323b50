"""Sealed state: it comes back whole, in the right hands, in time, or not at all."""

import base64
import os
import stat
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.shared.exceptions import MCPError
from mcp_types import INVALID_PARAMS

from guildry.errors import ConfigError, StoreError
from guildry.server.app import open_app
from guildry.server.asking.seal import (
    KEY_BYTES,
    KEY_FILE,
    Seal,
    _make,  # pyright: ignore[reportPrivateUsage]  # a race that cannot be timed from outside
    binding_of,
    decoded_key,
    kept_key,
)
from guildry.server.config import Settings

SEAL = Seal(b"k" * KEY_BYTES)
BINDING = binding_of("local", "tools/call", "remove", {"path": "a"})
LATER = time.time() + 1_000
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)
REFUSED = (
    "`requestState` is not of this call, was changed, or has expired: make the call again without"
    " `requestState` and `inputResponses`"
)


def refusal(sealed: str, *, seal: Seal = SEAL, binding: bytes = BINDING) -> str:
    with pytest.raises(MCPError) as refused:
        seal.open(sealed, binding=binding)
    assert refused.value.code == INVALID_PARAMS
    return refused.value.message


@given(content=st.dictionaries(st.text(), JSON, max_size=4))
def test_what_was_sealed_comes_back(content: dict[str, Any]) -> None:
    sealed = SEAL.close(content, binding=BINDING, expires_at=LATER)

    assert SEAL.open(sealed, binding=BINDING) == content
    assert all(character.isalnum() or character in "-_." for character in sealed)


@given(data=st.data())
@pytest.mark.requirement("mrtr.state-integrity")
def test_any_flipped_bit_is_refused(data: st.DataObject) -> None:
    sealed = SEAL.close({"id": "x" * 20}, binding=BINDING, expires_at=LATER)
    raw = bytearray(base64.urlsafe_b64decode(sealed[3:] + "=" * (-len(sealed[3:]) % 4)))
    bit = data.draw(st.integers(0, len(raw) * 8 - 1))

    raw[bit // 8] ^= 1 << bit % 8

    changed = base64.urlsafe_b64encode(raw).decode().rstrip("=")
    assert refusal(f"g1.{changed}") == REFUSED


@given(data=st.data())
def test_any_other_character_is_refused(data: st.DataObject) -> None:
    sealed = SEAL.close({"id": "x"}, binding=BINDING, expires_at=LATER)
    place = data.draw(st.integers(0, len(sealed) - 1))
    other = data.draw(st.characters().filter(lambda each: each != sealed[place]))

    assert refusal(sealed[:place] + other + sealed[place + 1 :]) == REFUSED


@given(length=st.integers(0, 200))
def test_any_cut_is_refused(length: int) -> None:
    sealed = SEAL.close({"id": "x"}, binding=BINDING, expires_at=LATER)

    assert refusal(sealed[: min(length, len(sealed) - 1)]) == REFUSED


@given(st.text(max_size=80))
@pytest.mark.requirement("mrtr.state-integrity")
def test_text_that_was_never_sealed_is_refused(text: str) -> None:
    assert refusal(text) == REFUSED
    assert refusal(f"g1.{text}") == REFUSED


CALL = st.tuples(
    st.sampled_from(["local", "ada"]),
    st.sampled_from(["tools/call", "prompts/get"]),
    st.text(max_size=3),
    st.dictionaries(st.text(max_size=3), JSON, max_size=2),
)


@given(one=CALL, other=CALL)
@pytest.mark.requirement("mrtr.state-binding")
def test_state_of_one_call_is_refused_for_any_other(
    one: tuple[str, str, str, Any], other: tuple[str, str, str, Any]
) -> None:
    sealed = SEAL.close({"id": "x"}, binding=binding_of(*one), expires_at=LATER)

    if binding_of(*one) == binding_of(*other):
        assert SEAL.open(sealed, binding=binding_of(*other)) == {"id": "x"}
    else:
        assert repr(one) != repr(other)
        assert refusal(sealed, binding=binding_of(*other)) == REFUSED


def test_a_binding_heeds_every_part_and_not_the_order_of_arguments() -> None:
    whole = ("local", "tools/call", "remove", {"a": 1, "b": [2]})

    assert binding_of(*whole) == binding_of(*whole[:3], {"b": [2], "a": 1})
    others: list[tuple[Any, ...]] = [
        ("ada", *whole[1:]),
        (whole[0], "prompts/get", *whole[2:]),
        (*whole[:2], "remove2", whole[3]),
        (*whole[:3], {"a": 1, "b": [3]}),
    ]
    assert len({binding_of(*whole), *(binding_of(*each) for each in others)}) == 5


@pytest.mark.requirement("mrtr.state-expiry")
def test_state_is_refused_once_it_has_expired_and_with_another_key() -> None:
    expired = SEAL.close({"id": "x"}, binding=BINDING, expires_at=time.time() - 1)
    sealed = SEAL.close({"id": "x"}, binding=BINDING, expires_at=LATER)

    assert refusal(expired) == REFUSED
    assert refusal(sealed, seal=Seal(b"o" * KEY_BYTES)) == REFUSED


def test_the_key_of_a_home_is_made_once_and_is_its_owners_alone(tmp_path: Path) -> None:
    key = kept_key(tmp_path / "home")

    assert len(key) == KEY_BYTES
    assert kept_key(tmp_path / "home") == key
    assert [each.name for each in (tmp_path / "home").iterdir()] == [KEY_FILE]
    assert stat.S_IMODE((tmp_path / "home" / KEY_FILE).stat().st_mode) == 0o600


def test_processes_that_make_the_key_at_once_agree(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from guildry.server.asking.seal import kept_key;"
        " sys.stdin.readline(); print(kept_key(Path(sys.argv[1])).hex())"
    )
    command = [sys.executable, "-c", code, str(tmp_path)]
    makers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for _ in range(4)
    ]

    told = [maker.communicate("go\n", timeout=60)[0].strip() for maker in makers]

    assert {kept_key(tmp_path).hex()} == set(told)


def test_a_process_that_was_slower_keeps_the_key_that_is_there(tmp_path: Path) -> None:
    key = kept_key(tmp_path)

    _make(tmp_path / KEY_FILE)

    assert kept_key(tmp_path) == key
    assert [each.name for each in tmp_path.iterdir()] == [KEY_FILE]


def test_a_file_that_holds_no_key_is_told_with_the_cure(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).write_bytes(b"short")

    with pytest.raises(StoreError, match="holds no key: remove it"):
        kept_key(tmp_path)


def test_a_key_that_cannot_be_read_is_told_with_its_place(tmp_path: Path) -> None:
    (tmp_path / KEY_FILE).mkdir()

    with pytest.raises(StoreError, match=KEY_FILE):
        kept_key(tmp_path)


KEY = os.urandom(KEY_BYTES)


@pytest.mark.parametrize(
    "text",
    [
        KEY.hex(),
        KEY.hex().upper(),
        base64.b64encode(KEY).decode(),
        base64.urlsafe_b64encode(KEY).decode().rstrip("="),
        f" {KEY.hex()}\n",
    ],
)
def test_a_configured_key_is_read_in_every_usual_spelling(text: str) -> None:
    assert decoded_key(text, "STATE_KEY") == KEY


@pytest.mark.parametrize("text", ["", "short", KEY.hex()[:-2], "no key at all, but long enough!!!"])
def test_what_is_no_key_is_refused_without_being_told(text: str) -> None:
    with pytest.raises(ConfigError, match="`STATE_KEY` of `state_key_env` holds no key") as refused:
        decoded_key(text, "STATE_KEY")

    assert not text or text not in str(refused.value)


async def test_a_server_with_a_wrong_key_does_not_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STATE_KEY", "short")

    with pytest.raises(ConfigError, match="STATE_KEY"):
        async with open_app(Settings(home=tmp_path, state_key_env="STATE_KEY")):
            raise AssertionError("it started")

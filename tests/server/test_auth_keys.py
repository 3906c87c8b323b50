"""The keys of an issuer, from a file and from a real server."""

import json
from pathlib import Path
from typing import Any

import anyio
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import given
from hypothesis import strategies as st
from issuer import Keys, signer
from jwt.algorithms import RSAAlgorithm

from guildry.errors import ConfigError
from guildry.server.http.auth_keys import KeySet, KeysUnavailable, parse_keys


class Clock:
    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now


A, B = signer("a"), signer("b")


def test_keys_that_cannot_check_signatures_are_left_out() -> None:
    good = A.jwk
    listed: list[Any] = [
        good,
        {"kty": "oct", "k": "c2VjcmV0", "kid": "shared"},
        {**good, "use": "enc"},
        {**good, "d": "private"},
        {**good, "key_ops": ["sign"]},
        {**good, "key_ops": ["verify"], "kid": "ops"},
        "no key",
    ]

    found = parse_keys(json.dumps({"keys": listed}))

    assert [key["kid"] for key in found] == ["a", "ops"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"keys": 3}', '{"keys": []}', "[" * 100_000])
def test_what_is_no_jwks_is_refused(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_keys(text)


WORDS = st.none() | st.booleans() | st.text(max_size=8) | st.sampled_from(["RSA", "EC"])
NAMES = st.sampled_from(["keys", "kty", "use", "kid", "key_ops", "d"])
VALUES = st.recursive(
    WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=4),
)


@given(VALUES)
def test_any_json_is_a_jwks_or_refused(value: Any) -> None:
    try:
        found = parse_keys(json.dumps(value))
    except ConfigError:
        return

    assert found


async def test_keys_of_a_file_are_read_anew_when_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "jwks.json"
    path.write_text(json.dumps({"keys": [A.jwk]}))
    keys = KeySet(str(path), refresh_s=600)
    await keys.open()
    assert await keys.find("a", "ES256") is not None
    assert (await keys.find("b", "ES256"), await keys.look()) == (None, False)

    path.write_text(json.dumps({"keys": [A.jwk, B.jwk]}))

    assert await keys.look()
    assert await keys.find("b", "ES256") is not None
    path.write_text("{")
    assert not await keys.look()
    assert keys.troubles()
    path.unlink()
    assert not await keys.look()
    assert await keys.find("b", "ES256") is not None


async def test_a_file_of_keys_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        await KeySet(str(tmp_path / "none"), refresh_s=600).open()


async def test_a_key_is_found_by_its_id_or_by_being_the_only_one_that_fits() -> None:
    es = KeySet("unused", refresh_s=600)
    es._take(json.dumps({"keys": [A.jwk, signer("r", "RS256").jwk]}).encode())  # pyright: ignore[reportPrivateUsage]

    assert await es.find(None, "ES256") is not None
    assert await es.find("r", "RS256") is not None
    assert await es.find("r", "PS256") is not None
    assert await es.find("r", "ES256") is None
    es._take(json.dumps({"keys": [A.jwk, B.jwk]}).encode())  # pyright: ignore[reportPrivateUsage]
    assert await es.find(None, "ES256") is None
    es._take(json.dumps({"keys": [{**A.jwk, "alg": "ES384"}]}).encode())  # pyright: ignore[reportPrivateUsage]
    assert await es.find("a", "ES256") is None


async def test_weak_and_broken_keys_are_not_used() -> None:
    weak = RSAAlgorithm.to_jwk(rsa.generate_private_key(65537, 1024).public_key(), as_dict=True)
    keys = KeySet("unused", refresh_s=600)
    listed = [{**weak, "kid": "weak"}, {"kty": "EC", "kid": "broken", "crv": "P-256", "x": "!"}]
    keys._take(json.dumps({"keys": listed}).encode())  # pyright: ignore[reportPrivateUsage]

    assert await keys.find("weak", "RS256") is None
    assert await keys.find("broken", "ES256") is None


async def test_an_unknown_key_is_asked_for_but_not_more_often_than_the_bound() -> None:
    server, clock = Keys([A]), Clock()
    async with server.served() as url:
        keys = KeySet(url, refresh_s=600, clock=clock)
        assert await keys.find("a", "ES256") is not None
        server.signers.append(B)

        for _ in range(5):
            assert await keys.find("b", "ES256") is None
        assert server.asked == 1
        clock.now += 20

        assert await keys.find("b", "ES256") is not None
        assert server.asked == 2


async def test_those_who_ask_at_once_wait_for_one_answer() -> None:
    server, clock = Keys([A]), Clock()
    found: list[Any] = []
    async with server.served() as url:
        keys = KeySet(url, refresh_s=600, clock=clock)

        async def find() -> None:
            found.append(await keys.find("a", "ES256"))

        async with anyio.create_task_group() as tasks:
            for _ in range(8):
                tasks.start_soon(find)

    assert len(found) == 8
    assert None not in found
    assert server.asked == 1


async def test_old_keys_are_kept_while_the_server_is_down() -> None:
    server, clock = Keys([A]), Clock()
    async with server.served() as url:
        keys = KeySet(url, refresh_s=60, clock=clock)
        await keys.find("a", "ES256")
        assert not await keys.look()
        clock.now += 61
        server.status = "500 Oops"

        assert not await keys.look()
        assert keys.troubles()
        assert await keys.find("a", "ES256") is not None
        server.status, server.signers = "200 OK", [B]
        assert not await keys.look()  # too soon
        clock.now += 20

        assert await keys.look()
        assert not keys.troubles()
        assert await keys.find("a", "ES256") is None
        assert await keys.find("b", "ES256") is not None


@pytest.mark.parametrize(
    "change",
    [
        {"status": "302 Found", "head": "location: http://127.0.0.1:1/other\r\n"},
        {"status": "404 Not Found"},
        {"body": b"x" * 600_000},
        {"body": b"<html>"},
    ],
)
async def test_what_is_no_answer_gives_no_keys(change: dict[str, Any]) -> None:
    server = Keys([A], **change)
    async with server.served() as url:
        keys = KeySet(url, refresh_s=60)
        with pytest.raises(KeysUnavailable):
            await keys.find("a", "ES256")

    assert server.asked == 1
    assert keys.troubles()


async def test_a_server_that_does_not_answer_is_given_up() -> None:
    server = Keys([A], is_silent=True)
    async with server.served() as url:
        keys = KeySet(url, refresh_s=60, fetch_s=0.1)
        with anyio.fail_after(20), pytest.raises(KeysUnavailable):
            await keys.find("a", "ES256")

    gone = KeySet(url, refresh_s=60)
    with anyio.fail_after(20), pytest.raises(KeysUnavailable):
        await gone.find("a", "ES256")

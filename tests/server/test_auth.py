"""Whose a request is: the header, the token, and what is remembered of it."""

import json
import time
from pathlib import Path

import pytest
from endpoint import token_of, write_tokens
from hypothesis import given
from hypothesis import strategies as st
from issuer import ISSUER, RESOURCE, Keys, claims, signer

from guildry.server.http.auth import Auth
from guildry.server.http.identity import Identity, Refused, challenge
from guildry.server.http.settings import HttpSetting, JwtSetting

GOOD = signer("good")


def header(token: str) -> list[bytes]:
    return [f"Bearer {token}".encode()]


async def opened(path: Path, **tokens: str) -> Auth:
    return await Auth.open(HttpSetting(tokens=write_tokens(path / "tokens.toml", **tokens)))


async def refused(auth: Auth, *values: bytes, query: bytes = b"", address: str = "") -> Refused:
    with pytest.raises(Refused) as error:
        await auth.identify(values, query=query, address=address)
    return error.value


async def test_a_token_of_the_file_is_known_from_then_on(tmp_path: Path) -> None:
    auth = await opened(tmp_path, ada="tools")
    (value,) = header(token_of("ada"))
    assert auth.known(value) is None

    found = await auth.identify([value])

    assert found == Identity("ada", ("tools",))
    assert auth.known(value) is found
    assert await auth.identify([b"bearer   " + token_of("ada").encode() + b" "]) == found


@pytest.mark.parametrize(
    ("values", "query", "status", "code"),
    [
        ([], b"", 401, ""),
        ([b""], b"", 401, ""),
        ([b"Basic YWRhOmFkYQ=="], b"", 401, ""),
        ([b"Bearer"], b"", 401, ""),
        ([b"Bearer "], b"", 401, ""),
        ([b"Bearer two words"], b"", 401, ""),
        ([b"Bearer \xff\xfe"], b"", 401, ""),
        ([b"Bearer nobody"], b"", 401, "invalid_token"),
        ([b"Bearer a.b.c"], b"", 401, "invalid_token"),
        ([b"Bearer one", b"Bearer two"], b"", 400, "invalid_request"),
        ([b"Bearer nobody"], b"a=1&access_token=x", 400, "invalid_request"),
        ([], b"access_token=x", 400, "invalid_request"),
    ],
)
@pytest.mark.requirement("auth.statuses")
async def test_what_shows_no_token_that_holds_is_refused(
    tmp_path: Path, values: list[bytes], query: bytes, status: int, code: str
) -> None:
    error = await refused(await opened(tmp_path, ada="tools"), *values, query=query)

    assert (error.status, error.code) == (status, code)


@given(st.lists(st.binary(max_size=60), max_size=2), st.binary(max_size=30))
async def test_any_header_is_refused_and_nothing_breaks(values: list[bytes], query: bytes) -> None:
    error = await refused(Auth(None, None), *values, query=query)

    assert error.status in (400, 401)


@given(st.text("Bearer bEARER.~+/=-_09\t", max_size=60))
async def test_any_text_that_looks_like_a_token_is_refused(text: str) -> None:
    assert (await refused(Auth(None, None), text.encode())).status == 401


async def test_a_token_ends_when_it_says(tmp_path: Path) -> None:
    path = write_tokens(tmp_path / "tokens.toml", ada="tools")
    path.write_text(path.read_text() + "expires = 2030-01-01\n")
    from guildry.server.http.auth_tokens import TokenFile

    now = [1_700_000_000.0]
    auth = Auth(await TokenFile.open(path), None, clock=lambda: now[0])
    (value,) = header(token_of("ada"))
    assert await auth.identify([value])

    now[0] = 1_900_000_000.0

    assert auth.known(value) is None
    assert "expired" in (await refused(auth, value)).about


async def test_a_changed_file_is_told_and_what_was_known_is_forgotten(tmp_path: Path) -> None:
    auth = await opened(tmp_path, ada="tools", bob="tools")
    for name in ("ada", "bob"):
        await auth.identify(header(token_of(name)))
    ended: list[str] = []

    write_tokens(tmp_path / "tokens.toml", ada="tools teams", eve="admin")
    await auth.look(ended.append)

    assert ended == ["ada", "bob"]
    assert auth.known(*header(token_of("bob"))) is None
    assert (await auth.identify(header(token_of("ada")))).scopes == ("tools", "teams")
    assert (await refused(auth, *header(token_of("bob")))).code == "invalid_token"


async def test_signed_tokens_and_those_of_a_file_hold_side_by_side(tmp_path: Path) -> None:
    jwks = tmp_path / "jwks.json"
    jwks.write_text(json.dumps({"keys": [GOOD.jwk]}))
    setting = HttpSetting(
        tokens=write_tokens(tmp_path / "tokens.toml", ada="tools"),
        jwt=JwtSetting(issuer=ISSUER, jwks=str(jwks), audience=(RESOURCE,)),
    )
    auth = await Auth.open(setting)
    (signed,) = header(GOOD.sign())

    assert (await auth.identify(header(token_of("ada")))).principal == "ada"
    assert (await auth.identify([signed])).principal == f"{ISSUER}|ada"
    assert auth.known(signed) is not None
    jwks.write_text(json.dumps({"keys": [signer("next").jwk]}))
    await auth.look(lambda name: None)
    assert auth.known(signed) is None
    assert (await refused(auth, signed)).code == "invalid_token"


@pytest.mark.requirement("auth.statuses")
async def test_a_token_that_allows_nothing_here_is_forbidden(tmp_path: Path) -> None:
    async with Keys([GOOD]).served() as url:
        jwt = JwtSetting(issuer=ISSUER, jwks=url, audience=(RESOURCE,))
        auth = await Auth.open(HttpSetting(jwt=jwt))

        error = await refused(auth, *header(GOOD.sign(claims(scope="openid"))))

    assert (error.status, error.code) == (403, "insufficient_scope")


async def test_whoever_guesses_has_to_wait_and_others_need_not(tmp_path: Path) -> None:
    async with Keys([GOOD]).served() as url:
        setting = HttpSetting(
            tokens=write_tokens(tmp_path / "tokens.toml", ada="tools"),
            jwt=JwtSetting(issuer=ISSUER, jwks=url, audience=(RESOURCE,)),
        )
        auth = await Auth.open(setting)
        bad = header(signer("other").sign(claims(exp=int(time.time()) + 9)))
        statuses = [(await refused(auth, *bad, address="10.0.0.1")).status for _ in range(200)]

        assert statuses[0] == 401
        assert statuses[-1] == 429
        assert await auth.identify(header(token_of("ada")), address="10.0.0.1")
        assert await auth.identify(header(GOOD.sign()), address="10.0.0.2")


@pytest.mark.requirement("auth.challenge")
def test_the_challenge_says_where_to_get_a_token_and_what_was_wrong() -> None:
    url = "https://tools.example/.well-known/oauth-protected-resource/mcp"

    bare = challenge(Refused(401, "", "Authentication required"), url, ["tools", "teams"])
    wrong = challenge(Refused(401, "invalid_token", "The token has expired"), url, ["tools"])

    assert bare == f'Bearer resource_metadata="{url}", scope="tools teams"'.encode()
    assert (
        wrong
        == (
            f'Bearer resource_metadata="{url}", error="invalid_token",'
            ' error_description="The token has expired"'
        ).encode()
    )

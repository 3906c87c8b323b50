"""Signed tokens: which hold, which do not, and what they allow."""

import base64
import hashlib
import hmac
import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from issuer import ISSUER, RESOURCE, claims, signer

from guildry.server.http.auth_jwt import JwtVerifier
from guildry.server.http.auth_keys import KeySet
from guildry.server.http.identity import Identity, Refused
from guildry.server.http.settings import HttpSetting, JwtSetting

GOOD = signer("good")


def verifier(*signers: Any, **jwt: Any) -> JwtVerifier:
    setting = JwtSetting(issuer=ISSUER, jwks="unused", **jwt)
    http = HttpSetting(jwt=setting, public_url=RESOURCE)
    keys = KeySet("unused", refresh_s=600)
    listed = [each.jwk for each in signers or (GOOD,)]
    keys._take(json.dumps({"keys": listed}).encode())  # pyright: ignore[reportPrivateUsage]
    return JwtVerifier(setting, http.audiences, keys)


async def refused(token: str, check: JwtVerifier | None = None) -> Refused:
    with pytest.raises(Refused) as error:
        await (check or verifier()).verify(token)
    return error.value


@pytest.mark.parametrize("algorithm", ["RS256", "PS256", "ES256", "EdDSA", "ES384", "RS512"])
async def test_a_good_token_tells_whose_it_is(algorithm: str) -> None:
    signs = signer(f"k-{algorithm}", algorithm)
    payload = claims()

    found = await verifier(signs, algorithms=algorithm).verify(signs.sign(payload))

    assert found == Identity(f"{ISSUER}|ada", ("tools", "teams"), payload["exp"] + 30.0)


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"exp": 1_000_000_000}, "expired"),
        ({"exp": None}, "needs"),
        ({"exp": "soon"}, "malformed"),
        ({"nbf": int(time.time()) + 3_600}, "not valid yet"),
        ({"iat": int(time.time()) + 3_600}, "not valid yet"),
        ({"aud": "https://other.example/mcp"}, "another server"),
        ({"aud": ["https://other.example", RESOURCE + "x"]}, "another server"),
        ({"aud": None}, "needs"),
        ({"aud": 3}, "another server"),
        ({"iss": "https://login.example/"}, "another issuer"),
        ({"iss": None}, "needs"),
        ({"sub": None}, "needs"),
        ({"sub": 3}, "malformed"),
        ({"sub": ""}, "no usable subject"),
        ({"sub": "a\nb"}, "no usable subject"),
        ({"sub": "a" * 300}, "no usable subject"),
    ],
)
@pytest.mark.requirement("auth.validated")
async def test_a_token_whose_claims_do_not_hold_is_refused(
    changes: dict[str, Any], told: str
) -> None:
    error = await refused(GOOD.sign(claims(**changes)))

    assert (error.status, error.code) == (401, "invalid_token")
    assert told in error.about


@pytest.mark.parametrize("aud", [RESOURCE, RESOURCE + "/", ["https://other.example", RESOURCE]])
@pytest.mark.requirement("auth.audience")
async def test_a_token_that_is_meant_for_this_server_holds(aud: Any) -> None:
    assert await verifier().verify(GOOD.sign(claims(aud=aud)))


async def test_clocks_may_differ_by_the_leeway() -> None:
    late = GOOD.sign(claims(exp=int(time.time()) - 20, nbf=int(time.time()) + 20))

    assert await verifier().verify(late)
    assert (await refused(late, verifier(leeway_s=5))).code == "invalid_token"


def forged(header: dict[str, Any], payload: dict[str, Any], key: bytes = b"") -> str:
    def part(value: Any) -> bytes:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=")

    signed = part(header) + b"." + part(payload)
    mac = hmac.digest(key, signed, hashlib.sha256) if key else b""
    return (signed + b"." + base64.urlsafe_b64encode(mac).rstrip(b"=")).decode()


@pytest.mark.requirement("auth.validated")
async def test_tokens_that_anybody_could_make_are_refused() -> None:
    public = json.dumps(GOOD.jwk).encode()
    tokens = [
        forged({"alg": "none"}, claims()),
        forged({"alg": "NONE", "kid": "good"}, claims()),
        forged({"alg": "HS256", "kid": "good"}, claims(), public),
        forged({"alg": "HS256", "kid": "good", "jwk": GOOD.jwk}, claims(), b"secret"),
        forged({"alg": "ES256", "kid": "good"}, claims()),
        signer("other").sign(claims(), kid="good"),
        signer("other").sign(claims()),
        signer("other").sign(claims(), kid=None),
        GOOD.sign(claims(), crit=["b64"]),
        GOOD.sign(claims(), typ="logout+jwt"),
        GOOD.sign(claims())[:-4] + "AAAA",
        signer("rs", "RS256").sign(claims(), kid="good"),
    ]

    for token in tokens:
        assert (await refused(token)).code == "invalid_token"


async def test_an_algorithm_that_is_not_configured_is_refused() -> None:
    signs = signer("k-RS512", "RS512")

    assert "in a way" in (await refused(signs.sign(), verifier(signs))).about


async def test_keys_that_cannot_be_had_are_no_fault_of_the_token() -> None:
    setting = JwtSetting(issuer=ISSUER, jwks="http://127.0.0.1:1/jwks")
    check = JwtVerifier(setting, (RESOURCE,), KeySet(str(setting.jwks), refresh_s=600))

    error = await refused(GOOD.sign(), check)

    assert (error.status, error.retry_after_s > 0) == (503, True)
    assert check.troubles()


@pytest.mark.parametrize(
    ("given", "mapped", "allowed"),
    [
        ({"scope": "tools openid"}, {}, ("tools",)),
        ({"scope": None, "scp": ["admin", "tools", 3]}, {}, ("tools", "admin")),
        ({"scope": None, "scp": "teams"}, {}, ("teams",)),
        ({"scope": "openid"}, {}, ()),
        ({"scope": None}, {}, ()),
        ({"scope": {"tools": True}}, {}, ()),
        ({"scope": "mcp.all tools"}, {"mcp.all": "tools,teams"}, ("tools", "teams")),
        ({"scope": "tools"}, {"mcp.all": ["tools"]}, ()),
    ],
)
@pytest.mark.requirement("auth.scopes")
async def test_what_a_token_allows_are_its_scopes(
    given: dict[str, Any], mapped: Any, allowed: tuple[str, ...]
) -> None:
    found = await verifier(scopes=mapped).verify(GOOD.sign(claims(**given)))

    assert found.scopes == allowed


PARTS = st.text("ABCxyz019-_=", max_size=40)


@given(st.one_of(st.text(max_size=80), st.tuples(PARTS, PARTS, PARTS).map(".".join)))
async def test_any_text_is_refused_and_nothing_breaks(token: str) -> None:
    assert (await refused(token)).status == 401


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=6,
)


@given(
    st.dictionaries(st.sampled_from(["alg", "kid", "typ", "crit", "b64"]), JSON),
    st.dictionaries(st.sampled_from(["iss", "aud", "sub", "exp", "nbf", "iat", "scope"]), JSON),
)
async def test_any_header_and_claims_are_refused_and_nothing_breaks(
    header: dict[str, Any], payload: dict[str, Any]
) -> None:
    usual = {"alg": "ES256", "kid": "good"}

    assert (await refused(forged({**usual, **header}, payload))).status == 401


@given(st.dictionaries(st.sampled_from(["aud", "sub", "exp", "nbf", "iat", "scope", "scp"]), JSON))
async def test_signed_claims_of_any_shape_are_taken_or_refused(payload: dict[str, Any]) -> None:
    header = {"alg": "ES256", "typ": "JWT", "kid": "good"}
    body = json.dumps(claims() | payload, default=str).encode()

    def encoded(data: bytes) -> bytes:
        return base64.urlsafe_b64encode(data).rstrip(b"=")

    from jwt.algorithms import ECAlgorithm

    signed = encoded(json.dumps(header).encode()) + b"." + encoded(body)
    signature = ECAlgorithm(ECAlgorithm.SHA256).sign(signed, GOOD.private)
    try:
        found = await verifier().verify((signed + b"." + encoded(signature)).decode())
    except Refused as error:
        assert error.status == 401
    else:
        assert found.principal.startswith(f"{ISSUER}|")

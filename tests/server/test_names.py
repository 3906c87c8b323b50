"""Which hosts and origins a request may name."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildry.server.http.identity import Refused
from guildry.server.http.names import Names
from guildry.server.http.settings import HttpSetting


def status(names: Names, host: str, origin: str | None = None, *, is_public: bool = False) -> int:
    headers = {b"host": host.encode()}
    if origin is not None:
        headers[b"origin"] = origin.encode()
    try:
        names.check(headers, is_public=is_public)
    except Refused as refused:
        return refused.status
    return 200


PUBLIC: dict[str, Any] = {"public_url": "https://Tools.example/mcp"}


@pytest.mark.parametrize(
    ("values", "host", "expected"),
    [
        ({}, "127.0.0.1:8765", 200),
        ({}, "localhost:8765", 200),
        ({}, "LOCALHOST:8765", 200),
        ({}, "[::1]:8765", 200),
        ({}, "192.0.2.1:8765", 200),
        ({}, "127.0.0.1", 421),
        ({}, "127.0.0.1:80", 421),
        ({}, "", 421),
        ({}, "evil.example:8765", 421),
        ({}, "localhost.evil.example:8765", 421),
        (PUBLIC, "tools.example", 200),
        (PUBLIC, "tools.example:443", 200),
        (PUBLIC, "tools.example:8765", 421),
        ({"allowed_hosts": ("a.example",)}, "a.example", 200),
        ({"allowed_hosts": ("a.example",)}, "a.example:8765", 200),
        ({"allowed_hosts": ("a.example",)}, "a.example:1", 421),
        ({"allowed_hosts": ("a.example:1",)}, "a.example:1", 200),
        ({"allowed_hosts": ("a.example:1",)}, "a.example", 421),
        ({"allowed_hosts": ("a.example:*",)}, "a.example:77", 200),
        ({"allowed_hosts": ("a.example:*",)}, "a.example:x", 421),
        ({"allowed_hosts": ("*",)}, "anything", 200),
    ],
)
def test_a_request_for_another_host_is_misdirected(
    values: dict[str, Any], host: str, expected: int
) -> None:
    assert status(Names(HttpSetting(**values), "192.0.2.1", 8765), host) == expected


PAGE: dict[str, Any] = {"allowed_origins": ("https://app.example",)}


@pytest.mark.parametrize(
    ("values", "origin", "expected"),
    [
        ({}, "http://127.0.0.1:8765", 200),
        ({}, "http://localhost:8765", 200),
        ({}, "http://localhost:3000", 403),
        ({}, "https://evil.example", 403),
        ({}, "null", 403),
        ({}, "", 403),
        (PAGE, "https://app.example", 200),
        (PAGE, "http://app.example", 403),
        (PAGE, "https://app.example.evil.example", 403),
        (PUBLIC, "https://tools.example", 200),
    ],
)
def test_a_request_of_another_page_is_forbidden(
    values: dict[str, Any], origin: str, expected: int
) -> None:
    names = Names(HttpSetting(**values), "127.0.0.1", 8765)

    assert status(names, "127.0.0.1:8765", origin) == expected


def test_any_page_may_read_public_documents_of_a_public_server_only() -> None:
    here, public = (Names(HttpSetting(**each), "127.0.0.1", 1) for each in ({}, PUBLIC))

    assert status(here, "127.0.0.1:1", "https://any.example", is_public=True) == 403
    assert status(public, "127.0.0.1:1", "https://any.example", is_public=True) == 200


def test_a_default_port_need_not_be_named() -> None:
    assert status(Names(HttpSetting(), "127.0.0.1", 80), "localhost") == 200


@given(st.binary(max_size=40), st.none() | st.binary(max_size=40))
def test_any_host_and_origin_are_judged(host: bytes, origin: bytes | None) -> None:
    names = Names(HttpSetting(allowed_hosts=("a.example:*",)), "127.0.0.1", 8765)
    headers = {b"host": host} | ({} if origin is None else {b"origin": origin})
    try:
        names.check(headers)
    except Refused as refused:
        assert refused.status in (403, 421)

"""The settings of the HTTP endpoint: from every source, and what is refused before it is served."""

from pathlib import Path
from typing import Any

import pytest

from guildry.errors import ConfigError, UsageError
from guildry.server.commands.reference import settings_table
from guildry.server.config import load_settings
from guildry.server.http.settings import HttpSetting, JwtSetting, check


def test_a_file_sets_the_endpoint_and_a_flag_wins(tmp_path: Path) -> None:
    (tmp_path / "guildry.toml").write_text(
        "[http]\ntokens = 'tokens.toml'\ntls_key = '/etc/key.pem'\nrate_per_s = 5\n"
        "[http.jwt]\nissuer = 'https://login.example'\njwks = 'keys.json'\n"
        "scopes = { read = 'tools', all = ['tools', 'teams'] }\n"
    )
    flags = {"set": ["http.rate_per_s=7", "http.allowed_hosts=a.example,b.example:*"]}

    http = load_settings(flags, cwd=tmp_path).http

    assert http.tokens == tmp_path / "tokens.toml"
    assert http.tls_key == Path("/etc/key.pem")
    assert http.jwt.jwks == str(tmp_path / "keys.json")
    assert http.jwt.scopes == {"read": ("tools",), "all": ("tools", "teams")}
    assert (http.rate_per_s, http.allowed_hosts) == (7, ("a.example", "b.example:*"))


def test_the_environment_sets_the_endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GUILDRY_HTTP__PUBLIC_URL", "https://tools.example/mcp/")
    monkeypatch.setenv("GUILDRY_HTTP__JWT__JWKS", "https://login.example/jwks")
    monkeypatch.setenv("GUILDRY_HTTP__JWT__ALGORITHMS", "ES256,EdDSA")

    http = load_settings({}, cwd=tmp_path).http

    assert http.public_url == "https://tools.example/mcp"
    assert http.jwt.jwks == "https://login.example/jwks"
    assert http.jwt.algorithms == ("ES256", "EdDSA")


@pytest.mark.parametrize(
    ("pair", "told"),
    [
        ("http.jwt.algorithms=HS256", "one of"),
        ("http.jwt.algorithms=none", "one of"),
        ("http.jwt.isuer=x", "did you mean `issuer`"),
        ("http.token=x", "did you mean `tokens`"),
        ("http.public_url=ftp://x", "http.public_url"),
        ("http.public_url=https://user:secret@x/mcp", "http.public_url"),
        ("http.max_body_bytes=3", "1024 or more"),
        ("http.jwt.scopes.read=root", "one of"),
    ],
)
def test_a_wrong_setting_is_told_with_its_name(tmp_path: Path, pair: str, told: str) -> None:
    with pytest.raises(ConfigError) as error:
        load_settings({"set": [pair]}, cwd=tmp_path)

    assert told in str(error.value)


TOKENS: dict[str, Any] = {"tokens": Path("tokens.toml")}
TLS: dict[str, Any] = {"tls_certificate": Path("c.pem"), "tls_key": Path("k.pem")}


@pytest.mark.parametrize(
    ("host", "values"),
    [
        ("127.0.0.1", {}),
        ("127.0.0.2", {}),
        ("localhost", {}),
        ("::1", TOKENS),
        ("192.0.2.1", {**TOKENS, **TLS}),
        ("tools.example", {**TOKENS, "behind_proxy": True}),
        ("0.0.0.0", {**TOKENS, **TLS, "public_url": "https://tools.example/mcp"}),
        ("::", {**TOKENS, "behind_proxy": True, "allowed_hosts": ("tools.example",)}),
    ],
)
def test_what_is_safe_may_be_served(host: str, values: dict[str, Any]) -> None:
    check(HttpSetting(**values), host)


@pytest.mark.parametrize(
    ("host", "values", "told"),
    [
        ("0.0.0.0", {}, "guildry token new"),
        ("192.0.2.1", TLS, "guildry token new"),
        ("example.com", {}, "guildry token new"),
        ("192.0.2.1", TOKENS, "in the clear"),
        ("0.0.0.0", {**TOKENS, **TLS}, "http.public_url"),
        ("::", {**TOKENS, "behind_proxy": True}, "http.public_url"),
        ("127.0.0.1", {"tls_key": Path("k.pem")}, "give both"),
        ("127.0.0.1", {"allowed_origins": ("https://a.example/",)}, "allowed_origins"),
        ("127.0.0.1", {"allowed_origins": ("*",)}, "allowed_origins"),
    ],
)
def test_what_is_not_safe_is_refused_with_the_cure(
    host: str, values: dict[str, Any], told: str
) -> None:
    with pytest.raises(UsageError, match=told):
        check(HttpSetting(**values), host)


@pytest.mark.parametrize(
    ("jwt", "told"),
    [
        ({"issuer": "https://login.example"}, "jwks` is missing"),
        ({"issuer": "https://login.example", "jwks": "keys.json"}, "audience` is missing"),
        ({"jwks": "keys.json"}, "issuer` is missing"),
        ({"issuer": "a", "jwks": "http://login.example/jwks", "audience": ("b",)}, "HTTPS URL"),
        ({"issuer": "a", "jwks": "k", "audience": ("b",), "algorithms": ()}, "is empty"),
    ],
)
def test_what_signed_tokens_need_is_asked_for(jwt: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        check(HttpSetting(jwt=JwtSetting(**jwt)), "127.0.0.1")


def test_every_setting_of_the_endpoint_is_in_the_table_with_a_line() -> None:
    table = settings_table()

    for head, model in (("[http]", HttpSetting), ("[http.jwt]", JwtSetting)):
        assert f"| key of `{head}` |" in table
        for name, about in model.model_fields.items():
            assert f"| `{name}` |" in table
            assert about.description is not None
            assert about.description.endswith("."), name

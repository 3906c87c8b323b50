"""Settings of the HTTP endpoint: who may call, how much, and by which names it is known."""

from collections.abc import Callable
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from guildry.errors import ConfigError, UsageError

__all__ = ["Algorithm", "HttpSetting", "JwtSetting", "ScopeName", "check", "is_loopback", "located"]

Algorithm = Literal[
    "RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"
]
"""How a token may be signed: with a private key, so that whoever checks one cannot make one."""

ScopeName = Literal["tools", "teams", "admin"]

_URLS: Final = ("http://", "https://")
_PATHS: Final = ("tokens", "tls_certificate", "tls_key")


class JwtSetting(BaseModel):
    """Tokens that an authorization server signs."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    issuer: str | None = Field(
        default=None,
        min_length=1,
        description="Whose tokens are taken: the `iss` they name.",
    )
    audience: tuple[str, ...] = Field(
        default=(), description="What their `aud` must name; default: `http.public_url`."
    )
    jwks: str | None = Field(
        default=None, min_length=1, description="The issuer's public keys: a file, or an HTTPS URL."
    )
    algorithms: tuple[Algorithm, ...] = Field(
        default=("RS256", "PS256", "ES256", "EdDSA"), description="Signatures that are taken."
    )
    leeway_s: float = Field(
        default=30.0, ge=0, le=300, description="Seconds that clocks may differ by."
    )
    scopes: dict[str, tuple[ScopeName, ...]] = Field(
        default_factory=dict,
        description="What the scopes of a token allow here, by name; default: `tools`, `teams` and "
        "`admin` allow what they say.",
    )
    refresh_s: float = Field(
        default=600.0, ge=10, description="Seconds after which keys are fetched anew."
    )

    @field_validator("audience", "algorithms", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return _listed(value)

    @field_validator("scopes", mode="before")
    @classmethod
    def _split_scopes(cls, value: object) -> object:
        if not isinstance(value, dict):
            return value
        return {name: _listed(scopes) for name, scopes in value.items()}  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]


class HttpSetting(BaseModel):
    """The HTTP endpoint. What it listens on are the settings `host` and `port`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    tokens: Path | None = Field(
        default=None, description="File of tokens that callers show; see `guildry token new`."
    )
    jwt: JwtSetting = Field(
        default=JwtSetting(), description="Signed tokens: `[http.jwt]` with `issuer`, `jwks`, ..."
    )
    public_url: str | None = Field(
        default=None,
        pattern=r"^https?://[^/?#\s@]+(/[^?#\s]*)?$",
        description="URL by which clients know the endpoint, such as `https://tools.example/mcp`.",
    )
    allowed_hosts: tuple[str, ...] = Field(
        default=(),
        description="Further values of the header `Host`: `NAME`, `NAME:PORT` or `NAME:*`; `*` "
        "takes any.",
    )
    allowed_origins: tuple[str, ...] = Field(
        default=(), description="Web pages that may call, such as `https://app.example`."
    )
    tls_certificate: Path | None = Field(
        default=None, description="Certificate chain (PEM) for serving HTTPS."
    )
    tls_key: Path | None = Field(default=None, description="Its private key (PEM).")
    behind_proxy: bool = Field(
        default=False, description="Whether a proxy in front ends TLS, so that HTTP may be served."
    )
    max_body_bytes: int = Field(
        default=4 * 1024 * 1024, ge=1024, description="Size that a request may have."
    )
    max_header_bytes: int = Field(
        default=32 * 1024, ge=1024, description="Size that the headers of a request may have."
    )
    max_connections: int = Field(default=10_000, ge=1, description="Connections open at a time.")
    max_concurrent: int = Field(default=1_000, ge=1, description="Calls in flight, of all callers.")
    max_concurrent_per_caller: int = Field(
        default=500, ge=1, description="Calls in flight, of one caller."
    )
    rate_per_s: float = Field(
        default=0.0, ge=0, description="Requests a second that one caller may make; 0 is no limit."
    )
    burst: int = Field(
        default=100, ge=1, description="Requests that may come at once before `rate_per_s` counts."
    )
    max_callers: int = Field(
        default=1_000, ge=1, description="Callers with open sessions or calls at a time."
    )
    max_sessions: int = Field(
        default=1_000,
        ge=1,
        description="Sessions of one caller; the one unused for longest makes room for another.",
    )
    session_idle_s: float = Field(
        default=1_800.0, gt=0, description="Seconds after which an unused session ends."
    )
    keep_alive_s: int = Field(
        default=30, ge=1, description="Seconds after which an unused connection is closed."
    )
    slow_client_s: float = Field(
        default=30.0,
        gt=0,
        description="Seconds that a client may take to send headers, to send a body, and to read.",
    )

    @field_validator("allowed_hosts", "allowed_origins", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        return _listed(value)

    @field_validator("public_url")
    @classmethod
    def _bare(cls, value: str | None) -> str | None:
        return value if value is None else value.rstrip("/")

    @property
    def authenticates(self) -> bool:
        """Whether callers must show a token."""
        return self.tokens is not None or self.jwt.issuer is not None

    @property
    def tls(self) -> bool:
        """Whether HTTPS is served."""
        return self.tls_certificate is not None

    @property
    def audiences(self) -> tuple[str, ...]:
        """What a signed token may be meant for."""
        if self.jwt.audience or self.public_url is None:
            return self.jwt.audience
        return (self.public_url, f"{self.public_url}/")


def check(setting: HttpSetting, host: str) -> None:
    """Refuse what cannot be served, or not without danger.

    Raises:
        ConfigError: settings contradict each other, or one is missing.
        UsageError: `host` is reached from beyond this machine, which needs more than is set.
    """
    if (setting.tls_certificate is None) != (setting.tls_key is None):
        raise ConfigError("`http.tls_certificate` and `http.tls_key` go together: give both")
    for origin in setting.allowed_origins:
        parts = urlsplit(origin)
        if parts.scheme not in ("http", "https") or origin != f"{parts.scheme}://{parts.netloc}":
            raise ConfigError(
                f"`http.allowed_origins` has {origin!r}: give origins such as `https://app.example`"
            )
    _check_jwt(setting)
    if not is_loopback(host):
        _check_open(setting, host)


def _check_jwt(setting: HttpSetting) -> None:
    jwt = setting.jwt
    if jwt.issuer is None:
        if jwt.jwks is not None or jwt.audience:
            raise ConfigError("`http.jwt.issuer` is missing: give the `iss` of the tokens to take")
        return
    if jwt.jwks is None:
        raise ConfigError("`http.jwt.jwks` is missing: give the issuer's keys, as a file or a URL")
    if not setting.audiences:
        raise ConfigError(
            "`http.jwt.audience` is missing: give what the tokens' `aud` names, or set"
            " `http.public_url`"
        )
    if not jwt.algorithms:
        raise ConfigError("`http.jwt.algorithms` is empty: name one, such as `RS256`")
    parts = urlsplit(jwt.jwks)
    if parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise ConfigError(
            f"`http.jwt.jwks` is {jwt.jwks!r}: keys are trusted, so give an HTTPS URL or a file"
        )


def _check_open(setting: HttpSetting, host: str) -> None:
    """Check what is reached from beyond this machine."""
    if not setting.authenticates:
        raise UsageError(
            f"`host` is {host!r}: beyond this machine callers must authenticate. Make a token with"
            " `guildry token new NAME` and give `--set http.tokens=FILE`, or set `http.jwt`; or"
            " serve `127.0.0.1`"
        )
    if not setting.tls and not setting.behind_proxy:
        raise UsageError(
            f"`host` is {host!r}: tokens would cross the network in the clear. Give"
            " `http.tls_certificate` and `http.tls_key`, or `--set http.behind_proxy=true` where a"
            " proxy in front ends TLS"
        )
    if not setting.public_url and not setting.allowed_hosts and _is_wildcard(host):
        raise UsageError(
            f"`host` is {host!r}: set `http.public_url` to the URL that clients use (or"
            " `http.allowed_hosts`), since requests for other hosts are refused"
        )


def is_loopback(host: str) -> bool:
    """Tell whether only this machine reaches `host`."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _is_wildcard(host: str) -> bool:
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def located(values: dict[str, Any], absolute: Callable[[str | Path], Path]) -> dict[str, Any]:
    """Return what a source of settings gives for `http`, with its paths made absolute."""
    found = dict(values)
    for name in _PATHS:
        if isinstance(found.get(name), str | Path):
            found[name] = absolute(found[name])
    if isinstance(found.get("jwt"), dict):
        jwt: dict[str, Any] = dict(found["jwt"])
        keys = jwt.get("jwks")
        if isinstance(keys, str) and not keys.startswith(_URLS):
            found["jwt"] = {**jwt, "jwks": str(absolute(keys))}
    return found


def _listed(value: object) -> object:
    """Take `a,b` from a flag or the environment for a list."""
    if not isinstance(value, str):
        return value
    return [part.strip() for part in value.split(",") if part.strip()]

"""Settings: one frozen model, read once. The only module that reads the environment.

Flags win over the environment (`GUILDRY_*`), which wins over `guildry.toml`, which wins over the
defaults. Nothing is opened or created here.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from guildry.errors import ConfigError
from guildry.server.embedding_settings import EmbeddingSetting
from guildry.server.http.settings import HttpSetting
from guildry.server.plug_settings import PlugSetting
from guildry.server.setting_groups import CodeSettings, RunSettings, TrustSettings

__all__ = [
    "FILE_NAME",
    "LogLevel",
    "ModelSetting",
    "PlugSetting",
    "Settings",
    "find_file",
    "load_settings",
    "unknown_variables",
    "variables",
]

FILE_NAME: Final = "guildry.toml"
"""The name of the configuration file."""

LogLevel = Literal["debug", "info", "warning", "error"]

_PREFIX: Final = "GUILDRY_"
_NOT_SETTINGS: Final = {"GUILDRY_CONFIG"}


class ModelSetting(BaseModel):
    """A model behind an OpenAI-style URL."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    url: str = Field(
        pattern=r"^https?://\S+$", description="Base URL, such as `http://127.0.0.1:30000/v1`."
    )
    model: str = Field(default="", description="Its name there; empty takes the first one listed.")
    api_key_env: str | None = Field(
        default=None, description="The environment variable that holds the key, if it needs one."
    )
    timeout_s: float = Field(default=120.0, gt=0, description="Seconds that one reply may take.")
    context_tokens: int = Field(default=32_000, ge=1024, description="Size of its context.")

    def api_key(self) -> str | None:
        """Return the key, or None where none is configured or the variable is not set."""
        return os.environ.get(self.api_key_env) or None if self.api_key_env else None


def _default_home() -> Path:
    from platformdirs import user_data_path

    return user_data_path("guildry", appauthor=False)


class Settings(CodeSettings, RunSettings, TrustSettings):
    """All that can be set. Each field has a default, a unit where it is a quantity, and a line."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    home: Path = Field(
        default_factory=_default_home,
        description="Folder of the database, the stored objects and the sockets.",
    )
    folder: Path = Field(
        default_factory=Path.cwd,
        description="Folder in which plugged commands run; default: that of the file, else the "
        "current one.",
    )
    plugs: dict[str, PlugSetting] = Field(
        default_factory=dict,
        description="Sources of tools by name: `[plugs.NAME]` with `source` and more; see below.",
    )
    plugs_folder: Path | None = Field(
        default=None,
        description="Folder in which each source that is dropped in is plugged; default: `plugs` "
        "beside `guildry.toml`, if it is there at the start.",
    )
    teams: tuple[Path, ...] = Field(default=(), description="Team files, or folders of them.")
    skills: tuple[Path, ...] = Field(
        default=(), description="Skills (folders with a `SKILL.md`), or folders of them."
    )
    models: dict[str, ModelSetting] = Field(
        default_factory=dict,
        description="Models by name: `[models.NAME]` with `url`, `model`, `api_key_env`, "
        "`timeout_s` (seconds), `context_tokens` (tokens).",
    )
    model: str | None = Field(
        default=None, description="The model that teams use: a name from `models`, or a URL."
    )
    embeddings: EmbeddingSetting | bool = Field(
        default=True,
        description="How tools are found by meaning too: `[embeddings]` with `url`, `model` and "
        "more; `true`: by the small model of `guildry embed`, if it is there; `false`: not.",
    )
    inline_tokens: int = Field(
        default=1000, ge=0, description="Results above this many tokens become references."
    )
    listed_tools: int = Field(
        default=40, ge=0, description="Number of plugged tools listed; more go through find_tools."
    )
    pinned: tuple[str, ...] = Field(
        default=(), description="Names of tools that are listed even beyond `listed_tools`."
    )
    call_timeout_s: float = Field(
        default=60.0, gt=0, description="Seconds that one tool call may take."
    )
    lazy_plugs: bool = Field(
        default=True,
        description="Whether an MCP server whose list is known starts at its first call only, and "
        "stops when it is long idle.",
    )
    plug_idle_s: float = Field(
        default=600.0, gt=0, description="Seconds without a call after which such a server stops."
    )
    starts_at_once: int = Field(
        default=8, ge=1, description="Number of MCP servers that may be starting at a time."
    )
    startup_wait_s: float = Field(
        default=8.0, ge=0, description="Seconds that the first listing waits for slow plugs."
    )
    drain_s: float = Field(
        default=10.0, ge=0, description="Seconds that calls in flight get when a plug goes."
    )
    host: str = Field(
        default="127.0.0.1", min_length=1, description="Address that the HTTP endpoint listens on."
    )
    port: int = Field(
        default=8765, ge=0, le=65535, description="TCP port of the HTTP endpoint; 0 takes any."
    )
    http: HttpSetting = Field(
        default=HttpSetting(),
        description="The HTTP endpoint: `[http]` with who may call and how much; see below.",
    )
    fast: bool = Field(
        default=True, description="Whether the packages of `guildry[fast]` are used if installed."
    )
    object_ttl_days: float = Field(
        default=30.0,
        gt=0,
        description="Days that stored objects, and calls outside runs, are kept.",
    )
    structured_content: Literal["both", "once"] = Field(
        default="both",
        description="Whether a structured answer comes with its JSON as text (`both`), for clients "
        "that read only text, or with one line (`once`).",
    )
    state_key_env: str | None = Field(
        default=None,
        description="The environment variable with the key (32 bytes or more, base64 or "
        "hexadecimal) that seals state left with clients; unset: one is made in the home.",
    )
    task_ttl_s: float = Field(
        default=86_400.0, gt=0, description="Seconds that a task is kept after it has ended."
    )
    tasks_at_once: int = Field(
        default=64, ge=1, description="Number of tasks that one client may have at work."
    )
    sync: bool = Field(
        default=True, description="Whether stored files are forced to disk before they count."
    )
    log_level: LogLevel = Field(
        default="info", description="The least severe level that is logged on stderr."
    )

    @field_validator("pinned", "teams", "skills", "ask_first", mode="before")
    @classmethod
    def _split(cls, value: object) -> object:
        """Take `a,b` from a flag or the environment for a list."""
        if not isinstance(value, str):
            return value
        return [part.strip() for part in value.split(",") if part.strip()]

    @field_validator("plugs", mode="before")
    @classmethod
    def _widen(cls, value: object) -> object:
        """Take `name = "source"` for `name = {source = "source"}`."""
        if not isinstance(value, dict):
            return value
        return {
            name: {"source": plug} if isinstance(plug, str) else plug
            for name, plug in value.items()  # pyright: ignore[reportUnknownVariableType]
        }

    @property
    def database(self) -> Path:
        """The one database file of this home."""
        return self.home / "guildry.db"

    @property
    def default_model(self) -> ModelSetting | None:
        """The model that teams use, or None where none is configured."""
        if self.model is None:
            return next(iter(self.models.values())) if len(self.models) == 1 else None
        return (
            self.models[self.model] if self.model in self.models else ModelSetting(url=self.model)
        )

    def state_key(self) -> bytes | None:
        """Return the key that seals state, or None where none is configured.

        Raises:
            ConfigError: the environment variable is not set, or holds no key.
        """
        if self.state_key_env is None:
            return None
        from guildry.server.asking.seal import decoded_key

        return decoded_key(os.environ.get(self.state_key_env, ""), self.state_key_env)

    def embeddings_key(self) -> str | None:
        """Return the key of the model that embeds, or None."""
        name = self.embeddings.api_key_env if not isinstance(self.embeddings, bool) else None
        return os.environ.get(name) or None if name else None

    def secrets(self) -> frozenset[str]:
        """Return the values that must never be logged or shown."""
        keys = {self.embeddings_key(), *(model.api_key() for model in self.models.values())}
        plugs = self.plugs.values()
        given = {value for p in plugs for value in (*p.env.values(), *p.headers.values())}
        return frozenset(value for value in keys | given if value)


def find_file(flags: Mapping[str, object], *, cwd: Path) -> Path | None:
    """Return the configuration file: `--config`, `GUILDRY_CONFIG`, in `cwd`, or in the home.

    Raises:
        ConfigError: a file was named that is not there.
    """
    named = flags.get("config") or os.environ.get("GUILDRY_CONFIG")
    if named:
        file = (cwd / Path(str(named)).expanduser()).absolute()
        if not file.is_file():
            raise ConfigError(f"`{file}` is not there: give `--config` a file, or leave it out")
        return file
    home = flags.get("home") or os.environ.get("GUILDRY_HOME")
    at_home = (cwd / Path(str(home)).expanduser()) if home else _default_home()
    return next((f.absolute() for f in (cwd / FILE_NAME, at_home / FILE_NAME) if f.is_file()), None)


def load_settings(flags: Mapping[str, object], *, cwd: Path) -> Settings:
    """Return the settings in force: flags over environment over file over defaults.

    Args:
        flags: by the names of the settings; None is "not given". `config` names the file, and
            `set` holds any number of `key=value`.
        cwd: where the file is looked for, and where relative paths of flags start.

    Raises:
        ConfigError: a key or a value is wrong. Names it, its source, and what it takes.
    """
    from guildry.server.layers import Layer, merge, refusal, spread

    file = find_file(flags, cwd=cwd)
    given = {k: v for k, v in flags.items() if v is not None and k not in {"config", "set"}}
    layers = [
        Layer("flag", given, cwd),
        Layer("set", spread(flags.get("set")), cwd),
        Layer("environment", _environment(), cwd),
    ]
    if file is not None:
        has_folder = (file.parent / "plugs").is_dir()
        dropped = {"plugs_folder": "plugs"} if has_folder else {}
        values = {"folder": ".", **dropped, **_read(file)}
        layers.append(Layer(f"`{file}`", values, file.parent))
    located = [layer.located() for layer in layers]
    try:
        settings = Settings(**merge(located))
    except ValidationError as error:
        raise ConfigError(refusal(error, located, Settings.model_json_schema())) from None
    _check_model(settings)
    plugs = {name: plug.expanded(name) for name, plug in settings.plugs.items()}
    return settings.model_copy(update={"plugs": plugs})


def unknown_variables() -> list[str]:
    """Return the `GUILDRY_*` variables of the environment that set nothing."""
    known = {
        *_NOT_SETTINGS,
        *(f"{_PREFIX}{name}".upper() for name in Settings.model_fields),
    }
    return sorted(
        name
        for name in os.environ
        if name.upper().startswith(_PREFIX) and name.upper().split("__")[0] not in known
    )


def variables(*names: str) -> dict[str, str]:
    """Return the environment variables of these names, of those that are set."""
    return {name: os.environ[name] for name in names if os.environ.get(name)}


def _check_model(settings: Settings) -> None:
    name = settings.model
    if name is None or name in settings.models or name.startswith(("http://", "https://")):
        return
    named = ", ".join(f"`{known}`" for known in settings.models) or "none is configured"
    raise ConfigError(f"`model` is {name!r}: give a URL, or a name from `models` ({named})")


def _environment() -> dict[str, Any]:
    """Return what the environment sets. The library is imported only where there is something."""
    if not any(name.upper().startswith(_PREFIX) for name in os.environ):
        return {}
    from pydantic_settings import BaseSettings, EnvSettingsSource, SettingsConfigDict
    from pydantic_settings.exceptions import SettingsError

    class Environment(Settings, BaseSettings):
        model_config = SettingsConfigDict(frozen=True, extra="forbid", enable_decoding=False)

    source = EnvSettingsSource(Environment, env_prefix=_PREFIX, env_nested_delimiter="__")
    try:
        return source()
    except SettingsError as error:
        raise ConfigError(f"the environment cannot be read: {error}") from error


def _read(file: Path) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"`{file}` cannot be read: {error}") from error

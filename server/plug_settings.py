"""Settings of one plug: where its tools come from, how it is run, how far it is trusted."""

import os
from collections.abc import Mapping
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from guildry.errors import ConfigError
from guildry.tools.plugs.options import PlugOptions, SandboxOptions

__all__ = ["PlugSetting", "SandboxSetting", "setting_of"]

_NOT_SAID: Final = frozenset({"source", "pinned"})


class SandboxSetting(BaseModel):
    """How the process of a plug is confined."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    network: bool = Field(default=False, description="Whether it may reach the network.")
    read: tuple[str, ...] = Field(
        default=(), description="Folders and files that it may read, besides the system's."
    )
    write: tuple[str, ...] = Field(default=(), description="Folders that it may change.")
    memory_mb: int = Field(
        default=2_048, ge=64, description="Most memory of one of its processes, in MB."
    )
    cpu_s: float | None = Field(
        default=None, gt=0, description="Processor seconds of one of its processes."
    )
    processes: int = Field(default=256, ge=1, description="Most processes at a time.")
    file_mb: int = Field(
        default=1_024, ge=1, description="The largest file that it may write, in MB."
    )


class PlugSetting(BaseModel):
    """A source of tools that is plugged in at the start."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    source: str = Field(min_length=1, description="A path, a URL or a command line.")
    env: dict[str, str] = Field(
        default_factory=dict,
        description="Environment variables of its process; `$NAME` takes the value from Guildry's.",
    )
    headers: dict[str, str] = Field(
        default_factory=dict,
        description="HTTP headers for a URL; `$NAME` and `Bearer $NAME` take the value from "
        "Guildry's environment.",
    )
    pinned: bool = Field(default=False, description="List its tools even beyond `listed_tools`.")
    lazy: bool | None = Field(
        default=None,
        description="Serve from the list that it last gave, and start it at the first call.",
    )
    idle_s: float | None = Field(
        default=None, gt=0, description="Seconds without a call after which it is stopped."
    )
    calls_at_once: int | None = Field(
        default=None, ge=1, description="Calls in flight at a time; others wait for their turn."
    )
    call_timeout_s: float | None = Field(
        default=None, gt=0, description="Seconds that one call may take."
    )
    trust: Literal["own", "pinned"] | None = Field(
        default=None,
        description="`own`: its definitions are served as they are. `pinned`: one that has changed "
        "is held until a person approves it.",
    )
    labels: tuple[str, ...] = Field(
        default=(), description="Where its answers come from, such as `untrusted:web`."
    )
    tags: tuple[str, ...] = Field(
        default=(), description="Words by which `find_tools` can choose among plugs."
    )
    sandbox: SandboxSetting | None = Field(
        default=None,
        description="How its process is confined; unset: not, unless `sandbox` is `required`. A"
        " Python file then runs in a process of its own.",
    )

    def said(self) -> dict[str, Any]:
        """Return what was said besides the source, as JSON."""
        return self.model_dump(mode="json", exclude_unset=True, exclude={"source"})

    def options(self) -> PlugOptions:
        """Return what is said of the plug, as the board takes it."""
        confined = None if self.sandbox is None else SandboxOptions(**self.sandbox.model_dump())
        return PlugOptions(
            env=self.env,
            headers=self.headers,
            lazy=self.lazy,
            idle_s=self.idle_s,
            calls_at_once=self.calls_at_once,
            call_timeout_s=self.call_timeout_s,
            trust=self.trust,
            labels=self.labels,
            tags=self.tags,
            sandbox=confined,
        )

    def expanded(self, plug: str) -> Self:
        """Return the setting with the values of the environment in the place of `$NAME`.

        Raises:
            ConfigError: a variable is not set.
        """
        env = {name: _value(f"plugs.{plug}.env.{name}", v) for name, v in self.env.items()}
        headers = {
            name: _value(f"plugs.{plug}.headers.{name}", v) for name, v in self.headers.items()
        }
        return self.model_copy(update={"env": env, "headers": headers})


def setting_of(name: str, source: str, said: Mapping[str, Any]) -> PlugSetting:
    """Return what was said of a plug by hand, as if it were configured; `$NAME` stays `$NAME`.

    Args:
        name: of the plug, for errors.
        source: a path, a URL or a command line.
        said: the other keys of `[plugs.NAME]`, except `pinned`.

    Raises:
        ConfigError: a key or a value is wrong; names it.
    """
    if "pinned" in said:
        raise ConfigError(f"`pinned` of `{name}` belongs into guildry.toml: leave it out here")
    try:
        return PlugSetting.model_validate({**said, "source": source})
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(str(step) for step in first["loc"])
        known = ", ".join(f"`{key}`" for key in PlugSetting.model_fields if key not in _NOT_SAID)
        cure = f"; there are {known}" if first["type"] == "extra_forbidden" else ""
        raise ConfigError(f"`{where}` of `{name}` is wrong: {first['msg']}{cure}") from None


def _value(where: str, value: str) -> str:
    scheme, space, last = value.rpartition(" ")
    taken = last[1:] if last.startswith("$") and last[1:].isidentifier() else None
    if taken is None:
        return value
    if taken not in os.environ:
        raise ConfigError(
            f"`{where}` takes `${taken}`, which is not set: set it, or write the value"
        )
    return f"{scheme}{space}{os.environ[taken]}"

"""Team files: a team as a short TOML file, plugged and reloaded like any source of tools."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

import anyio
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from guildry.errors import PlugError
from guildry.teams.plan_and_execute import PlanAndExecute, Worker
from guildry.teams.run import Team
from guildry.teams.team import Conductor, Solo, team_tool
from guildry.tools.grants import Limits
from guildry.tools.plugs.plug import Loaded, Opener, Plug, Watched
from guildry.tools.registry import nearest

__all__ = ["TeamFile", "read_team", "team_files"]

_PATTERNS: Final = ("plan_and_execute", "solo")
_SUFFIX: Final = ".toml"
_MAX_CHARACTERS: Final = 100_000


class _Form(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Limits(_Form):
    tokens: int | None = Field(default=None, ge=0)
    calls: int | None = Field(default=None, ge=0)
    agents: int | None = Field(default=None, ge=0)
    wall_s: float | None = Field(default=None, ge=0)


class _Planner(_Form):
    instructions: str = ""
    tries: int = Field(default=3, ge=1)
    replans: int = Field(default=2, ge=0)


class _Aggregator(_Form):
    instructions: str | None = None
    tools: tuple[str, ...] | None = None


class _Worker(_Form):
    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,40}$")
    instructions: str | None = None
    tools: tuple[str, ...] = ("*",)
    model: str | None = None
    asks: bool | None = None


class _TeamForm(_Form):
    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,40}$")
    description: str = Field(min_length=1)
    pattern: Literal["plan_and_execute", "solo"]
    model: str | None = None
    tools: tuple[str, ...] = ("*",)
    max_turns: int = Field(default=40, ge=1)
    asks: bool = False
    limits: _Limits = _Limits()


class _SoloForm(_TeamForm):
    instructions: str | None = None
    may_spawn: bool = False


class _PlanForm(_TeamForm):
    repairs: int = Field(default=1, ge=0)
    planner: _Planner = _Planner()
    aggregator: _Aggregator = _Aggregator()
    workers: tuple[_Worker, ...] = ()


def read_team(text: str, source: str) -> Team:
    """Return the team that a TOML text describes.

    Args:
        text: the file's content.
        source: what error messages call it.

    Raises:
        PlugError: it is not TOML, or says something that a team file cannot say.
    """
    try:
        told = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PlugError(source, f"it is not TOML ({error})", "Correct that line") from None
    form = _SoloForm if told.get("pattern") == "solo" else _PlanForm
    try:
        team = form.model_validate(told)
    except ValidationError as error:
        faults = "; ".join(_fault(each, form) for each in error.errors())
        raise PlugError(source, f"it is not a team ({faults})", "Correct the file") from None
    if isinstance(team, _SoloForm):
        return _solo(team)
    names = [worker.name for worker in team.workers]
    if len(set(names)) < len(names):
        raise PlugError(source, "two workers have one name", "Give each worker its own `name`")
    return _plan_and_execute(team)


class TeamFile:
    """A plug whose one tool runs the team that a file describes.

    Args:
        source: the file, as the caller wrote it.
        name: on the board.
        orchestrator: what runs the team.
        folder: where a relative path is looked up; the current one if None.
    """

    def __init__(
        self, source: str, name: str, orchestrator: Conductor, folder: Path | None = None
    ) -> None:
        self.source: Final = source
        self.name: Final = name
        self._path = (folder or Path()) / Path(source).expanduser()
        self._orchestrator = orchestrator

    @property
    def kind(self) -> str:
        """What it is, in a word."""
        return "team"

    @property
    def fault(self) -> str | None:
        """None: a file that was read once is served, whatever becomes of it."""
        return None

    @property
    def watched(self) -> tuple[Watched, ...]:
        """The file itself."""
        return (Watched(self._path, _SUFFIX),)

    async def open(self, changed: Callable[[], None]) -> Loaded:
        """Read the file.

        Raises:
            PlugError: it cannot be read, or is not a team; says what to correct.
        """
        return await self.reload()

    async def reload(self) -> Loaded:
        """Read the file again.

        Raises:
            PlugError: it cannot be read, or is not a team any more.
        """
        try:
            async with await anyio.open_file(self._path, encoding="utf-8") as file:
                text = await file.read(_MAX_CHARACTERS + 1)
        except (OSError, UnicodeDecodeError) as error:
            raise PlugError(
                self.source, f"it cannot be read ({error})", "Give the path of a TOML file"
            ) from error
        if len(text) > _MAX_CHARACTERS:
            raise PlugError(self.source, "it is far too long for a team", "Give a team file")
        tool = team_tool(read_team(text, self.source), self._orchestrator)
        return Loaded((replace(tool, plug=self.name),))

    async def close(self) -> None:
        """Release nothing: runs that were begun go on with the team that they have."""


def team_files(orchestrator: Conductor, folder: Path | None = None) -> Opener:
    """Return the opener of team files, for the board of plugs: it takes paths that end in .toml."""

    def opened(source: str, name: str) -> Plug | None:
        if not source.endswith(_SUFFIX) or "://" in source:
            return None
        return TeamFile(source, name, orchestrator, folder)

    return opened


def _solo(form: _SoloForm) -> Solo:
    team = Solo(
        name=form.name,
        description=form.description,
        model=form.model,
        tools=form.tools,
        default_limits=Limits(**form.limits.model_dump()),
        max_turns=form.max_turns,
        may_spawn=form.may_spawn,
        asks=form.asks,
    )
    return team if form.instructions is None else replace(team, instructions=form.instructions)


def _plan_and_execute(form: _PlanForm) -> PlanAndExecute:
    workers = [
        Worker(
            name=each.name,
            tools=each.tools,
            model=each.model,
            asks=each.asks,
            **_given(each, "instructions"),
        )
        for each in form.workers
    ]
    joins = _given(form.aggregator, "instructions")
    tools = _given(form.aggregator, "tools")
    team = PlanAndExecute(
        name=form.name,
        description=form.description,
        model=form.model,
        tools=form.tools,
        planner=form.planner.instructions,
        workers=tuple(workers),
        default_limits=Limits(**form.limits.model_dump()),
        plan_tries=form.planner.tries,
        replans=form.planner.replans,
        repairs=form.repairs,
        max_turns=form.max_turns,
        asks=form.asks,
    )
    if joins:
        team = replace(team, aggregator=joins["instructions"])
    return replace(team, aggregator_tools=tools["tools"]) if tools else team


def _given(form: BaseModel, name: str) -> dict[str, Any]:
    """Return a field by its name where the file gives it, else nothing."""
    value = getattr(form, name)
    return {} if value is None else {name: value}


def _fault(error: Any, form: type[BaseModel]) -> str:
    *path, key = [str(part) for part in error["loc"]]
    where = ".".join([*path, key])
    if error["type"] == "extra_forbidden":
        known = _keys(form, path)
        near = nearest(key, known)
        cure = f"did you mean `{near}`?" if near else f"known are {', '.join(sorted(known))}"
        return f"unknown key `{where}`: {cure}"
    if error["type"] == "missing":
        return f"`{where}` is missing"
    if key == "pattern" and not path:
        return f"`pattern` is {error['input']!r}: give one of {', '.join(_PATTERNS)}"
    return f"`{where}` is {error['input']!r}: {error['msg'].lower()}"


def _keys(form: type[BaseModel], path: list[str]) -> tuple[str, ...]:
    """Return the keys that a table of the file may have."""
    tables: Mapping[str, type[BaseModel]] = {
        "limits": _Limits,
        "planner": _Planner,
        "aggregator": _Aggregator,
        "workers": _Worker,
    }
    table = tables[path[0]] if path else form
    return tuple(table.model_fields)

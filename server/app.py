"""The app: the one place where the parts meet. Opens what is kept, serves nothing itself."""

import time
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Final

import anyio
import structlog

from guildry.errors import GuildryError, PlugError
from guildry.memory.journal import Journal
from guildry.memory.ledger import EffectLedger
from guildry.memory.objects import ObjectStore
from guildry.memory.runs import RunStore
from guildry.memory.sources import SourceStore
from guildry.memory.store import Store
from guildry.server.announce import Announcer
from guildry.server.builtin import Builtin
from guildry.server.parts import BUILTIN, LOCAL, App
from guildry.server.run_tools import RunTools
from guildry.teams.orchestrator import Orchestrator, RunDefaults
from guildry.tools.approval import OnlyInPerson
from guildry.tools.dispatch import Dispatch
from guildry.tools.grants import Limits
from guildry.tools.plug import PlugLimits, Wanted
from guildry.tools.plugs import PlugBoard
from guildry.tools.registry import Catalog
from guildry.tools.search import ToolIndex

if TYPE_CHECKING:
    from pathlib import Path

    from anyio.abc import TaskGroup

    from guildry.server.config import ModelSetting, Settings
    from guildry.teams.model import Model
    from guildry.tools.plug import Opener, Plug

__all__ = ["App", "open_app"]

log = structlog.get_logger()

_DAY_S: Final = 86_400.0
_EXPIRE_EVERY_S: Final = 3_600.0
_TEAM_SUFFIX: Final = ".toml"


@asynccontextmanager
async def open_app(
    settings: "Settings", *, models: "Mapping[str, Model] | None" = None
) -> AsyncGenerator[App]:
    """Open an app. Its plugs are opened in the background; see `App.ready`.

    Args:
        settings: what was configured.
        models: models by name, besides the configured ones.

    Raises:
        StoreError: what is kept cannot be opened.
        ConfigError: a model is configured wrongly.
    """
    async with AsyncExitStack() as stack:
        store = await stack.enter_async_context(Store.open(settings.home / "guildry.db"))
        catalog = Catalog()
        index = ToolIndex(catalog)
        stack.push_async_callback(index.aclose)
        named = _models(settings, models or {}, stack)
        tasks = anyio.create_task_group()
        app = _assembled(settings, store, catalog, index, named, tasks)
        await stack.enter_async_context(app.plugs)
        await stack.enter_async_context(tasks)  # ends first, or its end would hide an error
        stack.callback(tasks.cancel_scope.cancel)
        _start(app, tasks)
        yield app


def _assembled(
    settings: "Settings",
    store: Store,
    catalog: Catalog,
    index: ToolIndex,
    models: "Mapping[str, Model]",
    tasks: "TaskGroup",
) -> App:
    objects = ObjectStore(store, settings.home / "objects", sync=settings.sync)
    journal, runs, ledger = Journal(store), RunStore(store), EffectLedger(store)
    dispatch = Dispatch(
        catalog,
        objects,
        journal,
        ledger,
        inline_tokens=settings.inline_tokens,
        object_ttl_s=settings.object_ttl_days * _DAY_S,
        call_timeout_s=settings.call_timeout_s,
        guards=[OnlyInPerson(settings.in_person)],
    )
    orchestrator = Orchestrator(
        dispatch=dispatch,
        catalog=catalog,
        objects=objects,
        journal=journal,
        runs=runs,
        models=models,
        defaults=_defaults(settings, models),
        tasks=tasks,
        index=index,
    )
    limits = PlugLimits(call_s=settings.call_timeout_s, drain_s=settings.drain_s)
    return App(
        settings=settings,
        store=store,
        objects=objects,
        journal=journal,
        runs=runs,
        ledger=ledger,
        sources=SourceStore(store),
        catalog=catalog,
        plugs=PlugBoard(
            catalog,
            openers=(_team_files(orchestrator),),
            folder=settings.folder,
            limits=limits,
        ),
        index=index,
        dispatch=dispatch,
        orchestrator=orchestrator,
        models=models,
        announcer=Announcer(),
        ready=anyio.Event(),
        patient_until=anyio.current_time() + settings.startup_wait_s,
    )


def _team_files(orchestrator: Orchestrator) -> "Opener":
    """Return the opener of team files. Its module is imported when the first one comes."""

    def opened(source: str, name: str) -> "Plug | None":
        if not source.endswith(_TEAM_SUFFIX):
            return None
        from guildry.teams.team_file import team_files

        return team_files(orchestrator)(source, name)

    return opened


def _start(app: App, tasks: "TaskGroup") -> None:
    builtin = (*Builtin(app).tools(), *RunTools(app).tools(), *app.orchestrator.tools())
    app.catalog.replace(BUILTIN, builtin)
    app.catalog.subscribe(app.announcer.changed)
    tasks.start_soon(app.announcer.run)
    tasks.start_soon(_open_plugs, app)
    tasks.start_soon(_tidy, app)


async def _open_plugs(app: App) -> None:
    """Open the configured plugs, then those that were plugged by hand, in their order."""
    try:
        wanted = await _wanted(app)
        found = await app.plugs.plug_all(wanted, patience_s=app.settings.startup_wait_s)
    finally:
        app.ready.set()
    told = {status.name for status in app.plugs.listing()}
    failed = 0
    for each, plug in zip(found, wanted, strict=True):
        if isinstance(each, PlugError):
            failed += 1
            if plug.name not in told:  # else the board has logged it
                log.warning("plug_failed", plug=plug.name, error=str(each))
    log.info("plugs_opened", plugs=len(found), failed=failed, tools=len(app.catalog.current))


async def _wanted(app: App) -> "Sequence[Wanted]":
    settings = app.settings
    configured = [Wanted(plug.source, name, plug.env) for name, plug in settings.plugs.items()]
    teams = [Wanted(str(file), file.stem) for path in settings.teams for file in await _files(path)]
    kept = await app.sources.listing()
    by_hand = [Wanted(each.source, each.name) for each in kept if each.name not in settings.plugs]
    return [*configured, *teams, *by_hand]


async def _files(path: "Path") -> "list[Path]":
    """Return the team files of a folder, or the file itself; if it is not there, the board says."""
    folder = anyio.Path(path)
    if not await folder.is_dir():
        return [path]
    return sorted([path / each.name async for each in folder.glob(f"*{_TEAM_SUFFIX}")])


async def _tidy(app: App) -> None:
    """Close the books of processes that are gone, and drop what has expired, now and hourly."""
    try:
        for run in await app.runs.interrupt_orphans():
            log.warning("run_interrupted", run=run)
        while True:
            await app.objects.expire()
            kept_s = app.settings.object_ttl_days * _DAY_S
            await app.journal.forget(LOCAL, before=time.time() - kept_s)
            await anyio.sleep(_EXPIRE_EVERY_S)
    except GuildryError as error:
        log.error("tidying_failed", error=str(error))


def _models(
    settings: "Settings", given: "Mapping[str, Model]", stack: AsyncExitStack
) -> "Mapping[str, Model]":
    models: dict[str, Model] = {name: _model(setting) for name, setting in settings.models.items()}
    named = settings.model
    if named is not None and named not in models and (found := settings.default_model):
        models[named] = _model(found)
    for model in models.values():
        stack.push_async_callback(model.aclose)
    return {**models, **given}


def _model(setting: "ModelSetting") -> "Model":
    from guildry.server.endpoints import FirstModel, chat_model

    return chat_model(setting, setting.model) if setting.model else FirstModel(setting)


def _defaults(settings: "Settings", models: "Mapping[str, Model]") -> RunDefaults:
    limits = Limits(
        tokens=settings.run_tokens,
        calls=settings.run_calls,
        agents=settings.run_agents,
        wall_s=settings.run_wall_s,
    )
    return RunDefaults(limits=limits, model=settings.model or next(iter(models), None))

"""The app: the one place where the parts meet. Opens what is kept, serves nothing itself."""

import time
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Final

import anyio
import structlog

from guildry.errors import GuildryError, PlugError
from guildry.memory.journal import Journal
from guildry.memory.ledger import EffectLedger
from guildry.memory.objects import ObjectStore
from guildry.memory.pins import PinStore
from guildry.memory.questions import QuestionStore
from guildry.memory.runs import RunStore
from guildry.memory.sources import SourceStore
from guildry.memory.store import Store
from guildry.memory.suspended import SuspendedStore
from guildry.memory.tasks import TaskStore
from guildry.memory.usage import UsageStore
from guildry.memory.vectors import VectorStore
from guildry.server.announce import Announcer
from guildry.server.asking.exchange import Exchanges
from guildry.server.board import open_board
from guildry.server.builtin.builtin import builtin_tools
from guildry.server.builtin.calling import CALL_TOOL
from guildry.server.by_hand import ByHand
from guildry.server.embedding import open_embedder
from guildry.server.models import open_models, run_defaults
from guildry.server.offers.following import Following
from guildry.server.parts import BUILTIN, App
from guildry.server.peers import Peers
from guildry.server.run_tools import RunTools
from guildry.server.tasks.tasks import Tasks
from guildry.server.wanted import wanted_plugs
from guildry.teams.orchestrator import Orchestrator
from guildry.tools.asking.approval import Approval
from guildry.tools.asking.asked import waiting_word
from guildry.tools.asking.board import QuestionBoard
from guildry.tools.asking.flow_guard import FlowGuard
from guildry.tools.code.interpreter import Interpreter
from guildry.tools.dispatch import Dispatch
from guildry.tools.finding.index import ToolIndex
from guildry.tools.flow import Flow
from guildry.tools.plugs.review import Reviewer
from guildry.tools.redaction import HIDDEN
from guildry.tools.registry import Catalog
from guildry.tools.usage import Usage

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from guildry.server.config import Settings
    from guildry.teams.model import Model
    from guildry.tools.asking.board import OpenQuestion

__all__ = ["App", "open_app"]

log = structlog.get_logger()

_DAY_S: Final = 86_400.0
_EXPIRE_EVERY_S: Final = 3_600.0


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
        embedder, vectors = open_embedder(settings), VectorStore(store)
        index = ToolIndex(catalog, embedder=embedder, vectors=vectors)
        stack.push_async_callback(index.aclose)
        named = open_models(settings, models or {}, stack)
        tasks = anyio.create_task_group()
        app = _assembled(settings, store, catalog, index, named, tasks)
        stack.push_async_callback(app.interpreter.aclose)
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
    journal, runs, ledger = Journal(store, clean=HIDDEN.known), RunStore(store), EffectLedger(store)
    board = QuestionBoard(QuestionStore(store), wait_s=settings.ask_wait_s, journal=journal)
    approval = Approval(
        board, ask_first=settings.ask_first, ask_destructive=settings.ask_destructive
    )
    usage = Usage(UsageStore(store), without=frozenset({CALL_TOOL}))
    dispatch = _dispatch(settings, catalog, objects, journal, ledger, board, approval, usage)
    orchestrator = Orchestrator(
        dispatch=dispatch,
        catalog=catalog,
        objects=objects,
        journal=journal,
        runs=runs,
        models=models,
        defaults=run_defaults(settings, models),
        tasks=tasks,
        index=index,
    )
    reviewer = Reviewer(PinStore(store), catalog, pin=settings.pin)
    plugs = open_board(settings, store, catalog, orchestrator, reviewer, dispatch)
    announcer, peers, sources = Announcer(), Peers(settings.home), SourceStore(store)
    return App(
        settings=settings,
        store=store,
        objects=objects,
        journal=journal,
        runs=runs,
        ledger=ledger,
        sources=sources,
        catalog=catalog,
        plugs=plugs,
        reviewer=reviewer,
        index=index,
        dispatch=dispatch,
        usage=usage,
        board=board,
        approval=approval,
        orchestrator=orchestrator,
        models=models,
        announcer=announcer,
        following=Following(catalog, runs, announcer.resource_updated),
        peers=peers,
        by_hand=ByHand(sources, plugs, peers, settings.plugs),
        tasks=_tasks(settings, store, orchestrator, tasks),
        exchanges=_exchanges(settings, tasks, board),
        suspended=SuspendedStore(store),
        interpreter=Interpreter(),
        ready=anyio.Event(),
        patient_until=anyio.current_time() + settings.startup_wait_s,
    )


def _tasks(
    settings: "Settings", store: Store, orchestrator: Orchestrator, tasks: "TaskGroup"
) -> Tasks:
    limit, ttl_s = settings.tasks_at_once, settings.task_ttl_s
    return Tasks(TaskStore(store), orchestrator, tasks, ttl_s=ttl_s, limit=limit)


def _dispatch(
    settings: "Settings",
    catalog: Catalog,
    objects: ObjectStore,
    journal: Journal,
    ledger: EffectLedger,
    board: QuestionBoard,
    approval: Approval,
    usage: Usage,
) -> Dispatch:
    flow = Flow()
    return Dispatch(
        catalog,
        objects,
        journal,
        ledger,
        inline_tokens=settings.inline_tokens,
        object_ttl_s=settings.object_ttl_days * _DAY_S,
        call_timeout_s=settings.call_timeout_s,
        guards=[_flow_guard(settings, flow, board, journal), approval],
        board=board,
        usage=usage,
        flow=flow,
    )


def _flow_guard(
    settings: "Settings", flow: Flow, board: QuestionBoard, journal: Journal
) -> FlowGuard:
    policy, allow = settings.flow, settings.flow_allow
    return FlowGuard(flow, policy=policy, allow=allow, board=board, journal=journal)


def _exchanges(settings: "Settings", tasks: "TaskGroup", board: QuestionBoard) -> Exchanges:
    return Exchanges(
        tasks,
        secret=_state_key(settings),
        wait_s=settings.ask_wait_s,
        board=board,
    )


def _state_key(settings: "Settings") -> "Callable[[], bytes]":
    """Return what gets the key of sealed state: the configured one, or that of the home."""
    from guildry.server.asking.seal import kept_key

    configured = settings.state_key()
    return (lambda: kept_key(settings.home)) if configured is None else (lambda: configured)


def _start(app: App, tasks: "TaskGroup") -> None:
    builtin = (*builtin_tools(app), *RunTools(app).tools(), *app.orchestrator.tools())
    app.catalog.replace(BUILTIN, builtin)
    HIDDEN.hide(key for each in app.settings.models.values() if (key := each.api_key()))
    app.dispatch.flow.know(app.plugs.said_of)
    app.catalog.subscribe(lambda change: app.dispatch.flow.forget(change.plug))
    app.catalog.subscribe(app.announcer.changed)
    app.catalog.subscribe(app.following.changed)
    app.catalog.watch(app.following.touched)
    app.runs.listen(app.resources_changed)
    app.peers.listen("resources", app.announcer.resources_changed)
    app.peers.listen("questions", lambda _: app.board.heard())
    app.board.nudge = partial(app.peers.tell, "questions")
    app.board.listen(partial(_tell_run, app))
    app.peers.listen("pins", partial(_reviewing, app, tasks))
    app.reviewer.decided = partial(app.peers.tell, "pins")
    app.peers.listen("tasks", lambda _: app.tasks.wake())
    app.tasks.nudge = partial(app.peers.tell, "tasks")
    app.peers.listen("usage", lambda _: app.usage.heard())
    app.usage.nudge = partial(app.peers.tell, "usage")
    tasks.start_soon(app.peers.run)  # first: from then on no word is lost
    tasks.start_soon(app.announcer.run)
    tasks.start_soon(app.following.run)
    tasks.start_soon(app.usage.run)
    app.index.prior = app.usage.score
    tasks.start_soon(app.index.run)
    tasks.start_soon(_keep_plugs, app)
    tasks.start_soon(app.tasks.run)
    tasks.start_soon(_tidy, app)


def _tell_run(app: App, asked: "OpenQuestion", is_open: bool) -> None:
    """Let whoever waits for a run hear that the run waits for a person."""
    run = app.orchestrator.live.get(asked.run)
    if run is not None and is_open:
        run.say(waiting_word(asked.id))


def _reviewing(app: App, tasks: "TaskGroup", plug: str) -> None:
    tasks.start_soon(_review, app, plug)


async def _review(app: App, plug: str) -> None:
    """Serve what was approved in another process, and no more what was decided otherwise."""
    try:
        await app.plugs.review(plug)
    except PlugError as error:
        log.warning("plug_not_reviewed", plug=plug, error=str(error))


async def _keep_plugs(app: App) -> None:
    """Open the plugs, then plug and unplug what other processes do."""
    await _open_plugs(app)
    await app.by_hand.run()


async def _open_plugs(app: App) -> None:
    """Open the configured plugs, then those that were plugged by hand, in their order."""
    try:
        wanted = await wanted_plugs(app)
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


async def _tidy(app: App) -> None:
    """Close the books of processes that are gone, and drop what has expired, now and hourly."""
    try:
        for run in await app.runs.interrupt_orphans():
            log.warning("run_interrupted", run=run)
        while True:
            for task in await app.tasks.tidy():
                log.warning("task_interrupted", task=task)
            await app.objects.expire()
            before = time.time() - app.settings.object_ttl_days * _DAY_S
            for principal in await app.journal.endless():
                await app.journal.forget(principal, before=before)
            await app.board.tidy(before=before)
            await app.suspended.forget(before=before)
            await VectorStore(app.store).forget(before=before)
            await anyio.sleep(_EXPIRE_EVERY_S)
    except GuildryError as error:
        log.error("tidying_failed", error=str(error))

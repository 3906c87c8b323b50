"""Tasks: tool calls that go on after their request is answered, and are asked for by their id.

Knows what tasks are in the protocol, and no wire. What a task does is handed in.
"""

import base64
import secrets
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import anyio
import structlog

from guildry.errors import RunError, StoreError, TaskNotFound, ToolRetry
from guildry.memory.runs import this_process
from guildry.memory.tasks import INTERRUPTED, TaskRecord, TaskStore, interruption
from guildry.server.asking.inputs import UnfitAnswer, client_takes
from guildry.server.tasks.stage import Stage
from guildry.server.tasks.task import LiveTask

if TYPE_CHECKING:
    from anyio.abc import TaskGroup
    from mcp_types import ClientCapabilities

    from guildry.teams.orchestrator import Orchestrator
    from guildry.tools.asking.questions import Channel
    from guildry.tools.base import Progress

__all__ = ["TaskCall", "TaskPlan", "Tasks", "Work"]

log = structlog.get_logger()

_LOOK_EVERY_S: Final = 2.0
_STOP_S: Final = 5.0
_SETTLE_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class TaskCall:
    """What the work of a task is given.

    Args:
        run: the id of the run that the call is to begin, if it is one.
        channel: the way to the client: through this task.
        progress: where word of progress goes.
    """

    run: str | None
    channel: "Channel"
    progress: "Progress"


Work = Callable[[TaskCall], Awaitable[Mapping[str, Any]]]
"""Do what a task is for. Returns `{"result": ...}` or `{"error": ...}`, and raises nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskPlan:
    """What is to become a task.

    Args:
        principal: who calls.
        tool: what is called.
        is_run: the call begins a run.
        capabilities: what the client declared, so what it can be asked.
        may_ask_first: the call may ask something before it does anything, which is answered
            before there is a task.
    """

    principal: str
    tool: str
    is_run: bool = False
    capabilities: "ClientCapabilities | None" = None
    may_ask_first: bool = False


class Tasks:
    """Begin tasks, keep hold of the live ones, and answer for those of other processes.

    Args:
        store: the rows.
        orchestrator: where the runs of tasks are steered and stopped.
        tasks: the task group that their work goes on in.
        ttl_s: how long a task is kept after its end, in seconds.
        limit: how many tasks of one principal may be open at once in this process.
    """

    def __init__(
        self,
        store: TaskStore,
        orchestrator: "Orchestrator",
        tasks: "TaskGroup",
        *,
        ttl_s: float,
        limit: int,
    ) -> None:
        self.nudge: Callable[[], None] | None = None
        self._store = store
        self._orchestrator = orchestrator
        self._tasks = tasks
        self._ttl_s = ttl_s
        self._limit = limit
        self._live: dict[str, LiveTask] = {}
        self._listeners: dict[object, Callable[[TaskRecord], None]] = {}
        self._busy = anyio.Event()
        self._told = anyio.Event()

    async def begin(
        self, plan: TaskPlan, work: Work, channel: "Channel | None" = None
    ) -> TaskRecord:
        """Begin a task, and return how it stands once it is kept.

        Where the call may ask something first, this waits until such questions are answered on
        `channel`, or it is clear that there are none.

        Raises:
            ToolRetry: the principal has too many tasks.
            StoreError: the task could not be kept, and was not begun.
        """
        live = self._opened(plan)
        stage = Stage(
            live, client_takes(plan.capabilities), channel if plan.may_ask_first else None
        )
        self._live[live.record.id] = live
        self._busy.set()
        try:
            if not plan.may_ask_first:
                await self._keep(live)
            self._tasks.start_soon(self._conduct, live, stage, work)
            if plan.may_ask_first:
                await stage.begun()
                await self._keep(live)
        except BaseException:
            live.scope.cancel()
            if not plan.may_ask_first:
                del self._live[live.record.id]
            raise
        return live.record

    async def get(self, principal: str, id: str) -> TaskRecord:
        """Return how a task stands.

        Raises:
            TaskNotFound: there is no such task for this principal, or no longer.
        """
        live = self._mine(principal, id)
        if live is not None and not live.is_open:  # its end is told once it is kept
            await live.ended.wait()
            live = self._mine(principal, id)
        if live is not None:
            live.renew()
            return live.record
        record = await self._store.get(id)
        if record is not None and record.is_open and record.process != this_process():
            await self._store.interrupt_orphans()
            record = await self._store.get(id)
        if record is None or record.principal != principal:
            raise TaskNotFound(id)
        return record

    async def update(
        self, principal: str, id: str, responses: Mapping[str, Any], message: str | None = None
    ) -> None:
        """Give a task answers to what it asks, and the agents of its run a message.

        Raises:
            TaskNotFound: there is no such task for this principal, or no longer.
            UnfitAnswer: an answer does not fit its question.
            RunError: there is no run to tell.
        """
        live = self._mine(principal, id)
        if live is not None:
            self._tell(live, responses, message)
            return
        record = await self.get(principal, id)
        if message is not None and record.run is None:
            raise RunError(_NO_RUN)
        if record.is_open:
            await self._leave_word(id, {"responses": dict(responses), "message": message})

    async def cancel(self, principal: str, id: str) -> None:
        """Stop a task, and the run that it is, and wait for that for a while.

        Raises:
            TaskNotFound: there is no such task for this principal, or no longer.
        """
        live = self._mine(principal, id)
        if live is not None:
            await self._stop(live)
            return
        record = await self.get(principal, id)
        if record.is_open:
            await self._leave_word(id, {"cancel": True})

    async def settle(self, record: TaskRecord) -> None:
        """Enter the outcome of a task that ended when nobody was left to say it.

        Raises:
            StoreError: the database refuses.
        """
        await self._store.settle(record)

    def listen(self, listener: Callable[[TaskRecord], None]) -> Callable[[], None]:
        """Have `listener` told of each change of a live task; returns how to end that."""
        token = object()
        self._listeners[token] = listener

        def end() -> None:
            self._listeners.pop(token, None)

        return end

    def wake(self) -> None:
        """Look soon for what other processes have told the tasks of this one."""
        self._told.set()

    async def run(self) -> None:
        """Look now and then, while tasks are live, for what other processes have told them."""
        while True:
            await self._busy.wait()
            self._busy = anyio.Event()
            while self._live:
                with anyio.move_on_after(_LOOK_EVERY_S):
                    await self._told.wait()
                self._told = anyio.Event()
                await self._look()

    async def tidy(self) -> tuple[str, ...]:
        """End the tasks of processes that are gone, and forget those whose time is over.

        Returns the ids of those that were ended.

        Raises:
            StoreError: the database refuses.
        """
        gone = await self._store.interrupt_orphans()
        for id, live in list(self._live.items()):
            if not live.is_open:  # its end could not be written down before
                await self._store.settle(live.record)
                self._live.pop(id, None)
        await self._store.expire()
        return gone

    def _opened(self, plan: TaskPlan) -> LiveTask:
        mine = [
            each
            for each in self._live.values()
            if each.is_open and each.record.principal == plan.principal
        ]
        if len(mine) >= self._limit:
            raise ToolRetry(
                f"`{plan.tool}` was not called: {len(mine)} of your tasks are at work, and no more"
                " than that may be. Wait until one has ended, or cancel one"
            )
        now = self._store.clock()
        record = TaskRecord(
            id=_new_id("t", 26),
            principal=plan.principal,
            tool=plan.tool,
            run=_new_id("r", 10) if plan.is_run else None,
            created_at=now,
            updated_at=now,
            expires_at=now + self._ttl_s,
        )
        return LiveTask(
            record,
            plan.capabilities,
            clock=self._store.clock,
            ttl_s=self._ttl_s,
            changed=self._changed,
        )

    async def _keep(self, live: LiveTask) -> None:
        """Enter a task, and tell whoever listens; both or neither, even when cancelled."""
        kept = live.record
        with anyio.CancelScope(shield=True):
            await self._store.create(kept)
        live.recorded.set()
        if live.record != kept:
            self._changed(live)

    async def _conduct(self, live: LiveTask, stage: Stage, work: Work) -> None:
        """Do the work of a task, and enter how that ended, whatever comes."""
        outcome: Mapping[str, Any] | None = None
        is_known = True
        call = TaskCall(live.record.run, stage, stage.report)
        try:
            with live.scope:
                outcome = await work(call)
                stage.begin()
                await live.recorded.wait()
            if live.recorded.is_set():
                is_known = await self._end(live, outcome)
        except anyio.get_cancelled_exc_class():
            live.end("failed", interruption(live.record.run), INTERRUPTED)
            if live.recorded.is_set():
                is_known = await self._enter(live)
            raise
        finally:
            stage.begin()
            if is_known:
                self._live.pop(live.record.id, None)
            live.ended.set()

    async def _end(self, live: LiveTask, outcome: Mapping[str, Any] | None) -> bool:
        error = None if outcome is None else outcome.get("error")
        if outcome is None or live.is_stopped:
            run = live.record.run
            left = "" if run is None else f"; `run_result` tells what run `{run}` left"
            live.end("cancelled", None, f"cancelled by the client{left}")
        elif error is not None:
            live.end("failed", outcome, str(error["message"]))
        else:
            live.end("completed", outcome, None)
        return await self._enter(live)

    async def _enter(self, live: LiveTask) -> bool:
        """Write the end of a task down, even while the app is being closed; tell whether it is."""
        failure: object = None
        with anyio.move_on_after(_SETTLE_S, shield=True) as writing:
            try:
                await self._store.settle(live.record)
            except Exception as error:  # the end of one task must not be that of the server
                failure = error
        is_known = failure is None and not writing.cancelled_caught
        if not is_known:
            log.error("task_not_recorded", task=live.record.id, error=repr(failure or "too slow"))
        self._announce(live.record)
        return is_known

    async def _stop(self, live: LiveTask) -> None:
        run = live.record.run
        with anyio.move_on_after(_STOP_S):
            if run is not None and run in self._orchestrator.live:
                live.is_stopped = True
                await self._orchestrator.cancel(run, by="cancelled by the client")
            else:
                live.scope.cancel()
            await live.ended.wait()
        live.scope.cancel()

    def _tell(self, live: LiveTask, responses: Mapping[str, Any], message: str | None) -> None:
        run = live.record.run
        if message is not None and run is None:
            raise RunError(_NO_RUN)
        if message is not None and run is not None:
            self._orchestrator.find(run)
        live.answer(responses)
        if message is not None and run is not None:
            self._orchestrator.steer(run, message)

    def _mine(self, principal: str, id: str) -> LiveTask | None:
        live = self._live.get(id)
        if live is None or not live.recorded.is_set() or live.record.principal != principal:
            return None
        return live

    async def _leave_word(self, id: str, word: Mapping[str, Any]) -> None:
        if await self._store.tell(id, word) and self.nudge is not None:
            self.nudge()

    async def _look(self) -> None:
        try:
            words = await self._store.take_words()
        except StoreError as error:
            log.warning("tasks_not_read", error=str(error))
            return
        for id, word in words:
            live = self._live.get(id)
            if live is None:
                continue
            if word.get("cancel"):
                self._tasks.start_soon(self._stop, live)
                continue
            try:
                self._tell(live, word.get("responses") or {}, word.get("message"))
            except (UnfitAnswer, RunError) as error:
                log.info("task_word_refused", task=id, error=str(error))

    def _changed(self, live: LiveTask) -> None:
        if not live.recorded.is_set() or not live.is_open:
            return
        try:
            self._store.note(live.record)
        except StoreError as error:
            log.warning("task_not_noted", task=live.record.id, error=str(error))
        self._announce(live.record)

    def _announce(self, record: TaskRecord) -> None:
        for listener in list(self._listeners.values()):
            listener(record)


def _new_id(prefix: str, length: int) -> str:
    return prefix + base64.b32encode(secrets.token_bytes(length))[:length].decode().lower()


_NO_RUN: Final = "this task is no run of agents: there is nobody to give a message to"

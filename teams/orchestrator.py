"""Orchestrator: begins runs, keeps hold of the live ones, and records how each ended."""

import base64
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final, Literal

import anyio
import structlog

from guildry.errors import ConfigError, RunError, RunNotFound, StoreError
from guildry.memory.events import Delegated, Returned, Spawned, Stopped
from guildry.memory.journal import Journal
from guildry.memory.objects import ObjectStore
from guildry.memory.runs import RunKind, RunRecord, RunStatus, RunStore
from guildry.teams.agent import Desk
from guildry.teams.ask import ask_tool
from guildry.teams.budget import Budget, hand_back_slice
from guildry.teams.messages import Report, Task
from guildry.teams.model import Model
from guildry.teams.reports import SUMMARY_CHARACTERS, report_json, shortened
from guildry.teams.run import Run, Team
from guildry.teams.team import Finished, delegate_tool, spawn_tool
from guildry.teams.terms import RunDefaults, chosen_limits, readable, root_grant
from guildry.tools.base import Progress, Tool
from guildry.tools.caller import Caller
from guildry.tools.dispatch import Dispatch
from guildry.tools.grants import Limits
from guildry.tools.registry import Catalog, nearest

if TYPE_CHECKING:
    from anyio.abc import TaskGroup

    from guildry.tools.finding.index import ToolIndex

__all__ = ["Finished", "Orchestrator", "RunDefaults"]

log = structlog.get_logger()

_USUAL: Final = RunDefaults()


class Orchestrator:
    """Run teams under narrowed grants, each in one task group, with a record from start to end.

    Args:
        dispatch: the gate that agents' calls pass.
        catalog: the tools there are.
        objects: where references lead.
        journal: takes the events of every run.
        runs: the records.
        models: models by name; may grow while serving.
        defaults: bounds.
        tasks: the task group that runs in the background belong to; None allows no such runs.
        index: finds tools for planners where there are too many to list.
    """

    def __init__(
        self,
        *,
        dispatch: Dispatch,
        catalog: Catalog,
        objects: ObjectStore,
        journal: Journal,
        runs: RunStore,
        models: Mapping[str, Model] | None = None,
        defaults: RunDefaults = _USUAL,
        tasks: "TaskGroup | None" = None,
        index: "ToolIndex | None" = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._dispatch = dispatch
        self.catalog: Final = catalog
        self.objects: Final = objects
        self._journal = journal
        self._runs = runs
        self._models: Mapping[str, Model] = {} if models is None else models
        self._defaults = defaults
        self._tasks = tasks
        self._index = index
        self._clock = clock
        self._live: dict[str, Run] = {}

    @property
    def live(self) -> Mapping[str, Run]:
        """The runs at work, by id."""
        return self._live

    async def execute(
        self,
        team: Team,
        task: Task,
        caller: Caller,
        *,
        run_id: str | None = None,
        limits: Limits | None = None,
        kind: RunKind = "team",
    ) -> Finished:
        """Run a team and wait for its report. Cancelling the awaiting task stops every agent.

        Raises:
            GrantError: the caller's grant has no room for what is asked.
            StoreError: the run could not be recorded, and was not begun.
        """
        run, task = await self._begin(team, task, caller, run_id, limits, kind)
        # A task is cancelled by its client through `cancel`; what else ends it is the server's end.
        is_task = caller.begins is not None
        ends: Literal["cancelled", "interrupted"] = "interrupted" if is_task else "cancelled"
        return await self._conduct(run, team, task, caller, ends)

    async def start(
        self,
        team: Team,
        task: Task,
        caller: Caller,
        *,
        run_id: str | None = None,
        limits: Limits | None = None,
        kind: RunKind = "team",
    ) -> str:
        """Run a team in the background, and return the run's id once it is recorded.

        Raises:
            RunError: this process keeps no runs in the background.
            GrantError: the caller's grant has no room for what is asked.
            StoreError: the run could not be recorded, and was not begun.
        """
        if self._tasks is None:
            raise RunError("no run can go on in the background here: call without `background`")
        if caller.run in self._live:
            raise RunError("an agent cannot leave a run behind: call without `background`")
        # The call that it belongs to is over at once, and nobody waits there for a question.
        caller = replace(caller, progress=None, channel=None)
        run, task = await self._begin(team, task, caller, run_id, limits, kind)
        conduct = partial(self._conduct, run, team, task, caller, "interrupted")
        self._tasks.start_soon(conduct, name=run.id)
        return run.id

    async def cancel(self, run_id: str, by: str = "cancelled by request") -> None:
        """Stop a run, its agents and their calls, and wait until that is recorded.

        Raises:
            RunNotFound: no such run is at work.
        """
        run = self.find(run_id)
        run.stopped_by = by
        run.scope.cancel()
        await run.ended.wait()

    def steer(self, run_id: str, text: str) -> None:
        """Give a message to a run's root agents, before their next turn.

        Raises:
            RunNotFound: no such run is at work.
        """
        self.find(run_id).steer(text)

    def find(self, run_id: str) -> Run:
        """Return a live run.

        Raises:
            RunNotFound: no such run is at work.
        """
        run = self._live.get(run_id)
        if run is None:
            raise RunNotFound(f"no run {run_id!r} is at work: list the runs to see their states")
        return run

    def model(self, name: str | None = None) -> Model:
        """Return the model of that name, or the default one.

        Raises:
            ConfigError: there is none; says what to configure.
        """
        wanted = name or self._defaults.model
        if wanted is None and len(self._models) == 1:
            return next(iter(self._models.values()))
        if wanted is None:
            what = "name one of them as `model`" if self._models else "configure one in `models`"
            raise ConfigError(f"there are {len(self._models)} models and no default: {what}")
        found = self._models.get(wanted)
        if found is None:
            near = nearest(wanted, tuple(self._models))
            cure = f"use `{near}`" if near else f"use one of {sorted(self._models)}"
            raise ConfigError(
                f"there is no model {wanted!r}: {cure if self._models else 'configure it'}"
            )
        return found

    def tools(self) -> tuple[Tool, ...]:
        """Return the tools of runs: `delegate`, and for agents at work `spawn` and `ask`."""
        return delegate_tool(self), spawn_tool(self), ask_tool()

    async def _begin(
        self,
        team: Team,
        task: Task,
        caller: Caller,
        run_id: str | None,
        limits: Limits | None,
        kind: RunKind,
    ) -> tuple[Run, Task]:
        """Return a run that is recorded, live and ready to work, and the task in its terms."""
        run_id = run_id or _new_id()
        allowed = chosen_limits(caller, limits, (team.default_limits, self._defaults.limits))
        grant = await root_grant(
            run_id,
            task,
            caller,
            tools=team.tools,
            limits=allowed,
            registry=self.catalog.current,
            objects=self.objects,
        )
        above = caller.meter if isinstance(caller.meter, Budget) else None
        budget = (
            Budget(allowed, hand_back_tokens=hand_back_slice(allowed.tokens))
            if above is None
            else above.child(allowed)
        )
        own = Caller(grant, run_id, budget, self._defaults.durable, channel=caller.channel)
        desk = Desk(
            caller=own,
            budget=budget,
            dispatch=self._dispatch,
            catalog=self.catalog,
            objects=self.objects,
            journal=self._journal,
            agent=run_id,
        )
        record = RunRecord(
            id=run_id,
            kind=kind,
            team=team.name,
            task=task.text,
            principal=caller.grant.chain[0],
            started_at=self._clock(),
        )
        named = [await self.objects.alias(each, run_id) for each in task.references]
        task = replace(task, references=tuple(named))
        run = Run(
            run_id,
            team.name,
            desk,
            model=self.model,
            index=self._index,
            progress=self._progress(caller),
        )
        with anyio.CancelScope(shield=True):  # recorded and live, or neither
            await self._runs.create(record)
        self._live[run_id] = run
        self._open_journal(run, team, task, caller)
        return run, task

    def _progress(self, caller: Caller) -> Progress | None:
        """Return where word of a run goes: the caller, or whoever waits for the caller's run."""
        above = self._live.get(caller.run)
        return caller.progress or (None if above is None else above.relay)

    def _open_journal(self, run: Run, team: Team, task: Task, caller: Caller) -> None:
        passed = tuple(reference.id for reference in task.references)
        self._journal.append(
            run.id,
            Spawned(
                agent=run.id,
                name=team.name,
                parent=None,
                tools=tuple(sorted(run.grant.tools)),
                references=passed,
                limits=run.grant.limits.as_json(),
                model="",
            ),
        )
        self._journal.append(run.id, Delegated(caller.grant.holder, run.id, task.text, passed))

    async def _conduct(
        self,
        run: Run,
        team: Team,
        task: Task,
        caller: Caller,
        when_cancelled: Literal["cancelled", "interrupted"],
    ) -> Finished:
        """Let a team work, and record how that ended, whatever comes."""
        if run.budget.deadline is not None:
            run.scope.deadline = run.budget.deadline + self._defaults.hand_back_s
        try:
            try:
                report = await run.perform(lambda: team.work(run, task))
            except anyio.get_cancelled_exc_class():
                left = run.left(f"the caller was {when_cancelled}")
                await self._end(run, caller, when_cancelled, left, self._defaults.record_s)
                raise
            if report is None:
                report = run.left(run.stopped_by or "the time was over")
            status: RunStatus = "cancelled" if run.stopped_by else report.status
            return await self._end(run, caller, status, report)
        finally:
            self._live.pop(run.id, None)
            run.ended.set()

    async def _end(
        self,
        run: Run,
        caller: Caller,
        status: RunStatus,
        report: Report,
        limit_s: float | None = None,
    ) -> Finished:
        """Hand the references over and write the end down, even while the caller is cancelled.

        Raises nothing: what cannot be kept is logged, and the report is handed back all the same.

        Args:
            limit_s: how long either may take; by default as long as the store lets them.
        """
        report = replace(report, spent=run.spent)
        with anyio.move_on_after(limit_s, shield=True) as handing:
            report = await self._handed_over(run, caller, report)
        if handing.cancelled_caught:
            report = _cut(report, "the store was too slow to keep it whole")
        with anyio.move_on_after(limit_s, shield=True) as writing:
            await self._record(run, status, report)
        if writing.cancelled_caught:  # it is in the writer's queue
            log.warning("run_recorded_late", run=run.id, status=status)
        return Finished(run.id, status, report, report.spent)

    async def _record(self, run: Run, status: RunStatus, report: Report) -> None:
        made = tuple(reference.id for reference in report.references)
        usage = report.spent.as_json()
        try:
            self._journal.append(run.id, Returned(run.id, status, report.summary, made, usage))
            self._journal.append(run.id, Stopped(run.id, status, report.reason))
            await self._runs.finish(run.id, status, report_json(report), usage)
        except StoreError as error:
            log.error("run_not_recorded", run=run.id, status=status, error=str(error))

    async def _handed_over(self, run: Run, caller: Caller, report: Report) -> Report:
        """Return a report for the caller: short, with references in the caller's own names."""
        try:
            report = await shortened(
                report,
                self.objects,
                name=run.name,
                namespace=run.id,
                owner=run.id,
                labels=self._dispatch.flow.seen(run.id),
            )
            held = frozenset(await readable(self.objects, run.grant, report.references))
            await self.objects.share(held, caller.grant.holder)
            named = [
                await self.objects.alias(reference, caller.run)
                for reference in report.references
                if reference.id in held
            ]
        except Exception as error:  # a team is anybody's code, and its run must still end
            log.exception("report_not_kept", run=run.id)
            return _cut(report, f"the report could not be kept ({type(error).__name__}): {error}")
        return replace(report, references=tuple(named))


def _cut(report: Report, reason: str) -> Report:
    head = report.summary[:SUMMARY_CHARACTERS]
    return replace(report, summary=head, references=(), reason=reason)


def _new_id() -> str:
    return "r" + base64.b32encode(secrets.token_bytes(7))[:10].decode().lower()

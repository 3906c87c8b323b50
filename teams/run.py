"""Run: one execution, from a caller's request to the last agent's end. Keeps no records itself."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final, Protocol

import anyio
import structlog

from guildry.errors import BudgetExceeded, ConfigError, GrantError, StoreError
from guildry.memory.events import Delegated, Messaged, Returned, Spawned, Stopped
from guildry.memory.references import Reference
from guildry.teams.agent import AgentSpec, Desk, work
from guildry.teams.ask import ASK
from guildry.teams.messages import Report, Spent, Task
from guildry.teams.model import Model
from guildry.teams.reports import digest, merged
from guildry.teams.terms import fits, readable
from guildry.tools.base import Progress
from guildry.tools.caller import Caller
from guildry.tools.grants import Grant, Limits

if TYPE_CHECKING:
    from anyio.abc import ObjectReceiveStream

    from guildry.tools.finding.index import ToolIndex

__all__ = ["Live", "Run", "Team"]

log = structlog.get_logger()

_CANCELLED: Final = Report("failed", "", reason="cancelled")
_WORDS_WAITING: Final = 256
_WORD_S: Final = 5.0


class Team(Protocol):
    """A pattern with its agents, published as one tool."""

    @property
    def name(self) -> str:
        """What the team's tool is called, after `team_`."""
        ...

    @property
    def description(self) -> str:
        """What a caller reads before choosing it."""
        ...

    @property
    def tools(self) -> tuple[str, ...]:
        """Names or patterns (`git_*`) of the tools its agents may be given."""
        ...

    @property
    def default_limits(self) -> Limits:
        """What a run may spend where its caller does not say."""
        ...

    async def work(self, run: "Run", task: Task) -> Report:
        """Do the task with agents of `run`."""
        ...


@dataclass(frozen=True, slots=True)
class Live:
    """An agent at work."""

    desk: Desk
    spec: AgentSpec


class Run:
    """Hold what is live of one execution: its grant, its budget and its agents.

    Args:
        id: names the run, its journal and the namespace of its references.
        name: of the team that works.
        desk: the root: the grant and the budget from which all agents of the run get theirs.
        model: finds a model by its name, or the default one.
        index: finds tools by what they do.
        progress: told of each agent that begins and ends.
    """

    def __init__(
        self,
        id: str,
        name: str,
        desk: Desk,
        *,
        model: Callable[[str | None], Model],
        index: "ToolIndex | None" = None,
        progress: Progress | None = None,
    ) -> None:
        self.id: Final = id
        self.name: Final = name
        self.desk: Final = desk
        self.grant: Final[Grant] = desk.caller.grant
        self.budget: Final = desk.budget
        self.scope: Final = anyio.CancelScope()
        self.ended: Final = anyio.Event()
        self.stopped_by: str | None = None
        self.handed: list[tuple[str, Report]] = []
        self._model = model
        self._index = index
        self._live: dict[str, Live] = {}
        self._inboxes: dict[str, list[str]] = {}
        self._unheard: list[str] = []
        self._spawned = self._returned = self._saved = 0
        self._progress = progress
        self._say: Callable[[str], None] | None = None

    @property
    def live(self) -> Mapping[str, Live]:
        """The agents at work, by id."""
        return self._live

    @property
    def spent(self) -> Spent:
        """What the run has cost until now."""
        used = self.budget.used()
        return Spent(
            usage=self.budget.usage,
            calls=used.calls or 0,
            agents=used.agents or 0,
            saved_tokens=self._saved,
            wall_s=used.wall_s or 0.0,
        )

    def model(self, choice: Model | str | None = None) -> Model:
        """Return the model that an agent is to use.

        Raises:
            ConfigError: no model has that name, or none is configured.
        """
        if choice is None or isinstance(choice, str):
            return self._model(choice)
        return choice

    def tools(self, patterns: Iterable[str] = ("*",)) -> tuple[str, ...]:
        """Return the tools of the run's grant that fit a pattern, in the catalog's order.

        Tools that start agents are only found by their exact names.
        """
        asked = tuple(patterns)
        return tuple(
            tool.name
            for tool in self.desk.catalog.current
            if self.grant.allows(tool.name) and fits(tool, asked)
        )

    async def fitting(self, need: str, names: Sequence[str], limit: int) -> tuple[str, ...]:
        """Return at most `limit` of `names`, those that fit a need best, in their order."""
        if self._index is None:
            return tuple(names[:limit])
        hits = await self._index.search([need], limit, names)
        found = {hit.tool.name for hit in hits}
        return tuple(name for name in names if name in found)

    async def spawn(
        self,
        spec: AgentSpec,
        task: Task,
        *,
        parent: Desk | None = None,
        tools: Iterable[str] | None = None,
        references: Iterable[Reference] = (),
        limits: Limits | None = None,
    ) -> Report:
        """Have a new agent do a task, and return its report.

        The agent gets the tools named and the references of the task, and nothing else. Whatever
        goes wrong in it comes back as a failed report. Cancelling the caller stops the agent and
        everything below it.

        Args:
            spec: who it is.
            task: what it does. Passing a reference is the grant to read it.
            parent: the agent that it works for; the run itself where not given.
            tools: what it may call, in place of `spec.tools`.
            references: what it may read, besides those of the task.
            limits: what it may spend; the parent's limits hold in any case.
        """
        if tools is not None:
            spec = replace(spec, tools=tuple(tools))
        if references:
            task = replace(task, references=merged(task.references, references))
        above = self.desk if parent is None else parent
        if spec.asks and above.caller.grant.allows(ASK):
            spec = replace(spec, tools=tuple(dict.fromkeys((*spec.tools, ASK))))
        try:
            desk = await self._admit(spec, task, above, limits)
        except (BudgetExceeded, GrantError, StoreError) as error:
            return self._refuse(spec, above, error)
        agent = desk.agent
        self._live[agent] = Live(desk, spec)
        self._word(f"{spec.name} began")
        report = _CANCELLED
        try:
            report = await self._worked(spec, task, desk, above)
        finally:
            self._leave(spec, desk, report, above)
        return report

    def steer(self, text: str) -> None:
        """Give a message to the agents at the root of the run, before their next turn.

        Where none is at work, the next one that begins gets it.
        """
        to = self._inboxes or {"": self._unheard}
        for agent, inbox in to.items():
            inbox.append(text)
            self.note("steer", text, to=agent)

    def note(
        self, type: str, body: Any, *, agent: str | None = None, to: str | None = None
    ) -> None:
        """Enter a typed message in the journal: from the run itself where no agent is named."""
        event = Messaged(agent or self.id, self.id if to is None else to, type, body)
        self.desk.journal.append(self.id, event)

    def say(self, text: str) -> None:
        """Tell whoever waits for the run something, as word of its progress."""
        self._tell(text)

    async def relay(
        self, done: float, total: float | None = None, message: str | None = None
    ) -> None:
        """Pass on the word of a run that an agent of this one started."""
        self._tell(message or "at work")

    def left(self, reason: str) -> Report:
        """Return what the run has to show when it is stopped early, and why it was."""
        handed = [(name, each) for name, each in self.handed if each.status != "failed"]
        return Report(
            status="partial" if handed else "failed",
            summary=digest(handed, 2_000) if handed else reason,
            references=merged(*(report.references for _, report in handed)),
            reason=reason,
            spent=self.spent,
        )

    async def perform(self, work: Callable[[], Awaitable[object]]) -> Report | None:
        """Await a team's work inside the run's scope. None when the scope was cancelled.

        Whatever the team raises becomes a failed report.
        """
        with self.scope:
            async with anyio.create_task_group() as tasks:
                if self._progress is None:
                    return await self._guarded(work)
                send, receive = anyio.create_memory_object_stream[str](_WORDS_WAITING)
                self._say = _posting(send.send_nowait)
                tasks.start_soon(self._pump, self._progress, receive)
                with send:
                    report = await self._guarded(work)
                tasks.cancel_scope.deadline = anyio.current_time() + _WORD_S
                return report
        return None

    async def _guarded(self, work: Callable[[], Awaitable[object]]) -> Report:
        try:
            report = await work()  # a team is anybody's code
            if isinstance(report, Report):
                return report
            return self.left(f"`{self.name}` gave back {report!r}: a team returns a `Report`")
        except (ConfigError, BudgetExceeded, GrantError) as error:
            return self.left(str(error))
        except Exception as error:
            log.exception("team_crashed", run=self.id, team=self.name)
            return self.left(f"`{self.name}` failed inside ({type(error).__name__}): {error}")
        finally:
            self._say = None

    async def _admit(self, spec: AgentSpec, task: Task, above: Desk, limits: Limits | None) -> Desk:
        """Return the desk of a new agent: a part of what `above` holds."""
        grant = above.caller.grant
        passed = [reference.id for reference in task.references]
        may_read = await readable(self.desk.objects, grant, task.references) if passed else ()
        agent = f"{self.id}/{self._spawned + 1}"
        budget = above.budget.child(limits or Limits())
        narrowed = grant.narrow(
            agent,
            tools=spec.tools,
            references=passed,
            may_read=may_read,
            limits=limits or Limits(),
            deadline=budget.deadline,
        )
        above.budget.reserve(agents=1).settle()
        self._spawned += 1
        inbox: list[str] = []
        if above is self.desk:
            inbox, self._unheard = self._unheard, []
            self._inboxes[agent] = inbox
        journal = self.desk.journal
        told = tuple(passed)
        journal.append(
            self.id,
            Spawned(
                agent=agent,
                name=spec.name,
                parent=above.agent,
                tools=spec.tools,
                references=told,
                limits=narrowed.limits.as_json(),
                model=spec.model.name,
            ),
        )
        journal.append(self.id, Delegated(above.agent, agent, task.text, told))
        caller = Caller(
            grant=narrowed,
            run=self.id,
            meter=budget,
            durable=above.caller.durable,
            for_model=True,
            channel=above.caller.channel,
        )
        return replace(above, caller=caller, budget=budget, agent=agent, inbox=inbox)

    def _refuse(self, spec: AgentSpec, above: Desk, error: Exception) -> Report:
        reason = f"`{spec.name}` could not begin: {error}"
        self.note("refused", reason, agent=above.agent)
        return Report("failed", reason, reason=reason)

    async def _worked(self, spec: AgentSpec, task: Task, desk: Desk, above: Desk) -> Report:
        """Return an agent's report, its references readable for whoever gets it."""
        try:
            report = await work(spec, task, desk)
            if report.references:
                held = await readable(desk.objects, desk.caller.grant, report.references)
                await desk.objects.share(held, above.caller.grant.holder)
            return report
        except Exception as error:
            log.exception("agent_crashed", run=self.id, agent=desk.agent)
            reason = f"`{spec.name}` failed inside ({type(error).__name__}): {error}"
            return Report("failed", reason, reason=reason)

    def _leave(self, spec: AgentSpec, desk: Desk, report: Report, above: Desk) -> None:
        """Enter an agent's end, however it came."""
        del self._live[desk.agent]
        unread = self._inboxes.pop(desk.agent, ())
        if not self._inboxes:
            self._unheard.extend(unread)
        self._returned += 1
        self._saved += report.spent.saved_tokens
        if above is self.desk:
            self.handed.append((spec.name, report))
        journal, status = self.desk.journal, report.status
        ended = "cancelled" if report is _CANCELLED else status
        made = tuple(reference.id for reference in report.references)
        usage = report.spent.as_json()
        journal.append(self.id, Returned(desk.agent, ended, report.summary, made, usage))
        if status != "done":
            journal.append(self.id, Stopped(desk.agent, ended, report.reason))
        self._word(f"{spec.name} {report.status}")

    def _word(self, text: str) -> None:
        at_work = self._spawned - self._returned
        self._tell(f"{text} ({at_work} at work, {self._returned} of {self._spawned} ended)")

    def _tell(self, text: str) -> None:
        if self._say is not None:
            self._say(text)

    async def _pump(self, progress: Progress, words: "ObjectReceiveStream[str]") -> None:
        """Pass words on, one by one; a slow listener never holds the agents up."""
        told = 0
        async with words:
            async for word in words:
                told += 1
                try:
                    with anyio.move_on_after(_WORD_S):
                        await progress(told, None, word)
                except Exception as error:
                    log.warning("progress_not_told", run=self.id, error=repr(error))
                    return


def _posting(send: Callable[[str], None]) -> Callable[[str], None]:
    def say(text: str) -> None:
        try:
            send(text)
        except (anyio.WouldBlock, anyio.BrokenResourceError, anyio.ClosedResourceError):
            return  # the listener is far behind, or gone: later words say the same and more

    return say

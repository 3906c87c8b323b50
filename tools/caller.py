"""Who calls: a grant, with the live things that go with it during a run."""

from dataclasses import dataclass
from typing import Protocol

from guildry.tools.asking.questions import Channel
from guildry.tools.base import Log, Progress
from guildry.tools.grants import Grant

__all__ = ["Caller", "Meter", "Unmetered"]


class Meter(Protocol):
    """Count tool calls against a budget."""

    def charge_call(self) -> None:
        """Spend one tool call.

        Raises:
            BudgetExceeded: there is none left.
        """
        ...


class Unmetered:
    """Count nothing: the meter of a caller outside any run."""

    def charge_call(self) -> None:
        """Let the call pass."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who makes a call.

    Args:
        grant: what may be done.
        run: the run that the call belongs to, or the principal's own name outside any run. It is
            also the namespace of the short names of references.
        meter: the budget that a call is charged to.
        durable: the run can be resumed, so a call that writes is entered in the effect ledger
            before it starts.
        for_model: the answer goes to a model, so that media become references.
        progress: where word of progress goes.
        channel: the way to the client that waits for this call, handed on to the runs it starts.
        log: where log messages for that client go, or None where it wants none.
        begins: the id for the run that this call begins, if it is a task. Should the server stop
            meanwhile, the run is recorded as interrupted, not as cancelled.
    """

    grant: Grant
    run: str
    meter: Meter = Unmetered()
    durable: bool = False
    for_model: bool = True
    progress: Progress | None = None
    channel: Channel | None = None
    log: Log | None = None
    begins: str | None = None

"""Every error that Guildry raises on purpose, split by who reads it.

```text
GuildryError
├── UsageError                the operator: what to change on the command line or in a file
│   ├── ConfigError           a setting is wrong
│   ├── PlugError             a source of tools cannot be plugged; names the source and the cure
│   └── SandboxError          a process cannot be confined as it must be
├── ToolError                 the model: its text is what the model reads
│   ├── ToolRetry             change the call and try again
│   │   └── ReferenceNotFound a reference that this caller cannot read, for whatever reason
│   └── ToolFailed            final: the same call will fail again
│       └── ToolProtocolError a JSON-RPC error of a plugged server, for clients that know its code
├── GrantError                a grant was asked for more than it holds
├── BudgetExceeded            a budget has no room left for the next step
├── StoreError                what is kept cannot be read or written
│   ├── StoreLocked           another process holds the database
│   ├── StoreCorrupt          the database file is damaged
│   └── StoreFull             no room left on the disk
├── ModelError                a model gave no usable reply
│   ├── ModelUnavailable      connection loss, time-out, 429 or 5xx after every retry
│   ├── ModelRejected         4xx: the request itself is wrong, never retried
│   └── ModelReplyError       the reply came but cannot be used
└── RunError                  a run cannot do what was asked of it
    ├── RunNotFound           unknown run, or another caller's
    ├── QuestionNotFound      unknown question, another principal's, or not open any more
    ├── TaskNotFound          unknown task, another principal's, or expired
    └── PlanError             a plan that fails its checks; names each fault
```

A message says what is wrong and what to do, with names in backticks and foreign values by `repr`.
"""

__all__ = [
    "BudgetExceeded",
    "ConfigError",
    "GrantError",
    "GuildryError",
    "ModelError",
    "ModelRejected",
    "ModelReplyError",
    "ModelUnavailable",
    "PlanError",
    "PlugError",
    "QuestionNotFound",
    "ReferenceNotFound",
    "RunError",
    "RunNotFound",
    "SandboxError",
    "StoreCorrupt",
    "StoreError",
    "StoreFull",
    "StoreLocked",
    "TaskNotFound",
    "ToolError",
    "ToolFailed",
    "ToolProtocolError",
    "ToolRetry",
    "UsageError",
]


class GuildryError(Exception):
    """Be the root of every error that Guildry raises on purpose."""


class UsageError(GuildryError):
    """Tell the operator what to change."""


class ConfigError(UsageError):
    """Report a setting that is wrong, with its name and the values it takes."""


class PlugError(UsageError):
    """Report a source of tools that cannot be plugged."""

    def __init__(self, source: str, reason: str, cure: str) -> None:
        super().__init__(f"`{source}`: {reason}. {cure}")
        self.source = source
        self.reason = reason
        self.cure = cure


class SandboxError(UsageError):
    """Report a process that cannot be confined as it must be, and what to change."""


class ToolError(GuildryError):
    """Carry a text that the calling model reads."""


class ToolRetry(ToolError):
    """Refuse a call that the model can mend: the text says what to change."""


class ReferenceNotFound(ToolRetry):
    """Refuse a reference that is unknown, foreign, forged or expired, all in the same way."""


class ToolFailed(ToolError):
    """Report a tool that ran and failed; the same call will fail again."""


class ToolProtocolError(ToolFailed):
    """Carry the JSON-RPC error that a plugged server gave, for a client that can act on its code.

    Args:
        text: what a model reads.
        code: of the error.
        message: of the error, as it came.
        data: of the error, as it came.
    """

    def __init__(self, text: str, code: int, message: str, data: object = None) -> None:
        super().__init__(text)
        self.code = code
        self.message = message
        self.data = data


class GrantError(GuildryError):
    """Refuse to widen a grant."""


class BudgetExceeded(GuildryError):
    """Refuse a step for which a budget has no room.

    Args:
        kind: what ran out: `tokens`, `calls`, `agents`, `depth` or `wall_s`.
        limit: how much there was, in that kind's own unit.
        used: how much was spent or reserved when the step was refused.
    """

    def __init__(self, kind: str, limit: float, used: float) -> None:
        super().__init__(f"the budget of {limit:g} {kind} is spent ({used:g} used or reserved)")
        self.kind = kind
        self.limit = limit
        self.used = used


class StoreError(GuildryError):
    """Report that what is kept cannot be read or written."""


class StoreLocked(StoreError):
    """Report a database that another process holds."""


class StoreCorrupt(StoreError):
    """Report a damaged database file."""


class StoreFull(StoreError):
    """Report a disk without room."""


class ModelError(GuildryError):
    """Report a model that gave no usable reply."""


class ModelUnavailable(ModelError):
    """Report a model endpoint that could not be reached, after every retry."""


class ModelRejected(ModelError):
    """Report a request that the model endpoint refused (4xx)."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class ModelReplyError(ModelError):
    """Report a reply that cannot be used: empty, broken or against its schema."""


class RunError(GuildryError):
    """Report a run that cannot do what was asked of it."""


class RunNotFound(RunError):
    """Report a run that is unknown, or another caller's: both in the same way."""


class QuestionNotFound(RunError):
    """Report a question that is unknown, foreign, answered or expired: all in the same way."""


class TaskNotFound(RunError):
    """Report a task that is unknown, foreign or expired: all in the same way."""

    def __init__(self, id: str) -> None:
        super().__init__(
            f"there is no task {id[:80]!r} here: use the `taskId` that the call was answered with,"
            " within its `ttlMs`"
        )


class PlanError(RunError):
    """Report a plan that fails its checks.

    Args:
        faults: one sentence a fault, each naming the node and the cure.
    """

    def __init__(self, faults: tuple[str, ...]) -> None:
        super().__init__("; ".join(faults))
        self.faults = faults

"""Exit codes, and which error gives which. Scripts rely on them."""

from collections.abc import Iterator
from enum import IntEnum
from typing import Final, cast

from guildry.errors import (
    GuildryError,
    PlugError,
    QuestionNotFound,
    ReferenceNotFound,
    RunNotFound,
    StoreLocked,
    UsageError,
)

__all__ = ["EXITS_HELP", "Exit", "NotFound", "Unreachable", "code_of", "leaves"]


class Exit(IntEnum):
    """What a command ends with."""

    OK = 0
    FAILED = 1
    USAGE = 2
    NOT_FOUND = 3
    UNREACHABLE = 4
    INTERRUPTED = 130


EXITS_HELP: Final = (
    "Exit codes: 0 done; 1 what was asked for failed; 2 wrong usage or configuration; "
    "3 no such tool, run, team, plug or question; 4 nothing reachable, or the database is locked; "
    "130 interrupted."
)
"""The exit codes as the help shows them."""


class NotFound(UsageError):
    """Report a name that nothing here has."""


class Unreachable(GuildryError):
    """Report that no server answers, or the wrong one."""


_CODES: Final[tuple[tuple[type[GuildryError], Exit], ...]] = (
    (NotFound, Exit.NOT_FOUND),
    (RunNotFound, Exit.NOT_FOUND),
    (QuestionNotFound, Exit.NOT_FOUND),
    (ReferenceNotFound, Exit.NOT_FOUND),
    (Unreachable, Exit.UNREACHABLE),
    (StoreLocked, Exit.UNREACHABLE),
    (PlugError, Exit.FAILED),
    (UsageError, Exit.USAGE),
)


def code_of(error: GuildryError) -> Exit:
    """Return the exit code of an error."""
    return next((code for kind, code in _CODES if isinstance(error, kind)), Exit.FAILED)


def leaves(error: BaseException) -> Iterator[BaseException]:
    """Yield the errors inside a group, however deep, or the error itself."""
    if isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        for inner in group.exceptions:
            yield from leaves(inner)
    else:
        yield error

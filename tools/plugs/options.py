"""What is said of a plug besides its source: what it gets, how it is run, how far it is trusted."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Literal

__all__ = ["NOTHING_SAID", "NO_ENVIRONMENT", "PlugOptions", "SandboxOptions", "SandboxPolicy"]

NO_ENVIRONMENT: Final[Mapping[str, str]] = MappingProxyType({})
"""No variables besides the usual few."""

SandboxPolicy = Literal["auto", "required", "off"]
"""`auto`: confine what is to be confined, where that is possible; `required`: confine every server
process, and run none that cannot be; `off`: confine nothing.
"""


@dataclass(frozen=True, slots=True)
class SandboxOptions:
    """How a process is confined. Paths may begin with `~`; relative ones begin in the folder.

    Args:
        network: whether it may reach the network.
        read: folders and files that it may read besides the system's programs and libraries.
        write: folders that it may change.
        memory_mb: most memory of one of its processes, in MB.
        cpu_s: processor seconds of one of its processes.
        processes: most processes at a time.
        file_mb: the largest file that it may write, in MB.
    """

    network: bool = False
    read: tuple[str, ...] = ()
    write: tuple[str, ...] = ()
    memory_mb: int = 2_048
    cpu_s: float | None = None
    processes: int = 256
    file_mb: int = 1_024


@dataclass(frozen=True, slots=True)
class PlugOptions:
    """What is said of one plug. None: as the server's limits have it, or as its kind does.

    Args:
        env: variables that its process gets besides the usual few.
        headers: HTTP headers for a URL, such as credentials.
        lazy: serve from the list that it last gave, and start at the first call.
        idle_s: seconds without a call after which a lazy server is stopped.
        calls_at_once: calls in flight at a time; others wait for their turn.
        call_timeout_s: seconds that one call may take.
        trust: `own`: what it offers is served as it is; `pinned`: a definition that has changed
            since it was first seen is held until a person approves it.
        labels: where its answers come from, such as `untrusted:web`; put on what is made of them.
        sandbox: how its process is confined; None: it is not, unless the server demands it.
        tags: words by which its tools can be chosen in `find_tools`.
    """

    env: Mapping[str, str] = field(default_factory=lambda: NO_ENVIRONMENT, repr=False)
    headers: Mapping[str, str] = field(default_factory=lambda: NO_ENVIRONMENT, repr=False)
    lazy: bool | None = None
    idle_s: float | None = None
    calls_at_once: int | None = None
    call_timeout_s: float | None = None
    trust: Literal["own", "pinned"] | None = None
    labels: tuple[str, ...] = ()
    sandbox: SandboxOptions | None = None
    tags: tuple[str, ...] = ()


NOTHING_SAID: Final = PlugOptions()
"""Nothing besides the source."""

"""The callers of the HTTP endpoint: made when they come, dropped when room is needed.

What one caller keeps (runs, references, tasks) is kept by its name, not here: a caller that was
dropped loses nothing but idle sessions.
"""

from collections import OrderedDict
from typing import TYPE_CHECKING

import anyio

from guildry.server.http.identity import Identity
from guildry.server.http.limits import Bucket

if TYPE_CHECKING:
    from collections.abc import Callable

    from anyio.abc import TaskGroup, TaskStatus

    from guildry.server.http.settings import HttpSetting
    from guildry.server.http.tenant import Tenant

__all__ = ["Tenants", "Usage"]


class Usage:
    """What one principal has going on, whatever its token allows."""

    __slots__ = ("bucket", "calls", "streams", "tenants")

    def __init__(self, setting: "HttpSetting") -> None:
        self.calls = 0
        self.streams = 0
        self.tenants = 0
        self.bucket = Bucket(setting.rate_per_s, setting.burst) if setting.rate_per_s > 0 else None


class Tenants:
    """Find the tenant of a caller. `run` must be running.

    A principal has a tenant for each set of scopes that it calls with: what a session was shown
    stays true.

    Args:
        make: makes the tenant of a caller.
        setting: how many there may be, and what each may do.
    """

    def __init__(self, make: "Callable[[Identity], Tenant]", setting: "HttpSetting") -> None:
        self._make = make
        self._setting = setting
        self._tenants: OrderedDict[tuple[str, tuple[str, ...]], Tenant] = OrderedDict()
        self._usage: dict[str, Usage] = {}
        self._tasks: TaskGroup | None = None
        self._making = anyio.Lock()

    def __len__(self) -> int:
        return len(self._tenants)

    async def run(self, *, task_status: "TaskStatus[None]") -> None:
        """Keep the tenants until cancelled."""
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            task_status.started()
            try:
                await anyio.sleep_forever()
            finally:
                self._tasks = None

    async def find(self, identity: Identity) -> "tuple[Tenant, Usage] | None":
        """Return the tenant of a caller, or None where there is no room for another."""
        key = identity.principal, identity.scopes
        tenant = self._tenants.get(key)
        if tenant is None:
            async with self._making:
                tenant = self._tenants.get(key) or await self._admit(identity)
            if tenant is None:
                return None
        else:
            self._tenants.move_to_end(key)
        return tenant, self._usage[identity.principal]

    async def _admit(self, identity: Identity) -> "Tenant | None":
        if self._tasks is None or not self._has_room():
            return None
        tenant = self._make(identity)
        await self._tasks.start(tenant.run)
        self._tenants[identity.principal, identity.scopes] = tenant
        usage = self._usage.setdefault(identity.principal, Usage(self._setting))
        usage.tenants += 1
        return tenant

    def _has_room(self) -> bool:
        """Make room by dropping whoever was idle longest; tell whether there is some."""
        if len(self._tenants) < self._setting.max_callers:
            return True
        idle = next((key for key, tenant in self._tenants.items() if not tenant.requests), None)
        if idle is not None:
            self._drop(idle)
        return idle is not None

    def end(self, principal: str) -> None:
        """End everything that a principal has open here: its token holds no more."""
        for key in [key for key in self._tenants if key[0] == principal]:
            self._drop(key)

    def _drop(self, key: tuple[str, tuple[str, ...]]) -> None:
        self._tenants.pop(key).end()
        usage = self._usage[key[0]]
        usage.tenants -= 1
        if not usage.tenants:
            del self._usage[key[0]]

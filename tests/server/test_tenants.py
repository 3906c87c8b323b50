"""Callers that come and go: how many there may be, and who is dropped."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from guildry.server.app import App
from guildry.server.http.asgi import Watch
from guildry.server.http.identity import Identity
from guildry.server.http.settings import HttpSetting
from guildry.server.http.tenant import Tenant
from guildry.server.http.tenants import Tenants
from guildry.server.surface import Surface

ADA, BOB, EVE = (Identity(name, ("tools",)) for name in ("ada", "bob", "eve"))


@asynccontextmanager
async def kept(app: App, **values: Any) -> AsyncGenerator[Tenants]:
    setting = HttpSetting(**values)

    def make(identity: Identity) -> Tenant:
        surface = Surface(app, holder=identity.principal, scopes=identity.scopes)
        return Tenant(surface, setting, Watch())

    tenants = Tenants(make, setting)
    with anyio.fail_after(30):
        async with anyio.create_task_group() as tasks:
            await tasks.start(tenants.run)
            yield tenants
            tasks.cancel_scope.cancel()


async def found(tenants: Tenants, identity: Identity) -> Any:
    admitted = await tenants.find(identity)
    assert admitted is not None
    return admitted


async def test_a_caller_is_found_again_and_shares_its_usage_between_scopes(opened: Any) -> None:
    async with opened() as app, kept(app, rate_per_s=1) as tenants:
        tenant, usage = await found(tenants, ADA)
        again, _ = await found(tenants, Identity("ada", ("tools",), 5.0))
        wider, shared = await found(tenants, Identity("ada", ("tools", "teams")))

        assert (again is tenant, wider is tenant, shared is usage) == (True, False, True)
        assert len(tenants) == 2


async def test_whoever_was_idle_longest_makes_room(opened: Any) -> None:
    async with opened() as app, kept(app, max_callers=2) as tenants:
        ada, _ = await found(tenants, ADA)
        bob, _ = await found(tenants, BOB)
        await found(tenants, ADA)

        await found(tenants, EVE)

        assert (ada.is_ended, bob.is_ended) == (False, True)


async def test_nobody_who_calls_makes_room(opened: Any) -> None:
    async with opened() as app, kept(app, max_callers=1) as tenants:
        ada, _ = await found(tenants, ADA)
        ada.requests += 1

        assert await tenants.find(BOB) is None
        ada.requests -= 1
        assert await tenants.find(BOB) is not None


async def test_a_caller_that_comes_twice_at_once_is_made_once(opened: Any) -> None:
    came: list[Any] = []
    async with opened() as app, kept(app) as tenants:

        async def come() -> None:
            came.append((await found(tenants, ADA))[0])

        async with anyio.create_task_group() as tasks:
            for _ in range(5):
                tasks.start_soon(come)

    assert len(set(map(id, came))) == 1


async def test_an_ended_principal_is_ended_whatever_its_scopes(opened: Any) -> None:
    async with opened() as app, kept(app) as tenants:
        one, _ = await found(tenants, ADA)
        two, _ = await found(tenants, Identity("ada", ("teams",)))
        bob, _ = await found(tenants, BOB)

        tenants.end("ada")
        tenants.end("nobody")

        assert [each.is_ended for each in (one, two, bob)] == [True, True, False]
        assert (await found(tenants, ADA))[0] is not one


@pytest.mark.parametrize("ended", [True, False])
async def test_nobody_is_admitted_where_nothing_is_kept(opened: Any, ended: bool) -> None:
    async with opened() as app, kept(app) as tenants:
        if not ended:
            assert await tenants.find(ADA) is not None
    assert await tenants.find(BOB) is None

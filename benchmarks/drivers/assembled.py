"""Guildry's own parts, put together around a database file as a program would."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from guildry.memory.journal import Journal
from guildry.memory.ledger import EffectLedger
from guildry.memory.objects import ObjectStore
from guildry.memory.runs import RunStore
from guildry.memory.store import Store
from guildry.memory.usage import UsageStore
from guildry.tools.dispatch import Dispatch
from guildry.tools.registry import Catalog
from guildry.tools.usage import Usage


@dataclass(frozen=True)
class Parts:
    """What a run stands on."""

    objects: ObjectStore
    journal: Journal
    ledger: EffectLedger
    runs: RunStore
    catalog: Catalog
    dispatch: Dispatch


@asynccontextmanager
async def assemble(folder: Path) -> AsyncIterator[Parts]:
    """Open a database in `folder` and yield what stands on it."""
    async with Store.open(folder / "guildry.db") as store:
        objects, journal, ledger = ObjectStore(store, folder), Journal(store), EffectLedger(store)
        catalog = Catalog()
        usage = Usage(UsageStore(store))
        dispatch = Dispatch(catalog, objects, journal, ledger, usage=usage)
        yield Parts(objects, journal, ledger, RunStore(store), catalog, dispatch)

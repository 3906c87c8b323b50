"""The effect ledger: what is known of calls that must not be repeated."""

from pathlib import Path

import anyio
import pytest

from guildry.errors import StoreError
from guildry.memory.ledger import EffectLedger, IntendedEffect, SettledEffect
from guildry.memory.store import Store


async def test_an_effect_is_unsettled_until_its_outcome_is_entered(tmp_path: Path) -> None:
    with anyio.fail_after(30):
        async with Store.open(tmp_path / "guildry.db") as store:
            ledger = EffectLedger(store, clock=lambda: 5.0)
            for key in ("k1", "k2", "k3"):
                await ledger.intend("r1", key, "r1/1", "send", "sha256:00")
            ledger.settle("r1", "k2", "sent \ud800")
        async with Store.open(tmp_path / "guildry.db") as store:
            ledger = EffectLedger(store)
            unsettled = await ledger.unsettled("r1")
            settled = [await ledger.settled("r1", key) for key in ("k1", "k2", "unknown")]

    assert unsettled == [
        IntendedEffect(key, "r1", "r1/1", "send", "sha256:00", 5.0) for key in ("k1", "k3")
    ]
    assert settled == [
        None,
        SettledEffect("k2", "r1", "r1/1", "send", "sha256:00", 5.0, "ok", "sent \\ud800", 5.0),
        None,
    ]


async def test_the_first_outcome_stays_and_a_key_is_taken_once() -> None:
    with anyio.fail_after(30):
        async with Store.open(None) as store:
            ledger = EffectLedger(store)
            await ledger.intend("r1", "k1", "a", "send", "d")
            with pytest.raises(StoreError, match="the effect `k1` was intended before"):
                await ledger.intend("r1", "k1", "a", "send", "d")
            ledger.settle("r1", "k1", "first", "error")
            ledger.settle("r1", "k1", "second")
            ledger.settle("r1", "unknown", "nothing")
            settled = await ledger.settled("r1", "k1")

            assert settled is not None
            assert (settled.outcome, settled.status) == ("first", "error")
            assert await ledger.unsettled("r1") == []

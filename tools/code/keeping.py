"""The state of one program, kept at its calls so that it can go on elsewhere. Knows no interpreter.

A state that is too large is not kept. From then on the program cannot go on elsewhere, once it
makes a call that must not be repeated: an older state would make that call anew.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import structlog

from guildry.errors import StoreError
from guildry.memory.suspended import SuspendedStore
from guildry.tools.base import Json
from guildry.tools.caller import Caller
from guildry.tools.code.calls import Flight

__all__ = ["Keeping"]

log = structlog.get_logger()

_CHEAP_BYTES: Final = 256_000
_CHEAP_FLIGHTS: Final = 32


class Keeping:
    """Keep the state of a program.

    Args:
        store: where.
        id: of the program.
        caller: who runs it.
        max_bytes: the largest state that is kept.
    """

    def __init__(self, store: SuspendedStore, id: str, caller: Caller, max_bytes: int) -> None:
        self._store = store
        self._caller = caller
        self._max_bytes = max_bytes
        self._last_bytes = 0
        self._flights: dict[int, Flight] = {}
        self._told: dict[str, Json] = {}
        self._is_lost = False
        self.id: Final = id
        self.is_kept = False

    def keep(
        self,
        dump: Callable[[], bytes],
        told: Mapping[str, Json],
        flights: Mapping[int, Flight],
        *,
        must: bool,
    ) -> None:
        """Keep the state before a call is made.

        Args:
            dump: gives the state.
            told: what is to be kept besides.
            flights: the calls that have no answer yet, or whose answer the program has not got.
            must: the call must not be repeated, so that no older state will do.
        """
        is_cheap = self._last_bytes <= _CHEAP_BYTES and len(flights) <= _CHEAP_FLIGHTS
        if self._is_lost or not (must or is_cheap):
            return
        state = dump()
        self._last_bytes = len(state)
        waiting = {**told, "flights": _kept(flights)}
        if len(state) + len(json.dumps(waiting, default=str)) > self._max_bytes:
            if must:
                self.end()
                self._is_lost = True
            return
        run, holder = self._caller.run, self._caller.grant.holder
        try:
            self._store.keep(self.id, run, holder, state, waiting)
        except StoreError as error:
            log.warning("program_not_kept", program=self.id, error=str(error))
            self._is_lost = True
            return
        self._hold(told, flights)

    def resumed(self, told: Mapping[str, Json], flights: Mapping[int, Flight]) -> None:
        """Say that the program goes on from the state that is kept, with these calls."""
        self._hold(told, flights)

    def note(self, labels: Iterable[str]) -> None:
        """Keep an answer that has come, with the state that waits for it.

        Args:
            labels: of all that the program has got until now.
        """
        if not self.is_kept or len(self._flights) > _CHEAP_FLIGHTS:
            return
        waiting = {**self._told, "labels": sorted(labels), "flights": _kept(self._flights)}
        if self._last_bytes + len(json.dumps(waiting, default=str)) <= self._max_bytes:
            self._post(lambda: self._store.note(self.id, waiting))

    def release(self) -> None:
        """Let the program go on elsewhere."""
        if self.is_kept:
            self._post(lambda: self._store.release(self.id))

    def end(self) -> None:
        """Forget the program."""
        if self.is_kept:
            self.is_kept = False
            self._post(lambda: self._store.drop(self.id))

    def _hold(self, told: Mapping[str, Json], flights: Mapping[int, Flight]) -> None:
        self._told, self._flights = dict(told), dict(flights)
        self.is_kept = True

    def _post(self, work: Callable[[], None]) -> None:
        try:
            work()
        except StoreError as error:
            log.warning("program_not_kept", program=self.id, error=str(error))


def _kept(flights: Mapping[int, Flight]) -> dict[str, Json]:
    return {str(id): each.as_json() for id, each in flights.items()}

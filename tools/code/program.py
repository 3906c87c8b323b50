"""One program at work: driven from call to call, its state kept at each. Makes no call itself."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
from pydantic_monty import (
    AsyncFunctionSnapshot,
    AsyncFutureSnapshot,
    AsyncNameLookupSnapshot,
    MontyComplete,
    MontyError,
)

from guildry.errors import GuildryError, ToolRetry
from guildry.tools.base import Json, Progress
from guildry.tools.code.awaits import Awaits
from guildry.tools.code.calls import Calls, Flight
from guildry.tools.code.faults import told
from guildry.tools.code.keeping import Keeping
from guildry.tools.code.limits import CodeLimits
from guildry.tools.code.names import REF
from guildry.tools.code.printed import Printed
from guildry.tools.code.values import Answer, Refs, external, wrapped

if TYPE_CHECKING:
    from anyio.abc import TaskGroup
    from pydantic_monty import AsyncMontySession, AsyncSnapshot

__all__ = ["Program"]

_READ: Final = "value"
_LONGEST_PAUSE_S: Final = 10.0
_PAUSES: Final = {
    "time.sleep": True,
    "system.sleep": True,
    "asyncio.sleep": False,
    "system.async_sleep": False,
}
"""What a pause is called, and whether the program waits for it at once."""


class Program:
    """Drive one program until it has ended.

    Args:
        code: its text.
        calls: makes its calls.
        keeping: keeps its state.
        limits: what it may use up.
        progress: where word of each call goes.
    """

    def __init__(
        self,
        code: str,
        calls: Calls,
        keeping: Keeping,
        limits: CodeLimits,
        progress: Progress | None = None,
    ) -> None:
        self._code = code
        self._calls = calls
        self._keeping = keeping
        self._limits = limits
        self._progress = progress
        self._awaits = Awaits(code)
        self._flights: dict[int, Flight] = {}
        self._refs: Refs = {}
        self._news = anyio.Event()
        self._tasks: TaskGroup | None = None
        self.printed = Printed(limits.printed_bytes)

    async def begin(self, session: "AsyncMontySession", given: Mapping[str, Answer]) -> Any:
        """Run the program from its first line, with some values under names; return its value.

        Raises:
            ToolRetry: the program is wrong, or needs too much; says what to change.
        """
        inputs = {name: wrapped(answer["ref"], self._refs) for name, answer in given.items()}
        return await self._run(
            lambda: session.feed_start(
                self._code, inputs=inputs or None, print_callback=self.printed.take
            )
        )

    async def go_on(
        self, session: "AsyncMontySession", state: bytes, told: Mapping[str, Json]
    ) -> Any:
        """Run the program from where its state was kept; return its value.

        Args:
            session: a fresh interpreter.
            state: as the last one gave it.
            told: what was kept besides.

        Raises:
            ToolRetry: the program is wrong, or needs too much; says what to change.
        """
        self._flights = {int(id): Flight.kept(each) for id, each in told["flights"].items()}
        self._refs = {key: (each[0], each[1]) for key, each in told["refs"].items()}
        self.printed.restore(told["printed"])
        self._calls.made = list(told["made"])
        self._calls.done = list(told["done"])
        self._calls.labels = set(told["labels"])
        self._calls.planned = tuple(self._flights.values())
        self._keeping.resumed(told, self._flights)
        return await self._run(
            lambda: session.load_snapshot(state, print_callback=self.printed.take)
        )

    async def _run(self, start: Any) -> Any:
        fault: MontyError | GuildryError | None = None
        output: Any = None
        async with anyio.create_task_group() as tasks:
            self._tasks = tasks
            try:
                snapshot: AsyncSnapshot = await start()
                while not isinstance(snapshot, MontyComplete):
                    snapshot = await self._next(snapshot)
                output = snapshot
            except (MontyError, GuildryError) as error:
                fault = error
        if isinstance(fault, MontyError):
            functions = [*self._calls.functions, REF]
            raise ToolRetry(told(fault, self._limits, functions)) from fault
        if fault is not None:
            raise fault
        return cast("MontyComplete", output).output

    async def _next(self, snapshot: "AsyncSnapshot") -> "AsyncSnapshot":
        """Answer what the program waits for."""
        if isinstance(snapshot, AsyncFutureSnapshot):
            return await self._awaited(snapshot)
        if isinstance(snapshot, AsyncNameLookupSnapshot):
            return await self._name(snapshot)
        function = cast("AsyncFunctionSnapshot", snapshot)
        if function.is_os_function:
            return await self._system(function)
        if function.object_id is not None:
            return await function.resume(external(await self._method(function), self._refs))
        if function.function_name == REF:
            answer = await self._calls.open(function.args, function.kwargs)
            return await function.resume(external(answer, self._refs))
        return await self._call(function)

    async def _name(self, snapshot: AsyncNameLookupSnapshot) -> "AsyncSnapshot":
        """Give a function its name, so that it can be passed around; leave others undefined."""
        name = snapshot.variable_name
        if snapshot.object_id is not None or (name != REF and name not in self._calls.functions):
            return await snapshot.resume()
        return await snapshot.resume(value=_function(name))

    async def _method(self, snapshot: AsyncFunctionSnapshot) -> Answer:
        """Return what a method of a `Ref` gives."""
        known = self._refs.get(str(snapshot.object_id))
        if known is None or snapshot.function_name != _READ:
            name = f"`{snapshot.function_name}`: it has `{_READ}(selector)`"
            return {"error": f"a `Ref` has no method {name}", "kind": "AttributeError"}
        given = [*snapshot.args, *snapshot.kwargs.values()]
        if len(given) > 1 or not snapshot.kwargs.keys() <= {"selector"}:
            return {"error": "`value` takes one selector", "kind": "TypeError"}
        return await self._calls.read(*known, given[0] if given else None)

    async def _system(self, snapshot: AsyncFunctionSnapshot) -> "AsyncSnapshot":
        """Pause where the program wants to; there is no other system for it."""
        name = str(snapshot.function_name)
        if name not in _PAUSES:
            return await snapshot.resume_not_handled()
        flight = self._flights.get(snapshot.call_id)
        if flight is None:
            asked = snapshot.args[0] if snapshot.args else 0.0
            flight = Flight("", {"seconds": min(max(0.0, float(asked)), _LONGEST_PAUSE_S)})
            self._flights[snapshot.call_id] = flight
        return await self._answer(snapshot, flight, at_once=_PAUSES[name])

    async def _call(self, snapshot: AsyncFunctionSnapshot) -> "AsyncSnapshot":
        """Make the call of a tool, at once or, where it is awaited, beside what follows."""
        span = (snapshot.position.start, snapshot.position.end)
        flight = self._flights.get(snapshot.call_id)
        if flight is None:
            flight = self._calls.plan(str(snapshot.function_name), snapshot.args, snapshot.kwargs)
            self._flights[snapshot.call_id] = flight
            if flight.answer is None:
                await self._tell(flight)
                tool = self._calls.tool(flight.tool)
                self._keeping.keep(
                    snapshot.dump,
                    self._told(),
                    self._flights,
                    must=tool is None or not tool.effects.repeatable,
                )
        return await self._answer(snapshot, flight, at_once=span not in self._awaits)

    async def _answer(
        self, snapshot: AsyncFunctionSnapshot, flight: Flight, *, at_once: bool
    ) -> "AsyncSnapshot":
        self._begin(flight)
        if not at_once:
            return await snapshot.resume({"future": ...})
        await flight.done.wait()
        del self._flights[snapshot.call_id]
        return await snapshot.resume(external(flight.answer or {}, self._refs))

    async def _awaited(self, snapshot: AsyncFutureSnapshot) -> "AsyncSnapshot":
        """Wait until one of the calls that the program awaits is answered."""
        ids = snapshot.pending_call_ids
        for id in ids:
            self._begin(self._flights[id])
        while not (ready := [id for id in ids if self._flights[id].done.is_set()]):
            self._news = anyio.Event()
            await self._news.wait()
        flights = {id: self._flights.pop(id) for id in ready}
        return await snapshot.resume(
            {id: external(each.answer or {}, self._refs) for id, each in flights.items()}
        )

    def _begin(self, flight: Flight) -> None:
        if flight.is_begun or flight.done.is_set():
            return
        flight.is_begun = True
        assert self._tasks is not None  # set before anything is begun
        self._tasks.start_soon(self._make, flight)

    async def _make(self, flight: Flight) -> None:
        await self._calls.make(flight)
        self._keeping.note(self._calls.labels)
        self._news.set()

    async def _tell(self, flight: Flight) -> None:
        if self._progress is not None:
            await self._progress(len(self._calls.made), None, f"`{flight.tool}`")

    def _told(self) -> dict[str, Json]:
        """Return what is to be kept besides the state."""
        return {
            "code": self._code,
            "refs": dict(self._refs),
            "made": list(self._calls.made),
            "done": list(self._calls.done),
            "labels": sorted(self._calls.labels),
            "printed": self.printed.as_json(),
        }


def _function(name: str) -> Any:
    """Return what stands for a tool where its name is no call: the interpreter takes its name."""

    def stand_in() -> None:
        raise AssertionError("the program's calls come as snapshots")

    stand_in.__name__ = stand_in.__qualname__ = name
    return stand_in

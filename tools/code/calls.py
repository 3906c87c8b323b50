"""The calls of one program: which tool is meant, with which arguments, and what it answered.

Every tool call goes through dispatch, under the grant of whoever runs the program.
"""

import json
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import anyio

from guildry.errors import GuildryError, ToolRetry
from guildry.memory.ledger import EffectLedger, SettledEffect
from guildry.memory.objects import ObjectStore
from guildry.memory.references import Reference, parse_handle
from guildry.memory.selectors import select
from guildry.memory.suspended import SuspendedStore
from guildry.tools.asking.questions import Ask, Question
from guildry.tools.base import Json, Tool
from guildry.tools.caller import Caller
from guildry.tools.code.limits import CodeLimits
from guildry.tools.code.names import REF, function_names, parameters_of
from guildry.tools.code.values import Answer, answer_of, as_json, ref_of, text_answer
from guildry.tools.dispatch import Dispatch, arguments_digest
from guildry.tools.passing import open_reference
from guildry.tools.registry import Catalog, Registry, nearest

__all__ = ["Calls", "CodeParts", "Flight", "narrowed"]

_AT_ONCE: Final = 16
_SHOWN: Final = 400


@dataclass(frozen=True, slots=True)
class CodeParts:
    """What programs work with.

    Args:
        dispatch: makes their calls.
        catalog: where the tools are.
        objects: where references lead.
        ledger: knows which calls of a program that was cut off were made.
        suspended: keeps the programs that wait.
        hidden: names of tools that programs do not call.
    """

    dispatch: Dispatch
    catalog: Catalog
    objects: ObjectStore
    ledger: EffectLedger
    suspended: SuspendedStore
    hidden: frozenset[str] = frozenset()


@dataclass(slots=True)
class Flight:
    """A call of a program, from when it was planned until it is answered.

    Args:
        tool: its name; empty for a pause.
        arguments: as dispatch gets them; of a pause, its `seconds`.
        begun_at: seconds since the epoch.
        answer: what it came to, once that is known.
        is_again: it was planned before the program was cut off.
        is_begun: it is being made.
    """

    tool: str
    arguments: dict[str, Json]
    begun_at: float = field(default_factory=time.time)
    answer: Answer | None = None
    is_again: bool = False
    is_begun: bool = False
    done: anyio.Event = field(default_factory=anyio.Event)

    def settle(self, answer: Answer) -> None:
        """Enter what the call came to."""
        self.answer = answer
        self.done.set()

    def as_json(self) -> dict[str, Json]:
        """Return the call as it is kept."""
        kept = {"tool": self.tool, "arguments": self.arguments, "begun_at": self.begun_at}
        return kept if self.answer is None else {**kept, "answer": self.answer}

    @classmethod
    def kept(cls, members: Mapping[str, Json]) -> "Flight":
        """Return a call that was kept."""
        flight = cls(members["tool"], members["arguments"], members["begun_at"], is_again=True)
        if "answer" in members:
            flight.settle(members["answer"])
        return flight


class Calls:
    """Plan and make the calls of one program.

    Args:
        parts: what it works with.
        caller: under whose grant the calls are made.
        limits: how many there may be, and how large their arguments.
        ask: puts a question to whoever runs the program, if anybody can be asked.
    """

    def __init__(
        self, parts: CodeParts, caller: Caller, limits: CodeLimits, ask: Ask | None = None
    ) -> None:
        self._parts = parts
        self._ask = ask
        self._caller = caller
        self._limits = limits
        self._registry: Registry | None = None
        self._functions: dict[str, str] = {}
        self._turn = anyio.Semaphore(_AT_ONCE)
        self._open: list[tuple[Flight, Tool | None]] = []
        self.made: list[str] = []
        self.done: list[str] = []
        self.planned: Collection[Flight] = ()
        self.labels: set[str] = set()

    @property
    def functions(self) -> Mapping[str, str]:
        """Which function is which tool, of those that the caller may call now."""
        current = self._parts.catalog.current
        if current is not self._registry:
            grant, hidden = self._caller.grant, self._parts.hidden
            self._registry = current
            self._functions = function_names(
                tool.name
                for tool in current
                if tool.scope in grant.scopes
                and grant.allows(tool.name)
                and tool.name not in hidden
            )
        return self._functions

    def tool(self, name: str) -> Tool | None:
        """Return the tool of that name, if there is one now."""
        return self._parts.catalog.current.tools.get(name)

    def plan(self, function: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Flight:
        """Return the call that `function` with these arguments is; answered if it is none.

        Raises:
            ToolRetry: the program has made all the calls that it may.
        """
        name = self.functions.get(function)
        tool = None if name is None else self.tool(name)
        if name is None or tool is None:
            return _wrong(function, "NameError", self._unknown(function))
        if len(self.made) >= self._limits.calls:
            raise ToolRetry(
                f"the program has made {self._limits.calls} calls, which is all that one may make:"
                " make fewer, or divide the work among several programs"
            )
        try:
            arguments = self._arguments(tool, function, args, kwargs)
        except ToolRetry as error:
            return _wrong(function, "TypeError", str(error))
        self.made.append(name)
        return Flight(name, arguments)

    def alike(self, flight: Flight) -> int:
        """Return how many of the planned calls are the same as `flight`, itself included."""
        same = (flight.tool, flight.arguments)
        return sum((each.tool, each.arguments) == same for each in self.planned)

    async def make(self, flight: Flight) -> None:
        """Make a call once no other of the program is in its way, and enter its answer.

        Calls are in each other's way when they go to the same plug and one of them may write.
        """
        tool = self.tool(flight.tool)
        before = [other for other, its in self._open if _conflict(tool, its)]
        self._open.append((flight, tool))
        try:
            for other in before:
                await other.done.wait()
            async with self._turn:
                flight.settle(await self._answered(flight, tool))
        finally:
            self._open.remove((flight, tool))

    async def open(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Answer:
        """Return the stored value that `ref(text)` means, as the program gets it."""
        text = args[0] if len(args) == 1 and not kwargs else None
        handle = parse_handle(text) if isinstance(text, str) else None
        if handle is None:
            return _error("ValueError", f"`{REF}` takes one text such as 'ref:name'")
        try:
            found = await open_reference(self._parts.objects, self._caller, handle)
        except GuildryError as error:
            return _error("ValueError", str(error))
        self.labels |= found.labels
        fields = ref_of(found, handle.selector)
        return {"ref": {**fields, "reference": text}}

    async def read(self, id: str, reference: str, selector: Any) -> Answer:
        """Return the stored value with an id, or the part of it that a selector addresses.

        Args:
            id: of the stored object.
            reference: as the program has it: with a selector of its own where it is a part.
            selector: as the program gave it.
        """
        if not isinstance(selector, str | None):
            return _error("TypeError", "`value` takes a selector such as '#/rows/0', as text")
        base = parse_handle(reference)
        own = None if base is None else base.selector
        try:
            handle = parse_handle(f"ref://{id}")
            assert handle is not None  # an id has no other characters
            found = await open_reference(self._parts.objects, self._caller, handle)
            self.labels |= found.labels
            return {"value": await self._part(found, own, _selector(selector))}
        except GuildryError as error:
            return _error("ValueError", str(error))

    async def _part(self, found: Reference, own: str | None, selector: str | None) -> Json:
        objects = self._parts.objects
        if found.size > self._limits.memory_bytes // 8 and selector is None and own is None:
            raise ToolRetry(
                f"`{found.short}` has {found.size:,} bytes, too many to be read whole: read parts"
                " by selectors, or give the reference to a tool"
            )
        kind = found.media_type.partition(";")[0]
        if not (kind.startswith("text/") or kind == "application/json" or kind.endswith("+json")):
            return await objects.read(found)
        value = await objects.select(found, own or selector)
        return value if own is None or selector is None else select(value, selector)

    async def _answered(self, flight: Flight, tool: Tool | None) -> Answer:
        if not flight.tool:
            await anyio.sleep(flight.arguments["seconds"])
            return {"value": None}
        try:
            known = None if tool is None or not flight.is_again else await self._known(flight, tool)
            if known is not None:
                return known
            result = await self._parts.dispatch.call(self._caller, flight.tool, flight.arguments)
        except GuildryError as error:
            return _error("RuntimeError", str(error))
        self.labels |= result.labels
        if not result.is_error and tool is not None and tool.effects.writes:
            self.done.append(flight.tool)
        return answer_of(tool, result)

    async def _known(self, flight: Flight, tool: Tool) -> Answer | None:
        """Return what a call came to that was made before, or None where it is to be made now."""
        if tool.effects.repeatable:
            return None
        made = await self._parts.ledger.made(
            self._caller.run,
            self._caller.grant.chain[-1],
            tool.name,
            arguments_digest(flight.arguments),
            since=flight.begun_at,
        )
        if not made:
            return None
        if len(made) == 1 and self.alike(flight) == 1 and isinstance(made[0], SettledEffect):
            effect = made[0]
            if effect.status == "ok":
                return text_answer(effect.outcome)
            return _error("RuntimeError", effect.outcome)
        if await self._may_repeat(flight, tool):
            return None
        return _error(
            "RuntimeError",
            f"`{tool.name}` was begun before the program was cut off, and it is not known whether"
            " it was done, so that it was not called again: find out first",
        )

    async def _may_repeat(self, flight: Flight, tool: Tool) -> bool:
        """Ask a person whether a call of which nothing is known may be made again."""
        if self._ask is None:
            return False
        answer = await self._ask(
            Question(
                key=f"repeat:{tool.name}",
                kind="approval",
                message=(
                    f"`{tool.name}` of `{tool.plug}` was called by a program that was cut off. It"
                    " is not known whether it was done. Call it again?"
                ),
                tool=tool.name,
                plug=tool.plug,
                arguments=_shown(flight.arguments),
            )
        )
        return answer.action == "accept"

    def _arguments(
        self, tool: Tool, function: str, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> dict[str, Json]:
        parameters = parameters_of(tool)
        if len(args) > len(parameters):
            takes = ", ".join(each.name for each in parameters) or "nothing"
            raise ToolRetry(f"{function}() takes {takes}: {len(args)} values were given")
        known = {each.name: each for each in parameters}
        given: dict[str, Any] = dict(zip(known, args, strict=False))
        twice = next((name for name in kwargs if name in given), None)
        if twice is not None:
            raise ToolRetry(f"{function}() got `{twice}` twice: give it once")
        arguments: dict[str, Json] = {}
        for name, value in {**given, **kwargs}.items():
            parameter = known.get(name)
            if value is None and parameter and not (parameter.is_required or parameter.nullable):
                continue  # written out, but as good as left out
            key = name if parameter is None else parameter.key
            arguments[key] = as_json(value, self._limits.value_bytes)
        return arguments

    def _unknown(self, function: str) -> str:
        near = nearest(function, [*self.functions, REF])
        cure = f"did you mean `{near}`?" if near else "use a tool that you were shown"
        return f"there is no function `{function}` here: {cure}"


def narrowed(caller: Caller, id: str) -> Caller:
    """Return the caller of a program's calls: the same grant, with the program in its chain.

    The calls are in the ledger before they are made, so that none is made twice when the program
    goes on later; and a person who is asked about one sees that a program asks.
    """
    grant = replace(caller.grant, chain=(*caller.grant.chain, id))
    return replace(caller, grant=grant, durable=True, for_model=True, progress=None, begins=None)


def _conflict(one: Tool | None, other: Tool | None) -> bool:
    if one is None or other is None or one.plug != other.plug:
        return False
    return one.effects.writes or other.effects.writes


def _selector(text: str | None) -> str | None:
    """Return a selector with its first character, which may be left out."""
    if text is None or text in ("", "#"):
        return None
    if text[0] in "#?":
        return text
    if text[0] == "/":
        return f"#{text}"
    return f"?{text}" if text.startswith(("lines=", "query=")) else f"?query={text}"


def _shown(arguments: Mapping[str, Json]) -> dict[str, Json]:
    """Return the arguments of a call as a person is shown them: long ones by their beginnings."""
    told = {name: json.dumps(value, ensure_ascii=False) for name, value in arguments.items()}
    return {
        name: arguments[name] if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
        for name, text in told.items()
    }


def _wrong(function: str, kind: str, message: str) -> Flight:
    flight = Flight(function, {})
    flight.settle(_error(kind, message))
    return flight


def _error(kind: str, message: str) -> Answer:
    return {"error": message, "kind": kind}

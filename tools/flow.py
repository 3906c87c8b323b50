"""Flow: the labels of values, joined wherever values combine. Knows no value and asks nobody.

What a call reads, and what the calls within it answer, labels its own answer. What an agent was
shown stays with it: it labels what it writes, the agents that it starts, and whoever gets its
report.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar, Token
from types import TracebackType
from typing import TYPE_CHECKING, Final, Literal, Self

from guildry.tools.base import Effects, Tool
from guildry.tools.plugs.options import PlugOptions

if TYPE_CHECKING:
    from guildry.memory.references import Reference
    from guildry.tools.caller import Caller

__all__ = ["Flow", "FlowPolicy", "Origins", "Scope", "join", "matters", "origin"]

FlowPolicy = Literal["off", "warn", "ask", "refuse"]
"""What happens where labelled values would go out: nothing, a word in journal and log, a question
to a person, a refusal.
"""

Origins = Callable[[str], "tuple[str, str, PlugOptions] | None"]
"""Return the kind, the source and the options of a plug, or None for one that is not known."""

_OWN: Final = "guildry"
_FROM: Final = "plug:"
_UNTRUSTED: Final = "untrusted:"
_FOREIGN: Final = frozenset({"mcp", "openapi"})

_current: "ContextVar[Scope | None]" = ContextVar("guildry_call", default=None)


def join(labels: Iterable[str]) -> None:
    """Say that the call in progress has got at values with these labels."""
    scope = _current.get()
    if scope is not None:
        scope.labels.update(labels)


def matters(label: str, effects: Effects) -> bool:
    """Tell whether values with this label should not just go into a call with these effects.

    `plug:` says no more than where a value comes from. What is `untrusted:` should neither be
    written nor sent out; any other label, such as `private:crm`, says that it should not be sent.
    """
    if label.startswith(_FROM):
        return False
    return effects.egress or (effects.writes and label.startswith(_UNTRUSTED))


def origin(tool: Tool, kind: str, source: str, options: PlugOptions) -> frozenset[str]:
    """Return the labels of what a tool answers by itself.

    They are those that its plug was given. Where it was given none, what came over the network, or
    from a server whose tool reaches out, is untrusted.
    """
    if options.labels:
        return frozenset(options.labels)
    trust = options.trust or ("pinned" if kind in _FOREIGN else "own")
    remote = kind == "openapi" or source.lower().startswith(("http://", "https://"))
    if trust != "own" and (remote or tool.effects.egress):
        return frozenset({f"{_UNTRUSTED}{tool.plug}"})
    return frozenset({f"{_FROM}{tool.plug}"})


class Scope:
    """One call in progress: what it has read until now. Made by `Flow.call`."""

    __slots__ = ("_caller", "_flow", "_token", "invoked", "labels", "outer", "tool")

    def __init__(self, flow: "Flow", caller: "Caller", tool: Tool) -> None:
        self.labels: set[str] = set()
        self.invoked = False
        self.outer = _current.get()
        self.tool = tool
        self._flow = flow
        self._caller = caller
        self._token: Token[Scope | None] | None = None

    @property
    def holder(self) -> str:
        """Whose call it is: an agent, or a program that one runs."""
        return self._caller.grant.chain[-1]

    def answer(self) -> frozenset[str]:
        """Return the labels of the call's answer."""
        return self._flow.origin(self.tool) | self.labels

    def __enter__(self) -> Self:
        chain = self._caller.grant.chain
        if len(chain) > 1:
            self.labels.update(self._flow.meet(chain, self.outer))  # it wrote the arguments
        self._token = _current.set(self)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        assert self._token is not None
        _current.reset(self._token)
        labels = self.answer() if self.invoked else self.labels
        if not labels:
            return
        if self.outer is not None:
            self.outer.labels.update(labels)
        chain = self._caller.grant.chain
        if len(chain) > 1:
            self._flow.note(chain, labels, self.tool.name)


class Flow:
    """Know which labels there are in what each agent was shown.

    A client is no agent: of its conversation nothing is known, so that only the references that
    it passes, and what one of its calls reads on the way, carry labels.

    Args:
        origins: tells of a plug; where it knows nothing, a tool that reaches out is untrusted.
        most: agents that are kept account of; of more, those that called longest ago are dropped.
    """

    def __init__(self, origins: Origins = lambda plug: None, *, most: int = 100_000) -> None:
        self._origins = origins
        self._most = most
        self._of_tools: dict[tuple[str, bool], frozenset[str]] = {}
        self._seen: OrderedDict[str, dict[str, str]] = OrderedDict()

    def know(self, origins: Origins) -> None:
        """Ask `origins` about plugs from now on."""
        self._origins = origins
        self._of_tools.clear()

    def forget(self, plug: str) -> None:
        """Ask anew about a plug, which may be another one now."""
        for egress in (False, True):
            self._of_tools.pop((plug, egress), None)

    def call(self, caller: "Caller", tool: Tool) -> Scope:
        """Return the scope of a call, which is to be entered while it goes on."""
        return Scope(self, caller, tool)

    def origin(self, tool: Tool) -> frozenset[str]:
        """Return the labels of what a tool answers by itself."""
        key = (tool.plug, tool.effects.egress)
        found = self._of_tools.get(key)
        if found is None:
            known = None if tool.plug == _OWN else self._origins(tool.plug)
            if known is not None:
                found = origin(tool, *known)
            else:
                reaches_out = tool.effects.egress and tool.plug != _OWN
                found = frozenset({f"{_UNTRUSTED if reaches_out else _FROM}{tool.plug}"})
            self._of_tools[key] = found
        return found

    def seen(self, holder: str) -> dict[str, str]:
        """Return the labels that are in what an agent was shown, each with what brought it."""
        return dict(self._seen.get(holder, {}))

    def reaching(
        self, caller: "Caller", effects: Effects, references: Iterable["Reference"]
    ) -> dict[str, str]:
        """Return the labels that would go into a call and matter there, with what brought each.

        Asked within the scope of the call.
        """
        found: dict[str, str] = {}
        for reference in references:
            for label in reference.labels:
                found.setdefault(label, f"`{reference.short}`")
        scope, holder = _current.get(), caller.grant.chain[-1]
        for label, tool in self._seen.get(holder, {}).items():
            found.setdefault(label, f"what `{tool}` answered")
        while scope is not None and scope.holder == holder:
            for label in scope.labels:
                found.setdefault(label, f"a call within `{scope.tool.name}`")
            scope = scope.outer
        return {label: found[label] for label in sorted(found) if matters(label, effects)}

    def meet(self, chain: tuple[str, ...], outer: Scope | None) -> Mapping[str, str]:
        """Return what an agent has seen. What those above a new one have seen, it was told of."""
        holder = chain[-1]
        seen = self._seen.get(holder)
        if seen is not None:
            self._seen.move_to_end(holder)
            return seen
        known: dict[str, str] = {}
        for above in chain[1:-1]:
            known.update(self._seen.get(above, {}))
        while outer is not None:
            known.update({each: outer.tool.name for each in outer.labels if _is_kept(each)})
            outer = outer.outer
        self._seen[holder] = known
        if len(self._seen) > self._most:
            self._seen.popitem(last=False)
        return known

    def note(self, chain: tuple[str, ...], labels: Iterable[str], tool: str) -> None:
        """Enter what an agent was shown; whoever is above it will read its report."""
        kept = [label for label in labels if _is_kept(label)]
        if not kept:
            return
        for holder in chain[1:]:
            seen = self._seen.setdefault(holder, {})
            for label in kept:
                seen.setdefault(label, tool)


def _is_kept(label: str) -> bool:
    return not label.startswith(_FROM)

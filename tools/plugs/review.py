"""Review: which definitions of a plug are served, and which wait for a person. Opens nothing.

What a plug offers is pinned when it is first seen. From then on a definition that is another one,
or a new one that may pass for another tool, is held: it is not served until a person approves it.
So is, at any time, one that is hidden in part or speaks to the model that reads it.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Final, Literal

import structlog
from anyio import to_thread

from guildry.errors import PlugError
from guildry.memory.pins import Held, Pin, Pinned, PinStore
from guildry.tools.base import Json, Tool
from guildry.tools.offers import Offers
from guildry.tools.plugs.lookalikes import Lookalikes, renamed
from guildry.tools.plugs.options import PlugOptions
from guildry.tools.plugs.pins import Definition, definitions, difference, is_tool, moved
from guildry.tools.plugs.plug import Loaded, Plug, Quarantined
from guildry.tools.plugs.sayings import said_by, said_by_tool
from guildry.tools.plugs.wording import distinctive, suspicion
from guildry.tools.registry import Catalog

__all__ = ["OWN_KINDS", "PinPolicy", "Reviewer", "told_held"]

log = structlog.get_logger()

PinPolicy = Literal["remote", "all", "none"]
"""What is pinned: what servers and documents offer, everything, or nothing."""

OWN_KINDS: Final = frozenset({"python", "skill", "skills", "team", "teams", "macro"})
"""Kinds of plugs that are files of this machine: whoever can change them can change Guildry."""

_TRIES: Final = 5


@dataclass(slots=True)
class _Verdicts:
    """What comes of looking at everything that a plug offers."""

    first: list[Pin] = field(default_factory=list[Pin])
    moved: list[Pin] = field(default_factory=list[Pin])
    held: list[Held] = field(default_factory=list[Held])
    left_out: dict[str, Quarantined] = field(default_factory=dict[str, Quarantined])


@dataclass(frozen=True, slots=True)
class _Known:
    """What is known when a plug is looked at.

    Args:
        plug: its name.
        pins: its pins, by key.
        rejected: who rejected which digest of it.
        others: what is pinned of other plugs.
        foreign: distinctive names of tools that other plugs serve, with the plugs.
        is_pinned: whether its definitions are pinned when first seen.
    """

    plug: str
    pins: Mapping[str, Pin]
    rejected: Mapping[str, str]
    others: Sequence[Pinned]
    foreign: Mapping[str, str]
    is_pinned: bool


class Reviewer:
    """Look at what plugs offer before it is served, and take the decisions of people.

    Args:
        pins: where definitions are kept.
        catalog: what is served, whose names other plugs must not speak of.
        pin: what is pinned of plugs that say nothing of themselves.
        decided: called with a plug's name after a decision, for other processes to hear.
    """

    def __init__(
        self,
        pins: PinStore,
        catalog: Catalog,
        *,
        pin: PinPolicy = "remote",
        decided: Callable[[str], None] | None = None,
    ) -> None:
        self._pins = pins
        self._catalog = catalog
        self._pin = pin
        self.decided = decided

    async def __call__(self, plug: Plug, options: PlugOptions, loaded: Loaded) -> Loaded:
        """Return what may be served now; the rest is among the quarantined, with its reason.

        Raises:
            StoreError: the pins cannot be read or written; nothing is served unseen.
            PlugError: other processes of the home keep pinning other definitions.
        """
        trust = options.trust or self._trust(plug.kind)
        if trust == "own":
            return loaded
        offered = await to_thread.run_sync(definitions, loaded, plug.source)
        for _ in range(_TRIES):
            known = await self._known(plug.name, offered, is_pinned=self._pin != "none")
            verdicts = await to_thread.run_sync(_judge, offered, known)
            if await self._entered(plug.name, verdicts):
                return _served(loaded, offered, verdicts)
        raise PlugError(
            plug.source,
            "other processes of this home are given other definitions at the same time",
            "Plug it again once the server's definitions stay the same",
        )

    async def held(self) -> list[Held]:
        """Return what waits for a person, by plug and tool, rejected ones last.

        Raises:
            StoreError: the pins cannot be read.
        """
        return sorted(await self._pins.held(), key=lambda each: each.rejected_by is not None)

    async def told(self) -> list[dict[str, Json]]:
        """Return what waits for a person, as `review_tools` answers it.

        Raises:
            StoreError: the pins cannot be read.
        """
        return [await told_held(self._pins, each) for each in await self.held()]

    async def decide(
        self,
        verdict: Literal["approve", "reject"],
        plug: str,
        tools: Collection[str] | None,
        by: str,
        digests: Mapping[str, str] | None = None,
    ) -> list[str]:
        """Approve or reject what is held of a plug. Returns the names of what was.

        Args:
            verdict: which of the two.
            plug: the name of the plug.
            tools: which of it; all that nobody has rejected if None.
            by: the principal who decides.
            digests: how the digests of some begin; one that is another by now stays as it is.

        Raises:
            StoreError: the database refuses.
        """
        change = self._pins.approve if verdict == "approve" else self._pins.reject
        names = await change(plug, tools, by, digests)
        for name in names:
            log.info("definition_decided", plug=plug, tool=name, verdict=verdict, by=by)
        if names and self.decided is not None:
            self.decided(plug)
        return names

    async def forget(self, plug: str) -> int:
        """Drop all that is known of a plug: what it offers next counts as first seen.

        Returns:
            how many pins and held definitions there were.

        Raises:
            StoreError: the database refuses.
        """
        dropped = await self._pins.forget(plug)
        if dropped:
            log.info("pins_forgotten", plug=plug, dropped=dropped)
            if self.decided is not None:
                self.decided(plug)
        return dropped

    def _trust(self, kind: str) -> Literal["own", "pinned"]:
        is_own = kind in OWN_KINDS and self._pin != "all"
        return "own" if is_own else "pinned"

    async def _known(self, plug: str, offered: Sequence[Definition], *, is_pinned: bool) -> _Known:
        pins = await self._pins.pins(plug)
        if all(each.key in pins and pins[each.key].digest == each.digest for each in offered):
            return _Known(plug, pins, {}, (), {}, is_pinned)  # nothing is new
        held = await self._pins.held(plug)
        rejected = {each.digest: each.rejected_by for each in held if each.rejected_by}
        others = await self._pins.others(plug)
        names = {each.tool: each.plug for each in others if is_tool(each.tool)}
        for tool in self._catalog.current:
            if tool.plug != plug:
                names[tool.name] = names[tool.source_name or tool.name] = tool.plug
        own = {each.key for each in offered}
        foreign = {name: of for name, of in names.items() if name not in own and distinctive(name)}
        return _Known(plug, pins, rejected, others, foreign, is_pinned)

    async def _entered(self, plug: str, verdicts: _Verdicts) -> bool:
        """Write down what is new; nothing is written where nothing is, unless it was held."""
        if not (verdicts.first or verdicts.moved or verdicts.held):
            if not await self._pins.held(plug):
                return True
        return await self._pins.enter(
            plug, first=verdicts.first, moved=verdicts.moved, held=verdicts.held
        )


async def told_held(pins: PinStore, held: Held) -> dict[str, Json]:
    """Return what people are told of a definition that is held, with its difference.

    Raises:
        StoreError: the pins cannot be read.
    """
    before = held.resembles or (held.plug, held.tool)
    pin = await pins.pin(*before)
    diff = await to_thread.run_sync(
        partial(difference, None if pin is None else pin.definition, held.definition)
    )
    told: dict[str, Json] = {
        "plug": held.plug,
        "tool": held.tool,
        "digest": held.digest[:16],
        "reason": held.reason,
        "held_at": held.held_at,
        "diff": diff,
    }
    if held.resembles is not None:
        told["resembles"] = {"plug": held.resembles[0], "tool": held.resembles[1]}
    if held.rejected_by is not None:
        told["rejected_by"] = held.rejected_by
    return told


def _judge(offered: Sequence[Definition], known: _Known) -> _Verdicts:
    verdicts = _Verdicts()
    looks = _Looks(offered, known)
    for each in offered:
        pin = known.pins.get(each.key)
        if pin is not None and pin.digest == each.digest:
            continue
        if pin is not None and moved(pin.definition, each.content):
            again = replace(pin, digest=each.digest, definition=each.content)
            verdicts.moved.append(again)
            continue
        found = looks.fault(each, pin)
        if found is None:
            if known.is_pinned and is_tool(each.key):
                pin = Pin(known.plug, each.key, each.digest, each.content, 0.0)
                verdicts.first.append(pin)
            continue
        reason, resembles = found
        held = Held(known.plug, each.key, each.digest, each.content, reason, resembles)
        verdicts.held.append(held)
        verdicts.left_out[each.key] = looks.left_out(held, pin)
    return verdicts


class _Looks:
    """Tell of single definitions why they are held."""

    def __init__(self, offered: Sequence[Definition], known: _Known) -> None:
        self._known = known
        self._others = Lookalikes(known.others)
        keys = {each.key for each in offered}
        self._vanished = {
            key: pin.definition
            for key, pin in known.pins.items()
            if key not in keys and is_tool(key)
        }
        self._is_first = not any(is_tool(key) for key in known.pins)

    def fault(self, each: Definition, pin: Pin | None) -> tuple[str, tuple[str, str] | None] | None:
        """Return why a definition that is not pinned is held, and whom it may stand for."""
        offer = each.offer
        sayings = said_by_tool(offer) if isinstance(offer, Tool) else said_by(offer)
        said = suspicion(sayings, self._known.foreign)
        if pin is not None and (self._known.is_pinned or not is_tool(each.key)):
            keys = {*pin.definition, *each.content}
            changed = [
                key for key in sorted(keys) if pin.definition.get(key) != each.content.get(key)
            ]
            told = f"it has changed since it was approved ({', '.join(changed)})"
            return (f"{told}; {said}" if said else told), None
        if said is not None:
            return said, None
        if not self._known.is_pinned or not isinstance(offer, Tool):
            return None
        return self._stands_for(each, offer)

    def left_out(self, held: Held, pin: Pin | None) -> Quarantined:
        """Return how a held definition is told of where the plug is listed."""
        by = self._known.rejected.get(held.digest)
        if by is not None:
            return Quarantined(held.tool, f"rejected by {by}: {held.reason}")
        old: Mapping[str, Json] | None = None if pin is None else pin.definition
        if held.resembles is not None and held.resembles[0] == held.plug:
            old = self._vanished.get(held.resembles[1])
        diff = "" if old is None else difference(old, held.definition)
        cure = f"see `guildry review`, and approve `{held.plug}:{held.tool}` there if it is right"
        return Quarantined(held.tool, f"held: {held.reason}. {cure}", held=True, diff=diff)

    def _stands_for(self, each: Definition, tool: Tool) -> tuple[str, tuple[str, str]] | None:
        if other := self._others.misread(each.key, tool.description):
            told = f"its name reads like `{other.tool}`, a tool of the plug `{other.plug}`"
            return told, (other.plug, other.tool)
        if self._is_first:
            return None
        if old := renamed(each.key, each.content, self._vanished):
            told = f"it is like `{old}`, which this plug offers no more: it may be renamed"
            return told, (self._known.plug, old)
        if other := self._others.shadowed(each.key, tool.description):
            told = f"it came later and is like `{other.tool}`, a tool of the plug `{other.plug}`"
            return told, (other.plug, other.tool)
        return None


def _served(loaded: Loaded, offered: Sequence[Definition], verdicts: _Verdicts) -> Loaded:
    if not verdicts.left_out:
        return loaded
    out = {id(each.offer) for each in offered if each.key in verdicts.left_out}
    offers = loaded.offers
    return replace(
        loaded,
        tools=tuple(each for each in loaded.tools if id(each) not in out),
        quarantined=(*loaded.quarantined, *verdicts.left_out.values()),
        offers=Offers(
            tuple(each for each in offers.prompts if id(each) not in out),
            tuple(each for each in offers.resources if id(each) not in out),
            tuple(each for each in offers.templates if id(each) not in out),
            offers.skills,
        ),
    )

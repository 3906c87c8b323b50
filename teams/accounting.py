"""Accounts of a run, from its journal: what it cost, and what it would have cost by value.

By value means: each result stands in full in the context of whoever called for it, an argument
that was a reference is written out by the model, and a worker's task holds what it was given. All
of that is sent again with each later request of the same agent, as agents' contexts are. Sizes
are turned into tokens at four bytes each.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from guildry.memory.events import Entry
from guildry.memory.references import parse_handle

__all__ = ["Accounts", "account"]

_BYTES_PER_TOKEN: Final = 4
_STARTS_AGENTS: Final = ("delegate", "spawn")


@dataclass(frozen=True, slots=True)
class Accounts:
    """What a run cost.

    Args:
        requests: model requests.
        calls: tool calls.
        prompt_tokens: what the models were sent.
        completion_tokens: what they wrote.
        cached_tokens: the part of the prompts that an endpoint had kept.
        by_value_prompt_tokens: what they would have been sent without references.
        by_value_completion_tokens: what they would have written, arguments retyped.
        serial_s: all model and tool calls, one after another.
        wall_s: from the first entry to the last.
    """

    requests: int = 0
    calls: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_tokens: int = 0
    by_value_prompt_tokens: int = 0
    by_value_completion_tokens: int = 0
    serial_s: float = 0.0
    wall_s: float = 0.0

    def as_json(self) -> dict[str, float]:
        """Return the accounts by name."""
        return {name: getattr(self, name) for name in self.__slots__}


def account(entries: Iterable[Entry], sizes: Mapping[str, int] | None = None) -> Accounts:
    """Return the accounts of one run.

    Args:
        entries: its journal, in order.
        sizes: bytes of objects that were made outside the run, by id.
    """
    ledger = _Ledger(sizes or {})
    for entry in entries:
        ledger.enter(entry)
    return ledger.accounts()


class _Ledger:
    def __init__(self, sizes: Mapping[str, int]) -> None:
        self._sizes = dict(sizes)
        self._extra: defaultdict[str, int] = defaultdict(int)
        self._parents: dict[str, str | None] = {}
        self._requests = self._calls = 0
        self._prompt = self._completion = self._cached = 0
        self._by_value_prompt = self._by_value_completion = 0
        self._serial_s = 0.0
        self._began: float | None = None
        self._last = 0.0

    def enter(self, entry: Entry) -> None:
        if self._began is None:
            self._began = entry.at
        self._last = entry.at
        match entry.kind:
            case "spawn":
                self._spawned(entry.agent, entry.data)
            case "model":
                self._completed(entry.agent, entry.data)
            case "tool":
                self._called(entry.agent, entry.data)
            case "return":
                self._returned(entry.agent, entry.data)
            case _:
                pass

    def accounts(self) -> Accounts:
        return Accounts(
            requests=self._requests,
            calls=self._calls,
            prompt_tokens=self._prompt,
            completion_tokens=self._completion,
            cached_tokens=self._cached,
            by_value_prompt_tokens=self._by_value_prompt,
            by_value_completion_tokens=self._by_value_completion,
            serial_s=round(self._serial_s, 6),
            wall_s=round(self._last - (self._began or 0.0), 6),
        )

    def _spawned(self, agent: str, data: Mapping[str, Any]) -> None:
        self._parents[agent] = data["parent"]
        self._extra[agent] += self._tokens(data["references"])

    def _completed(self, agent: str, data: Mapping[str, Any]) -> None:
        self._requests += 1
        self._serial_s += data["duration_s"]
        self._prompt += data["prompt_tokens"]
        self._completion += data["completion_tokens"]
        self._cached += data["cached_tokens"]
        self._by_value_prompt += data["prompt_tokens"] + self._extra[agent]
        self._by_value_completion += data["completion_tokens"]

    def _called(self, agent: str, data: Mapping[str, Any]) -> None:
        self._calls += 1
        if data["tool"] not in _STARTS_AGENTS and not data["tool"].startswith("team_"):
            self._serial_s += data["duration_s"]  # the others' time is their agents' time
        if data["reference"] is not None:
            self._sizes[data["reference"]] = data["size"]
        written = self._written(data)
        self._by_value_completion += written
        self._extra[agent] += written + data["saved_tokens"]

    def _returned(self, agent: str, data: Mapping[str, Any]) -> None:
        parent = self._parents.get(agent)
        if parent is not None:
            self._extra[parent] += self._tokens(data["references"])

    def _written(self, data: Mapping[str, Any]) -> int:
        """Return the tokens of arguments that were passed whole, by reference.

        What a selector picked is not counted: nobody knows here how large that part was.
        """
        if data["status"] == "refused" or _selects(data["arguments"]):
            return 0
        return self._tokens(data["read"])

    def _tokens(self, ids: Iterable[str]) -> int:
        return sum(self._sizes.get(id, 0) // _BYTES_PER_TOKEN for id in ids)


def _selects(value: object) -> bool:
    """Tell whether a part of something, not the whole, was passed anywhere in `value`."""
    if isinstance(value, str):
        handle = parse_handle(value)
        return handle is not None and handle.selector is not None
    if isinstance(value, dict):
        return any(_selects(each) for each in value.values())  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  # JSON
    if isinstance(value, list):
        return any(_selects(each) for each in value)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]  # JSON
    return False

"""Mining: sequences of calls that come again and again, as recipes. Calls nothing, keeps nothing.

A sequence counts where it was found a few times with the same arguments by name, and where each
of its calls hangs on one before it: by a value that it takes from an answer, or by a value that
both are given. What differs between the occurrences becomes a parameter.
"""

import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from guildry.memory.references import parse_handle
from guildry.memory.traces import Step, Trace
from guildry.tools.base import Json, Tool
from guildry.tools.macros.flows import Flow, Flows, Path, leaves, value_at
from guildry.tools.macros.recipe import (
    Recipe,
    RecipeStep,
    constant,
    from_result,
    parameter,
)
from guildry.tools.registry import tool_name
from guildry.tools.schema import as_list, as_object, at

__all__ = ["LONGEST", "mine"]

LONGEST: Final = 6
"""The most steps of a sequence that is looked for."""

_OWN: Final = "guildry"
_OCCURRENCES: Final = 200
_SEQUENCES: Final = 1_000
_CHARACTERS_PER_TOKEN: Final = 4
_LONG_ENOUGH: Final = 8
_AS_GOOD: Final = 0.8
_MAX_SCHEMA: Final = 2_000
_MAX_NAME: Final = 48
_Kind = tuple[str, tuple[str, ...]]
_JSON_TYPES: Final[dict[type, str]] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    dict: "object",
    list: "array",
}


def mine(
    traces: Iterable[Trace],
    tools: Mapping[str, Tool],
    *,
    known: Iterable[Recipe] = (),
    names: Iterable[str] = (),
    at_least: int = 3,
    most: int = 20,
    seconds: float = math.inf,
) -> list[Recipe]:
    """Return recipes for the sequences that come again, the most saving first.

    Args:
        traces: what was called.
        tools: what can be called; a sequence with anything else is left out.
        known: macros that are there already; neither their sequences nor parts are returned.
        names: that are taken.
        at_least: how often a sequence must have come.
        most: how many recipes at most.
        seconds: how long to look; what was found until then is returned.
    """
    ends = time.monotonic() + seconds
    found = _occurrences([_plain(trace, tools) for trace in traces], at_least)
    there = list(known)
    accepted: list[tuple[tuple[str, ...], float]] = [(each.tools, math.inf) for each in there]
    taken = {*names, *(each.name for each in there)}
    recipes: list[Recipe] = []
    flows = Flows()
    often = sorted(found, key=lambda each: -len(found[each]) * len(each))[:_SEQUENCES]
    for kinds in sorted(often, key=lambda each: (-len(each), -len(found[each]), each)):
        if time.monotonic() > ends:
            break
        sequence = tuple(tool for tool, _ in kinds)
        support = len(found[kinds])
        if any(_contains(one, sequence) and n >= _AS_GOOD * support for one, n in accepted):
            continue
        recipe = _Draft(found[kinds], tools, at_least, flows).recipe(taken)
        if recipe is not None:
            accepted.append((sequence, recipe.support))
            taken.add(recipe.name)
            recipes.append(recipe)
    recipes.sort(key=lambda each: (-each.saved_tokens, -each.saved_calls, each.name))
    return recipes[:most]


def _plain(trace: Trace, tools: Mapping[str, Tool]) -> Trace:
    """Return a trace as if every tool had been called directly: Guildry's own lead to others."""
    found: Trace = []
    for step in trace:
        tool = tools.get(step.tool)
        if tool is None or tool.plug != _OWN or tool.scope == "teams":
            found.append(step)
            continue
        inner = as_object(step.arguments.get("arguments"))
        if inner is not None and found and found[-1].tool == step.arguments.get("name"):
            last = found[-1]  # as it was written, with references
            found[-1] = Step(last.at, last.tool, inner, last.text, last.reference)
    return found


def _occurrences(
    traces: Sequence[Trace], at_least: int
) -> dict[tuple[_Kind, ...], list[Sequence[Step]]]:
    """Return where each sequence of tools was found; no two of its occurrences share a call."""
    found: dict[tuple[_Kind, ...], list[Sequence[Step]]] = {}
    for trace in traces:
        kinds = [(step.tool, tuple(sorted(step.arguments))) for step in trace]
        for length in range(2, LONGEST + 1):
            ends: dict[tuple[_Kind, ...], int] = {}
            for n in range(len(trace) - length + 1):
                key = tuple(kinds[n : n + length])
                if ends.get(key, 0) <= n:
                    ends[key] = n + length
                    found.setdefault(key, []).append(trace[n : n + length])
    return {key: each[-_OCCURRENCES:] for key, each in found.items() if len(each) >= at_least}


def _contains(longer: Sequence[str], shorter: Sequence[str]) -> bool:
    n = len(shorter)
    return any(tuple(longer[k : k + n]) == tuple(shorter) for k in range(len(longer) - n + 1))


@dataclass
class _Draft:
    """A recipe in the making.

    Args:
        occurrences: of one sequence; those that do not hang together in the usual way are dropped.
        tools: what can be called.
        at_least: how many must be left.
        flows: finds them.
    """

    occurrences: list[Sequence[Step]]
    tools: Mapping[str, Tool]
    at_least: int
    flows: Flows
    chosen: dict[tuple[int, Path], Flow] = field(default_factory=dict[tuple[int, Path], Flow])
    parameters: dict[str, dict[str, Json]] = field(default_factory=dict[str, dict[str, Json]])
    given: dict[str, list[Json]] = field(default_factory=dict[str, list[Json]])
    linked: set[int] = field(default_factory=set[int])

    def recipe(self, taken: set[str]) -> Recipe | None:
        """Return the recipe, or None where the calls have nothing to do with each other."""
        first = self.occurrences[0]
        if any(step.tool not in self.tools or _is_odd(step.arguments) for step in first):
            return None
        self._choose_flows(len(first))
        steps = tuple(
            RecipeStep(tool=step.tool, arguments=self._arguments(n)) for n, step in enumerate(first)
        )
        if len(self.linked) < len(steps) - 1:
            return None
        support = len(self.occurrences)
        return Recipe(
            name=_name(steps, taken),
            description=_description(steps),
            parameters=self.parameters,
            steps=steps,
            support=support,
            saved_calls=support * (len(steps) - 1),
            saved_tokens=self._saved_tokens(),
        )

    def _choose_flows(self, length: int) -> None:
        """Find the flows that hold in every occurrence, after dropping those without the usual."""
        ways = [self.flows.within(each) for each in self.occurrences]
        for step in range(1, length):
            counted = Counter(each for way in ways for each in way if each.step == step)
            usual = max(counted.items(), key=lambda item: (item[1], _rank(item[0])), default=None)
            if usual is not None and usual[1] >= self.at_least:
                kept = [n for n, way in enumerate(ways) if usual[0] in way]
                self.occurrences = [self.occurrences[n] for n in kept]
                ways = [ways[n] for n in kept]
        for flow in sorted(set[Flow].intersection(*ways), key=_rank):
            if self._is_telling(flow):
                self.chosen[flow.step, flow.path] = flow

    def _is_telling(self, flow: Flow) -> bool:
        """Tell whether the values show that they flow: they differ, or are long."""
        values = self._values(flow.step, flow.path)
        return len({_canonical(each) for each in values}) > 1 or len(str(values[0])) >= _LONG_ENOUGH

    def _values(self, step: int, path: Path) -> list[Json]:
        return [value_at(each[step].arguments, path) for each in self.occurrences]

    def _arguments(self, n: int) -> dict[str, Json]:
        arguments = self.occurrences[0][n].arguments
        found = {name: self._template(n, (name,)) for name in arguments}
        if n and not found:
            self.linked.add(n)  # it takes nothing
        return found

    def _template(self, step: int, path: Path) -> Json:
        """Return what stands for the value at `path`, which is in every occurrence."""
        flow = self.chosen.get((step, path))
        if flow is not None:
            self.linked.add(step)
            return from_result(flow.source + 1, flow.selector)
        values = self._values(step, path)
        if self._has_flow_inside(step, path) and (keys := _same_keys(values)):
            if isinstance(values[0], list):
                return [self._template(step, (*path, key)) for key in keys]
            return {str(key): self._template(step, (*path, key)) for key in keys}
        is_same = len({_canonical(each) for each in values}) == 1
        if is_same and not _is_foreign_reference(values[0]):
            return constant(values[0])
        return self._parameter(step, path, values)

    def _has_flow_inside(self, step: int, path: Path) -> bool:
        return any(n == step and each[: len(path)] == path for n, each in self.chosen)

    def _parameter(self, step: int, path: Path, values: list[Json]) -> Json:
        for name, known in self.given.items():
            if _canonical(known) == _canonical(values):
                if step:
                    self.linked.add(step)
                return parameter(name)
        name = _free(tool_name(_last_name(path)), self.parameters)
        self.given[name] = values
        self.parameters[name] = self._schema(step, path, values)
        return parameter(name)

    def _schema(self, step: int, path: Path, values: list[Json]) -> dict[str, Json]:
        """Return the schema of a parameter: the tool's own, where it stands by itself."""
        tool = self.tools[self.occurrences[0][step].tool]
        schema: Mapping[str, Json] = tool.input_schema
        for key in path:
            schema = at(schema, key, tool.input_schema)
        text = json.dumps(dict(schema), default=str)
        if schema and len(text) <= _MAX_SCHEMA and '"$' not in text:
            return {key: each for key, each in schema.items() if key != "default"}
        kinds = {_json_type(each) for each in values}
        kind = kinds.pop() if len(kinds) == 1 else None
        return {} if kind is None or _is_foreign_reference(values[0]) else {"type": kind}

    def _saved_tokens(self) -> int:
        """Return what the steps between cost a model: their answers, and the calls after them."""
        characters = sum(
            len(step.text) * (n < len(each) - 1) + len(_canonical(dict(step.arguments))) * (n > 0)
            for each in self.occurrences
            for n, step in enumerate(each)
        )
        return characters // _CHARACTERS_PER_TOKEN


def _rank(flow: Flow) -> tuple[int, int, str]:
    """Order flows so that the best comes last: from the nearest answer, by the shortest way."""
    return (flow.source, -len(flow.selector), flow.selector)


def _is_foreign_reference(value: Json) -> bool:
    """Tell whether a value names what was stored before the sequence: it is another each time."""
    return any(
        isinstance(each, str) and parse_handle(each) is not None for _, each in leaves(value)
    )


def _is_odd(members: Mapping[str, Json]) -> bool:
    """Tell whether a key looks like what stands for a value in a recipe."""
    return any(key.startswith("$") for key in members)


def _same_keys(values: Sequence[Json]) -> Sequence[str | int]:
    """Return the keys that all of `values` have; none where they are of several shapes."""
    shapes: set[tuple[str | int, ...]] = set()
    for each in values:
        members = as_object(each)
        if members is not None and _is_odd(members):
            return ()
        shapes.add(tuple(range(len(as_list(each)))) if members is None else tuple(sorted(members)))
    return shapes.pop() if len(shapes) == 1 else ()


def _json_type(value: Json) -> str | None:
    kind: type[object] = value.__class__
    return _JSON_TYPES.get(kind)


def _canonical(value: Json) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _last_name(path: Path) -> str:
    return next((key for key in reversed(path) if isinstance(key, str)), "value")


def _free(name: str, taken: Mapping[str, object] | set[str]) -> str:
    free, n = name, 2
    while free in taken:
        free, n = f"{name}_{n}", n + 1
    return free


def _name(steps: Sequence[RecipeStep], taken: set[str]) -> str:
    return _free("_then_".join((steps[0].tool, steps[-1].tool))[:_MAX_NAME].strip("_"), taken)


def _description(steps: Sequence[RecipeStep]) -> str:
    words = [f"`{step.tool}`" for step in steps]
    return (
        f"Call {', '.join(words[:-1])} and then {words[-1]}, each with what it needs of the last."
    )

"""Mining: which sequences become recipes, and what their arguments become."""

import json
from pathlib import Path
from typing import Any

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from guildry.memory.events import ToolCalled
from guildry.memory.journal import Journal
from guildry.memory.selectors import select
from guildry.memory.store import Store
from guildry.memory.traces import Step, Trace, read_traces
from guildry.tools.base import Call, Outcome, Tool
from guildry.tools.macros.mining import mine
from guildry.tools.macros.recipe import Recipe, fill
from guildry.tools.macros.shelf import MacroShelf
from guildry.tools.schema import as_list, as_object

JSON: dict[str, Any] = {"type": "object", "properties": {}}


async def silent(_: dict[str, Any], __: Call) -> Outcome:
    return Outcome()


def tools(*names: str, plug: str = "up", **properties: Any) -> dict[str, Tool]:
    schema = {"type": "object", "properties": properties}
    return {
        name: Tool(name=name, plug=plug, description="", input_schema=schema, invoke=silent)
        for name in names
    }


def step(tool: str, answer: Any = "", reference: str | None = None, **arguments: Any) -> Step:
    text = answer if isinstance(answer, str) else json.dumps(answer)
    return Step(0.0, tool, arguments, text, reference)


def booking(city: str, id: int) -> Trace:
    """Look, and use what was found: the number inside a list, the city again."""
    return [
        step("look", {"hits": [{"id": id, "city": city}]}, city=city, limit=5),
        step("book", f"booked {id}", where={"id": id, "in": city}),
    ]


def shape(recipe: Recipe) -> list[tuple[str, dict[str, Any]]]:
    return [(each.tool, each.arguments) for each in recipe.steps]


def test_what_flows_what_repeats_and_what_stays_are_told_apart() -> None:
    traces = [booking("Oslo", 4711), booking("Rome", 815), booking("Bern", 90210)]

    (recipe,) = mine(traces, tools("look", "book", city={"type": "string", "minLength": 2}))

    assert shape(recipe) == [
        ("look", {"city": {"$parameter": "city"}, "limit": 5}),
        (
            "book",
            {
                "where": {
                    "id": {"$result": 1, "select": "#/hits/0/id"},
                    "in": {"$result": 1, "select": "#/hits/0/city"},
                }
            },
        ),
    ]
    assert recipe.parameters == {"city": {"type": "string", "minLength": 2}}
    assert (recipe.name, recipe.support, recipe.saved_calls) == ("look_then_book", 3, 3)


def test_what_was_stored_is_passed_by_reference_with_its_selector() -> None:
    traces: list[Trace] = [
        [
            step("table", f"[stored as ref:{name}: application/json, 9 bytes", id, q=name),
            step("count", "7", rows=f"ref:{name}#/rows"),
            step("plot", "done", rows=f"ref://{id}"),
        ]
        for name, id in (("table", "o1"), ("table-2", "o2"), ("table-3", "o3"))
    ]

    (recipe,) = mine(traces, tools("table", "count", "plot"))

    assert [each.arguments.get("rows") for each in recipe.steps] == [
        None,
        {"$result": 1, "select": "#/rows"},
        {"$result": 1},
    ]


def test_a_reference_from_before_the_sequence_becomes_a_parameter() -> None:
    traces: list[Trace] = [
        [
            step("clean", f"cleaned {n} rows", rows="ref:orders"),
            step("log", line=f"cleaned {n} rows"),
        ]
        for n in (100, 200, 300)
    ]

    (recipe,) = mine(traces, tools("clean", "log"))

    assert shape(recipe) == [
        ("clean", {"rows": {"$parameter": "rows"}}),
        ("log", {"line": {"$result": 1}}),
    ]
    assert recipe.parameters == {"rows": {}}


def test_two_calls_that_are_given_the_same_hang_together() -> None:
    traces: list[Trace] = [
        [step("mkdir", "ok", path=name), step("lock", "ok", path=name, mode="ro")]
        for name in ("a", "b", "c")
    ]

    (recipe,) = mine(traces, tools("mkdir", "lock"))

    assert shape(recipe) == [
        ("mkdir", {"path": {"$parameter": "path"}}),
        ("lock", {"path": {"$parameter": "path"}, "mode": "ro"}),
    ]


def test_calls_that_have_nothing_to_do_with_each_other_are_no_macro() -> None:
    traces: list[Trace] = [
        [step("read", f"text {n}", path=f"file{n}"), step("weather", "rain", city=f"city{n * 3}")]
        for n in range(9)
    ]

    assert mine(traces, tools("read", "weather")) == []


def test_too_seldom_unknown_or_known_sequences_are_left_out() -> None:
    traces = [booking("Oslo", 4711), booking("Rome", 815), booking("Bern", 90210)]
    there = tools("look", "book")
    (found,) = mine(traces, there)

    assert mine(traces[:2], there) == []
    assert mine(traces, tools("look")) == []
    assert mine(traces, there, known=[found]) == []
    (renamed,) = mine(traces, there, names=["look_then_book"])
    assert renamed.name == "look_then_book_2"
    assert len(mine(traces[:2], there, at_least=2)) == 1


def test_parts_of_a_longer_sequence_are_not_suggested_beside_it() -> None:
    traces: list[Trace] = [
        [
            step("a", f"first-{n}", q=f"query {n}"),
            step("b", f"second-{n}", x=f"first-{n}"),
            step("c", f"third-{n}", x=f"second-{n}"),
        ]
        for n in range(4)
    ]

    recipes = mine(traces, tools("a", "b", "c"))

    assert [each.tools for each in recipes] == [("a", "b", "c")]


def test_occurrences_that_hang_together_otherwise_do_not_spoil_the_usual_ones() -> None:
    traces = [booking("Oslo", 4711), booking("Rome", 815), booking("Bern", 90210)]
    traces.append(
        [
            step("look", {"hits": []}, city="Graz", limit=5),
            step("book", "", where={"id": 1, "in": "x"}),
        ]
    )

    (recipe,) = mine(traces, tools("look", "book"))

    assert recipe.support == 3


def test_calls_through_call_tool_count_as_they_were_written() -> None:
    guildry = tools("call_tool", "find_tools", plug="guildry")
    traces: list[Trace] = [
        [
            step("find_tools", "…", queries=["tables"]),
            step("table", f"[stored as ref:t{n}: text", f"o{n}", q=f"q{n}"),
            step("call_tool", f"[stored as ref:t{n}: text", name="table", arguments={"q": f"q{n}"}),
            step("count", "7", rows="the whole table"),
            step("call_tool", "7", name="count", arguments={"rows": f"ref:t{n}"}),
        ]
        for n in range(3)
    ]

    (recipe,) = mine(traces, tools("table", "count") | guildry)

    assert shape(recipe) == [
        ("table", {"q": {"$parameter": "q"}}),
        ("count", {"rows": {"$result": 1}}),
    ]


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 50) | st.sampled_from(["ref:a", "abc", "long text"]),
    lambda inside: (
        st.lists(inside, max_size=3)
        | st.dictionaries(
            st.sampled_from(["a", "$result", "$parameter", "b/c~"]), inside, max_size=3
        )
    ),
    max_leaves=8,
)
_STEPS = st.builds(
    Step,
    st.just(0.0),
    st.sampled_from(["a", "b", "c"]),
    st.dictionaries(st.sampled_from(["x", "y"]), _VALUES, max_size=2),
    _VALUES.map(json.dumps) | st.just("[stored as ref:a: text"),
    st.none() | st.just("id1"),
)


@settings(max_examples=40)
@given(st.lists(st.lists(_STEPS, max_size=12), max_size=6))
def test_whatever_was_called_each_recipe_does_again_what_was_done(traces: list[Trace]) -> None:
    for recipe in mine(traces, tools("a", "b", "c"), at_least=2):
        assert Recipe.of(recipe.as_text()) == recipe
        length = len(recipe.steps)
        windows = [
            trace[n : n + length] for trace in traces for n in range(len(trace) - length + 1)
        ]
        assert any(explains(recipe, window) for window in windows)


_SOURCES = st.one_of(
    st.tuples(st.just("given"), st.integers(0, 1)),
    st.tuples(st.just("fixed"), st.integers(0, 3)),
    st.tuples(st.just("answer"), st.integers(0, 2)),
)
_PROGRAMS = st.lists(st.lists(_SOURCES, min_size=1, max_size=3), min_size=2, max_size=4)


def performed(program: list[list[tuple[str, int]]], run: int) -> Trace:
    """Do what a program says: each argument is given, fixed, or from the answer of the last."""
    trace: Trace = []
    for n, sources in enumerate(program):
        arguments: dict[str, Any] = {}
        for m, (kind, which) in enumerate(sources):
            if kind == "answer" and n:
                arguments[f"a{m}"] = f"answer {n - 1} {which} {run}"
            elif kind == "given":
                arguments[f"a{m}"] = f"given {which} {run}"
            else:
                arguments[f"a{m}"] = which
        answer = {"rows": [{"value": f"answer {n} {k} {run}"} for k in range(3)]}
        trace.append(step(f"t{n}", answer, **arguments))
    return trace


@given(_PROGRAMS)
def test_a_program_that_was_followed_three_times_is_found_and_foretells_the_fourth(
    program: list[list[tuple[str, int]]],
) -> None:
    for n, sources in enumerate(program[1:], 1):
        sources[0] = ("answer", n % 3)
    there = tools(*(f"t{n}" for n in range(len(program))))

    (recipe,) = mine([performed(program, run) for run in range(3)], there)

    given_values = {each for sources in program for each in sources if each[0] == "given"}
    assert recipe.tools == tuple(there)
    assert len(recipe.parameters) <= len(given_values)
    assert explains(recipe, performed(program, 99))


def explains(recipe: Recipe, window: Trace) -> bool:
    """Tell whether a recipe makes the calls of a window, once it is given what they were given."""
    if [each.tool for each in window] != list(recipe.tools):
        return False
    known: dict[str, Any] = {}
    for each, done in zip(recipe.steps, window, strict=True):
        learn(known, each.arguments, dict(done.arguments))

    def part(n: int, selector: str) -> Any:
        done = window[n - 1]
        if done.reference is not None:
            return f"ref:a{selector}"
        return select(json.loads(done.text), selector) if selector else done.text

    return all(
        fill(each.arguments, known, part) == done.arguments
        for each, done in zip(recipe.steps, window, strict=True)
    )


def learn(known: dict[str, Any], template: Any, value: Any) -> None:
    members, inside = as_object(template), as_object(value)
    if members is not None and list(members) == ["$parameter"]:
        known.setdefault(members["$parameter"], value)
    elif members is not None and inside is not None:
        for key in members.keys() & inside.keys():
            learn(known, members[key], inside[key])
    else:
        for one, other in zip(as_list(template), as_list(value), strict=False):
            learn(known, one, other)


async def test_traces_are_read_from_journals_each_agents_by_itself(tmp_path: Path) -> None:
    at = 1_000.0

    def clock() -> float:
        return at

    async with Store.open(tmp_path / "guildry.db") as store:
        journal = Journal(store, clock)
        for n, (agent, tool, status) in enumerate(
            [("a", "one", "ok"), ("b", "two", "ok"), ("a", "three", "error"), ("a", "four", "ok")]
        ):
            journal.append("local", ToolCalled(agent, tool, {"n": n}, status, 0.1, text="done"))  # type: ignore[arg-type]
        await journal.flush()
        at += 7_200
        journal.append("local", ToolCalled("a", "later", {}, "ok", 0.1))
        with anyio.fail_after(20):
            traces = await read_traces(store)

    assert [[each.tool for each in trace] for trace in traces] == [
        ["one", "four"],
        ["two"],
        ["later"],
    ]
    assert traces[0][1] == Step(1_000.0, "four", {"n": 3}, "done", None)


def test_a_shelf_keeps_what_is_taken_and_forgets_other_suggestions(tmp_path: Path) -> None:
    (found,) = mine(
        [booking("Oslo", 4711), booking("Rome", 815)], tools("look", "book"), at_least=2
    )
    shelf = MacroShelf(tmp_path / "macros")

    shelf.suggest([found])
    before = shelf.taken()
    taken = shelf.take(found.name)
    shelf.suggest([])
    (tmp_path / "macros/broken.json").write_text("{")

    assert before == []
    assert shelf.take(found.name) == taken == found
    assert shelf.taken() == [found]
    shelf.drop(f"macro:{found.name}")
    assert shelf.taken() == []

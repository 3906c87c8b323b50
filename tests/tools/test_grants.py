import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildry.errors import GrantError
from guildry.tools.grants import EVERY_TOOL, Grant, Limits

NAMES = st.sampled_from("abcdef")
AMOUNT = st.none() | st.integers(0, 5)
LIMITS = st.builds(Limits, tokens=AMOUNT, calls=AMOUNT, agents=AMOUNT, wall_s=AMOUNT)


def root_of(tools: frozenset[str] | None, limits: Limits, depth: int) -> Grant:
    return Grant.root(
        "root", tools=EVERY_TOOL if tools is None else tools, limits=limits, depth=depth
    )


ROOTS = st.builds(root_of, st.none() | st.frozensets(NAMES), LIMITS, st.integers(0, 4))
REQUESTS = st.lists(
    st.fixed_dictionaries(
        {
            "tools": st.frozensets(NAMES),
            "references": st.frozensets(NAMES),
            "limits": LIMITS,
            "deadline": st.none() | st.floats(0, 100),
            "depth": st.none() | st.integers(-1, 4),
        }
    ),
    max_size=6,
)


def is_subset(child: Grant, parent: Grant) -> bool:
    """State, apart from the code, what it means that a child may do no more than its parent."""
    tools = parent.tools == EVERY_TOOL or (
        child.tools != EVERY_TOOL and set(child.tools) <= set(parent.tools)
    )
    limits = all(
        theirs is None or (mine is not None and 0 <= mine <= theirs)
        for mine, theirs in zip(
            child.limits.as_json().values(), parent.limits.as_json().values(), strict=True
        )
    )
    deadline = parent.deadline is None or (
        child.deadline is not None and child.deadline <= parent.deadline
    )
    return (
        tools
        and limits
        and deadline
        and child.references <= parent.references
        and 0 <= child.depth < parent.depth
        and child.scopes <= parent.scopes
        and child.chain[: len(parent.chain)] == parent.chain
    )


@given(ROOTS, REQUESTS)
def test_no_chain_of_narrowing_ever_widens(root: Grant, requests: list[dict[str, object]]) -> None:
    grant = root
    for n, request in enumerate(requests):
        try:
            child = grant.narrow(f"child{n}", **request)  # type: ignore[arg-type]  # drawn by name
        except GrantError:
            continue
        assert is_subset(child, grant)
        assert is_subset(child, root)
        grant = child


@given(ROOTS.filter(lambda g: g.depth > 0 and g.tools != EVERY_TOOL), st.frozensets(NAMES))
def test_what_the_parent_holds_can_be_granted_and_nothing_else(
    root: Grant, asked: frozenset[str]
) -> None:
    if asked <= frozenset(root.tools):
        assert root.narrow("child", tools=asked).tools == asked
    else:
        with pytest.raises(GrantError, match="cannot be granted"):
            root.narrow("child", tools=asked)


def test_a_child_gets_no_tool_and_no_reference_by_silence() -> None:
    child = Grant.root("local").narrow("child", tools=())

    assert (child.tools, child.references) == (frozenset(), frozenset())
    assert not child.allows("echo")


def test_zero_is_zero_and_never_unlimited() -> None:
    root = Grant.root("local", limits=Limits(tokens=0))

    with pytest.raises(GrantError, match="`tokens` is 1: at most 0"):
        root.narrow("child", tools=(), limits=Limits(tokens=1))
    assert root.narrow("child", tools=()).limits.tokens == 0


def test_a_negative_limit_is_refused() -> None:
    with pytest.raises(GrantError, match="`calls` is -1: give zero or more"):
        Grant.root("local").narrow("child", tools=(), limits=Limits(calls=-1))


def test_a_reference_is_passed_on_only_by_one_who_may_read_it() -> None:
    root = Grant.root("local")

    assert root.narrow("child", tools=(), references={"id1"}, may_read={"id1"}).references == {
        "id1"
    }
    with pytest.raises(GrantError, match=r"1 reference\(s\) cannot be granted"):
        root.narrow("child", tools=(), references={"id1"})


def test_the_right_to_administer_is_never_handed_on() -> None:
    root = Grant.root("local", scopes=("tools", "admin"))

    assert root.narrow("child", tools=()).scopes == {"tools"}


def test_a_grant_of_no_depth_spawns_nobody() -> None:
    with pytest.raises(GrantError, match="may spawn 0 generation"):
        Grant.root("local", depth=0).narrow("child", tools=())

"""Look-alikes: a name made to be misread is told from one that is a word of its own."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildry.memory.pins import Pinned
from guildry.tools.plugs.lookalikes import Lookalikes, renamed

READ = Pinned("files", "read_file", "Read the contents of a file from the disk.")


@pytest.mark.parametrize(
    "name",
    ["read_fi1e", "read_flie", "re\u0430d_file", "rea\u0501_file", "raed_file", "read_fiile",
     "reead_file", "rread_file", "READ_FI1E"],
)  # fmt: skip
def test_a_name_that_looks_like_another_and_is_not_is_misread(name: str) -> None:
    assert Lookalikes([READ]).misread(name, READ.description) == READ


@pytest.mark.parametrize(
    "name",
    ["read_file", "readFile", "read-file", "READ_FILE", "read_files", "lead_file", "read_pile",
     "load_file", "read", "file_read", "write_file", "red_fie"],
)  # fmt: skip
def test_another_word_or_the_same_one_is_not(name: str) -> None:
    assert Lookalikes([READ]).misread(name, READ.description) is None


def test_a_slip_of_the_pen_counts_only_with_the_same_words() -> None:
    others = Lookalikes([READ])

    assert others.misread("raed_file", "Book a table in a restaurant.") is None
    assert others.misread("read_fi1e", "Book a table in a restaurant.") == READ


def test_short_names_are_not_compared_for_slips() -> None:
    others = Lookalikes([Pinned("p", "get_a", "Get it now."), Pinned("p", "xy", "Get it.")])

    assert others.misread("gte_a", "Get it now.") is None
    assert others.misread("yx", "Get it.") is None


@pytest.mark.parametrize(
    ("name", "description", "is_like"),
    [
        ("read_file", "Anything at all.", True),
        ("readFile", "Anything at all.", True),
        ("fetch_text", "Read the contents of a file from the disk!", True),
        ("fetch_text", "Read a web page.", False),
        ("fetch_text", "", False),
        ("search", "Find pages in the web.", False),
        ("search", "Look for words in notes.", True),
    ],
)
def test_what_stands_beside_another_plugs_tool_is_told(
    name: str, description: str, is_like: bool
) -> None:
    others = Lookalikes([READ, Pinned("notes", "search", "Look for words in your notes.")])

    assert (others.shadowed(name, description) is not None) is is_like


def test_only_what_is_gone_can_have_been_renamed() -> None:
    schema = {"type": "object", "properties": {"to": {"type": "string"}}}
    gone = {"send_letter": {"description": "Post a letter to a person.", "input_schema": schema}}

    assert renamed("send-Letter", {}, gone) == "send_letter"
    assert renamed("send_letters", {}, gone) == "send_letter"
    assert renamed("mail", {"description": "Post a letter to any person"}, gone) == "send_letter"
    assert renamed("mail", {"input_schema": schema}, gone) == "send_letter"
    assert renamed("mail", {"input_schema": {"type": "object"}}, gone) is None
    assert renamed("mail", {"description": "Post it"}, gone) is None
    assert renamed("send_letter", {}, {}) is None


@given(st.lists(st.text(max_size=12), max_size=6), st.text(max_size=12), st.text(max_size=30))
def test_no_name_breaks_a_comparison(names: list[str], name: str, words: str) -> None:
    others = Lookalikes([Pinned("p", each, words) for each in names])

    for found in (others.misread(name, words), others.shadowed(name, words)):
        assert found is None or found.tool in names


@given(st.text("abcdefgh_", min_size=9, max_size=20), st.integers(1, 7))
def test_letters_that_changed_places_are_found_wherever_they_are(name: str, at: int) -> None:
    swapped = name[:at] + name[at + 1] + name[at] + name[at + 2 :]
    letters = swapped.replace("_", "")
    if letters == name.replace("_", "") or len(letters) < 8:
        return

    assert Lookalikes([Pinned("p", name, "Some words.")]).misread(swapped, "Some words.")

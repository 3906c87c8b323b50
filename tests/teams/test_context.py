from guildry.teams.context import Conversation
from guildry.teams.model import Message, ToolCall, ToolSpec

OPENING = (Message("system", "s" * 40), Message("user", "u" * 40))


class Shelf:
    """Where folded texts go."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    async def keep(self, name: str, text: str) -> str:
        key = f"ref:{name}_{len(self.texts)}"
        self.texts[key] = text
        return f"{key} text"


def conversation(turns: int, size: int, *, stored: str | None = None) -> Conversation:
    built = Conversation(OPENING, ())
    for n in range(turns):
        built.add(Message("assistant", f"turn {n}", (ToolCall(f"c{n}", "page", "{}"),)))
        built.add_result(f"c{n}", "page", str(n)[-1] * size, stored)
    return built


def contents(of: Conversation) -> list[str]:
    return [message.content for message in of.messages]


async def test_what_fits_is_left_alone() -> None:
    shelf = Shelf()
    built = conversation(3, 400)
    before = list(built.messages)

    assert await built.fold(1_000, shelf.keep)

    assert built.messages == before
    assert shelf.texts == {}


async def test_the_oldest_results_are_folded_first_and_kept_whole() -> None:
    shelf = Shelf()
    built = conversation(4, 2_000)

    assert await built.fold(1_700, shelf.keep)

    said = contents(built)
    assert said[3] == "[folded: ref:page_result_0 text]"
    assert said[5] == "[folded: ref:page_result_1 text]"
    assert said[7:] == ["2" * 2_000, "turn 3", "3" * 2_000]
    assert shelf.texts["ref:page_result_0"] == "0" * 2_000
    assert built.tokens <= 1_700


async def test_a_result_that_is_stored_already_is_not_stored_again() -> None:
    shelf = Shelf()
    built = conversation(3, 2_000, stored="ref:page text")

    assert await built.fold(1_000, shelf.keep)

    assert contents(built)[3] == "[folded: ref:page text]"
    assert shelf.texts == {}


async def test_whole_turns_are_folded_when_results_are_not_enough() -> None:
    shelf = Shelf()
    built = conversation(40, 200)

    assert await built.fold(200, shelf.keep)

    assert contents(built) == [
        *(message.content for message in OPENING),
        "[earlier turns, folded: ref:earlier_turns_0 text]",
        "turn 39",
        "9" * 200,
    ]
    (text,) = [text for name, text in shelf.texts.items() if "earlier" in name]
    assert text.startswith("assistant: turn 0\npage({})\n\ntool: 00000")
    assert built.messages[3].calls[0].id == built.messages[4].call_id == "c39"


async def test_results_of_the_last_turn_are_folded_when_nothing_else_is_left() -> None:
    shelf = Shelf()
    built = conversation(1, 8_000)

    assert await built.fold(500, shelf.keep)

    assert contents(built)[-1] == "[folded: ref:page_result_0 text]"


async def test_what_cannot_be_folded_small_enough_is_told() -> None:
    assert not await conversation(0, 0).fold(10, Shelf().keep)
    assert not await conversation(2, 100).fold(10, Shelf().keep)


async def test_folding_twice_keeps_each_text_within_reach() -> None:
    shelf = Shelf()
    built = conversation(40, 200)
    await built.fold(200, shelf.keep)
    for n in range(40, 80):
        built.add(Message("assistant", "", (ToolCall(f"c{n}", "page", "{}"),)))
        built.add_result(f"c{n}", "page", "z" * 200)

    assert await built.fold(200, shelf.keep)

    (again,) = [text for name, text in shelf.texts.items() if name.endswith("turns_1")]
    assert "[earlier turns, folded: ref:earlier_turns_0 text]" in again


def test_tokens_are_estimated_then_corrected_by_an_endpoint() -> None:
    tool = ToolSpec("t", "d" * 37, {})
    built = Conversation(OPENING, (tool,))
    assert built.tokens == 80 // 4 + 2 * 4 + tool.size // 4

    built.learn(500)
    assert built.tokens == 500

    built.add(Message("assistant", "a" * 400))
    assert built.tokens == 500 + 100 + 4


def test_last_words_are_the_models() -> None:
    built = conversation(2, 5)
    assert built.last_words == "turn 1"

    built.add(Message("user", "go on"))
    assert built.last_words == "turn 1"
    assert conversation(0, 0).last_words == ""


def test_an_id_that_is_taken_gets_a_number() -> None:
    built = conversation(1, 5)

    assert built.unused_id("new") == "new"
    assert built.unused_id("c0") == "c0-2"
    assert built.unused_id("c0", {"c0-2"}) == "c0-3"

"""What real MCP servers ask and log during a call, in both eras, and who answers."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import anyio
import pytest
import structlog.testing

from guildry.errors import RunError, ToolFailed
from guildry.tools.asking.questions import Answer, Question, QuestionKind
from guildry.tools.base import Call, Json, Outcome, Text
from guildry.tools.caller import Caller
from guildry.tools.grants import Grant

if TYPE_CHECKING:
    from guildry.tools.offers import Messages
    from guildry.tools.registry import Catalog

    from .conftest import Plugged

LEGACY = ["stdio legacy", "http legacy"]
MODERN = ["stdio modern", "http modern"]
WAYS = [*MODERN, *LEGACY]
KINDS: Sequence[QuestionKind] = ("form", "url", "sampling", "roots")
FORM = {"type": "object", "properties": {"name": {"type": "string"}}}
SAMPLE = {"role": "assistant", "content": {"type": "text", "text": "Hi."}, "model": "m"}
ROOTS = {"roots": [{"uri": "file:///work"}]}
GIVEN: dict[QuestionKind, dict[str, Json]] = {
    "form": {"name": "Ada"},
    "url": {},
    "sampling": SAMPLE,
    "roots": ROOTS,
}


@dataclass
class Client:
    """A client that can be asked some things, and keeps what it was asked."""

    kinds: Sequence[QuestionKind] = KINDS
    action: Any = "accept"
    given: dict[QuestionKind, dict[str, Json]] = field(default_factory=lambda: dict(GIVEN))
    asked: list[Question] = field(default_factory=list[Question])

    def takes(self, kind: QuestionKind) -> bool:
        return kind in self.kinds

    async def ask(self, question: Question) -> Answer:
        self.asked.append(question)
        return Answer(self.action, self.given[question.kind], by="a client")


class Log:
    """A client that wants log messages."""

    level = "info"

    def __init__(self) -> None:
        self.heard: list[tuple[str, Json, str | None]] = []

    async def __call__(self, level: str, data: Json, logger: str | None = None) -> None:
        self.heard.append((level, data, logger))


def caller(channel: Client | None = None, log: Log | None = None) -> Caller:
    return Caller(grant=Grant.root("ada"), run="ada", channel=channel, log=log)


async def call(
    catalog: "Catalog", name: str, client: Client | None = None, **arguments: Json
) -> Outcome:
    tool = catalog.current.get(name)
    ask = None if client is None else client.ask
    return await tool.invoke(arguments, Call(tool, caller(client), ask=ask))


def text_of(outcome: "Outcome | Messages") -> Any:
    block = outcome.blocks[0] if isinstance(outcome, Outcome) else outcome.messages[0].block
    assert isinstance(block, Text)
    return json.loads(block.text)


@pytest.mark.parametrize("way", WAYS)
async def test_every_kind_of_question_reaches_the_caller_and_its_answer_the_server(
    plugged: "Plugged", way: str
) -> None:
    client = Client()
    async with plugged(way) as catalog:
        outcome = await call(catalog, "ask", client, kinds=[*KINDS])

    form, url, sampled, roots = text_of(outcome)
    assert form == {"action": "accept", "content": {"name": "Ada"}}
    assert url == {"action": "accept"}
    assert sampled == SAMPLE
    assert roots == ROOTS
    asked = {question.kind: question for question in client.asked}
    assert asked.keys() == set(KINDS)
    assert {(each.tool, each.plug) for each in client.asked} == {("ask", "up")}
    assert (asked["form"].message, asked["form"].schema) == ("Who?", FORM)
    assert asked["form"].params["requestedSchema"] == FORM
    assert asked["url"].params["url"] == "https://example.org"
    assert asked["sampling"].params["maxTokens"] == 7
    assert asked["sampling"].message == "`up` wants your model to complete a prompt: Hello?"
    assert asked["roots"].params == {}


async def test_questions_of_one_round_keep_their_keys_and_are_put_at_the_same_time(
    plugged: "Plugged",
) -> None:
    both = anyio.Event()
    keys: list[str] = []

    async def ask(question: Question) -> Answer:
        keys.append(question.key)
        if len(keys) == 2:
            both.set()
        await both.wait()
        return Answer("accept", GIVEN[question.kind])

    async with plugged() as catalog:
        tool = catalog.current.get("ask")
        await tool.invoke({"kinds": ["form", "url"]}, Call(tool, caller(Client()), ask=ask))

    assert sorted(keys) == ["the form", "the url"]


async def test_questions_of_the_handshake_era_are_numbered(plugged: "Plugged") -> None:
    client = Client()
    async with plugged("stdio legacy") as catalog:
        await call(catalog, "ask", client, kinds=["form", "url"])

    assert [each.key for each in client.asked] == ["ask:1", "ask:2"]


async def test_a_key_that_a_later_round_uses_again_is_told_apart(plugged: "Plugged") -> None:
    client = Client()
    async with plugged() as catalog:
        await call(catalog, "ask_twice", client)

    assert [each.key for each in client.asked] == ["the form", "the form:2"]


async def test_a_round_without_questions_is_sent_again(plugged: "Plugged") -> None:
    async with plugged() as catalog:
        outcome = await call(catalog, "ask_later")

    assert outcome.blocks == (Text("came back"),)


async def test_a_server_that_asks_without_end_is_given_up(plugged: "Plugged") -> None:
    client = Client()
    async with plugged() as catalog:
        with pytest.raises(ToolFailed, match="asked 32 times"):
            await call(catalog, "ask_on", client)

    assert len(client.asked) == 32


@pytest.mark.parametrize("way", LEGACY)
async def test_where_nobody_can_be_asked_a_server_is_told_so_at_once(
    plugged: "Plugged", way: str
) -> None:
    async with plugged(way) as catalog:
        form, url, sampled, roots = text_of(await call(catalog, "ask", kinds=[*KINDS]))

    assert (form, url) == ({"action": "cancel"}, {"action": "cancel"})
    assert "the client of this call does not give" in sampled["message"]
    assert "the client of this call does not give" in roots["message"]


async def test_what_is_declined_is_told_to_a_server_of_the_handshake_era(
    plugged: "Plugged",
) -> None:
    client = Client(action="decline")
    async with plugged("stdio legacy") as catalog:
        form, url, sampled, roots = text_of(await call(catalog, "ask", client, kinds=[*KINDS]))

    assert (form, url) == ({"action": "decline"}, {"action": "decline"})
    assert {each["code"] for each in (sampled, roots)} == {-1}
    assert "was refused" in sampled["message"]


async def test_a_modern_call_that_needs_a_completion_fails_without_one(
    plugged: "Plugged",
) -> None:
    told = {
        "which the client of this call does not give": Client(kinds=["form"]),
        "which was refused": Client(action="decline"),
        "is no such thing": Client(given={"sampling": {"role": "nobody"}}),
    }
    async with plugged() as catalog:
        for words, client in told.items():
            with pytest.raises(ToolFailed, match=words):
                await call(catalog, "ask", client, kinds=["sampling"])


@pytest.mark.parametrize("way", ["stdio modern", "stdio legacy"])
async def test_a_form_that_was_filled_in_with_what_no_form_holds_counts_as_cancelled(
    plugged: "Plugged", way: str
) -> None:
    client = Client(given={"form": {"name": {"first": "Ada"}}})
    async with plugged(way) as catalog:
        [answer] = text_of(await call(catalog, "ask", client, kinds=["form"]))

    assert answer == {"action": "cancel"}


@pytest.mark.parametrize("way", ["stdio modern", "stdio legacy"])
async def test_a_question_that_cannot_be_kept_fails_the_call_and_never_hangs(
    plugged: "Plugged", way: str
) -> None:
    async def ask(question: Question) -> Answer:
        raise RunError("there is no room for questions")

    async with plugged(way) as catalog:
        tool = catalog.current.get("ask")
        told = Call(tool, caller(), ask=ask)
        if way == "stdio modern":
            with pytest.raises(RunError, match="no room"):
                await tool.invoke({"kinds": ["form"]}, told)
        else:
            [answer] = text_of(await tool.invoke({"kinds": ["form"]}, told))
            assert answer["message"] == "there is no room for questions"


@pytest.mark.parametrize("way", ["stdio modern", "stdio legacy"])
async def test_a_question_that_nobody_answers_ends_at_its_limit_and_the_call_goes_on(
    plugged: "Plugged", way: str
) -> None:
    async def ask(question: Question) -> Answer:
        await anyio.sleep_forever()
        raise AssertionError

    async with plugged(way, call_s=0.5, ask_s=1) as catalog:
        tool = catalog.current.get("ask")
        outcome = await tool.invoke({"kinds": ["form"]}, Call(tool, caller(), ask=ask))

    assert text_of(outcome) == [{"action": "cancel"}]


@pytest.mark.parametrize("way", WAYS)
async def test_a_prompt_may_ask_the_client_that_wants_it(plugged: "Plugged", way: str) -> None:
    client = Client()
    async with plugged(way) as catalog:
        messages = await catalog.current.prompts["asking"].get({}, caller(client))
        nobody = await catalog.current.prompts["asking"].get({}, None)

    assert text_of(messages) == [{"action": "accept", "content": {"name": "Ada"}}]
    assert text_of(nobody) == [{"action": "cancel"}]
    assert [(each.kind, each.tool) for each in client.asked] == [("form", "asking")]


@pytest.mark.parametrize("way", MODERN)
async def test_a_modern_server_learns_with_each_call_what_this_caller_can_be_asked(
    plugged: "Plugged", way: str
) -> None:
    form: dict[str, Json] = {"elicitation": {"form": {}}}
    modes: dict[str, Json] = {"form": {}, "url": {}}
    async with plugged(way) as catalog:

        async def declared(client: Client | None) -> Any:
            return text_of(await call(catalog, "declared", client))

        assert await declared(None) == {}
        assert await declared(Client(kinds=[])) == form
        assert await declared(Client(kinds=["url"])) == {"elicitation": modes}
        assert await declared(Client(kinds=["sampling"])) == {**form, "sampling": {}}
        assert await declared(Client()) == {"elicitation": modes, "roots": {}, "sampling": {}}


async def test_of_two_calls_over_http_each_is_asked_its_own(plugged: "Plugged") -> None:
    one, two = Client(), Client(given={"form": {"name": "Bob"}})
    names: list[str] = []

    async def ask(catalog: "Catalog", client: Client) -> None:
        [answer] = text_of(await call(catalog, "ask", client, kinds=["form"]))
        names.append(answer["content"]["name"])

    async with plugged("http legacy") as catalog, anyio.create_task_group() as calls:
        calls.start_soon(call, catalog, "hold")
        async with anyio.create_task_group() as asking:
            asking.start_soon(ask, catalog, one)
            asking.start_soon(ask, catalog, two)
        await call(catalog, "release")

    assert (len(one.asked), len(two.asked)) == (1, 1)
    assert sorted(names) == ["Ada", "Bob"]


async def test_where_nothing_says_which_call_asks_the_server_is_refused(
    plugged: "Plugged",
) -> None:
    client, held = Client(), anyio.Event()

    async def progress(done: float, total: float | None = None, message: str | None = None) -> None:
        held.set()

    async def hold(catalog: "Catalog") -> None:
        tool = catalog.current.get("hold")
        await tool.invoke({}, Call(tool, caller(), progress))

    answers: list[Any] = []
    async with plugged("stdio legacy") as catalog, anyio.create_task_group() as calls:
        calls.start_soon(hold, catalog)
        await held.wait()
        answers += text_of(await call(catalog, "ask", client, kinds=["form"]))
        await call(catalog, "release")

    [answer] = answers

    assert client.asked == []
    assert answer["message"] == (
        "There are 2 calls in flight, and nothing says which of their callers is to be asked:"
        " ask on the stream of the call"
    )


async def test_a_server_that_asks_outside_any_call_is_refused(plugged: "Plugged") -> None:
    async with plugged("stdio legacy", server="early") as catalog:
        outcome = await call(catalog, "answers", Client())

    assert text_of(outcome) == [
        "There is no call in flight whose caller could be asked: ask during a call"
    ]


@pytest.mark.parametrize("way", WAYS)
async def test_log_messages_reach_the_client_that_wants_them(plugged: "Plugged", way: str) -> None:
    wanted = Log()
    async with plugged(way) as catalog:
        with structlog.testing.capture_logs() as logs:
            tool = catalog.current.get("tell")
            await tool.invoke({}, Call(tool, caller(log=wanted)))
            await tool.invoke({}, Call(tool, caller()))

    assert wanted.heard == [("warning", {"words": "careful"}, "teller")]
    assert [each for each in logs if each["event"] == "upstream_logged"] == 2 * [
        {
            "event": "upstream_logged",
            "log_level": "debug",
            "plug": "up",
            "level": "warning",
            "logger": "teller",
            "said": "{'words': 'careful'}",
        }
    ]


async def test_a_call_that_waits_for_an_answer_leaves_log_messages_to_the_others(
    plugged: "Plugged",
) -> None:
    wanted, asked, answered = Log(), anyio.Event(), anyio.Event()

    async def ask(question: Question) -> Answer:
        asked.set()
        await answered.wait()
        return Answer("accept", GIVEN[question.kind])

    async with plugged() as catalog, anyio.create_task_group() as tasks:
        waits, tells = catalog.current.get("ask"), catalog.current.get("tell")

        async def wait() -> None:
            await waits.invoke({"kinds": ["form"]}, Call(waits, caller(Client()), ask=ask))

        tasks.start_soon(wait)
        with anyio.fail_after(20):
            await asked.wait()
            await tells.invoke({}, Call(tells, caller(log=wanted)))
        answered.set()

    assert wanted.heard == [("warning", {"words": "careful"}, "teller")]

"""Functions in a file as prompts, resources and templates, and tools that ask, log and touch."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest

from guildry.errors import PlugError, ToolFailed, ToolRetry
from guildry.tools.asking.questions import Answer, Question, QuestionKind
from guildry.tools.base import Call, Effects, Embedded, Icon, Json, Media, Outcome, Text
from guildry.tools.caller import Caller
from guildry.tools.grants import Grant
from guildry.tools.offers import Message, Messages, PromptArgument
from guildry.tools.plugs.board import PlugBoard
from guildry.tools.plugs.plug import PlugReport
from guildry.tools.python.functions import UnfitFunction, effects, prompt, reads, tool, tool_from
from guildry.tools.python.threads import DaemonThreads
from guildry.tools.registry import Catalog

IMPORTS = """
from typing import Any, Literal
from guildry.tools.base import Call, Embedded, Icon, Media, Text
from guildry.tools.python import prompt, reads, resource, tool
from guildry.tools.offers import Message, Messages
from guildry.tools.asking.questions import Ask, Question
"""


@asynccontextmanager
async def served(folder: Path, source: str) -> AsyncGenerator[tuple[Catalog, PlugReport]]:
    path = folder / "mine.py"
    path.write_text(IMPORTS + source)
    catalog = Catalog()
    with anyio.fail_after(20):
        async with PlugBoard(catalog) as board:
            yield catalog, await board.plug(str(path))


async def call(catalog: Catalog, name: str, told: Any = None, **arguments: Json) -> Outcome:
    found = catalog.current.get(name)
    return await found.invoke(arguments, told or Call(found, None))


class Client:
    """A client that fills in forms."""

    def takes(self, kind: QuestionKind) -> bool:
        return kind == "form"

    async def ask(self, question: Question) -> Answer:
        return Answer("accept", {"asked": question.message})


CALLER = Caller(grant=Grant.root("ada"), run="ada", channel=Client())

PROMPTS = '''
@prompt
def review(code: str, tone: Literal["kind", "harsh"] = "kind") -> str:
    """Review code.

    Args:
        code: what to review.
    """
    return f"Review {code}, be {tone}."


@prompt(title="All", name="all-kinds", icons=[Icon("https://example.org/a.png")])
async def everything() -> list[Any]:
    return ["text", Media(b"png", "image/png"), Message("assistant", Text("sure"))]


@prompt
def whole() -> Messages:
    return Messages((Message("user", Text("whole")),), "Its own words.")


@prompt
async def asking(ask: Ask) -> str:
    answer = await ask(Question(key="k", kind="form", message="Who?"))
    other = await ask(Question(key="k", kind="roots", message="Where?"))
    return f"{answer.action} {dict(answer.content)} {other.action}"


@prompt
def wrong() -> int:
    return 3


@prompt
def broken() -> str:
    raise ValueError("no luck")
'''


async def test_a_function_is_a_prompt_with_its_parameters_as_arguments(tmp_path: Path) -> None:
    async with served(tmp_path, PROMPTS) as (catalog, report):
        prompts = catalog.current.prompts
        review = prompts["review"]

        messages = await review.get({"code": "x", "tone": "harsh"}, None)
        everything = await prompts["all-kinds"].get({}, None)
        whole = await prompts["whole"].get({}, None)

    assert report.as_json() == {
        "plug": "mine",
        "tools": [],
        "prompts": ["review", "all-kinds", "whole", "asking", "wrong", "broken"],
        "quarantined": [],
    }
    assert (review.description, review.plug) == ("Review code.", "mine")
    assert review.arguments == (
        PromptArgument("code", "what to review.", required=True),
        PromptArgument("tone"),
    )
    assert messages == Messages((Message("user", Text("Review x, be harsh.")),), "Review code.")
    assert prompts["all-kinds"].title == "All"
    assert prompts["all-kinds"].icons == (Icon("https://example.org/a.png"),)
    assert everything.messages == (
        Message("user", Text("text")),
        Message("user", Media(b"png", "image/png")),
        Message("assistant", Text("sure")),
    )
    assert whole == Messages((Message("user", Text("whole")),), "Its own words.")


@pytest.mark.parametrize(
    ("name", "arguments", "told"),
    [
        ("review", {}, "`code` is missing: the prompt `review` needs it"),
        (
            "review",
            {"cod": "x"},
            "'cod' is not an argument of the prompt `review`: did you mean `code`?",
        ),
        (
            "review",
            {"x": "y"},
            "'x' is not an argument of the prompt `review`: it takes `code`, `tone`",
        ),
        ("whole", {"x": "y"}, "'x' is not an argument of the prompt `whole`: it takes none"),
        ("review", {"code": "x", "tone": "odd"}, "`tone` is 'odd'"),
    ],
)
async def test_wrong_arguments_of_a_prompt_are_named_with_the_nearest(
    tmp_path: Path, name: str, arguments: dict[str, str], told: str
) -> None:
    async with served(tmp_path, PROMPTS) as (catalog, _):
        with pytest.raises(ToolRetry) as caught:
            await catalog.current.prompts[name].get(arguments, None)

    assert told in str(caught.value)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("wrong", "`wrong` returned int, which is no message of a prompt"),
        ("broken", "`broken` failed: ValueError: no luck"),
    ],
)
async def test_a_prompt_that_fails_says_why(tmp_path: Path, name: str, told: str) -> None:
    async with served(tmp_path, PROMPTS) as (catalog, _):
        with pytest.raises(ToolFailed, match=told):
            await catalog.current.prompts[name].get({}, None)


async def test_a_prompt_asks_the_client_what_it_takes(tmp_path: Path) -> None:
    async with served(tmp_path, PROMPTS) as (catalog, _):
        asked = await catalog.current.prompts["asking"].get({}, CALLER)
        alone = await catalog.current.prompts["asking"].get({}, None)

    assert asked.messages[0].block == Text("accept {'asked': 'Who?'} cancel")
    assert alone.messages[0].block == Text("cancel {} cancel")


RESOURCES = '''
PNG = b"\\x89PNG\\r\\n\\x1a\\n"


@resource("note://today", title="Today", size=5, annotations={"audience": ["user"]})
def today() -> str:
    """What is to be done today."""
    return "hello"


@resource("note://dot")
def dot() -> bytes:
    return PNG


@resource("note://typed", media_type="application/x-dot")
def typed() -> bytes:
    return PNG


@resource("note://config", name="config")
async def configuration() -> dict[str, int]:
    return {"n": 1}


@resource("note://media")
def media() -> Media:
    return Media(b"gif", "image/gif")


@resource("note://many")
def many() -> list[Embedded]:
    return [Embedded("note://1", text="one"), Embedded("note://2", text="two")]


@resource("note://{day}/{hour}", complete={"day": ["Monday", "Friday"]})
def at(day: str, hour: int, zone: str = "UTC") -> str:
    """What is to be done at an hour."""
    return f"{day} {hour + 1} {zone}"


@resource("file://{name}", complete=lambda argument, typed, others: [typed + argument, 3])
def file(name: str) -> str:
    return name


async def matching(argument: str, typed: str, others: dict[str, str]) -> list[str]:
    return [*others.values()]


@resource("later://{name}", complete=matching)
def later(name: str) -> str:
    return name


@resource("broken://{name}", complete=lambda *given: 1 / 0)
def broken(name: str) -> Any:
    return object() if name == "odd" else 1 / 0
'''


async def test_a_function_is_a_resource_whose_answer_is_its_content(tmp_path: Path) -> None:
    async with served(tmp_path, RESOURCES) as (catalog, _):
        resources = catalog.current.resources
        contents = {uri: await each.read(uri, None) for uri, each in resources.items()}
        today = resources["note://today"]

    assert contents == {
        "note://today": (Embedded("note://today", "text/plain", text="hello"),),
        "note://dot": (Embedded("note://dot", "image/png", data=b"\x89PNG\r\n\x1a\n"),),
        "note://typed": (Embedded("note://typed", "application/x-dot", data=b"\x89PNG\r\n\x1a\n"),),
        "note://config": (Embedded("note://config", "application/json", text='{"n":1}'),),
        "note://media": (Embedded("note://media", "image/gif", data=b"gif"),),
        "note://many": (Embedded("note://1", text="one"), Embedded("note://2", text="two")),
    }
    assert (today.name, today.title, today.size) == ("today", "Today", 5)
    assert today.description == "What is to be done today."
    assert today.annotations == {"audience": ["user"]}
    assert [each.media_type for each in resources.values()] == [
        "text/plain", None, "application/x-dot", "application/json", None, "application/json",
    ]  # fmt: skip


async def test_a_uri_with_variables_is_a_template(tmp_path: Path) -> None:
    async with served(tmp_path, RESOURCES) as (catalog, _):
        template = catalog.current.templates[0]

        [found] = await template.read("note://fri%20day/9", None)
        with pytest.raises(ToolRetry, match="`hour` is 'nine'"):
            await template.read("note://friday/nine", None)
        with pytest.raises(ToolRetry, match="does not follow"):
            await template.read("other://", None)

    assert (template.uri_template, template.name) == ("note://{day}/{hour}", "at")
    assert template.matches("note://friday/9")
    assert found == Embedded("note://fri%20day/9", "text/plain", text="fri day 10 UTC")


async def test_variables_are_completed_from_values_or_by_a_function(tmp_path: Path) -> None:
    async with served(tmp_path, RESOURCES) as (catalog, _):
        day, name, later, broken = [each.complete for each in catalog.current.templates]
        assert day and name and later and broken

        assert await day("day", "f", {}) == ["Friday"]
        assert await day("hour", "", {}) == []
        assert await name("name", "a", {}) == ["aname", "3"]
        assert await later("name", "a", {"b": "c"}) == ["c"]
        assert await broken("name", "a", {}) == ()


@pytest.mark.parametrize(
    ("uri", "told"),
    [
        ("broken://odd", "`broken` returned object, which is no content of a resource"),
        ("broken://x", "`broken` failed: ZeroDivisionError: division by zero"),
    ],
)
async def test_a_resource_that_fails_says_why(tmp_path: Path, uri: str, told: str) -> None:
    async with served(tmp_path, RESOURCES) as (catalog, _):
        with pytest.raises(ToolFailed, match=told):
            await catalog.current.templates[3].read(uri, None)


UNFIT = """
@resource("no scheme")
def one() -> str: ...

@resource("note://fixed")
def two(day: str) -> str: ...

@resource("note://{day}")
def three() -> str: ...

@resource("note://{day}")
def four(day: str, hour: str) -> str: ...

@resource("note://{day")
def five(day: str) -> str: ...

@prompt
def six(call: Call) -> str: ...

@prompt
def seven(*words: str) -> str: ...

@tool
def eight(ask: Ask) -> str: ...
"""


async def test_functions_that_do_not_fit_are_left_out_with_line_and_cure(tmp_path: Path) -> None:
    async with served(tmp_path, UNFIT + '@resource("note://ok")\ndef ok() -> str: ...\n') as (
        catalog,
        report,
    ):
        assert [*catalog.current.resources] == ["note://ok"]

    reasons = {each.tool: each.reason.partition(": ")[2] for each in report.quarantined}
    assert reasons == {
        "one": "its URI 'no scheme' holds white space or control characters: percent-encode them",
        "two": "nothing in 'note://fixed' fills in `day`: add variables",
        "three": "`note://{day}` has `day`, which it does not take: add parameters",
        "four": "nothing in `note://{day}` fills in `hour`: add variables",
        "five": "its template 'note://{day' has braces that do not match: close them",
        "six": "it takes `call: Call`, which only tools have: leave it out",
        "seven": "it takes `*words: str`: name each parameter",
        "eight": "it takes `ask: Ask`: make it `async def`",
    }


async def test_a_file_with_nothing_to_offer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(PlugError, match="no public function"):
        async with served(tmp_path, ""):
            pass


TOOLS = """
@tool
async def ask_name(ask: Ask) -> str:
    answer = await ask(Question(key="name", kind="form", message="Who?"))
    return f"{answer.action} {dict(answer.content)}"


@tool
def touch_in_a_thread(uri: str, call: Call) -> str:
    call.touch(uri)
    return "touched"


@tool
async def touch_here(uri: str, call: Call) -> str:
    call.touch(uri)
    await call.log("info", "touched")
    return "touched"
"""


async def test_a_tool_with_an_ask_asks_who_called_it(tmp_path: Path) -> None:
    async with served(tmp_path, TOOLS) as (catalog, _):
        found = catalog.current.get("ask_name")
        told = Call(found, CALLER, ask=Client().ask)

        asked, alone = await call(catalog, "ask_name", told), await call(catalog, "ask_name")

    assert asked.blocks == (Text("accept {'asked': 'Who?'}"),)
    assert alone.blocks == (Text("cancel {}"),)
    assert found.asks
    assert found.input_schema["properties"] == {}


async def test_a_tool_says_that_a_resource_has_changed_from_any_thread(tmp_path: Path) -> None:
    touched: list[str] = []
    logged: list[Any] = []

    class Log:
        level = "debug"

        async def __call__(self, level: str, data: Json, logger: str | None = None) -> None:
            logged.append((level, data, logger))

    caller = Caller(grant=Grant.root("ada"), run="ada", log=Log())
    async with served(tmp_path, TOOLS) as (catalog, _):
        stop = catalog.watch(touched.append)
        await call(catalog, "touch_in_a_thread", uri="note://1")
        found = catalog.current.get("touch_here")
        await call(catalog, "touch_here", Call(found, caller), uri="note://2")
        stop()

    assert touched == ["note://1", "note://2"]
    assert logged == [("info", "touched", None)]


def test_what_is_said_of_a_tool_is_kept_and_only_what_is_said_of_destroying_admits_it() -> None:
    icon = Icon("https://example.org/a.png")

    @tool(icons=[icon], task="optional", asks=True, title="T", name="n", timeout_s=3)
    def said() -> None: ...

    @effects(destructive=True)
    def destroys() -> None: ...

    @tool(destructive=False, egress=False)
    def spares() -> None: ...

    @reads(icons=[icon], task="required")
    def only_reads() -> None: ...

    @tool
    def plain() -> None: ...

    threads = DaemonThreads(1)
    one, two, three, four, five = (
        tool_from(each, plug="mine", threads=threads)
        for each in (said, destroys, spares, only_reads, plain)
    )
    assert (one.icons, one.task, one.asks, one.title) == ((icon,), "optional", True, "T")
    assert (one.name, one.timeout_s) == ("n", 3)
    assert two.effects == Effects(destructive=True, admits=True)
    assert three.effects == Effects(egress=False, destructive=False, admits=False)
    assert (four.icons, four.task, four.effects.reads_only) == ((icon,), "required", True)
    assert (five.effects, five.asks, five.task) == (Effects(), False, "never")


def test_what_is_declared_as_a_prompt_is_no_tool() -> None:
    @prompt
    def review() -> str:
        return "Review it."

    with pytest.raises(UnfitFunction, match="declared as a prompt"):
        tool_from(review, plug="mine", threads=DaemonThreads(1))

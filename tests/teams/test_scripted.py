import anyio
import pytest

from guildry.errors import ModelReplyError
from guildry.teams.model import Completion, Message, Request, ToolCall, ToolSpec, Usage
from guildry.teams.scripted import Reply, ScriptedModel, call


def asking(text: str = "go") -> Request:
    return Request(messages=(Message("user", text),))


async def test_a_script_plays_its_replies_in_order() -> None:
    model = ScriptedModel(
        ["hello", call("add", a=1, b=2), [call("x"), call("y")], Completion(text="end", finish="z")]
    )

    replies = [await model.complete(asking()) for _ in range(4)]

    assert [reply.text for reply in replies] == ["hello", "", "", "end"]
    assert replies[1].calls == (ToolCall("call_1", "add", '{"a": 1, "b": 2}'),)
    assert [c.id for c in replies[2].calls] == ["call_2", "call_3"]
    assert [reply.finish for reply in replies] == ["stop", "tool_calls", "tool_calls", "z"]


async def test_a_call_may_have_an_argument_called_name() -> None:
    assert call("find", name="x") == ToolCall("", "find", '{"name": "x"}')


async def test_a_function_answers_what_it_is_shown() -> None:
    model = ScriptedModel(lambda request: request.messages[-1].content.upper())

    reply = await model.complete(asking("abc"))

    assert reply.text == "ABC"


async def test_an_async_function_may_hold_its_reply_back() -> None:
    arrived, go = anyio.Event(), anyio.Event()

    async def program(_: Request) -> Reply:
        arrived.set()
        await go.wait()
        return "late"

    model = ScriptedModel(program)
    replies: list[str] = []

    async def ask() -> None:
        replies.append((await model.complete(asking())).text)

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await arrived.wait()
            assert replies == []
            go.set()

    assert replies == ["late"]


async def test_an_exhausted_script_says_so() -> None:
    model = ScriptedModel(["only"], name="planner")
    await model.complete(asking())

    with pytest.raises(ModelReplyError, match=r"script of `planner` is exhausted: it has 1 .* 2"):
        await model.complete(asking())


async def test_a_script_keeps_the_requests_that_it_saw() -> None:
    model = ScriptedModel(["a", "b"])

    await model.complete(asking("one"))
    await model.complete(asking("two"))

    assert [request.messages[0].content for request in model.requests] == ["one", "two"]


async def test_usage_is_estimated_from_characters_of_messages_and_tools() -> None:
    tool = ToolSpec("name", "does things", {"type": "object"})
    request = Request(
        messages=(
            Message("user", "x" * 40),
            Message("assistant", "", (ToolCall("1", "name", "{}"),)),
            Message("tool", "y" * 10, call_id="1"),
        ),
        tools=(tool,),
    )

    reply = await ScriptedModel([Completion(text="abc", calls=(call("name"),))]).complete(request)

    shown = 40 + len("name{}") + 10 + len("name" + "does things" + '{"type": "object"}')
    assert reply.usage == Usage(-(-shown // 4), -(-len("abcname{}") // 4))


async def test_usage_that_a_reply_states_is_kept() -> None:
    stated = Usage(100, 10, 90)

    reply = await ScriptedModel([Completion(text="a", usage=stated)]).complete(asking())

    assert reply.usage == stated


async def test_the_text_is_told_to_whoever_listens() -> None:
    heard: list[str] = []

    await ScriptedModel(["spoken", call("x")]).complete(asking(), on_text=heard.append)

    assert heard == ["spoken"]


async def test_latency_lets_requests_overlap() -> None:
    model = ScriptedModel(["a"] * 3, latency_s=0.01)
    before_any_reply: list[int] = []

    async def ask() -> None:
        await model.complete(asking())
        before_any_reply.append(len(model.requests))

    with anyio.fail_after(5):
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(ask)

    assert before_any_reply == [3, 3, 3]


async def test_a_script_has_a_name_and_closes() -> None:
    model = ScriptedModel([])

    await model.aclose()

    assert model.name == "scripted"

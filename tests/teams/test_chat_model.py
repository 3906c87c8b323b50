import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import anyio
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from guildry.errors import ConfigError, ModelRejected, ModelReplyError, ModelUnavailable
from guildry.teams.chat_model import ChatModel
from guildry.teams.chat_wire import StreamReader, encode_request
from guildry.teams.model import Completion, Message, Request, ToolCall, ToolSpec, Usage

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

ASKED = Request(messages=(Message("system", "Be brief."), Message("user", "How many?")))
WORDS = Completion(text="Two.", usage=Usage(12, 3, 8))
BODY = {
    "choices": [
        {"index": 0, "message": {"role": "assistant", "content": "Two."}, "finish_reason": "stop"}
    ],
    "usage": {
        "prompt_tokens": 12,
        "completion_tokens": 3,
        "total_tokens": 15,
        "prompt_tokens_details": {"cached_tokens": 8},
    },
}


class Endpoint:
    """A real HTTP server that answers each request with the next handler; the last one repeats."""

    def __init__(self, handlers: Sequence[Handler]) -> None:
        self.handlers = list(handlers)
        self.seen: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.peers: set[Any] = set()
        self.url = ""

    async def answer(self, request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        self.peers.add(request.transport.get_extra_info("peername"))
        self.seen.append(json.loads(await request.read()))
        self.headers.append(dict(request.headers))
        handler = self.handlers[min(len(self.seen), len(self.handlers)) - 1]
        return await handler(request)


@asynccontextmanager
async def endpoint(*handlers: Handler) -> AsyncGenerator[Endpoint, None]:
    served = Endpoint(handlers)
    app = web.Application()
    app.router.add_post("/v1/chat/completions", served.answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        port = runner.addresses[0][1]
        served.url = f"http://127.0.0.1:{port}"
        with anyio.fail_after(20):
            yield served
    finally:
        await runner.cleanup()


@asynccontextmanager
async def model_of(
    served: Endpoint, **options: Any
) -> AsyncGenerator[tuple[ChatModel, list[float]], None]:
    """Yield a model of the endpoint, and the pauses that it makes instead of waiting."""
    pauses: list[float] = []

    async def note(pause: float) -> None:
        pauses.append(pause)

    options = {"sleep": note, "jitter": lambda: 1.0, **options}
    model = ChatModel(served.url, "tiny", **options)
    try:
        yield model, pauses
    finally:
        await model.aclose()


def says(body: object, status: int = 200, **headers: str) -> Handler:
    async def handler(_: web.Request) -> web.StreamResponse:
        text = body if isinstance(body, str) else json.dumps(body)
        return web.Response(
            text=text, status=status, headers=headers, content_type="application/json"
        )

    return handler


def streams(*chunks: bytes, cut: bool = False) -> Handler:
    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for chunk in chunks:
            await response.write(chunk)
        if cut:
            assert request.transport is not None
            request.transport.abort()
        return response

    return handler


async def hangs(_: web.Request) -> web.StreamResponse:
    await anyio.sleep_forever()
    raise AssertionError


async def drops(request: web.Request) -> web.StreamResponse:
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def drops_in_the_body(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Length": "1000"})
    await response.prepare(request)
    await response.write(b'{"choices": [')
    assert request.transport is not None
    request.transport.close()
    return response


def sse(*events: object, end: bytes = b"\n\n", done: bool = True) -> bytes:
    lines = [b"data: " + json.dumps(e, ensure_ascii=False).encode() + end for e in events]
    return b"".join(lines) + (b"data: [DONE]" + end if done else b"")


def delta(finish: str | None = None, **said: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": said, "finish_reason": finish}]}


def piece(index: int | None, arguments: str | None, **more: Any) -> dict[str, Any]:
    function = {"arguments": arguments, **{k: v for k, v in more.items() if k == "name"}}
    form: dict[str, Any] = {"index": index, "type": "function", "function": function}
    if "id" in more:
        form["id"] = more["id"]
    return form


SPOKEN = sse(
    delta(role="assistant", content=""),
    delta(content="Zwei "),
    delta(content="Käse 🧀"),
    delta(content="."),
    delta("stop"),
    {"choices": [], "usage": BODY["usage"]},
)
CALLED = sse(
    delta(role="assistant", content=None, tool_calls=[piece(0, "", id="c1", name="count")]),
    delta(tool_calls=[piece(0, '{"table": "re')]),
    delta(tool_calls=[piece(1, "", id="c2", name="sum_column")]),
    delta(tool_calls=[piece(0, 'f:ä"}')]),
    delta(tool_calls=[piece(1, '{"column": 3')]),
    delta(tool_calls=[piece(1, "}")]),
    delta("tool_calls"),
    {"choices": [], "usage": BODY["usage"]},
)


async def test_a_reply_comes_with_its_usage_and_cached_tokens() -> None:
    async with endpoint(says(BODY)) as served, model_of(served) as (model, pauses):
        reply = await model.complete(ASKED)

    assert reply == WORDS
    assert pauses == []
    assert served.seen == [
        {
            "model": "tiny",
            "messages": [
                {"role": "system", "content": "Be brief."},
                {"role": "user", "content": "How many?"},
            ],
        }
    ]


async def test_everything_that_is_asked_is_on_the_wire() -> None:
    request = Request(
        messages=(
            Message("user", "ä\udcff"),
            Message("assistant", "", (ToolCall("c1", "count", '{"a":1}'),)),
            Message("tool", "7", call_id="c1"),
        ),
        tools=(ToolSpec("count", "Count.", {"type": "object"}, strict=True),),
        response_schema={"type": "object"},
        max_tokens=50,
        temperature=0.5,
        parallel_calls=False,
    )

    async with (
        endpoint(says(BODY)) as served,
        model_of(served, extra={"priority": 5}, api_key="sk-1", headers={"X-Team": "a"}) as (m, _),
    ):
        await m.complete(request)
        await m.complete(request)

    called = {"id": "c1", "type": "function", "function": {"name": "count", "arguments": '{"a":1}'}}
    assert served.seen[0] == {
        "priority": 5,
        "model": "tiny",
        "messages": [
            {"role": "user", "content": "ä?"},
            {"role": "assistant", "content": None, "tool_calls": [called]},
            {"role": "tool", "content": "7", "tool_call_id": "c1"},
        ],
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "count",
                    "description": "Count.",
                    "parameters": {"type": "object"},
                    "strict": True,
                },
            }
        ],
        "parallel_tool_calls": False,
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": {"type": "object"}},
        },
        "max_tokens": 50,
        "temperature": 0.5,
    }
    assert served.seen[0] == served.seen[1]
    assert served.headers[0]["Authorization"] == "Bearer sk-1"
    assert served.headers[0]["X-Team"] == "a"


def test_a_longer_conversation_begins_with_the_same_bytes() -> None:
    tools = (ToolSpec("count", "Count.", {"type": "object"}),)
    first = (Message("system", "s"), Message("user", "u"))
    longer = (*first, Message("assistant", "a"), Message("user", "more"))

    short = encode_request("m", Request(messages=first, tools=tools), stream=False)
    long = encode_request("m", Request(messages=longer, tools=tools), stream=False)

    messages = short[: short.index(b"]")]
    assert long.startswith(messages)
    assert long.endswith(short[len(messages) :])


async def test_one_connection_serves_one_request_after_another() -> None:
    async with endpoint(says(BODY)) as served, model_of(served) as (model, _):
        for _ in range(3):
            await model.complete(ASKED)
        await model.complete(ASKED, on_text=lambda _: None)

    assert len(served.peers) == 1


async def test_a_connection_is_kept_after_a_stream_as_well() -> None:
    async with endpoint(streams(SPOKEN)) as served, model_of(served) as (model, _):
        for _ in range(3):
            await model.complete(ASKED, on_text=lambda _: None)

    assert len(served.peers) == 1


async def test_many_requests_are_in_flight_at_once() -> None:
    waiting: list[int] = []
    everyone = anyio.Event()

    async def meets(_: web.Request) -> web.StreamResponse:
        waiting.append(1)
        if len(waiting) == 150:
            everyone.set()
        await everyone.wait()
        return web.json_response(BODY)

    async with endpoint(meets) as served, model_of(served) as (model, _):
        async with anyio.create_task_group() as tasks:
            for _ in range(150):
                tasks.start_soon(model.complete, ASKED)

    assert len(served.peers) == 150


async def test_a_request_is_streamed_only_for_a_listener() -> None:
    heard: list[str] = []

    async with endpoint(says(BODY), streams(SPOKEN)) as served, model_of(served) as (model, _):
        await model.complete(ASKED)
        reply = await model.complete(ASKED, on_text=heard.append)

    assert "stream" not in served.seen[0]
    assert served.seen[1]["stream"] is True
    assert served.seen[1]["stream_options"] == {"include_usage": True}
    assert "".join(heard) == "Zwei Käse 🧀."
    assert reply == Completion(text="Zwei Käse 🧀.", usage=Usage(12, 3, 8))


async def test_an_endpoint_that_does_not_stream_is_understood() -> None:
    heard: list[str] = []

    async with endpoint(says(BODY)) as served, model_of(served) as (model, _):
        reply = await model.complete(ASKED, on_text=heard.append)

    assert reply == WORDS
    assert heard == ["Two."]


async def test_an_endpoint_that_always_streams_is_understood() -> None:
    async with endpoint(streams(CALLED)) as served, model_of(served) as (model, _):
        reply = await model.complete(ASKED)

    assert [c.name for c in reply.calls] == ["count", "sum_column"]


async def test_a_stream_of_single_bytes_says_the_same_over_a_real_socket() -> None:
    heard: list[str] = []
    bytewise = [CALLED[n : n + 1] for n in range(len(CALLED))]

    async with endpoint(streams(*bytewise)) as served, model_of(served) as (model, _):
        reply = await model.complete(ASKED, on_text=heard.append)

    assert reply.calls == (
        ToolCall("c1", "count", '{"table": "ref:ä"}'),
        ToolCall("c2", "sum_column", '{"column": 3}'),
    )
    assert (reply.finish, reply.usage, heard) == ("tool_calls", Usage(12, 3, 8), [])


def cut_up(data: bytes, cuts: Sequence[int]) -> list[bytes]:
    at = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    return [data[a:b] for a, b in zip(at, at[1:], strict=False)]


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@given(cuts=st.lists(st.integers(0, 10_000), max_size=40), which=st.booleans())
def test_a_stream_says_the_same_wherever_its_bytes_are_cut(
    end: bytes, cuts: list[int], which: bool
) -> None:
    data = (SPOKEN if which else CALLED).replace(b"\n\n", end)
    whole = StreamReader()
    text = whole.feed(data) + whole.close()

    reader = StreamReader()
    pieces = [reader.feed(chunk) for chunk in cut_up(data, cuts)] + [reader.close()]

    assert "".join(pieces) == text
    assert reader.completion(ASKED) == whole.completion(ASKED)
    assert reader.ended
    assert reader.done


@given(st.data())
def test_arguments_are_put_together_from_any_fragments(data: st.DataObject) -> None:
    arguments = {"text": data.draw(st.text(max_size=30)), "n": data.draw(st.integers())}
    written = json.dumps(arguments, ensure_ascii=False)
    cuts = data.draw(st.lists(st.integers(0, 200), max_size=8))
    at = sorted({0, len(written), *(cut % (len(written) + 1) for cut in cuts)})
    fragments = [written[a:b] for a, b in zip(at, at[1:], strict=False)]
    events = [delta(tool_calls=[piece(0, "", id="c", name="t")])]
    events += [delta(tool_calls=[piece(0, fragment)]) for fragment in fragments]

    reader = StreamReader()
    lines = [b"data: " + json.dumps(each).encode() + b"\n\n" for each in [*events, delta("stop")]]
    for line in lines:
        reader.feed(line)

    (call,) = reader.completion(ASKED).calls
    assert json.loads(call.arguments) == arguments


def read(data: bytes) -> Completion:
    reader = StreamReader()
    reader.feed(data)
    reader.close()
    return reader.completion(ASKED)


@pytest.mark.parametrize(
    "deltas",
    [
        [
            piece(0, '{"a":', id="x", name="one"),
            piece(0, "1}"),
            piece(0, '{"b":', id="y", name="two"),
            piece(0, "2}"),
        ],
        [
            piece(None, '{"a":', id="x", name="one"),
            piece(None, "1}"),
            piece(None, '{"b":', id="y", name="two"),
            piece(None, "2}"),
        ],
        [
            piece(0, '{"a":', id="x", name="one"),
            piece(0, "1}", id="x", name="one"),
            piece(1, '{"b":', id="y", name="two"),
            piece(1, "2}", id="y", name="two"),
        ],
        [
            piece(0, "", id="x", name="o"),
            piece(0, None, name="ne"),
            piece(0, '{"a":1}'),
            piece(1, '{"b":2}', id="y", name="two"),
        ],
    ],
    ids=["always index 0", "no index", "id and name repeated", "name in pieces"],
)
def test_the_ways_of_endpoints_with_call_pieces_are_understood(
    deltas: list[dict[str, Any]],
) -> None:
    reply = read(sse(*[delta(tool_calls=[each]) for each in deltas], delta("tool_calls")))

    assert reply.calls == (ToolCall("x", "one", '{"a":1}'), ToolCall("y", "two", '{"b":2}'))


def test_whole_calls_without_index_and_id_stay_apart() -> None:
    deltas = [piece(None, "{}", name="one"), piece(None, "{}", name="one")]

    reply = read(sse(delta("stop", tool_calls=deltas)))

    assert [c.name for c in reply.calls] == ["one", "one"]
    assert len({c.id for c in reply.calls}) == 2


def test_arguments_that_come_parsed_are_written_out() -> None:
    form = {"function": {"name": "one", "arguments": {"a": [1]}}}

    reply = read(sse(delta("stop", tool_calls=[form])))

    assert reply.calls[0].arguments == '{"a": [1]}'


def test_pieces_that_say_nothing_are_passed_over() -> None:
    nothing = {"choices": [{"index": 0, "finish_reason": None}]}

    reply = read(
        b"data:\n\n" + sse(nothing, delta(tool_calls=[{"index": 0, "id": "x"}]), delta("stop"))
    )

    assert reply.calls == (ToolCall("x", "", ""),)


def test_comments_and_other_fields_of_a_stream_are_passed_over() -> None:
    data = b": ping\n\nevent: x\nid: 7\n" + SPOKEN

    assert read(data).text == "Zwei Käse 🧀."


def test_events_without_blank_lines_between_them_are_understood() -> None:
    assert read(SPOKEN.replace(b"\n\n", b"\n")).text == "Zwei Käse 🧀."


def test_an_event_over_several_lines_is_one_event() -> None:
    spread = json.dumps(delta("stop", content="a\nb"), indent=1).replace("\n", "\ndata: ")

    assert read(f"data: {spread}\n\n".encode()).text == "a\nb"


def test_text_in_parts_and_a_refusal_are_text() -> None:
    parts = read(sse(delta("stop", content=[{"type": "text", "text": "a"}, {"text": "b"}])))
    refusal = read(sse(delta("stop", refusal="I will not")))

    assert (parts.text, refusal.text) == ("ab", "I will not")


async def test_missing_usage_is_estimated() -> None:
    body = {"choices": BODY["choices"]}

    async with endpoint(says(body), streams(sse(delta("stop", content="Two.")))) as served:
        async with model_of(served) as (model, _):
            whole = await model.complete(ASKED)
            streamed = await model.complete(ASKED, on_text=lambda _: None)

    assert whole.usage == streamed.usage == Usage(5, 1)


async def test_null_details_of_usage_mean_nothing_was_cached() -> None:
    usage = {"prompt_tokens": 5, "completion_tokens": None, "prompt_tokens_details": None}

    async with endpoint(says({**BODY, "usage": usage})) as served, model_of(served) as (model, _):
        reply = await model.complete(ASKED)

    assert reply.usage == Usage(5, 0, 0)


async def test_429_is_tried_again_after_the_time_it_asks_for() -> None:
    busy = says({"error": {"message": "slow down"}}, 429, **{"Retry-After": "7"})

    async with endpoint(busy, says(BODY)) as served, model_of(served) as (model, pauses):
        reply = await model.complete(ASKED)

    assert reply == WORDS
    assert pauses == [7.0]
    assert len(served.seen) == 2


async def test_a_retry_after_that_is_a_date_is_honoured() -> None:
    at = format_datetime(datetime.now(UTC) + timedelta(seconds=30), usegmt=True)
    busy = says({}, 503, **{"Retry-After": at})

    async with endpoint(busy, says(BODY)) as served, model_of(served) as (model, pauses):
        await model.complete(ASKED)

    assert 20 < pauses[0] <= 30


@pytest.mark.parametrize("header", ["soon", "-3", ""])
async def test_a_retry_after_that_says_nothing_is_passed_over(header: str) -> None:
    busy = says({}, 429, **{"Retry-After": header})

    async with endpoint(busy, says(BODY)) as served, model_of(served) as (model, pauses):
        await model.complete(ASKED)

    assert pauses == [0.5]


async def test_a_retry_after_beyond_the_longest_pause_is_given_up_at_once() -> None:
    busy = says({}, 429, **{"Retry-After": "3600"})

    async with endpoint(busy) as served, model_of(served) as (model, pauses):
        with pytest.raises(ModelUnavailable, match="wait 3600 s"):
            await model.complete(ASKED)

    assert (len(served.seen), pauses) == (1, [])


async def test_500_is_tried_again_with_doubled_pauses_then_given_up() -> None:
    async with (
        endpoint(says("the disk is full", 500)) as served,
        model_of(served, retries=3) as (model, pauses),
    ):
        with pytest.raises(ModelUnavailable) as given_up:
            await model.complete(ASKED)

    assert pauses == [0.5, 1.0, 2.0]
    assert len(served.seen) == 4
    assert f"`{served.url}/v1/chat/completions`" in str(given_up.value)
    assert "no reply after 4 attempts: it answered 500: the disk is full" in str(given_up.value)


async def test_jitter_shortens_a_pause_to_half_at_most() -> None:
    async with (
        endpoint(says("", 500), says("", 500), says(BODY)) as served,
        model_of(served, jitter=lambda: 0.0, first_wait_s=1.0) as (model, pauses),
    ):
        await model.complete(ASKED)

    assert pauses == [0.5, 1.0]


@pytest.mark.parametrize(
    ("status", "cure"),
    [
        (400, "not repeated"),
        (401, "Check the API key"),
        (404, "Check the URL and the name of the model"),
        (422, "not repeated"),
    ],
)
async def test_another_4xx_is_never_tried_again(status: int, cure: str) -> None:
    trouble = {"error": {"message": "bad schema for sk-secret"}}

    async with (
        endpoint(says(trouble, status)) as served,
        model_of(served, api_key="sk-secret") as (model, pauses),
    ):
        with pytest.raises(ModelRejected, match=cure) as refused:
            await model.complete(ASKED)

    assert refused.value.status == status
    assert len(served.seen) == 1
    assert pauses == []
    assert "bad schema for ***" in str(refused.value)
    assert "sk-secret" not in str(refused.value) + repr(model)


async def test_a_redirect_is_not_followed() -> None:
    async with (
        endpoint(says("", 307, Location="http://127.0.0.1:1/x")) as served,
        model_of(served) as (model, _),
    ):
        with pytest.raises(ModelRejected, match="answered 307: give the URL that it leads to"):
            await model.complete(ASKED)


@pytest.mark.parametrize(
    "trouble",
    [
        drops,
        drops_in_the_body,
        streams(SPOKEN[:120], cut=True),
        streams(SPOKEN[:120]),
        streams(sse({"error": {"message": "worker lost"}}, done=False)),
        streams(sse({"error": "overloaded"}, done=False)),
        says({"error": {"message": "no room", "code": 503}}),
    ],
    ids=["at once", "in the body", "in the stream", "short stream", "event", "text", "in a 200"],
)
async def test_a_lost_reply_is_asked_for_again(trouble: Handler) -> None:
    async with endpoint(trouble, says(BODY)) as served, model_of(served) as (model, pauses):
        reply = await model.complete(ASKED, on_text=lambda _: None)

    assert reply == WORDS
    assert pauses == [0.5]


async def test_a_stream_that_is_cut_after_its_end_is_whole() -> None:
    told = sse(delta(content="Two."), delta("stop"), done=False)

    async with endpoint(streams(told)) as served, model_of(served) as (model, pauses):
        reply = await model.complete(ASKED, on_text=lambda _: None)

    assert (reply.text, pauses) == ("Two.", [])


async def test_a_connection_lost_after_the_reply_was_whole_does_no_harm() -> None:
    told = sse(delta(content="Two."), delta("stop"), done=False)

    async with endpoint(streams(told, cut=True)) as served, model_of(served) as (model, pauses):
        reply = await model.complete(ASKED, on_text=lambda _: None)

    assert (reply.text, pauses) == ("Two.", [])


async def test_a_stream_without_a_last_line_end_is_whole() -> None:
    heard: list[str] = []
    told = sse(delta("stop", content="Two."), done=False).rstrip()

    async with endpoint(streams(told)) as served, model_of(served) as (model, pauses):
        reply = await model.complete(ASKED, on_text=heard.append)

    assert (reply.text, heard, pauses) == ("Two.", ["Two."], [])


@pytest.mark.parametrize("way", [says("x" * 2_000), streams(b": " + b"x" * 2_000 + b"\n")])
async def test_an_answer_without_end_is_not_read(way: Handler) -> None:
    async with endpoint(way) as served, model_of(served, max_reply_bytes=1_000) as (model, _):
        with pytest.raises(ModelReplyError, match="over 1,000 bytes"):
            await model.complete(ASKED, on_text=lambda _: None)


async def test_an_error_that_names_a_4xx_inside_a_200_is_not_tried_again() -> None:
    body = {"error": {"message": "too long", "code": 400}}

    async with endpoint(says(body)) as served, model_of(served) as (model, _):
        with pytest.raises(ModelRejected, match="answered 400: too long") as refused:
            await model.complete(ASKED)

    assert (refused.value.status, len(served.seen)) == (400, 1)


async def test_silence_is_a_time_out_and_tried_again() -> None:
    async with (
        endpoint(hangs, says(BODY)) as served,
        model_of(served, timeout_s=0.05) as (model, pauses),
    ):
        reply = await model.complete(ASKED)

    assert (reply, len(pauses)) == (WORDS, 1)


async def test_silence_in_a_stream_is_a_time_out() -> None:
    async def stalls(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        await response.write(SPOKEN[:100])
        return await hangs(request)

    async with (
        endpoint(stalls) as served,
        model_of(served, timeout_s=0.05, retries=1) as (model, _),
    ):
        with pytest.raises(ModelUnavailable, match=r"2 attempts: silence for 0.05 s.*`timeout_s`"):
            await model.complete(ASKED, on_text=lambda _: None)


async def test_a_server_that_is_not_there_is_told_with_its_url() -> None:
    async with endpoint(says(BODY)) as served:
        pass
    async with model_of(served, retries=0) as (model, _):
        with anyio.fail_after(10), pytest.raises(ModelUnavailable) as gone:
            await model.complete(ASKED)

    assert "no reply after 1 attempt: " in str(gone.value)
    assert "Check that the server runs" in str(gone.value)
    assert served.url in str(gone.value)


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ("<html>It works!</html>", "not a chat completion"),
        ("[]", "not a chat completion"),
        ("{}", "without a choice"),
        ('{"choices": []}', "without a choice"),
        ('{"choices": "many"}', "`choices`"),
        ("\x00\x01", "not a chat completion"),
        ("", "not a chat completion"),
    ],
)
async def test_garbage_is_told_with_an_excerpt_and_not_tried_again(body: str, what: str) -> None:
    async with endpoint(says(body)) as served, model_of(served) as (model, pauses):
        with pytest.raises(ModelReplyError, match=what) as unusable:
            await model.complete(ASKED)

    assert served.url in str(unusable.value)
    assert (len(served.seen), pauses) == (1, [])


@pytest.mark.parametrize("before", range(180, 210))
async def test_a_key_that_garbage_echoes_is_never_shown_in_part(before: int) -> None:
    body = "x" * before + "sk-secret" + "y" * 500

    async with endpoint(says(body)) as served, model_of(served, api_key="sk-secret") as (model, _):
        with pytest.raises(ModelReplyError) as unusable:
            await model.complete(ASKED)

    assert "sk-" not in str(unusable.value)


async def test_garbage_in_a_stream_is_told() -> None:
    async with endpoint(streams(b"data: {oops\n\n")) as served, model_of(served) as (model, _):
        with pytest.raises(ModelReplyError, match="oops"):
            await model.complete(ASKED, on_text=lambda _: None)


async def test_a_choice_without_a_message_is_an_empty_reply() -> None:
    body = {"choices": [{"finish_reason": "length"}]}

    async with endpoint(says(body)) as served, model_of(served) as (model, _):
        reply = await model.complete(ASKED)

    assert (reply.text, reply.calls, reply.finish) == ("", (), "length")


async def test_a_body_of_over_a_megabyte_is_sent() -> None:
    request = Request(messages=(Message("user", "x" * 1_500_000),))

    async def accepts(_: web.Request) -> web.StreamResponse:
        return web.json_response(BODY)

    served = Endpoint([accepts])
    app = web.Application(client_max_size=4_000_000)
    app.router.add_post("/v1/chat/completions", served.answer)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    served.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1/"
    try:
        with anyio.fail_after(20):
            async with model_of(served) as (model, _):
                assert await model.complete(request) == WORDS
    finally:
        await runner.cleanup()

    assert len(served.seen[0]["messages"][0]["content"]) == 1_500_000


async def test_a_reply_without_a_stated_length_is_read_whole() -> None:
    async def chunked(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        await response.write(json.dumps(BODY).encode())
        return response

    async with endpoint(chunked) as served, model_of(served) as (model, _):
        assert await model.complete(ASKED) == WORDS


async def test_cancelling_a_request_ends_it_at_the_server() -> None:
    arrived, ended = anyio.Event(), anyio.Event()

    async def waits(request: web.Request) -> web.StreamResponse:
        arrived.set()
        assert request.transport is not None
        while not request.transport.is_closing():
            await anyio.lowlevel.checkpoint()
        ended.set()
        return web.Response()

    async with endpoint(waits) as served, model_of(served) as (model, _):
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(model.complete, ASKED)
            await arrived.wait()
            tasks.cancel_scope.cancel()
        await ended.wait()


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ("http://h:1", "http://h:1/v1/chat/completions"),
        ("http://h:1/", "http://h:1/v1/chat/completions"),
        ("http://h:1/v1", "http://h:1/v1/chat/completions"),
        ("http://h:1/v1/", "http://h:1/v1/chat/completions"),
        ("https://h/v1beta/openai", "https://h/v1beta/openai/chat/completions"),
        ("https://h/v1/chat/completions", "https://h/v1/chat/completions"),
        ("https://u:p@h/v1?key=secret", "https://h/v1/chat/completions"),
    ],
)
def test_a_url_may_be_given_in_any_of_its_usual_forms(given: str, asked: str) -> None:
    assert repr(ChatModel(given, "m")) == f"ChatModel({asked!r}, 'm')"


@pytest.mark.parametrize("url", ["localhost:8000", "ftp://h/v1", "http://", ""])
def test_what_is_not_a_url_is_refused_with_an_example(url: str) -> None:
    with pytest.raises(ConfigError, match="give one such as"):
        ChatModel(url, "m")


async def test_a_model_has_the_endpoints_name_and_closes_twice() -> None:
    model = ChatModel("http://h", "tiny")

    await model.aclose()
    await model.aclose()

    assert model.name == "tiny"

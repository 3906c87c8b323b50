"""The lean lane: it says exactly what the SDK says, or nothing."""

import json
from dataclasses import replace
from typing import Any

import anyio
import pytest
from mcp_types import JSONRPCRequest

from guildry.errors import ToolProtocolError
from guildry.server.lane import LANE_VERSIONS, Lane
from guildry.server.lines import serve_lines
from guildry.server.surface import USER_SCOPES, Surface
from guildry.tools.asking.questions import Question
from guildry.tools.base import Call, Effects, Link, Media, Outcome, Text, Tool

MODERN = "2026-07-28"
LEGACY = "2025-11-25"
ENVELOPE: dict[str, Any] = {
    "io.modelcontextprotocol/protocolVersion": MODERN,
    "io.modelcontextprotocol/clientCapabilities": {},
    "io.modelcontextprotocol/clientInfo": {"name": "test", "version": "1"},
}
OUTCOMES = {
    "text": Outcome((Text('hello \u2028 "quoted" 🙂'),)),
    "error": Outcome((Text("no"),), is_error=True),
    "nothing": Outcome(),
    "structured": Outcome(structured={"a": [1, 2.5, None, True]}, has_structured=True),
    "image": Outcome((Text("see"), Media(b"\x89PNG", "image/png"), Link("file:///x", "x"))),
    "stored": Outcome((Text("x" * 100_000),)),
}


def request(version: str, name: str = "echo", **changes: Any) -> dict[str, Any]:
    params: dict[str, Any] = {"name": name, "arguments": {"text": "hello"}}
    if version == MODERN:
        params["_meta"] = ENVELOPE
    return {"jsonrpc": "2.0", "id": 7, "method": "tools/call", "params": params, **changes}


def with_params(version: str, **changes: Any) -> dict[str, Any]:
    made = request(version)
    return {**made, "params": {**made["params"], **changes}}


class Conversation:
    """A wire that says what it is given, one chunk after each answer, and keeps what it hears."""

    def __init__(self, *said: dict[str, Any]) -> None:
        self._said = [json.dumps(each).encode() + b"\n" for each in said]
        self.heard: list[dict[str, Any]] = []
        self._answered = anyio.Event()
        self._answered.set()

    async def receive(self) -> bytes:
        await self._answered.wait()
        if not self._said:
            return b""
        said = self._said.pop(0)
        if b'"id"' in said:
            self._answered = anyio.Event()
        return said

    def write(self, data: bytes | bytearray) -> int:
        self.heard.append(json.loads(data))
        self._answered.set()
        return len(data)

    async def writable(self) -> None:
        await anyio.lowlevel.checkpoint()


def opening(version: str) -> tuple[dict[str, Any], ...]:
    if version == MODERN:
        ask = {"jsonrpc": "2.0", "id": 0, "method": "server/discover"}
        return ({**ask, "params": {"_meta": ENVELOPE}},)
    hello: dict[str, Any] = {
        "protocolVersion": version,
        "capabilities": {},
        "clientInfo": ENVELOPE["io.modelcontextprotocol/clientInfo"],
    }
    return (
        {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": hello},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
    )


@pytest.mark.parametrize("kind", OUTCOMES)
@pytest.mark.parametrize("version", sorted(LANE_VERSIONS))
async def test_the_lane_answers_word_for_word_as_the_sdk_does(
    opened: Any, make_tool: Any, version: str, kind: str
) -> None:
    async def invoke(arguments: dict[str, Any], call: Call) -> Outcome:
        return OUTCOMES[kind]

    asked = request(version, "made", id="call-1")
    asked["params"]["arguments"] = {}
    unusual = {**asked, "id": "call-2", "params": {**asked["params"], "vendor": 1}}
    async with opened(make_tool("made", invoke)) as app:
        surface = Surface(app)
        lane = Lane(surface, version)
        plain = lane.take(asked)
        assert plain is not None
        assert lane.take(unusual) is None
        ours = json.loads((await lane.answer(plain)).body)
        wire = Conversation(*opening(version), unusual)
        with anyio.fail_after(5):
            await serve_lines(surface, wire)
    (theirs,) = [each for each in wire.heard if each.get("id") == "call-2"]

    assert (ours.pop("id"), theirs.pop("id")) == ("call-1", "call-2")
    assert _same(ours) == _same(theirs)


def _same(answer: dict[str, Any]) -> dict[str, Any]:
    """Return an answer without what is new each time a value is stored."""
    text = json.dumps(answer)
    about = answer.get("result", {}).get("structuredContent", {})
    for key in ("uri", "reference"):
        if key in about:
            text = text.replace(about[key], key)
    return json.loads(text.replace("made_2", "made"))  # type: ignore[no-any-return]


@pytest.mark.parametrize("version", sorted(LANE_VERSIONS))
@pytest.mark.parametrize(
    "changes",
    [
        {"jsonrpc": "1.0"},
        {"id": None},
        {"id": True},
        {"id": 1.5},
        {"method": "tools/list"},
        {"params": None},
        {"params": []},
        {"extra": 1},
    ],
)
async def test_an_unusual_request_is_left_to_the_sdk(
    opened: Any, echo: Tool, version: str, changes: dict[str, Any]
) -> None:
    async with opened(echo) as app:
        lane = Lane(Surface(app), version)

        assert lane.take(request(version)) is not None
        assert lane.take({**request(version), **changes}) is None


@pytest.mark.parametrize("version", sorted(LANE_VERSIONS))
@pytest.mark.parametrize(
    "changes",
    [
        {"name": 1},
        {"name": "unknown"},
        {"arguments": None},
        {"arguments": []},
        {"task": {}},
        {"inputResponses": {}},
        {"_meta": None},
        {"_meta": []},
        {"_meta": {**ENVELOPE, "progressToken": 1}},
        {"_meta": {"progressToken": 1}},
        {"_meta": {**ENVELOPE, "io.modelcontextprotocol/protocolVersion": "2027-01-01"}},
        {"_meta": {"io.modelcontextprotocol/protocolVersion": MODERN}},
        {"_meta": {**ENVELOPE, "io.modelcontextprotocol/clientCapabilities": "all"}},
        {"_meta": {**ENVELOPE, "vendor/long": "x" * 5_000}},
    ],
)
async def test_unusual_parameters_are_left_to_the_sdk(
    opened: Any, echo: Tool, version: str, changes: dict[str, Any]
) -> None:
    async with opened(echo) as app:
        assert Lane(Surface(app), version).take(with_params(version, **changes)) is None


@pytest.mark.requirement("meta.required")
async def test_a_modern_request_without_an_envelope_is_left_to_the_sdk(
    opened: Any, echo: Tool
) -> None:
    async with opened(echo) as app:
        surface = Surface(app)

        assert Lane(surface, MODERN).take(request(LEGACY)) is None
        assert Lane(surface, LEGACY).take(request(MODERN)) is None
        assert Lane(surface, LEGACY).take([request(LEGACY)]) is None


async def test_many_clients_do_not_make_the_lane_remember_for_ever(opened: Any, echo: Tool) -> None:
    async with opened(echo) as app:
        lane = Lane(Surface(app), MODERN)
        for n in range(600):
            info = {"name": f"client {n}", "version": "1"}
            meta = {**ENVELOPE, "io.modelcontextprotocol/clientInfo": info}
            assert lane.take(with_params(MODERN, _meta=meta)) is not None

        kept = lane._envelopes  # pyright: ignore[reportPrivateUsage]  # nothing else tells
        assert len(kept) <= 256


async def test_a_tool_that_the_caller_may_not_call_is_unknown(opened: Any, echo: Tool) -> None:
    async with opened(echo) as app:
        lane = Lane(Surface(app, scopes=USER_SCOPES), LEGACY)
        call = lane.take({**request(LEGACY, "plug")})
        assert call is not None
        answer = await lane.answer(call)

    assert answer.code == -32602
    assert json.loads(answer.body)["error"]["code"] == -32602


EXTENSION: dict[str, Any] = {"extensions": {"io.modelcontextprotocol/tasks": {}}}


@pytest.mark.parametrize("version", sorted(LANE_VERSIONS))
@pytest.mark.parametrize(
    ("about", "capabilities", "is_taken"),
    [
        ({}, {"elicitation": {}}, True),
        ({"asks": True}, {}, True),
        ({"asks": True}, {"elicitation": {}}, False),
        ({"asks": True}, {"sampling": {}}, False),
        ({"asks": True}, {"roots": {}}, False),
        ({"asks": True}, {"experimental": {}}, True),
        ({"task": "optional"}, {}, True),
        ({"task": "optional"}, {"elicitation": {}}, False),
        ({"task": "optional"}, EXTENSION, False),
        ({"task": "required"}, {}, False),
        ({"effects": Effects(admits=True)}, {}, False),
        ({"effects": Effects()}, {"elicitation": {}}, True),
    ],
)
async def test_a_call_that_may_want_more_of_its_client_is_left_to_the_sdk(
    opened: Any, echo: Tool, version: str, about: Any, capabilities: Any, is_taken: bool
) -> None:
    tool = replace(echo, **about)
    meta = {**ENVELOPE, "io.modelcontextprotocol/clientCapabilities": capabilities}
    asked = with_params(version, _meta=meta) if version == MODERN else request(version)
    inner = {"name": "echo", "arguments": {"text": "hello"}}
    through = {
        **asked,
        "params": {**asked["params"], "name": "call_tool", "arguments": inner},
    }
    async with opened(tool) as app:
        lane = Lane(Surface(app), version, None if version == MODERN else capabilities)

        taken = [lane.take(each) is not None for each in (asked, asked, through)]

    assert taken == [is_taken] * 3


async def test_calls_of_a_client_that_hears_log_messages_are_left_to_the_sdk(
    opened: Any, echo: Tool
) -> None:
    level: dict[str, Any] = {"method": "logging/setLevel", "params": {"level": "info"}}
    loud = {**ENVELOPE, "io.modelcontextprotocol/logLevel": "info"}
    async with opened(echo) as app:
        legacy, modern = Lane(Surface(app), LEGACY), Lane(Surface(app), MODERN)
        before = legacy.take(request(LEGACY))

        assert legacy.take(request(LEGACY, **level)) is None
        assert modern.take(request(MODERN, **level)) is None
        assert before is not None
        assert legacy.take(request(LEGACY)) is None
        assert modern.take(with_params(MODERN, _meta=loud)) is None
        assert modern.take(request(MODERN)) is not None


async def test_capabilities_that_make_no_sense_are_none(opened: Any, echo: Tool) -> None:
    async with opened(replace(echo, asks=True)) as app:
        lane = Lane(Surface(app), LEGACY, {"elicitation": 5})

        assert lane.take(request(LEGACY)) is not None


async def test_an_error_of_the_protocol_goes_out_as_it_is(opened: Any, echo: Tool) -> None:
    async def invoke(arguments: dict[str, Any], call: Call) -> Outcome:
        raise ToolProtocolError("text", -32021, "Needs sampling", {"a": 1})

    async with opened(replace(echo, invoke=invoke)) as app:
        lane = Lane(Surface(app), LEGACY)
        call = lane.take(request(LEGACY))
        assert call is not None
        answer = await lane.answer(call)

    error = {"code": -32021, "message": "Needs sampling", "data": {"a": 1}}
    assert json.loads(answer.body)["error"] == error
    assert answer.code == -32021


async def test_a_connection_of_lines_tells_the_lane_what_its_client_declared(
    opened: Any, echo: Tool
) -> None:
    """The client is asked on its own connection, which the lane could not do."""

    async def invoke(arguments: dict[str, Any], call: Call) -> Outcome:
        answer = await call.ask(Question(key="where", kind="roots", message=""))
        return Outcome((Text(answer.action),))

    hello, ready = opening(LEGACY)
    hello["params"]["capabilities"] = {"roots": {}}
    reply: dict[str, Any] = {"jsonrpc": "2.0", "id": 1, "result": {"roots": []}}
    wrong = {**reply, "result": {"roots": "none"}}
    wire = Conversation(hello, ready, request(LEGACY), wrong, {**reply, "id": 2})
    async with opened(replace(echo, invoke=invoke, asks=True)) as app:
        with anyio.fail_after(10):
            await serve_lines(Surface(app), wire)

    _, asked, again, done = [each for each in wire.heard if "id" in each]
    assert [each["method"] for each in (asked, again)] == ["roots/list", "roots/list"]
    assert done["result"]["content"] == [{"type": "text", "text": "accept"}]


@pytest.mark.requirement("errors.tell-no-secret")
async def test_a_crash_inside_is_told_as_an_internal_error(opened: Any, make_tool: Any) -> None:
    async def invoke(arguments: dict[str, Any], call: Call) -> Outcome:
        return Outcome((Link("note://half", "half a pair: \ud800"),))

    async with opened(make_tool("broken", invoke)) as app:
        lane = Lane(Surface(app), LEGACY)
        asked = request(LEGACY, "broken")
        asked["params"]["arguments"] = {}
        call = lane.take(asked)
        assert call is not None
        answer = await lane.answer(call)

    assert answer.code == -32603
    assert json.loads(answer.body)["error"]["message"] == "Internal server error"


def test_the_request_that_the_tests_vary_is_one_that_the_sdk_takes() -> None:
    for version in LANE_VERSIONS:
        JSONRPCRequest.model_validate(request(version))

"""Log messages: to whom they go, and to whom not, through the official client, in both eras."""

from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp_types import (
    EmptyResult,
    LoggingMessageNotificationParams,
    SetLevelRequest,
    SetLevelRequestParams,
)

from guildry.server.surface import build_server
from guildry.tools.base import Embedded, Outcome, Text, Tool
from guildry.tools.caller import Caller
from guildry.tools.offers import Offers, Resource

ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])
SAID = [("debug", "small"), ("info", "usual"), ("error", "large")]


@pytest.fixture
def talks(make_tool: Any) -> Tool:
    async def invoke(arguments: dict[str, Any], call: Any) -> Outcome:
        if call.log is not None:
            for level, data in SAID:
                await call.log(level, data, "talks")
        return Outcome((Text("said"),))

    tool: Tool = make_tool("talks", invoke)
    return tool


class Ear:
    """Hears log messages."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, Any]] = []
        self._last = anyio.Event()

    async def __call__(self, params: LoggingMessageNotificationParams) -> None:
        self.heard.append((params.level, params.data))
        if params.level == "error":
            self._last.set()

    async def last(self) -> None:
        with anyio.fail_after(10):
            await self._last.wait()


async def set_level(client: Client, level: Any) -> None:
    request = SetLevelRequest(params=SetLevelRequestParams(level=level))
    await client.session.send_request(request, EmptyResult)


@pytest.mark.parametrize(
    ("level", "heard"), [("debug", SAID), ("info", SAID[1:]), ("error", SAID[2:])]
)
@pytest.mark.requirement("logging.set-level")
async def test_an_older_client_hears_what_it_set_its_session_to(
    opened: Any, talks: Tool, level: str, heard: list[tuple[str, str]]
) -> None:
    ear = Ear()
    async with opened(talks) as app:
        server = build_server(app)
        async with Client(server, mode="legacy", logging_callback=ear) as client:
            await set_level(client, level)
            await client.call_tool("talks")
            await ear.last()

    assert ear.heard == heard


@pytest.mark.requirement("logging.unknown-level")
async def test_a_level_that_is_none_is_refused(opened: Any) -> None:
    async with opened() as app, Client(build_server(app), mode="legacy") as client:
        request = SetLevelRequest(params=SetLevelRequestParams.model_construct(level="loud"))
        with pytest.raises(MCPError) as refused:
            await client.session.send_request(request, EmptyResult)

    assert refused.value.error.code == -32602


@pytest.mark.requirement("logging.per-request")
async def test_a_later_client_hears_what_it_asked_for_with_its_request(
    opened: Any, talks: Tool
) -> None:
    ear, deaf = Ear(), Ear()
    async with opened(talks) as app:
        server = build_server(app)
        async with Client(server, logging_callback=ear, log_level="info") as client:
            await client.call_tool("talks")
            await ear.last()
        async with Client(server, logging_callback=deaf) as client:
            await client.call_tool("talks")

    assert ear.heard == SAID[1:]
    assert deaf.heard == []


@ERAS
async def test_what_is_said_while_a_resource_is_read_arrives_too(opened: Any, era: Any) -> None:
    async def read(uri: str, caller: Caller) -> tuple[Embedded, ...]:
        assert caller.log is not None
        await caller.log("error", "torn")
        return (Embedded(uri, text="x"),)

    ear = Ear()
    async with opened() as app:
        resource = Resource(uri="test://a", name="a", plug="more", read=read)
        app.catalog.replace("more", (), Offers(resources=(resource,)))
        listening = Client(build_server(app), mode=era, logging_callback=ear, log_level="error")
        async with listening as client:
            if era == "legacy":
                await set_level(client, "error")
            await client.read_resource("test://a")
            await ear.last()

    assert ear.heard == [("error", "torn")]

"""Changes of resources and of other lists: who is told, in both eras, and who is not."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol

import anyio
import pytest
from mcp import Client, MCPError
from mcp_types import (
    EmptyResult,
    PromptListChangedNotification,
    ResourceListChangedNotification,
    ResourceUpdatedNotification,
    SubscribeRequest,
    SubscribeRequestParams,
    UnsubscribeRequest,
    UnsubscribeRequestParams,
)

from guildry.errors import ToolFailed
from guildry.memory.events import Stopped
from guildry.memory.runs import RunRecord
from guildry.server.http.endpoint import serve_http
from guildry.server.surface import USER_SCOPES, Surface, build_server
from guildry.teams.team import Solo
from guildry.tools.base import Embedded
from guildry.tools.offers import Messages, Offers, Prompt, Resource

ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])


class Hears(Protocol):
    async def __call__(self) -> str: ...


async def read(uri: str, caller: Any) -> tuple[Embedded, ...]:
    return ()


async def subscribe(client: Client, uri: str) -> None:
    request = SubscribeRequest(params=SubscribeRequestParams(uri=uri))
    await client.session.send_request(request, EmptyResult)


async def unsubscribe(client: Client, uri: str) -> None:
    request = UnsubscribeRequest(params=UnsubscribeRequestParams(uri=uri))
    await client.session.send_request(request, EmptyResult)


def resource(uri: str, **about: Any) -> Resource:
    return Resource(uri=uri, name="x", plug="more", read=read, **about)


def notified(message: Any) -> str | None:
    if isinstance(message, ResourceUpdatedNotification):
        return str(message.params.uri)
    if isinstance(message, ResourceListChangedNotification):
        return "resources"
    return "prompts" if isinstance(message, PromptListChangedNotification) else None


@asynccontextmanager
async def following(server: Any, era: str, *uris: str) -> AsyncGenerator[tuple[Client, Hears]]:
    """Yield a client that follows resources and lists, and the way to hear the next change."""
    told, heard = anyio.create_memory_object_stream[str](100)

    async def handle(message: Any) -> None:
        named = notified(message)
        if era == "legacy" and named is not None:  # others hear it from their subscription
            told.send_nowait(named)

    async def hear() -> str:
        with anyio.fail_after(10):
            return await heard.receive()

    mode: Any = era
    async with told, heard, Client(server, mode=mode, cache=None, message_handler=handle) as client:
        if era == "legacy":
            for uri in uris:
                await subscribe(client, uri)
            yield client, hear
            return
        listening = client.listen(
            prompts_list_changed=True, resources_list_changed=True, resource_subscriptions=uris
        )
        async with listening as subscription, anyio.create_task_group() as tasks:

            async def relay() -> None:
                async for event in subscription:
                    kind = type(event).__name__.removesuffix("ListChanged").lower()
                    told.send_nowait(getattr(event, "uri", kind))

            tasks.start_soon(relay)
            yield client, hear
            tasks.cancel_scope.cancel()


@ERAS
@pytest.mark.requirement("discover.capabilities")
async def test_all_lists_are_said_to_change_and_resources_to_be_followed(
    opened: Any, era: Any
) -> None:
    async with opened() as app, Client(build_server(app), mode=era) as client:
        able = client.server_capabilities

    assert able.tools is not None
    assert able.prompts is not None
    assert able.resources is not None
    assert (able.tools.list_changed, able.prompts.list_changed) == (True, True)
    assert (able.resources.list_changed, able.resources.subscribe) == (True, True)
    assert able.completions is not None
    assert able.logging is not None


@ERAS
@pytest.mark.requirement("prompts.list-changed")
async def test_prompts_that_come_are_announced_and_so_are_those_of_teams(
    opened: Any, era: Any
) -> None:
    async def get(arguments: Any, caller: Any) -> Messages:
        return Messages(())

    async with opened() as app:
        async with following(build_server(app), era) as (_, hear):
            prompt = Prompt(name="p", plug="more", get=get)
            app.catalog.replace("more", (), Offers(prompts=(prompt,)))
            first = await hear()
            app.add_team(Solo(name="survey", description="Looks around."))
            second = await hear()

    assert (first, second) == ("prompts", "prompts")


@ERAS
@pytest.mark.requirement("listen.updated")
async def test_a_plugs_resource_is_followed_where_it_is_told_of_and_its_followers_hear(
    opened: Any, era: Any
) -> None:
    asked: list[str] = []

    async def follow(uri: str) -> None:
        asked.append(uri)

    async with opened() as app:
        offers = Offers(resources=(resource("test://a", follow=follow), resource("test://b")))
        app.catalog.replace("more", (), offers)
        async with following(build_server(app), era, "test://a") as (_, hear):
            app.catalog.touch("test://b")
            app.catalog.touch("test://a")
            first = await hear()
            offers = Offers(resources=(resource("test://a", follow=follow),))
            app.catalog.replace("more", (), offers)  # loaded anew: it is asked again
            heard = {await hear(), await hear()}

    assert first == "test://a"
    assert heard == {"resources", "test://a"}
    assert asked == ["test://a", "test://a"]


@ERAS
async def test_a_run_is_told_of_when_its_journal_grows_and_when_it_ends(
    opened: Any, era: Any
) -> None:
    async with opened() as app:
        await app.runs.create(RunRecord(id="r1", kind="team", team="t", task="", principal="local"))
        server = build_server(app, scopes=USER_SCOPES)
        async with following(server, era, "run://r1/journal", "run://r1") as (client, hear):
            app.journal.append("r1", Stopped("a1", "done", ""))
            grown = {await hear(), await hear()}
            await app.runs.finish("r1", "done", None, {})
            ended = {await hear(), await hear(), await hear()}
            status = (await client.read_resource("run://r1")).contents[0].model_dump()["text"]

    assert grown == {"run://r1", "run://r1/journal"}
    assert ended == {"run://r1", "run://r1/journal", "resources"}
    assert '"status": "done"' in status


async def test_a_run_of_another_process_is_followed_too(opened: Any) -> None:
    async with opened() as other, opened() as app:
        await other.runs.create(
            RunRecord(id="r1", kind="team", team="t", task="", principal="local")
        )
        async with following(build_server(app), "auto", "run://r1") as (_, hear):
            other.journal.append("r1", Stopped("a1", "done", ""))
            assert await hear() == "run://r1"


@pytest.mark.requirement("listen.honoured")
async def test_only_what_a_principal_may_read_is_followed(opened: Any) -> None:
    uris = ["run://hers", "run://mine", "ref://" + "x" * 22, "test://a", "file:///etc/passwd"]
    async with opened() as app:
        for id, principal in (("hers", "eve"), ("mine", "bob")):
            await app.runs.create(
                RunRecord(id=id, kind="team", team="t", task="", principal=principal)
            )
        app.catalog.replace("more", (), Offers(resources=(resource("test://a"),)))
        bob = build_server(app, holder="bob", scopes=["teams"])
        async with Client(bob) as client:
            async with client.listen(resource_subscriptions=uris) as subscription:
                honored = subscription.honored.resource_subscriptions
        async with Client(bob, mode="legacy") as client:
            for uri in uris:
                if uri != "run://mine":
                    with pytest.raises(MCPError) as refused:
                        await subscribe(client, uri)
                    assert refused.value.error.code == -32002
                    assert refused.value.error.data == {"uri": uri}
            await subscribe(client, "run://mine")

    assert honored == ["run://mine"]


@ERAS
async def test_what_happens_to_the_resources_of_others_is_told_to_them_alone(
    opened: Any, era: Any
) -> None:
    async with opened() as app:
        servers = [build_server(app, holder=name, scopes=USER_SCOPES) for name in ("eve", "bob")]
        async with following(servers[0], era) as (_, eve), following(servers[1], era) as (_, bob):
            async with following(build_server(app), era) as (_, admin):
                await app.runs.create(
                    RunRecord(id="r1", kind="team", team="t", task="", principal="eve")
                )
                told = (await eve(), await admin())
                app.announcer.prompts_changed()  # had bob been told of the run, it would be first
                first = await bob()

    assert told == ("resources", "resources")
    assert first == "prompts"


@pytest.mark.requirement("resources.subscribe")
async def test_a_resource_that_is_unsubscribed_from_is_told_of_no_more(opened: Any) -> None:
    async with opened() as app:
        offers = Offers(resources=(resource("test://a"), resource("test://b")))
        app.catalog.replace("more", (), offers)
        uris = ("test://a", "test://b")
        async with following(build_server(app), "legacy", *uris) as (client, hear):
            await subscribe(client, "test://a")  # a second time: it is one subscription
            await unsubscribe(client, "test://a")
            await unsubscribe(client, "test://never")
            app.catalog.touch("test://a")
            app.catalog.touch("test://b")
            first = await hear()

    assert first == "test://b"


@ERAS
@pytest.mark.requirement("listen.left")
async def test_a_client_that_left_follows_nothing_any_more(opened: Any, era: Any) -> None:
    async with opened() as app:
        app.catalog.replace("more", (), Offers(resources=(resource("test://a"),)))
        async with following(build_server(app), era, "test://a"):
            assert app.following._held == {"test://a": 1}
        with anyio.fail_after(10):
            while app.following._held:
                await anyio.lowlevel.checkpoint()


@ERAS
@pytest.mark.requirement("listen.honoured")
async def test_a_resource_whose_plug_cannot_follow_it_is_not_followed(
    opened: Any, era: Any
) -> None:
    async def follow(uri: str) -> None:
        raise ToolFailed("the server behind does not tell")

    async with opened() as app:
        app.catalog.replace("more", (), Offers(resources=(resource("test://a", follow=follow),)))
        async with Client(build_server(app), mode=era) as client:
            if era == "legacy":
                with pytest.raises(MCPError, match="does not tell") as refused:
                    await subscribe(client, "test://a")
                assert refused.value.error.code == -32603
            else:
                async with client.listen(resource_subscriptions=["test://a"]) as subscription:
                    assert subscription.honored.resource_subscriptions is None
        assert app.following._held == {}


async def test_more_resources_than_anybody_needs_are_refused(opened: Any) -> None:
    uris = [f"test://{n}" for n in range(1_001)]
    async with opened() as app:
        app.catalog.replace("more", (), Offers(resources=tuple(resource(uri) for uri in uris)))
        async with Client(build_server(app)) as client:
            with pytest.raises(MCPError, match="at most 1000") as refused:
                async with client.listen(resource_subscriptions=uris):
                    pass
        async with Client(build_server(app), mode="legacy") as client:
            for uri in uris[:-1]:
                await subscribe(client, uri)
            with pytest.raises(MCPError, match="unsubscribe from some"):
                await subscribe(client, uris[-1])

    assert refused.value.error.code == -32602


async def test_a_tool_that_changes_is_another_resource(opened: Any, echo: Any) -> None:
    async with opened(echo) as app:
        uris = ("tool://echo", "plug://mine")
        async with following(build_server(app), "auto", *uris) as (_, hear):
            app.catalog.replace("mine", ())
            heard = {await hear(), await hear()}

    assert heard == set(uris)


@ERAS
@pytest.mark.requirement("listen.updated")
async def test_changes_are_told_over_http(opened: Any, era: Any) -> None:
    with anyio.fail_after(60):
        async with opened() as app, anyio.create_task_group() as tasks:
            offers = Offers(resources=(resource("test://a"), resource("test://b")))
            app.catalog.replace("more", (), offers)
            url = await tasks.start(partial(serve_http, Surface(app), port=0))
            async with following(url, era, "test://a") as (_, hear):
                app.catalog.touch("test://b")
                app.catalog.touch("test://a")
                assert await hear() == "test://a"
                app.announcer.prompts_changed()
                assert await hear() == "prompts"
            tasks.cancel_scope.cancel()

"""Resources: what is listed, read and refused, through the official client, in both eras."""

import json
import sqlite3
from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp.types import TextResourceContents

from guildry.errors import ToolFailed, ToolRetry
from guildry.memory.events import Stopped
from guildry.memory.runs import RunRecord
from guildry.server.surface import USER_SCOPES, build_server
from guildry.tools.base import Embedded, Icon
from guildry.tools.offers import Offers, Resource, Template

ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])
NOT_FOUND = {"auto": -32602, "legacy": -32002}
ABOUT: Mapping[str, Any] = {"namespace": "local", "owner": "local"}


def resource(uri: str, *contents: Embedded, **about: Any) -> Resource:
    async def read(uri: str, caller: Any) -> tuple[Embedded, ...]:
        return contents or (Embedded(uri, "text/plain", text=f"at {uri}"),)

    return Resource(uri=uri, name=uri.rpartition("/")[2], plug="more", read=read, **about)


def template(uri_template: str, begins: str, plug: str = "more") -> Template:
    async def read(uri: str, caller: Any) -> tuple[Embedded, ...]:
        return (Embedded(uri, "text/plain", text=f"{plug}: {uri}"),)

    return Template(
        uri_template=uri_template,
        name="log",
        plug=plug,
        matches=lambda uri: uri.startswith(begins),
        read=read,
    )


async def every_page(client: Client, what: str, member: str) -> list[Any]:
    found: list[Any] = []
    cursor: str | None = None
    while not found or cursor is not None:
        page = await getattr(client, what)(cursor=cursor)
        found += getattr(page, member)
        cursor = page.next_cursor
        if not found:
            break
    return found


@ERAS
@pytest.mark.requirement("resources.listed")
async def test_references_are_resources_of_those_who_may_read_them(opened: Any, era: Any) -> None:
    async with opened() as app:
        mine = await app.objects.put(
            b'{"a": [1, 2]}', media_type="application/json", name="mine", **ABOUT
        )
        theirs = await app.objects.put(
            b"secret", media_type="text/plain", name="theirs", namespace="eve", owner="eve"
        )
        async with Client(build_server(app), mode=era) as client:
            listed = (await client.list_resources()).resources
            whole = await client.read_resource(mine.uri)
            part = await client.read_resource(f"{mine.uri}#/a/1")
            errors: list[MCPError] = []
            for uri in (theirs.uri, "ref://" + "x" * 22, "ref://", "file:///etc/passwd"):
                with pytest.raises(MCPError) as refused:
                    await client.read_resource(uri)
                errors.append(refused.value)

    assert [(str(each.uri), each.name, each.size) for each in listed] == [(mine.uri, "mine", 13)]
    assert listed[0].annotations is not None
    assert listed[0].annotations.audience == ["assistant"]
    assert isinstance(whole.contents[0], TextResourceContents)
    assert whole.contents[0].text == '{"a": [1, 2]}'
    assert isinstance(part.contents[0], TextResourceContents)
    assert part.contents[0].text == "2"
    assert {error.error.code for error in errors} == {NOT_FOUND[era]}
    foreign, forged = (
        str(error).replace(each, "ID")
        for error, each in zip(errors[:2], (theirs.id, "x" * 22), strict=True)
    )
    assert foreign == forged
    assert errors[0].error.data == {"uri": theirs.uri}


@ERAS
@pytest.mark.requirement("resources.binary")
async def test_bytes_come_as_a_blob_and_what_is_too_large_is_refused_with_the_cure(
    opened: Any, era: Any
) -> None:
    async with opened() as app:
        image = await app.objects.put(b"\x89PNG", media_type="image/png", name="i", **ABOUT)
        long = await app.objects.put(
            b"line\n" * 4_000_000, media_type="text/plain", name="log", **ABOUT
        )
        async with Client(build_server(app), mode=era) as client:
            blob = await client.read_resource(image.uri)
            with pytest.raises(MCPError, match=r"\?lines=") as refused:
                await client.read_resource(long.uri)
            lines = await client.read_resource(f"{long.uri}?lines=2-3")

    assert blob.contents[0].model_dump(exclude_none=True)["blob"] == "iVBORw=="
    assert lines.contents[0].model_dump()["text"].split() == ["line", "line"]
    assert refused.value.error.code == -32602
    assert refused.value.error.data == {"uri": long.uri}


@ERAS
@pytest.mark.requirement("resources.access")
async def test_runs_are_resources_of_their_principal(opened: Any, era: Any) -> None:
    async with opened() as app:
        for id, principal in (("r1", "local"), ("r2", "eve")):
            await app.runs.create(
                RunRecord(id=id, kind="team", team="survey", task="look", principal=principal)
            )
        app.journal.append("r1", Stopped("r1", "done", ""))
        await app.runs.finish("r1", "done", {"report": "seen"}, {"agents": 1})
        server = build_server(app, scopes=USER_SCOPES)
        async with Client(server, mode=era) as client:
            mine = await client.list_resources()
            read = await client.read_resource("run://r1")
            journal = await client.read_resource("run://r1/journal")
            for uri in ("run://r2", "run://r3", "run://r1/secrets", "run://"):
                with pytest.raises(MCPError) as refused:
                    await client.read_resource(uri)
                assert refused.value.error.code == NOT_FOUND[era]
        async with Client(build_server(app), mode=era) as admin:
            every = await admin.list_resources()
            running = await admin.read_resource("run://r2")

    assert [str(each.uri) for each in mine.resources] == ["run://r1"]
    told = json.loads(read.contents[0].model_dump()["text"])
    assert (told["status"], told["report"], told["usage"], told["entries"]) == (
        "done",
        {"report": "seen"},
        {"agents": 1},
        1,
    )
    assert json.loads(journal.contents[0].model_dump()["text"])["kind"] == "stop"
    assert [str(each.uri) for each in every.resources] == ["run://r2", "run://r1"]
    kept = era == "auto"  # older clients are told nothing of this
    assert (read.ttl_ms > 0, journal.ttl_ms > 0, running.ttl_ms) == (kept, kept, 0)
    assert read.cache_scope == "private"


@ERAS
async def test_all_resources_come_in_pages_whatever_comes_and_goes_meanwhile(
    opened: Any, era: Any
) -> None:
    seen: list[str] = []
    async with opened() as app:
        made = [
            await app.objects.put(str(n).encode(), media_type="text/plain", name="n", **ABOUT)
            for n in range(130)
        ]
        brief = await app.objects.put(
            b"brief", media_type="text/plain", name="brief", ttl_s=0.0, **ABOUT
        )
        offered = [resource(f"test://{n:03}") for n in range(120)]
        app.catalog.replace("more", (), Offers(resources=tuple(offered)))
        for n in range(60):
            await app.runs.create(
                RunRecord(id=f"r{n}", kind="team", team="t", task="", principal="local")
            )
        async with Client(build_server(app), mode=era) as client:
            cursor: str | None = None
            sizes: list[int] = []
            while not sizes or cursor is not None:
                page = await client.list_resources(cursor=cursor)
                seen += [str(each.uri) for each in page.resources]
                sizes.append(len(page.resources))
                cursor = page.next_cursor
                if len(sizes) == 1:  # the last one seen goes, one before it comes
                    app.catalog.replace(
                        "more",
                        (),
                        Offers(resources=(resource("test://"), *offered[:99], *offered[100:])),
                    )
                await app.objects.expire()
            with pytest.raises(MCPError) as refused:
                await client.list_resources(cursor="nonsense")

    assert seen[:120] == [each.uri for each in offered]
    assert seen[120:250] == [each.uri for each in made]
    assert seen[250:] == [f"run://r{n}" for n in reversed(range(60))]
    assert brief.uri not in seen
    assert sizes == [100, 100, 100, 10]
    assert refused.value.error.code == -32602


async def test_a_page_goes_on_where_it_was_when_its_last_reference_has_expired(opened: Any) -> None:
    async with opened() as app:
        for n in range(150):
            ttl_s = 3600.0 if n == 99 else None
            await app.objects.put(
                str(n).encode(), media_type="text/plain", name=f"n{n}", ttl_s=ttl_s, **ABOUT
            )
        async with Client(build_server(app)) as client:
            first = await client.list_resources()

            def expire(writer: sqlite3.Connection) -> None:
                writer.execute("UPDATE objects SET expires_at = 1 WHERE expires_at > 1")

            await app.store.write(expire)
            await app.objects.expire()
            second = await client.list_resources(cursor=first.next_cursor)

    assert len(first.resources) == 100
    assert [each.name for each in second.resources] == [f"n{n}" for n in range(100, 150)]


@ERAS
@pytest.mark.requirement("resources.listed")
async def test_resources_of_plugs_are_told_whole_and_read(opened: Any, era: Any) -> None:
    about = resource(
        "test://about",
        Embedded("test://about", "text/plain", text="words"),
        Embedded("test://about#picture", "image/png", data=b"\x89PNG"),
        title="About",
        description="What it is.",
        media_type="text/plain",
        size=5,
        icons=(Icon("data:image/png;base64,iVBORw==", "image/png", ("16x16",), "dark"),),
        annotations={
            "audience": ["user"],
            "priority": 0.5,
            "lastModified": "2026-01-01T00:00:00Z",
            "_meta": {"example.com/x": 1},
        },
    )
    async with opened() as app:
        app.catalog.replace("more", (), Offers(resources=(about,)))
        async with Client(build_server(app), mode=era) as client:
            (listed,) = (await client.list_resources()).resources
            read = await client.read_resource("test://about")
        without = build_server(app, holder="bob", scopes=["teams"])
        async with Client(without, mode=era) as outsider:
            nothing = (await outsider.list_resources()).resources
            with pytest.raises(MCPError) as refused:
                await outsider.read_resource("test://about")

    assert listed.model_dump(by_alias=True, mode="json", exclude_none=True) == {
        "uri": "test://about",
        "name": "about",
        "title": "About",
        "description": "What it is.",
        "mimeType": "text/plain",
        "size": 5,
        "icons": [
            {
                "src": "data:image/png;base64,iVBORw==",
                "mimeType": "image/png",
                "sizes": ["16x16"],
                "theme": "dark",
            }
        ],
        "annotations": {
            "audience": ["user"],
            "priority": 0.5,
            "lastModified": "2026-01-01T00:00:00Z",
        },
        "_meta": {"example.com/x": 1},
    }
    dumped = [each.model_dump(by_alias=True, exclude_none=True) for each in read.contents]
    assert dumped == [
        {"uri": "test://about", "mimeType": "text/plain", "text": "words"},
        {"uri": "test://about#picture", "mimeType": "image/png", "blob": "iVBORw=="},
    ]
    assert nothing == []
    assert refused.value.error.code == NOT_FOUND[era]


@ERAS
@pytest.mark.requirement("resources.templates")
async def test_a_template_reads_what_has_no_resource_of_its_own_and_never_ours(
    opened: Any, era: Any
) -> None:
    everything = template("{+any}", "")
    assert everything.matches("ref://x")
    async with opened() as app:
        fixed = resource("log://today")
        app.catalog.replace(
            "more", (), Offers(resources=(fixed,), templates=(template("log://{day}", "log://"),))
        )
        app.catalog.replace("greedy", (), Offers(templates=(everything,)))
        async with Client(build_server(app), mode=era) as client:
            today = await client.read_resource("log://today")
            monday = await client.read_resource("log://monday")
            other = await client.read_resource("other://x")
            for uri in ("ref://" + "x" * 22, "run://r1", "tool://nothing"):
                with pytest.raises(MCPError) as refused:
                    await client.read_resource(uri)
                assert refused.value.error.code == NOT_FOUND[era]

    texts = [each.contents[0].model_dump()["text"] for each in (today, monday, other)]
    assert texts == ["at log://today", "more: log://monday", "more: other://x"]


@ERAS
@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ToolRetry("`day` is a Tuesday: give a Monday"), -32602, "give a Monday"),
        (ToolFailed("the log is gone"), -32603, "the log is gone"),
        (RuntimeError("the password is swordfish"), -32603, "Internal server error"),
    ],
)
@pytest.mark.requirement("resources.internal")
async def test_what_a_plug_cannot_read_is_told_and_what_it_crashed_of_is_not(
    opened: Any, era: Any, error: Exception, code: int, text: str
) -> None:
    async def read(uri: str, caller: Any) -> tuple[Embedded, ...]:
        raise error

    broken = Resource(uri="log://broken", name="broken", plug="more", read=read)
    async with opened() as app:
        app.catalog.replace("more", (), Offers(resources=(broken,)))
        async with Client(build_server(app), mode=era) as client:
            with pytest.raises(MCPError, match=text) as refused:
                await client.read_resource("log://broken")

    assert refused.value.error.code == code
    assert "swordfish" not in str(refused.value)


@ERAS
async def test_templates_come_in_pages_ours_first(opened: Any, era: Any) -> None:
    async with opened() as app:
        many = [template(f"log{n:03}://{{day}}", f"log{n:03}://") for n in range(150)]
        app.catalog.replace("more", (), Offers(templates=tuple(many)))
        async with Client(build_server(app), mode=era) as client:
            found = await every_page(client, "list_resource_templates", "resource_templates")
            with pytest.raises(MCPError) as refused:
                await client.list_resource_templates(cursor="nonsense")

    assert [each.uri_template for each in found[:6]] == [
        "ref://{id}",
        "run://{id}",
        "run://{id}/journal",
        "tool://{name}",
        "team://{name}",
        "plug://{name}",
    ]
    assert [each.uri_template for each in found[6:]] == [each.uri_template for each in many]
    assert refused.value.error.code == -32602


@ERAS
async def test_tools_and_plugs_are_described_to_those_who_may_use_them(
    opened: Any, echo: Any, era: Any
) -> None:
    async with opened(echo) as app:
        app.catalog.replace("more", (), Offers(resources=(resource("test://x"),)))
        async with Client(build_server(app, scopes=USER_SCOPES), mode=era) as client:
            tool = await client.read_resource("tool://echo")
            mine = await client.read_resource("plug://mine")
            more = await client.read_resource("plug://more")
            for uri in ("tool://plug", "plug://nothing", "team://nobody"):
                with pytest.raises(MCPError):
                    await client.read_resource(uri)

    described, plug, offering = (
        json.loads(each.contents[0].model_dump()["text"]) for each in (tool, mine, more)
    )
    assert (described["name"], described["plug"]) == ("echo", "mine")
    assert described["inputSchema"]["required"] == ["text"]
    assert plug["tools"] == ["echo"]
    assert offering == {
        "plug": "more",
        "tools": [],
        "prompts": [],
        "resources": ["test://x"],
        "templates": [],
    }


@ERAS
async def test_a_plug_that_does_not_answer_is_waited_for_within_a_limit(
    opened: Any, era: Any
) -> None:
    async def read(uri: str, caller: Any) -> tuple[Embedded, ...]:
        await anyio.sleep_forever()
        return ()

    slow = Resource(uri="test://slow", name="slow", plug="more", read=read)
    async with opened(call_timeout_s=0.05) as app:
        app.catalog.replace("more", (), Offers(resources=(slow,)))
        async with Client(build_server(app), mode=era) as client:
            with anyio.fail_after(10), pytest.raises(MCPError, match="try again later") as refused:
                await client.read_resource("test://slow")

    assert refused.value.error.code == -32603

"""Prompts, resources, completion and changes of real MCP servers, of both eras, as they are."""

from typing import TYPE_CHECKING

import anyio
import pytest

from guildry.errors import ToolFailed, ToolProtocolError, ToolRetry
from guildry.tools.base import Call, Effects, Embedded, Icon, Json, Media, Outcome, Text
from guildry.tools.offers import Message, Messages, PromptArgument
from guildry.tools.plugs.board import PlugBoard
from guildry.tools.plugs.plug import Quarantined
from guildry.tools.registry import Catalog, Change

if TYPE_CHECKING:
    from pathlib import Path

    from .conftest import Plugged

WAYS = ["stdio modern", "stdio legacy", "http modern", "http legacy"]
SOME = ["stdio legacy", "http modern"]
PNG = b"\x89PNG\r\n\x1a\nrest"
ICON = Icon("https://example.org/a.png", "image/png", ("48x48",))


async def call(catalog: Catalog, name: str, **arguments: Json) -> Outcome:
    tool = catalog.current.get(name)
    return await tool.invoke(arguments, Call(tool, None))


class Changes:
    """The changes of a catalog, one after another."""

    def __init__(self, catalog: Catalog) -> None:
        self._send, self._receive = anyio.create_memory_object_stream[Change](100)
        self._stop = catalog.subscribe(self._send.send_nowait)

    async def next(self) -> Change:
        return await self._receive.receive()

    def close(self) -> None:
        self._stop()
        self._send.close()
        self._receive.close()


class Touched:
    """The resources that are said to have changed, one after another."""

    def __init__(self, catalog: Catalog) -> None:
        self._send, self._receive = anyio.create_memory_object_stream[str](100)
        self._stop = catalog.watch(self._send.send_nowait)

    async def until(self, uri: str) -> None:
        while await self._receive.receive() != uri:
            pass

    def close(self) -> None:
        self._stop()
        self._send.close()
        self._receive.close()


@pytest.mark.parametrize("way", WAYS)
async def test_prompts_come_with_everything_that_was_said_of_them(
    plugged: "Plugged", way: str
) -> None:
    async with plugged(way) as catalog:
        prompt = catalog.current.prompts["review"]

        messages = await prompt.get({"code": "x = 1"}, None)

    assert (prompt.title, prompt.description, prompt.icons) == ("Review", "Review code.", (ICON,))
    assert prompt.arguments == (
        PromptArgument("code", "What to review.", required=True),
        PromptArgument("tone"),
    )
    assert prompt.annotations == {"_meta": {"k": "v"}}
    assert messages == Messages(
        (
            Message("user", Text("Review x = 1")),
            Message("user", Media(PNG, "image/png")),
            Message("assistant", Embedded("note://today", "text/plain", text="inside")),
        ),
        "A review.",
    )


async def test_a_prompt_that_lacks_an_argument_says_so(plugged: "Plugged") -> None:
    async with plugged() as catalog:
        with pytest.raises(ToolRetry, match="`code` is missing"):
            await catalog.current.prompts["review"].get({}, None)


@pytest.mark.parametrize("way", WAYS)
async def test_resources_come_with_everything_that_was_said_of_them(
    plugged: "Plugged", way: str
) -> None:
    async with plugged(way) as catalog:
        today = catalog.current.resources["note://today"]
        dot = catalog.current.resources["image://dot"]

        text, data = await today.read(today.uri, None), await dot.read(dot.uri, None)

    assert text == (Embedded("note://today", "text/plain", text="at note://today"),)
    assert data == (Embedded("image://dot", "image/png", data=PNG),)
    assert (today.name, today.title, today.description) == ("today", "Today", "The note of today.")
    assert (today.media_type, today.size, today.icons) == ("text/plain", 5, (ICON,))
    assert today.annotations == {"audience": ["user"], "priority": 0.5, "_meta": {"k": "v"}}


@pytest.mark.parametrize("way", SOME)
async def test_a_template_is_read_and_what_is_not_there_is_told_alike(
    plugged: "Plugged", way: str
) -> None:
    async with plugged(way) as catalog:
        [template] = catalog.current.templates

        found = await template.read("note://friday", None)
        with pytest.raises(ToolRetry, match="Resource not found"):
            await template.read("note://nowhere", None)

    assert found == (Embedded("note://friday", "text/plain", text="at note://friday"),)
    assert template.matches("note://friday")
    assert not template.matches("image://dot")


@pytest.mark.parametrize("way", SOME)
async def test_completion_is_passed_on_with_the_other_arguments(
    plugged: "Plugged", way: str
) -> None:
    async with plugged(way) as catalog:
        prompt, [template] = catalog.current.prompts["review"], catalog.current.templates
        assert prompt.complete is not None
        assert template.complete is not None

        of_prompt = await prompt.complete("tone", "fo", {"code": "x"})
        of_template = await template.complete("day", "f", {})

    assert of_prompt == ["review", "tone", "fo", '{"code": "x"}']
    assert of_template == ["note://{day}", "day", "f", "{}"]


async def test_a_completion_that_fails_completes_nothing(plugged: "Plugged") -> None:
    async with plugged() as catalog:
        complete = catalog.current.prompts["review"].complete
    assert complete is not None

    assert await complete("tone", "fo", {}) == ()


@pytest.mark.parametrize("way", WAYS)
async def test_a_change_of_each_list_is_seen(plugged: "Plugged", way: str) -> None:
    async with plugged(way) as catalog:
        for what in ("tools", "prompts", "resources"):
            changes = Changes(catalog)

            await call(catalog, "grow", what=what)
            await changes.next()
            changes.close()

        registry = catalog.current

    assert "late" in registry.tools
    assert "late" in registry.prompts
    assert "note://late" in registry.resources


@pytest.mark.parametrize("way", WAYS)
async def test_resources_that_are_followed_are_told_of_when_they_change(
    plugged: "Plugged", way: str
) -> None:
    async with plugged(way) as catalog:
        touched = Touched(catalog)
        today, [template] = catalog.current.resources["note://today"], catalog.current.templates
        assert today.follow is not None
        assert template.follow is not None

        await today.follow(today.uri)
        await today.follow(today.uri)
        await call(catalog, "touch", uri="note://today")
        await touched.until("note://today")
        await template.follow("note://friday")
        await call(catalog, "touch", uri="note://friday")
        await touched.until("note://friday")
        await call(catalog, "touch", uri="note://today")
        await touched.until("note://today")
        touched.close()


async def test_a_resource_that_the_server_does_not_tell_of_cannot_be_followed(
    plugged: "Plugged",
) -> None:
    async with plugged("stdio legacy") as catalog:
        [template] = catalog.current.templates
        assert template.follow is not None

        with pytest.raises(ToolFailed, match="does not tell of changes"):
            await template.follow("note://secret")


async def test_what_was_followed_is_followed_again_after_a_crash(plugged: "Plugged") -> None:
    async with plugged("stdio modern") as catalog:
        touched = Touched(catalog)
        today = catalog.current.resources["note://today"]
        assert today.follow is not None
        await today.follow(today.uri)

        with pytest.raises(ToolFailed, match="stopped while"):
            await call(catalog, "crash")
        await touched.until("note://today")  # it may have changed meanwhile
        await today.follow(today.uri)
        await call(catalog, "touch", uri="note://today")
        await touched.until("note://today")
        touched.close()


@pytest.mark.parametrize("way", SOME)
async def test_progress_comes_through_in_order(plugged: "Plugged", way: str) -> None:
    heard: list[tuple[float, float | None]] = []

    async def progress(done: float, total: float | None = None, message: str | None = None) -> None:
        heard.append((done, total))

    async with plugged(way) as catalog:
        tool = catalog.current.get("report")
        await tool.invoke({}, Call(tool, None, progress))

    assert heard == [(0, 100), (50, 100), (100, 100)]


@pytest.mark.requirement("meta.undeclared-capability")
async def test_an_error_keeps_its_code_where_a_client_can_act_on_it(plugged: "Plugged") -> None:
    kinds: dict[int, type[Exception]] = {
        -32021: ToolProtocolError,
        -32042: ToolProtocolError,
        17: ToolProtocolError,
        -32603: ToolFailed,
        -32601: ToolFailed,
        -32022: ToolFailed,
        -32602: ToolRetry,
    }
    found: dict[int, Exception] = {}
    async with plugged() as catalog:
        for code in kinds:
            with pytest.raises((ToolFailed, ToolRetry), match="nope") as caught:
                await call(catalog, "fail", code=code)
            found[code] = caught.value

    assert {code: type(error) for code, error in found.items()} == kinds
    missing = found[-32021]
    assert isinstance(missing, ToolProtocolError)
    assert (missing.code, missing.message) == (-32021, "nope")
    assert missing.data == {"requiredCapabilities": {"x": {}}}


async def test_schemas_icons_and_words_of_tools_are_passed_on_as_they_are(
    plugged: "Plugged",
) -> None:
    async with plugged("http modern") as catalog:
        tool = catalog.current.get("region")

        outcome = await tool.invoke({"region": "north"}, Call(tool, None))

    assert tool.input_schema == {
        "type": "object",
        "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
    }
    assert tool.icons == (ICON,)
    assert tool.asks
    assert outcome.blocks == (Text('{"region": "north"}'),)


async def test_a_tool_whose_headers_have_changed_is_listed_anew_and_called_again(
    plugged: "Plugged",
) -> None:
    async with plugged("http modern") as catalog:
        tool = catalog.current.get("moved")
        await call(catalog, "move")

        outcome = await tool.invoke({"place": "north"}, Call(tool, None))

    assert outcome.blocks == (Text('{"place": "north"}'),)


async def test_a_tool_that_says_it_destroys_admits_it(plugged: "Plugged") -> None:
    async with plugged() as catalog:
        wipe, region = catalog.current.get("wipe"), catalog.current.get("region")

    assert wipe.effects == Effects(destructive=True, admits=True)
    assert region.effects == Effects(destructive=True, admits=False)


async def test_broken_prompts_and_resources_are_left_out_alone_with_their_reasons(
    tmp_path: "Path",
) -> None:
    from .test_mcp_plug import QUICK, command

    catalog = Catalog()
    with anyio.fail_after(60):
        async with PlugBoard(catalog, limits=QUICK) as board:
            report = await board.plug(command("faulty_offers"), "faulty")
            registry = catalog.current

    assert [*registry.prompts] == ["good"]
    assert [*registry.resources] == ["note://good"]
    assert [each.uri_template for each in registry.templates] == ["note://{day}"]
    assert set(report.quarantined) == {
        Quarantined("number 2", "prompt: `name` is wrong: Field required"),
        Quarantined("twice", "prompt: two of its arguments have one name: rename one"),
        Quarantined("good", "prompt: the source offers two of them: the first one is served"),
        Quarantined("number 2", "resource: `name` is wrong: Field required"),
        Quarantined(
            "no uri",
            "resource: its URI 'no uri' holds white space or control characters:"
            " percent-encode them",
        ),
        Quarantined(
            "run://mine", "resource: URIs with `run:` are Guildry's own: use another scheme"
        ),
        Quarantined(
            "note://{day",
            "template: its template 'note://{day' has braces that do not match: close them",
        ),
    }


async def test_a_server_of_prompts_alone_is_plugged_and_a_list_it_does_not_give_costs_itself(
    tmp_path: "Path",
) -> None:
    from .test_mcp_plug import QUICK, command

    catalog = Catalog()
    with anyio.fail_after(60):
        async with PlugBoard(catalog, limits=QUICK) as board:
            report = await board.plug(command("faulty_offers", "alone"), "alone")
            registry = catalog.current

    assert [*registry.prompts] == ["good"]
    assert (report.tools, [*registry.resources]) == ((), [])
    assert report.quarantined == (
        Quarantined(
            "resources", "the server gave no list of resources (no such luck): mend it there"
        ),
    )


@pytest.mark.parametrize("way", SOME)
async def test_a_prompt_and_a_resource_that_hold_no_bytes_where_they_should_fail_alone(
    plugged: "Plugged", way: str
) -> None:
    async with plugged(way) as catalog:
        with pytest.raises(ToolFailed, match="no base64"):
            await catalog.current.templates[0].read("note://spoiled", None)
        with pytest.raises(ToolFailed, match="no base64"):
            await catalog.current.prompts["review"].get({"code": "spoiled"}, None)


async def test_at_a_server_of_the_handshake_era_too_what_was_followed_is_followed_again(
    plugged: "Plugged",
) -> None:
    async with plugged("stdio legacy") as catalog:
        touched = Touched(catalog)
        follow = catalog.current.resources["note://today"].follow
        assert follow is not None
        await follow("note://today")

        with pytest.raises(ToolFailed, match="stopped while"):
            await call(catalog, "crash")
        await touched.until("note://today")
        await follow("note://today")
        await call(catalog, "touch", uri="note://today")
        await touched.until("note://today")
        touched.close()


async def test_what_a_server_does_not_tell_of_is_refused_and_the_rest_goes_on(
    plugged: "Plugged",
) -> None:
    async with plugged(server="telling") as catalog:
        touched = Touched(catalog)
        one, two, secret = [each.follow for each in catalog.current.resources.values()]
        assert one is not None
        assert two is not None
        assert secret is not None

        with pytest.raises(ToolFailed, match="does not tell of changes of 'note://secret'"):
            await secret("note://secret")
        await one("note://one")
        await call(catalog, "refuse")
        with pytest.raises(ToolFailed, match="does not tell of changes of 'note://two'"):
            await two("note://two")
        await one("note://one")
        await call(catalog, "end")
        await touched.until("note://one")  # it may have changed when nobody listened
        touched.close()


async def test_lists_are_read_anew_after_a_subscription_has_ended(plugged: "Plugged") -> None:
    async with plugged(server="telling") as catalog:
        changes = Changes(catalog)
        await call(catalog, "grow_unheard")
        await call(catalog, "end")

        change = await changes.next()
        changes.close()

    assert change.added == ("unheard",)


async def test_a_server_that_never_acknowledges_is_not_waited_for_without_end(
    plugged: "Plugged",
) -> None:
    async with plugged(server="telling", start_s=1) as catalog:
        follow = catalog.current.resources["note://one"].follow
        assert follow is not None
        await call(catalog, "fall_silent")

        with pytest.raises(ToolFailed, match="does not tell of changes"):
            await follow("note://one")


async def test_only_so_many_resources_are_followed(plugged: "Plugged") -> None:
    async with plugged("stdio legacy") as catalog:
        follow = catalog.current.templates[0].follow
        assert follow is not None
        for n in range(1_000):
            await follow(f"note://{n}")

        with pytest.raises(ToolFailed, match="1000 resources already"):
            await follow("note://more")

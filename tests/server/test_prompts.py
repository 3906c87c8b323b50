"""Prompts: what is listed, filled in and refused, through the official client, in both eras."""

from collections.abc import Mapping
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp.client.context import ClientRequestContext
from mcp_types import ElicitRequestParams, ElicitResult

from guildry.errors import ToolFailed, ToolRetry
from guildry.server.surface import USER_SCOPES, build_server
from guildry.teams.team import Solo
from guildry.tools.asking.questions import Question
from guildry.tools.base import Embedded, Icon, Link, Media, Text
from guildry.tools.caller import Caller
from guildry.tools.offers import Message, Messages, Offers, Prompt, PromptArgument

ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])


def prompt(name: str, *arguments: PromptArgument, **about: Any) -> Prompt:
    async def get(given: Mapping[str, str], caller: Any) -> Messages:
        return Messages((Message("user", Text(f"{name}: {dict(given)}")),), "Said so.")

    return Prompt(name=name, plug="more", get=get, arguments=arguments, **about)


def text_of(result: Any) -> str:
    (message,) = result.messages
    text: str = message.content.text
    return text


@ERAS
@pytest.mark.requirement("prompts.listed")
async def test_a_prompt_is_listed_whole_and_filled_in(opened: Any, era: Any) -> None:
    review = prompt(
        "review",
        PromptArgument("code", "What to review.", required=True, title="Code"),
        PromptArgument("style"),
        title="Review",
        description="Review code.",
        icons=(Icon("https://example.com/i.png"),),
        annotations={"_meta": {"example.com/x": 1}},
    )
    async with opened() as app:
        app.catalog.replace("more", (), Offers(prompts=(review,)))
        async with Client(build_server(app, scopes=["tools"]), mode=era) as client:
            listed = await client.list_prompts()
            filled = await client.get_prompt("review", {"code": "x = 1"})

    dumped = [
        each.model_dump(by_alias=True, mode="json", exclude_none=True) for each in listed.prompts
    ]
    assert dumped == [
        {
            "name": "review",
            "title": "Review",
            "description": "Review code.",
            "arguments": [
                {
                    "name": "code",
                    "title": "Code",
                    "description": "What to review.",
                    "required": True,
                },
                {"name": "style"},
            ],
            "icons": [{"src": "https://example.com/i.png"}],
            "_meta": {"example.com/x": 1},
        }
    ]
    assert (listed.ttl_ms, listed.cache_scope) == (0, "private")
    assert (text_of(filled), filled.description) == ("review: {'code': 'x = 1'}", "Said so.")


@ERAS
async def test_prompts_come_in_pages_by_name_and_a_bogus_cursor_is_refused(
    opened: Any, era: Any
) -> None:
    names: list[str] = []
    async with opened() as app:
        many = tuple(prompt(f"p{n:03}") for n in reversed(range(230)))
        app.catalog.replace("more", (), Offers(prompts=many))
        async with Client(build_server(app, scopes=["tools"]), mode=era) as client:
            cursor: str | None = None
            while not names or cursor is not None:
                page = await client.list_prompts(cursor=cursor)
                names += [each.name for each in page.prompts]
                cursor = page.next_cursor
            with pytest.raises(MCPError) as refused:
                await client.list_prompts(cursor="p100")

    assert names == sorted(each.name for each in many)
    assert refused.value.error.code == -32602


@ERAS
@pytest.mark.requirement("prompts.wrong")
async def test_wrong_names_and_arguments_are_refused_with_the_nearest_that_is_right(
    opened: Any, era: Any
) -> None:
    review = prompt("review", PromptArgument("code", "What to review.", required=True))
    wrong: list[tuple[str, dict[str, str], str]] = [
        ("reveiw", {"code": "x"}, "did you mean `review`"),
        ("something", {}, "take one that was listed"),
        ("review", {"cod": "x"}, "no argument 'cod': did you mean `code`"),
        ("review", {"code": "x", "zzz": "y"}, "no argument 'zzz': it takes `code`"),
        ("review", {}, r"needs the argument `code` \(What to review.\)"),
    ]
    async with opened() as app:
        app.catalog.replace("more", (), Offers(prompts=(review,)))
        async with Client(build_server(app, scopes=["tools"]), mode=era) as client:
            for name, arguments, text in wrong:
                with pytest.raises(MCPError, match=text) as refused:
                    await client.get_prompt(name, arguments)
                assert refused.value.error.code == -32602


@ERAS
@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (ToolRetry("`code` is no code: give some"), -32602, "give some"),
        (ToolFailed("the server behind is gone"), -32603, "is gone"),
        (RuntimeError("the password is swordfish"), -32603, "Internal server error"),
    ],
)
async def test_what_a_prompt_fails_of_is_told_and_what_it_crashed_of_is_not(
    opened: Any, era: Any, error: Exception, code: int, text: str
) -> None:
    async def get(given: Mapping[str, str], caller: Any) -> Messages:
        raise error

    broken = Prompt(name="broken", plug="more", get=get)
    async with opened() as app:
        app.catalog.replace("more", (), Offers(prompts=(broken,)))
        async with Client(build_server(app), mode=era) as client:
            with pytest.raises(MCPError, match=text) as refused:
                await client.get_prompt("broken")

    assert refused.value.error.code == code
    assert "swordfish" not in str(refused.value)


@ERAS
@pytest.mark.requirement("prompts.content")
async def test_every_kind_of_content_arrives(opened: Any, era: Any) -> None:
    blocks = (
        Text("words"),
        Media(b"\x89PNG", "image/png"),
        Media(b"RIFF", "audio/wav"),
        Embedded("test://x", "text/plain", text="inside"),
        Link("test://y", "y"),
    )

    async def get(given: Mapping[str, str], caller: Any) -> Messages:
        return Messages(tuple(Message("assistant", block) for block in blocks))

    async with opened() as app:
        app.catalog.replace("more", (), Offers(prompts=(Prompt(name="all", plug="more", get=get),)))
        async with Client(build_server(app), mode=era) as client:
            filled = await client.get_prompt("all")

    assert [each.content.type for each in filled.messages] == [
        "text",
        "image",
        "audio",
        "resource",
        "resource_link",
    ]
    assert {each.role for each in filled.messages} == {"assistant"}


@ERAS
async def test_a_team_is_a_prompt_that_has_the_clients_model_call_it(opened: Any, era: Any) -> None:
    async with opened() as app:
        app.add_team(Solo(name="survey", description="Looks around."))
        async with Client(build_server(app, scopes=USER_SCOPES), mode=era) as client:
            listed = {each.name: each for each in (await client.list_prompts()).prompts}
            filled = await client.get_prompt(
                "team_survey", {"task": "Look here.", "references": "ref:a, ref://b"}
            )
            delegated = await client.get_prompt(
                "delegate", {"task": "Count.", "tools": "echo, git_*"}
            )
            wrong: list[tuple[str, dict[str, str]]] = [
                ("team_survey", {"task": " "}),
                ("team_survey", {"task": "x", "references": "a.txt"}),
                ("team_survey", {"task": "x", "references": "ref:a#/rows"}),
                ("delegate", {"task": "x", "tools": ","}),
                ("delegate", {"task": "x"}),
            ]
            for name, arguments in wrong:
                with pytest.raises(MCPError) as refused:
                    await client.get_prompt(name, arguments)
                assert refused.value.error.code == -32602
        async with Client(build_server(app, scopes=["tools"]), mode=era) as outsider:
            others = (await outsider.list_prompts()).prompts

    takes = listed["team_survey"].arguments or []
    assert [(each.name, each.required or False) for each in takes] == [
        ("task", True),
        ("references", False),
    ]
    assert listed["team_survey"].description == "Looks around."
    assert "`team_survey`" in text_of(filled)
    assert "Look here." in text_of(filled)
    assert "ref:a, ref://b" in text_of(filled)
    assert "echo, git_*" in text_of(delegated)
    assert others == []


@ERAS
async def test_a_prompt_of_a_plug_that_is_named_like_a_team_goes_by_another_name(
    opened: Any, era: Any
) -> None:
    async with opened() as app:
        app.add_team(Solo(name="survey", description="Looks around."))
        app.catalog.replace("more", (), Offers(prompts=(prompt("team_survey"),)))
        async with Client(build_server(app), mode=era) as client:
            names = [each.name for each in (await client.list_prompts()).prompts]
            theirs = await client.get_prompt("more_team_survey")

    assert names == ["delegate", "more_team_survey", "team_survey"]
    assert text_of(theirs).startswith("team_survey: ")


@ERAS
@pytest.mark.requirement("mrtr.supported")
async def test_a_prompt_may_ask_the_person_who_chose_it(opened: Any, era: Any) -> None:
    async def get(given: Mapping[str, str], caller: Caller) -> Messages:
        assert caller.channel is not None
        assert caller.channel.takes("form")
        question = Question(
            key="name",
            kind="form",
            message="Who are you?",
            schema={"type": "object", "properties": {"name": {"type": "string"}}},
        )
        answer = await caller.channel.ask(question)
        return Messages((Message("user", Text(f"I am {answer.content['name']}.")),))

    async def answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        return ElicitResult(action="accept", content={"name": "Ada"})

    async with opened() as app:
        app.catalog.replace("more", (), Offers(prompts=(Prompt(name="me", plug="more", get=get),)))
        asked = Client(build_server(app), mode=era, elicitation_callback=answer)
        async with asked as client:
            with anyio.fail_after(10):
                filled = await client.get_prompt("me")

    assert text_of(filled) == "I am Ada."


@ERAS
async def test_a_prompt_that_is_never_filled_in_is_waited_for_within_a_limit(
    opened: Any, era: Any
) -> None:
    async def get(given: Mapping[str, str], caller: Any) -> Messages:
        await anyio.sleep_forever()
        return Messages(())

    slow = Prompt(name="slow", plug="more", get=get)
    async with opened(call_timeout_s=0.05) as app:
        app.catalog.replace("more", (), Offers(prompts=(slow,)))
        async with Client(build_server(app), mode=era) as client:
            with anyio.fail_after(10), pytest.raises(MCPError, match="try again later") as refused:
                await client.get_prompt("slow")

    assert refused.value.error.code == -32603

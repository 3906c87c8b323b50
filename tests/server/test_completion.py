"""Completion: of prompts' arguments and templates' variables, through the client, in both eras."""

from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client, MCPError
from mcp_types import PromptReference, ResourceTemplateReference

from guildry.errors import ToolFailed
from guildry.memory.runs import RunRecord
from guildry.server.offers.suggest import ranked, variables_of
from guildry.server.surface import USER_SCOPES, build_server
from guildry.teams.team import Solo
from guildry.tools.base import Embedded
from guildry.tools.offers import (
    Complete,
    Messages,
    Offers,
    Prompt,
    PromptArgument,
    Resource,
    Template,
)

ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])
CITIES = ("Berlin", "paris", "Bern", "Libreville", "Oslo")


async def cities(name: str, typed: str, given: Mapping[str, str]) -> Sequence[str]:
    return [city for city in CITIES if given.get("land") in (None, "any")]


async def nothing(uri: str, caller: Any) -> tuple[Embedded, ...]:
    return ()


def offers(complete: Complete | None = cities) -> Offers:
    async def get(arguments: Mapping[str, str], caller: Any) -> Messages:
        return Messages(())

    arguments = (PromptArgument("city"), PromptArgument("land"))
    trip = Prompt(name="trip", plug="more", get=get, arguments=arguments, complete=complete)
    weather = Template(
        uri_template="weather://{land}/{city}{?day,hour}",
        name="weather",
        plug="more",
        matches=lambda uri: uri.startswith("weather://"),
        read=nothing,
        complete=complete,
    )
    fixed = Resource(uri="test://fixed", name="fixed", plug="more", read=nothing)
    return Offers((trip,), (fixed,), (weather,))


def of_prompt(name: str) -> PromptReference:
    return PromptReference(type="ref/prompt", name=name)


def of_template(uri: str) -> ResourceTemplateReference:
    return ResourceTemplateReference(type="ref/resource", uri=uri)


async def completed(
    client: Client, ref: Any, name: str, value: str, context: dict[str, str] | None = None
) -> list[str]:
    argument = {"name": name, "value": value}
    found = await client.complete(ref, argument, context_arguments=context)
    return found.completion.values


@ERAS
@pytest.mark.requirement("completion.values")
async def test_a_plugs_own_values_come_with_what_begins_as_typed_first(
    opened: Any, era: Any
) -> None:
    async with opened() as app:
        app.catalog.replace("more", (), offers())
        async with Client(build_server(app), mode=era) as client:
            of_argument = await completed(client, of_prompt("trip"), "city", "be")
            uri = "weather://{land}/{city}{?day,hour}"
            of_variable = await completed(client, of_template(uri), "city", "LI", {"land": "any"})
            elsewhere = await completed(client, of_template(uri), "city", "", {"land": "fr"})

    assert of_argument == ["Berlin", "Bern", "paris", "Libreville", "Oslo"]
    assert of_variable == ["Libreville", "Berlin", "paris", "Bern", "Oslo"]
    assert elsewhere == []


@ERAS
@pytest.mark.requirement("completion.hundred")
async def test_at_most_100_values_come_and_how_many_there_are_is_told(
    opened: Any, era: Any
) -> None:
    async def many(name: str, typed: str, given: Mapping[str, str]) -> Sequence[str]:
        return [f"c{n}" for n in range(250)]

    async with opened() as app:
        app.catalog.replace("more", (), offers(many))
        async with Client(build_server(app), mode=era) as client:
            found = await client.complete(of_prompt("trip"), {"name": "city", "value": "c"})
            few = await client.complete(
                of_template("tool://{name}"), {"name": "name", "value": "z"}
            )

    assert (len(found.completion.values), found.completion.total) == (100, 250)
    assert found.completion.has_more is True
    assert few.completion.values == []
    assert (few.completion.total, few.completion.has_more) == (0, False)


@ERAS
@pytest.mark.requirement("completion.wrong")
async def test_what_cannot_be_completed_has_no_values_or_is_refused_by_name(
    opened: Any, era: Any
) -> None:
    wrong: list[tuple[Any, str, str]] = [
        (of_prompt("tirp"), "city", "did you mean `trip`"),
        (of_prompt("trip"), "citi", "did you mean `city`"),
        (of_template("weather://{land}"), "land", "no template"),
        (of_template("ref://{id}"), "name", "it has `id`"),
        (of_template("test://fixed"), "x", "has no variables"),
    ]
    async with opened() as app:
        app.catalog.replace("more", (), offers(None))
        async with Client(build_server(app), mode=era) as client:
            assert await completed(client, of_prompt("trip"), "city", "") == []
            for ref, name, text in wrong:
                with pytest.raises(MCPError, match=text) as refused:
                    await completed(client, ref, name, "")
                assert refused.value.error.code == -32602


@ERAS
async def test_what_a_plug_fails_of_is_told(opened: Any, era: Any) -> None:
    async def fail(name: str, typed: str, given: Mapping[str, str]) -> Sequence[str]:
        raise ToolFailed("the atlas is gone")

    async with opened() as app:
        app.catalog.replace("more", (), offers(fail))
        async with Client(build_server(app), mode=era) as client:
            with pytest.raises(MCPError, match="the atlas is gone") as refused:
                await completed(client, of_prompt("trip"), "city", "")

    assert refused.value.error.code == -32603


@ERAS
async def test_names_of_tools_teams_and_plugs_are_completed_for_those_who_may_use_them(
    opened: Any, echo: Any, era: Any
) -> None:
    async with opened(echo) as app:
        app.catalog.replace("more", (), offers())
        app.add_team(Solo(name="survey", description="Looks around."))
        async with Client(build_server(app, scopes=USER_SCOPES), mode=era) as client:
            tools = await completed(client, of_template("tool://{name}"), "name", "EC")
            teams = await completed(client, of_template("team://{name}"), "name", "")
            plugs = await completed(client, of_template("plug://{name}"), "name", "m")
            listed = await completed(client, of_prompt("delegate"), "tools", "find_tools, ech")
            free = await completed(client, of_prompt("team_survey"), "task", "lo")
            hidden = await completed(client, of_template("tool://{name}"), "name", "unplug")

    assert tools == ["echo"]
    assert teams == ["survey"]
    assert plugs == ["mine", "more"]
    assert listed == ["find_tools, echo"]
    assert (free, hidden) == ([], [])


@ERAS
@pytest.mark.requirement("completion.access")
async def test_runs_and_references_are_completed_by_id_and_by_name_and_only_ones_own(
    opened: Any, era: Any
) -> None:
    async with opened() as app:
        for id, team, principal in (
            ("r1a", "survey", "local"),
            ("r2b", "audit", "local"),
            ("r1c", "survey", "eve"),
        ):
            await app.runs.create(
                RunRecord(id=id, kind="team", team=team, task="", principal=principal)
            )
        kept = await app.objects.put(
            b"x", media_type="text/plain", name="orders", namespace="local", owner="local"
        )
        await app.objects.put(
            b"y", media_type="text/plain", name="orders", namespace="eve", owner="eve"
        )
        app.add_team(Solo(name="survey", description="Looks around."))
        async with Client(build_server(app, scopes=USER_SCOPES), mode=era) as client:
            by_id = await completed(client, of_template("run://{id}"), "id", "r1")
            by_team = await completed(client, of_template("run://{id}/journal"), "id", "aud")
            every = await completed(client, of_template("run://{id}"), "id", "")
            by_key = await completed(client, of_template("ref://{id}"), "id", kept.id[:6])
            by_name = await completed(client, of_template("ref://{id}"), "id", "order")
            written = await completed(client, of_prompt("team_survey"), "references", "ref:o")
            second = await completed(
                client, of_prompt("team_survey"), "references", f"ref:a, {kept.uri[:12]}"
            )

    assert by_id == ["r1a"]
    assert by_team == ["r2b"]
    assert every == ["r2b", "r1a"]
    assert by_key == by_name == [kept.id]
    assert written == ["ref:orders"]
    assert second == [f"ref:a, {kept.uri}"]


@given(st.lists(st.text(max_size=4)), st.text(max_size=2))
def test_ranking_keeps_every_value_once(values: list[str], typed: str) -> None:
    found = ranked(values, typed)

    assert sorted(found) == sorted(set(values))


@pytest.mark.parametrize(
    ("uri_template", "names"),
    [
        ("plain://x", ()),
        ("log://{day}", ("day",)),
        ("{+base}/{path*}{?from,to}{#part:3}", ("base", "path", "from", "to", "part")),
    ],
)
def test_the_variables_of_a_template_are_found(uri_template: str, names: tuple[str, ...]) -> None:
    assert variables_of(uri_template) == names

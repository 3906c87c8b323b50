"""Admission: prompts and resources that cannot be served are left out alone, with the reason."""

from collections.abc import Mapping
from typing import Any

import pytest

from guildry.tools.base import Embedded
from guildry.tools.offers import Messages, Offers, Prompt, PromptArgument, Resource, Template
from guildry.tools.plugs.admission import admit
from guildry.tools.plugs.plug import Loaded, Quarantined


async def get(arguments: Mapping[str, str], caller: Any) -> Messages:
    return Messages(())


async def read(uri: str, caller: Any) -> tuple[Embedded, ...]:
    return ()


def prompt(name: str = "good", *arguments: str, description: str = "") -> Prompt:
    named = tuple(PromptArgument(each) for each in arguments)
    return Prompt(name=name, plug="mine", get=get, arguments=named, description=description)


def resource(uri: str = "note://good", name: str = "note", **about: Any) -> Resource:
    return Resource(uri=uri, name=name, plug="mine", read=read, **about)


def template(uri: str, name: str = "note") -> Template:
    return Template(uri_template=uri, name=name, plug="mine", matches=bool, read=read)


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (prompt(" "), "a name is empty"),
        (prompt("a\nb"), "control characters"),
        (prompt("a" * 300), "has 300 characters"),
        (prompt("a", "b\0"), "control characters"),
        (prompt("a", "b", "b"), "two of its arguments"),
        (prompt("a", *(f"b{n}" for n in range(101))), "over 100 arguments"),
        (prompt("a", description="a" * 20_001), "20,001 characters"),
    ],
)
def test_a_prompt_that_is_not_fit_is_left_out_alone(bad: Prompt, reason: str) -> None:
    good = prompt()

    admitted = admit(Loaded((), offers=Offers(prompts=(good, bad))))

    [left_out] = admitted.quarantined
    assert admitted.offers.prompts == (good,)
    assert reason in left_out.reason
    assert left_out.reason.startswith("prompt: ")


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (resource(""), "no scheme"),
        (resource("no scheme"), "white space"),
        (resource("ref://mine"), "Guildry's own"),
        (resource("note://\x07"), "control characters"),
        (resource("note://" + "a" * 5_000), "5,007 characters"),
        (resource("note://a", ""), "a name is empty"),
        (resource("note://a", description="a" * 20_001), "20,001 characters"),
    ],
)
def test_a_resource_that_is_not_fit_is_left_out_alone(bad: Resource, reason: str) -> None:
    good = resource()

    admitted = admit(Loaded((), offers=Offers(resources=(good, bad))))

    [left_out] = admitted.quarantined
    assert admitted.offers.resources == (good,)
    assert reason in left_out.reason
    assert 0 < len(left_out.tool) <= 256


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (template("run://{id}"), "Guildry's own"),
        (template("note://{id"), "braces"),
        (template("note://{id}", ""), "a name is empty"),
    ],
)
def test_a_template_that_is_not_fit_is_left_out_alone(bad: Template, reason: str) -> None:
    good = template("note://good/{id}")

    admitted = admit(Loaded((), offers=Offers(templates=(good, bad))))

    [left_out] = admitted.quarantined
    assert admitted.offers.templates == (good,)
    assert reason in left_out.reason


def test_of_two_of_one_name_the_first_is_served() -> None:
    one, two = prompt(description="one"), prompt(description="two")

    admitted = admit(Loaded((), offers=Offers(prompts=(one, two))))

    assert admitted.offers.prompts == (one,)
    assert admitted.quarantined == (
        Quarantined("good", "prompt: the source offers two of them: the first one is served"),
    )


def test_there_are_only_so_many() -> None:
    many = tuple(resource(f"note://{n}") for n in range(10_005))

    admitted = admit(Loaded((), offers=Offers(resources=many)))

    assert len(admitted.offers.resources) == 10_000
    assert admitted.quarantined == (Quarantined("resource", "there are over 10,000: offer fewer"),)

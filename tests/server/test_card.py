"""The server card, as its schema has it; and what the server says of itself."""

import base64
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp import Client
from mcp_types.version import KNOWN_PROTOCOL_VERSIONS

import guildry
from guildry.server.card import namespace_of, server_card
from guildry.server.instructions import DESCRIPTION, ICON, instructions
from guildry.server.surface import ADMIN_SCOPES, Surface, build_server

ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])
NAME = re.compile(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+")


async def test_the_card_names_the_server_and_its_endpoint(opened: Any) -> None:
    async with opened() as app:
        card = server_card(Surface(app), "https://tools.example.com/mcp")

    assert card == {
        "$schema": "https://static.modelcontextprotocol.io/schemas/v1/server-card.schema.json",
        "name": "com.example.tools/guildry",
        "version": guildry.__version__,
        "title": "Guildry",
        "description": DESCRIPTION,
        "icons": [{"src": ICON, "mimeType": "image/svg+xml", "sizes": ["any"]}],
        "remotes": [
            {
                "type": "streamable-http",
                "url": "https://tools.example.com/mcp",
                "supportedProtocolVersions": list(KNOWN_PROTOCOL_VERSIONS),
            }
        ],
    }
    assert 1 <= len(card["description"]) <= 100


@pytest.mark.parametrize(
    ("url", "namespace"),
    [
        ("http://localhost:8000/mcp", "localhost"),
        ("http://127.0.0.1:8000/mcp", "localhost"),
        ("http://[::1]:8000/mcp", "localhost"),
        ("http://10.0.0.7:8000/mcp", "10.0.0.7"),
        ("https://bücher.example/mcp", "example.b-cher"),
    ],
)
async def test_the_name_has_the_host_in_it(opened: Any, url: str, namespace: str) -> None:
    async with opened() as app:
        assert server_card(Surface(app), url)["name"] == f"{namespace}/guildry"


@given(st.from_regex(r"https?://[^/?#@\[\]\\]{1,300}/mcp", fullmatch=True))
def test_any_url_gives_a_name_that_the_schema_takes(url: str) -> None:
    name = f"{namespace_of(url)}/guildry"

    assert NAME.fullmatch(name)
    assert len(name) <= 200


@ERAS
@pytest.mark.requirement("meta.server-info")
async def test_a_client_is_told_what_the_server_is_and_how_to_use_it(opened: Any, era: Any) -> None:
    async with opened() as app, Client(build_server(app), mode=era) as client:
        info, told = client.server_info, client.instructions

    assert info is not None
    assert (info.name, info.title, info.version) == ("guildry", "Guildry", guildry.__version__)
    assert info.icons is not None
    assert info.icons[0].src == ICON
    assert told == instructions(ADMIN_SCOPES)


async def test_later_answers_name_the_server_without_its_icon(opened: Any) -> None:
    async with opened() as app, Client(build_server(app)) as client:
        listed = await client.list_prompts()

    assert listed.meta is not None
    assert listed.meta["io.modelcontextprotocol/serverInfo"] == {
        "name": "guildry",
        "title": "Guildry",
        "version": guildry.__version__,
    }


def test_the_icon_is_a_small_drawing() -> None:
    kind, _, data = ICON.partition(";base64,")

    assert kind == "data:image/svg+xml"
    assert base64.b64decode(data).startswith(b"<svg xmlns=")
    assert len(ICON) < 400


@pytest.mark.parametrize(
    ("scopes", "told", "untold"),
    [
        (ADMIN_SCOPES, {"find_tools", "team_*", "run_status", "plug"}, set[str]()),
        (("tools",), {"find_tools", "describe_tools", "call_tool"}, {"team_", "run_", "plug`"}),
        (("teams",), {"delegate", "run_answer", "background"}, {"find_tools", "plug`"}),
    ],
)
@pytest.mark.requirement("discover.instructions")
def test_a_model_is_told_in_under_300_tokens_what_its_client_can_do_and_no_more(
    scopes: tuple[str, ...], told: set[str], untold: set[str]
) -> None:
    text = instructions(scopes)

    assert len(text) < 300 * 4
    assert all(each in text for each in told)
    assert not any(each in text for each in untold)

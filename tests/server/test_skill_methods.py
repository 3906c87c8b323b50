"""The Skills extension, through the official client: listed, got, read and descended into."""

import hashlib
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, MCPError
from mcp.types import TextResourceContents
from mcp_types import INVALID_PARAMS, Request, Result
from pydantic import ConfigDict

from guildry.server.config import Settings
from guildry.server.doctor import examine
from guildry.server.methods.skills import EXTENSION
from guildry.server.surface import build_server

ERAS = pytest.mark.parametrize("era", ["auto", "legacy"])
FRESH = {"ttlMs": 0, "cacheScope": "private"}


class Answer(Result):
    model_config = ConfigDict(extra="allow")


async def ask(client: Client, method: str, **params: Any) -> dict[str, Any]:
    request = Request[dict[str, Any], str](method=method, params=params)
    answer = await client.session.send_request(request, Answer)
    told = answer.model_dump(by_alias=True, mode="json", exclude_none=True)
    return {key: value for key, value in told.items() if key not in ("_meta", "resultType")}


def write_skill(folder: Path) -> Path:
    folder.mkdir(parents=True)
    head = f"---\nname: {folder.name}\ndescription: Do it.\nlicense: MIT\n---\n"
    (folder / "SKILL.md").write_text(head)
    return folder


@pytest.fixture
def skills(tmp_path: Path) -> Path:
    (write_skill(tmp_path / "skills/acme/refunds") / "examples").mkdir()
    (tmp_path / "skills/acme/refunds/examples/e.md").write_text("An example.")
    write_skill(tmp_path / "skills/notes")
    return tmp_path / "skills"


@asynccontextmanager
async def client_of(
    opened: Any, era: Any, skills: Path, scopes: tuple[str, ...] = ("tools",), **more: Any
) -> AsyncGenerator[Client]:
    with anyio.fail_after(60):
        async with opened(skills=(skills,), **more) as app:
            async with Client(build_server(app, scopes=scopes), mode=era, cache=None) as client:
                yield client


@ERAS
@pytest.mark.requirement("skills.listed")
async def test_skills_are_listed_with_their_files_and_each_is_read_as_it_was_told(
    opened: Any, skills: Path, era: Any
) -> None:
    async with client_of(opened, era, skills) as client:
        capabilities = client.server_capabilities
        listed = await ask(client, "skills/list")
        got = await ask(client, "skills/get", uri="skill://acme/refunds/SKILL.md")
        (content,) = (await client.read_resource("skill://acme/refunds/examples/e.md")).contents
        resources = {str(each.uri): each for each in (await client.list_resources()).resources}

    assert capabilities is not None
    if era != "legacy":
        assert (capabilities.extensions or {})[EXTENSION] == {"directoryRead": True}
    refunds, notes = listed["skills"]
    assert {key: listed[key] for key in FRESH} == FRESH
    assert refunds == got["skill"]
    assert notes["uri"] == "skill://notes/SKILL.md"
    assert refunds["frontmatter"] == {"name": "refunds", "description": "Do it.", "license": "MIT"}
    assert refunds["resources"][1] == {
        "uri": "skill://acme/refunds/examples/e.md",
        "digest": f"sha256:{hashlib.sha256(b'An example.').hexdigest()}",
        "size": 11,
    }
    assert isinstance(content, TextResourceContents)
    assert (content.text, content.mime_type) == ("An example.", "text/markdown")
    head = resources["skill://notes/SKILL.md"]
    assert (head.name, head.description, head.mime_type) == ("notes", "Do it.", "text/markdown")


@ERAS
@pytest.mark.requirement("skills.directories")
async def test_directories_are_read_level_by_level(opened: Any, skills: Path, era: Any) -> None:
    async with client_of(opened, era, skills) as client:
        top = await ask(client, "resources/directory/read", uri="skill://acme")
        root = await ask(client, "resources/directory/read", uri="skill://acme/refunds")

    directory = {"name": "refunds", "uri": "skill://acme/refunds", "mimeType": "inode/directory"}
    assert top["resources"] == [directory]
    assert [each["name"] for each in root["resources"]] == ["refunds", "examples"]
    assert root["resources"][1]["mimeType"] == "inode/directory"


@pytest.mark.parametrize(
    ("method", "uri"),
    [
        ("skills/get", "skill://nobody/SKILL.md"),
        ("skills/get", "skill://acme/refunds"),
        ("skills/get", "skill://notes/../acme/refunds/SKILL.md"),
        ("resources/directory/read", "skill://notes/SKILL.md"),
        ("resources/directory/read", "skill://notes/"),
        ("resources/directory/read", "skill://nobody"),
        ("resources/directory/read", "skill://notes/.."),
        ("resources/read", "skill://notes/../../secret.txt"),
        ("resources/read", "skill://notes/%2e%2e/%2e%2e/secret.txt"),
        ("resources/read", "skill:///etc/passwd"),
    ],
)
@pytest.mark.requirement("skills.unknown")
async def test_what_is_not_there_is_refused_by_its_uri(
    opened: Any, skills: Path, method: str, uri: str
) -> None:
    (skills.parent / "secret.txt").write_text("secret")

    async with client_of(opened, "auto", skills) as client:
        with pytest.raises(MCPError) as refused:
            await ask(client, method, uri=uri)

    assert refused.value.code == INVALID_PARAMS
    assert refused.value.error.data == {"uri": uri}


async def test_long_lists_come_in_pages_and_a_foreign_cursor_is_refused(
    opened: Any, tmp_path: Path
) -> None:
    for n in range(45):
        write_skill(tmp_path / f"many/skill-{n:02}")

    async with client_of(opened, "auto", tmp_path / "many") as client:
        names: list[str] = []
        pages = 0
        cursor: dict[str, str] = {}
        while pages == 0 or cursor:
            page = await ask(client, "skills/list", **cursor)
            names += [skill["frontmatter"]["name"] for skill in page["skills"]]
            cursor = {"cursor": page["nextCursor"]} if "nextCursor" in page else {}
            pages += 1
        with pytest.raises(MCPError) as refused:
            await ask(client, "skills/list", cursor="made up")

    assert names == [f"skill-{n:02}" for n in range(45)]
    assert pages == 3
    assert refused.value.code == INVALID_PARAMS
    assert "`cursor` is 'made up'" in str(refused.value)


async def test_without_the_scope_for_tools_there_are_no_skills(opened: Any, skills: Path) -> None:
    async with client_of(opened, "auto", skills, scopes=("teams",)) as client:
        listed = await ask(client, "skills/list")
        with pytest.raises(MCPError, match="there is no skill"):
            await ask(client, "skills/get", uri="skill://notes/SKILL.md")
        with pytest.raises(MCPError, match="is no directory here"):
            await ask(client, "resources/directory/read", uri="skill://notes")
        with pytest.raises(MCPError):
            await client.read_resource("skill://notes/SKILL.md")

    assert listed["skills"] == []


async def test_folders_of_one_name_and_folders_that_are_missing_are_all_told(
    opened: Any, tmp_path: Path
) -> None:
    write_skill(tmp_path / "a/skills/one")
    write_skill(tmp_path / "b/skills/two")
    (tmp_path / "empty").mkdir()
    paths = tuple(tmp_path / each for each in ("a/skills", "b/skills", "empty", "gone"))

    async with opened(skills=paths) as app:
        plugs = {each.name: (each.kind, each.state) for each in app.plugs.listing()}
        error = next(each.error for each in app.plugs.listing() if each.name == "gone")

    assert plugs == {
        "skills": ("skills", "ready"),
        "b_skills": ("skills", "ready"),
        "empty": ("skills", "ready"),
        "gone": ("skills", "failed"),
    }
    assert "there is no such folder" in str(error)


async def test_the_doctor_looks_at_skills_too(skills: Path, tmp_path: Path) -> None:
    (skills / "bad").mkdir()
    (skills / "bad/SKILL.md").write_text("# No head")

    with anyio.fail_after(60):
        findings = await examine(Settings(home=tmp_path / "home", skills=(skills,)))

    found = {each.status: each.detail for each in findings if each.check == "plug skills"}
    assert found["ok"] == f"2 skill(s) from {skills}"
    assert "`bad` is left out: it does not begin with YAML" in found["warning"]

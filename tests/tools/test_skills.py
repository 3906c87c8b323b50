"""Skills: real folders, plugged, changed, broken and mended, on a real board."""

import hashlib
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import anyio
import pytest

from guildry.errors import PlugError, ToolRetry
from guildry.tools.base import Embedded
from guildry.tools.offers import Skill
from guildry.tools.plugs.board import PlugBoard
from guildry.tools.plugs.plug import PlugLimits, Quarantined, Watched
from guildry.tools.registry import Catalog, Registry
from guildry.tools.skills.files import MAX_BYTES, MAX_FILES, is_skill_folder, scan
from guildry.tools.skills.plug import SkillFolder, skill_folders

HEAD = "---\nname: {}\ndescription: Do {}.\n---\n"


def write_skill(folder: Path, name: str | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    told = name or folder.name
    (folder / "SKILL.md").write_text(HEAD.format(told, told))
    return folder


def told(folder: Path) -> list[Quarantined]:
    return list(scan(folder, "skills").left_out)


async def until(catalog: Catalog, holds: Callable[[Registry], bool]) -> None:
    """Wait until the registry is as it should be, looking again after every change."""
    changed = anyio.Event()

    def wake(_: object) -> None:
        changed.set()

    stop, stop_touch = catalog.subscribe(wake), catalog.watch(wake)
    try:
        with anyio.fail_after(30):
            while not holds(catalog.current):
                await changed.wait()
                changed = anyio.Event()
    finally:
        stop()
        stop_touch()


def skills_of(registry: Registry) -> dict[str, Skill]:
    return {each.uri: each for offers in registry.offers.values() for each in offers.skills}


@asynccontextmanager
async def board_of(folder: Path) -> AsyncGenerator[tuple[PlugBoard, Catalog]]:
    catalog = Catalog()
    async with PlugBoard(catalog, openers=[skill_folders(folder)], folder=folder) as board:
        yield board, catalog


@pytest.mark.requirement("skills.listed")
async def test_the_files_of_a_skill_are_resources_and_its_entry_names_them_all(
    tmp_path: Path,
) -> None:
    folder = write_skill(tmp_path / "git-workflow")
    (folder / "references").mkdir()
    (folder / "empty").mkdir()
    (folder / "references/GUIDE one.md").write_text("Guide.")
    (folder / "logo.png").write_bytes(b"\x89PNG\x00\xff")
    (folder / ".hidden").write_text("no part of it")

    async with board_of(tmp_path) as (board, catalog):
        report = await board.plug("git-workflow")
        (skill,) = skills_of(catalog.current).values()
        resources = catalog.current.resources
        guide = await resources["skill://git-workflow/references/GUIDE%20one.md"].read(
            "skill://git-workflow/references/GUIDE%20one.md", None
        )
        (logo,) = await resources["skill://git-workflow/logo.png"].read(
            "skill://git-workflow/logo.png", None
        )

    assert report.skills == ("skill://git-workflow/SKILL.md",)
    assert skill.frontmatter == {"name": "git-workflow", "description": "Do git-workflow."}
    assert [file.uri.removeprefix("skill://git-workflow/") for file in skill.files] == [
        "SKILL.md",
        "logo.png",
        "references/GUIDE%20one.md",
    ]
    assert skill.files[2].digest == f"sha256:{hashlib.sha256(b'Guide.').hexdigest()}"
    assert [file.size for file in skill.files[1:]] == [6, 6]
    assert skill.directories == {
        "skill://git-workflow": (
            "skill://git-workflow/SKILL.md",
            "skill://git-workflow/empty",
            "skill://git-workflow/logo.png",
            "skill://git-workflow/references",
        ),
        "skill://git-workflow/empty": (),
        "skill://git-workflow/references": ("skill://git-workflow/references/GUIDE%20one.md",),
    }
    head = resources[skill.uri]
    assert (head.name, head.description) == ("git-workflow", "Do git-workflow.")
    assert (head.media_type, head.size) == ("text/markdown", skill.files[0].size)
    assert guide == (Embedded(skill.files[2].uri, "text/markdown", text="Guide."),)
    assert (logo.data, logo.media_type) == (b"\x89PNG\x00\xff", "image/png")


async def test_a_folder_of_skills_keeps_their_places_and_nested_skills_are_skills_too(
    tmp_path: Path,
) -> None:
    write_skill(tmp_path / "acme/billing/refunds")
    write_skill(tmp_path / "acme/billing/refunds/more")
    write_skill(tmp_path / "zebra")

    async with board_of(tmp_path) as (board, catalog):
        await board.plug(str(tmp_path), "mine")
        skills = skills_of(catalog.current)

    assert list(skills) == [
        "skill://acme/billing/refunds/SKILL.md",
        "skill://acme/billing/refunds/more/SKILL.md",
        "skill://zebra/SKILL.md",
    ]
    outer, inner, _ = skills.values()
    assert inner.files[0] in outer.files
    assert inner.name == "more"


def test_one_bad_skill_is_left_out_alone_with_its_reason(tmp_path: Path) -> None:
    write_skill(tmp_path / "good")
    write_skill(tmp_path / "named", "other")
    write_skill(tmp_path / "Loud")
    write_skill(tmp_path / "a--b")
    (tmp_path / "none").mkdir()
    (tmp_path / "none/SKILL.md").write_text("# No head")
    (tmp_path / "mute").mkdir()
    (tmp_path / "mute/SKILL.md").write_text("---\nname: mute\n---\n")
    (tmp_path / "latin").mkdir()
    (tmp_path / "latin/SKILL.md").write_bytes(b"---\nname: \xe9\n---\n")
    (tmp_path / "long").mkdir()
    (tmp_path / "long/SKILL.md").write_text(HEAD.format("long", "x" * 1100))

    found = scan(tmp_path, "skills")

    assert [skill.name for skill in found.skills] == ["good"]
    reasons = {each.tool: each.reason for each in found.left_out}
    assert reasons.pop("named") == (
        "it is named 'other' in a folder named 'named': make the two the same"
    )
    assert "`name` in its head is 'Loud'" in reasons.pop("Loud")
    assert "`name` in its head is 'a--b'" in reasons.pop("a--b")
    assert "does not begin with YAML" in reasons.pop("none")
    assert "`description` is missing" in reasons.pop("mute")
    assert "is not UTF-8 at byte 10" in reasons.pop("latin")
    assert "over 1024 characters" in reasons.pop("long")
    assert reasons == {}


@pytest.mark.requirement("skills.bounds")
def test_more_files_or_bytes_than_every_host_takes_are_refused(tmp_path: Path) -> None:
    many = write_skill(tmp_path / "many")
    for n in range(MAX_FILES):
        (many / f"{n}.txt").write_text("x")
    large = write_skill(tmp_path / "large")
    for n in range(2):
        with (large / f"{n}.bin").open("wb") as file:
            file.truncate(MAX_BYTES // 2)
    folders = write_skill(tmp_path / "folders")
    for n in range(MAX_FILES + 1):
        (folders / str(n)).mkdir()
    deep = write_skill(tmp_path / "deep")
    (deep / "/".join("abcdefghijklm")).mkdir(parents=True)

    reasons = {each.tool: each.reason for each in told(tmp_path)}

    assert "it has over 512 files" in reasons["many"]
    assert "over 16,777,216 bytes together" in reasons["large"]
    assert "it has over 512 folders" in reasons["folders"]
    assert "nested deeper than 12" in reasons["deep"]

    (many / "0.txt").unlink()
    (large / "1.bin").write_bytes(b"")
    assert {"many", "large"} <= {skill.name for skill in scan(tmp_path, "skills").skills}


@pytest.mark.requirement("resources.traversal")
def test_a_link_that_leaves_the_skill_is_refused_and_one_within_is_followed(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    skills = tmp_path / "skills"
    (write_skill(skills / "leaves") / "file.txt").symlink_to(secret)
    (write_skill(skills / "above") / "all").symlink_to(tmp_path)
    (write_skill(skills / "loops") / "again").symlink_to(skills / "loops")
    (write_skill(skills / "dangles") / "gone").symlink_to("nowhere")
    within = write_skill(skills / "within")
    (within / "real").mkdir()
    (within / "real/file.txt").write_text("here")
    (within / "also").symlink_to("real")
    (within / "same.txt").symlink_to("real/file.txt")
    elsewhere = write_skill(tmp_path / "elsewhere")
    (skills / "elsewhere").symlink_to(elsewhere)

    found = scan(skills, "skills")

    reasons = {each.tool: each.reason for each in found.left_out}
    assert reasons == {
        "leaves": "`file.txt` is a link that leaves the skill: put the file itself there",
        "above": "`all` is a link that leaves the skill: put the file itself there",
        "loops": "`again` is a link to a folder that it is in: remove it",
        "dangles": "`gone` is a link to nothing: mend or remove it",
        "elsewhere": "it is a link that leaves the folder: plug it by its own path",
    }
    (skill,) = found.skills
    assert [file.uri.removeprefix("skill://within/") for file in skill.files] == [
        "SKILL.md",
        "also/file.txt",
        "real/file.txt",
        "same.txt",
    ]


def test_pipes_and_names_that_are_no_text_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(write_skill(tmp_path / "piped") / "pipe")
    odd = os.fsencode(write_skill(tmp_path / "odd")) + b"/\xff.txt"
    with open(odd, "wb"):
        pass

    reasons = {each.tool: each.reason for each in told(tmp_path)}

    assert "it is no regular file" in reasons["piped"]
    assert "is not UTF-8: rename it" in reasons["odd"]


async def test_a_saved_change_is_served_and_told_to_who_follows_the_file(tmp_path: Path) -> None:
    folder = write_skill(tmp_path / "notes")
    (folder / "a.txt").write_text("one")
    uri = "skill://notes/a.txt"

    async with board_of(tmp_path) as (board, catalog):
        await board.plug("notes")
        touched: list[str] = []
        catalog.watch(touched.append)
        (folder / "a.txt").write_text("two")
        await until(catalog, lambda _: uri in touched)
        (content,) = await catalog.current.resources[uri].read(uri, None)
        (folder / "b.txt").write_text("new")
        await until(catalog, lambda now: "skill://notes/b.txt" in now.resources)
        (folder / "SKILL.md").write_text("broken")
        await until(catalog, lambda now: not skills_of(now))
        (status,) = board.listing()
        write_skill(folder)
        await until(catalog, lambda now: len(now.resources) == 3)

    assert content.text == "two"
    assert [each.tool for each in status.quarantined] == ["notes"]
    assert status.state == "ready"


@pytest.mark.requirement("skills.true")
async def test_a_file_that_is_not_what_its_entry_says_is_not_given_out(tmp_path: Path) -> None:
    folder = write_skill(tmp_path / "notes")
    (folder / "a.txt").write_text("one")
    changes: list[None] = []
    plug = SkillFolder("notes", "notes", path=folder)
    loaded = await plug.open(lambda: changes.append(None))
    resource = next(each for each in loaded.offers.resources if each.uri.endswith("a.txt"))

    (folder / "a.txt").write_text("two")
    with pytest.raises(ToolRetry, match=r"has changed since the skill was listed: get its entry"):
        await resource.read(resource.uri, None)
    (folder / "a.txt").unlink()
    os.mkfifo(folder / "a.txt")
    with pytest.raises(ToolRetry, match="has changed"), anyio.fail_after(10):
        await resource.read(resource.uri, None)
    (folder / "a.txt").unlink()
    (folder / "a.txt").symlink_to("/etc/hostname")
    with pytest.raises(ToolRetry, match="has changed"):
        await resource.read(resource.uri, None)
    await plug.reload()
    with pytest.raises(ToolRetry, match="there is no 'skill://notes/a.txt' any more"):
        await resource.read(resource.uri, None)
    await plug.close()

    assert len(changes) == 3


async def test_two_plugs_never_serve_one_skill_and_the_second_says_who_has_it(
    tmp_path: Path,
) -> None:
    write_skill(tmp_path / "one/notes")
    write_skill(tmp_path / "two/notes")
    write_skill(tmp_path / "two/more")

    async with board_of(tmp_path) as (board, _):
        await board.plug("one")
        report = await board.plug("two")
        await board.unplug("one")
        again = await board.reload("two")

    assert report.skills == ("skill://more/SKILL.md",)
    (left,) = report.quarantined
    assert left == Quarantined(
        "notes", "the plug `one` serves `skill://notes/SKILL.md` already: rename one of the two"
    )
    assert again.skills == ("skill://more/SKILL.md", "skill://notes/SKILL.md")


async def test_what_cannot_be_plugged_says_why(tmp_path: Path) -> None:
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "SKILL.md").write_text("# No head")
    gone = SkillFolder("gone", "gone", path=tmp_path / "gone")

    async with board_of(tmp_path) as (board, _):
        with pytest.raises(PlugError, match=r"`bad`: `bad`: it does not begin with YAML"):
            await board.plug("bad")
    with pytest.raises(PlugError, match="there is no such folder"):
        await gone.open(lambda: None)


async def test_a_folder_that_takes_too_long_to_read_says_so(tmp_path: Path) -> None:
    folder = write_skill(tmp_path / "notes")
    plug = SkillFolder("notes", "notes", path=folder, limits=PlugLimits(start_s=0))

    with pytest.raises(PlugError, match="reading it took over 0 s"):
        await plug.open(lambda: None)


def test_paths_beyond_what_the_system_takes_are_left_out(tmp_path: Path) -> None:
    root = tmp_path.joinpath(*["r" * 250] * 12)
    write_skill(root / "good")
    inner = os.open(write_skill(root / "deep"), os.O_RDONLY)
    for _ in range(5):
        os.mkdir("d" * 255, dir_fd=inner)
        outer, inner = inner, os.open("d" * 255, os.O_RDONLY, dir_fd=inner)
        os.close(outer)
    os.close(inner)

    found = scan(root, "skills")

    assert [each.name for each in found.skills] == ["good"]
    assert {each.tool for each in found.left_out} == {"deep", "d" * 255}
    assert all("cannot be read (File name too long)" in each.reason for each in found.left_out)


def test_of_very_many_folders_only_the_first_are_searched(tmp_path: Path) -> None:
    for n in range(2_001):
        (tmp_path / str(n)).mkdir()
    write_skill(tmp_path / "0")

    found = scan(tmp_path, "skills")

    assert "only its first 2,000 folders were searched" in found.left_out[-1].reason


def test_a_file_is_called_by_its_name_or_else_by_what_is_in_it(tmp_path: Path) -> None:
    folder = write_skill(tmp_path / "kinds")
    (folder / "a.yaml").write_text("a: 1")
    (folder / "b.py").write_text("b = 1")
    (folder / "c.json").write_text("{}")
    (folder / "NOTICE").write_text("plain")
    (folder / "data").write_bytes(b"\xff\x00")
    (folder / "zero").write_bytes(b"a\0b")

    (skill,) = scan(folder, "skills").skills

    assert [file.media_type for file in skill.files] == [
        "text/markdown",
        "text/plain",
        "application/yaml",
        "text/x-python",
        "application/json",
        "application/octet-stream",
        "application/octet-stream",
    ]


async def test_a_folder_that_goes_away_is_withdrawn_and_comes_back(tmp_path: Path) -> None:
    folder = write_skill(tmp_path / "notes")

    async with board_of(tmp_path) as (board, catalog):
        await board.plug("notes")
        folder.rename(tmp_path / "away")
        await until(catalog, lambda now: not now.resources)
        (tmp_path / "away").rename(folder)
        await until(catalog, lambda now: bool(now.resources))


def test_python_folders_and_skill_folders_are_told_apart(tmp_path: Path) -> None:
    write_skill(tmp_path / "skills/one")
    python = tmp_path / "python"
    python.mkdir()
    (python / "tool.py").write_text("def f() -> int: return 1")
    write_skill(python / "inner")
    scripted = write_skill(tmp_path / "scripted")
    (scripted / "run.py").write_text("print()")
    (tmp_path / "empty").mkdir()

    assert is_skill_folder(tmp_path / "skills")
    assert is_skill_folder(tmp_path / "skills/one")
    assert is_skill_folder(scripted)
    assert not is_skill_folder(python)
    assert not is_skill_folder(tmp_path / "empty")


def test_the_opener_takes_skill_folders_and_nothing_else(tmp_path: Path) -> None:
    folder = write_skill(tmp_path / "notes")
    opened = skill_folders(tmp_path, known=["planned"])

    plug = opened("notes", "n")

    assert plug is not None
    assert (plug.name, plug.kind, plug.source, plug.fault) == ("n", "skills", "notes", None)
    assert plug.watched == (Watched(folder, ""),)
    assert opened("planned", "p") is not None
    for other in ("", "https://a.example/mcp", "uvx mcp-server-time", "gone", "x" * 5000, "a\0b"):
        assert opened(other, "n") is None, other
    assert opened("~nobody-of-that-name/x", "n") is None

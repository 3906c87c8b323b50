"""Installing into a client's file: real files of every client and system, merged and restored."""

import json
import os
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildry.errors import UsageError
from guildry.server.install import jsonc
from guildry.server.install.clients import CLIENTS, Client, Machine, Platform, client_named
from guildry.server.install.installed import added, removed, write

COMMAND = ("/opt/guildry/bin/guildry", "serve", "--stdio", "--home", 'C:\\Users\\ada "x"')
URL = "http://127.0.0.1:8765/mcp"
PLATFORMS: tuple[Platform, ...] = ("linux", "macos", "windows")
EVERY = pytest.mark.parametrize(
    ("client", "platform"),
    [(client, platform) for client in CLIENTS for platform in PLATFORMS],
    ids=lambda value: value.name if isinstance(value, Client) else value,
)

JSON = """\
// Mine.
{
  "theme": "dark", // at night
  "%s": {
    /* the other one */
    "other": { "command": "uvx", "args": ["x"], "env": {"KEY": "$KEY"} }
  },
  "last": [1, 2]
}
"""
TOML = """\
# Mine.
model = "m"   # the good one

[%s.other]
command = "uvx"
args = ["x"]

[%s.other.env]
KEY = "k"

# About the screen.
[tui]
theme = "dark"
"""


def file_of(client: Client, platform: Platform, folder: Path) -> Path:
    file = folder / "any/mcp.json"
    if client.user is not None:
        variables = {"APPDATA": str(folder / "Roaming")} if platform == "windows" else {}
        file = client.file(Machine(platform, folder, folder, variables), "user")
    file.parent.mkdir(parents=True, exist_ok=True)
    return file


def filled(client: Client) -> str:
    return TOML.replace("%s", client.key) if client.kind == "toml" else JSON % client.key


def read(client: Client, file: Path) -> Any:
    text = file.read_text()
    return tomllib.loads(text) if client.kind == "toml" else jsonc.read(text)


def install(file: Path, client: Client, **given: str) -> Path | None:
    entry = client.entry(url=given["url"]) if given else client.entry(COMMAND)
    return write(added(file, client, "guildry", entry))


def uninstall(file: Path, client: Client) -> None:
    edit = removed(file, client, "guildry")
    if edit.is_needed:
        write(edit)


@EVERY
def test_a_new_file_is_made_and_goes_again(
    client: Client, platform: Platform, tmp_path: Path
) -> None:
    file = file_of(client, platform, tmp_path)

    backup = install(file, client)

    assert read(client, file) == {client.key: {"guildry": client.entry(COMMAND)}}
    assert backup is None
    uninstall(file, client)
    assert not file.exists()


@EVERY
def test_what_is_there_stays_byte_for_byte_and_comes_back_when_uninstalled(
    client: Client, platform: Platform, tmp_path: Path
) -> None:
    file = file_of(client, platform, tmp_path)
    before = filled(client)
    file.write_text(before)
    values = read(client, file)

    backup = install(file, client)

    after = file.read_text()
    values[client.key]["guildry"] = client.entry(COMMAND)
    assert read(client, file) == values
    kept = after.splitlines()
    assert [
        line for line in before.splitlines() if line not in kept and f"{line}," not in kept
    ] == []
    assert backup is not None
    assert backup.read_text() == before
    uninstall(file, client)
    assert file.read_bytes() == before.encode()


@EVERY
def test_a_second_time_there_is_nothing_to_do(
    client: Client, platform: Platform, tmp_path: Path
) -> None:
    file = file_of(client, platform, tmp_path)
    file.write_text(filled(client))
    install(file, client)

    again = added(file, client, "guildry", client.entry(COMMAND))

    assert not again.is_needed
    uninstall(file, client)
    assert not removed(file, client, "guildry").is_needed


@EVERY
def test_looking_at_the_change_writes_nothing(
    client: Client, platform: Platform, tmp_path: Path
) -> None:
    file = file_of(client, platform, tmp_path)
    file.write_text(filled(client))

    diff = added(file, client, "guildry", client.entry(COMMAND)).diff()

    assert file.read_text() == filled(client)
    assert os.listdir(file.parent) == [file.name]
    assert diff.startswith(f"--- {file}\n+++ {file}\n@@ ")
    assert "guildry" in "".join(line for line in diff.splitlines() if line.startswith("+"))


@EVERY
@pytest.mark.parametrize(
    ("text", "told"), [("{", "line 1"), ("\n= 1 }", "line 2"), ("\n\n]", "line 3")]
)
def test_a_broken_file_is_told_by_line_and_left_alone(
    client: Client, platform: Platform, tmp_path: Path, text: str, told: str
) -> None:
    file = file_of(client, platform, tmp_path)
    file.write_text(text)

    with pytest.raises(UsageError, match=told):
        added(file, client, "guildry", client.entry(COMMAND))
    with pytest.raises(UsageError, match=told):
        removed(file, client, "guildry")

    assert file.read_text() == text
    assert os.listdir(file.parent) == [file.name]


@EVERY
def test_a_later_edit_of_the_file_is_kept_when_uninstalled(
    client: Client, platform: Platform, tmp_path: Path
) -> None:
    file = file_of(client, platform, tmp_path)
    before = filled(client)
    file.write_text(before)
    install(file, client)
    file.write_text(file.read_text().replace("dark", "light"))

    uninstall(file, client)

    assert file.read_text() == before.replace("dark", "light")


@EVERY
def test_what_a_person_added_to_the_entry_stays_when_it_is_installed_anew(
    client: Client, platform: Platform, tmp_path: Path
) -> None:
    file = file_of(client, platform, tmp_path)
    entry: dict[str, Any] = {"command": "old", "args": [], "url": "http://old", "timeout": 9}
    told: dict[str, Any] = {client.key: {"guildry": entry, "other": {"command": "x"}}}
    if client.kind == "toml":
        text = '[%s.guildry]\ncommand = "old"\nargs = []\nurl = "http://old" # was\ntimeout = 9\n'
        text += '[%s.other]\ncommand = "x"\n'
        file.write_text(text.replace("%s", client.key))
    else:
        file.write_text(json.dumps(told, indent=2))

    install(file, client)

    expected = {**client.entry(COMMAND), "timeout": 9}
    assert read(client, file) == {
        client.key: {"guildry": expected, "other": {"command": "x"}},
    }
    if client.http is not None:
        install(file, client, url=URL)
        assert read(client, file)[client.key]["guildry"] == {
            **client.entry(url=URL),
            "timeout": 9,
        }
    uninstall(file, client)
    assert read(client, file) == {client.key: {"other": {"command": "x"}}}


@pytest.mark.parametrize("client", CLIENTS, ids=lambda client: client.name)
def test_an_empty_table_of_servers_stays_if_it_was_there_and_goes_if_it_was_made(
    client: Client, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    empty = f"[{client.key}]\n" if client.kind == "toml" else f'{{"{client.key}": {{}}}}\n'
    other = "x = 1\n" if client.kind == "toml" else '{"x": 1}\n'
    later = "y = 2\n" if client.kind == "toml" else '{"y": 2,\n'

    for before in (empty, other, "", " \n"):
        file.write_text(before)
        install(file, client)
        uninstall(file, client)
        assert file.read_text() == before

    file.write_text(other)
    install(file, client)
    text = file.read_text()
    file.write_text(later + text.removeprefix("{"))
    uninstall(file, client)
    assert read(client, file) == {"x": 1, "y": 2}


@pytest.mark.parametrize(
    "text",
    [
        "mcp_servers = {}\n",
        'mcp_servers = { other = { command = "x" } } # inline\n',
        'mcp_servers.other.command = "x"\n[b]\nc = 1\n',
        '[mcp_servers.other]\ncommand = "a"\n[tui]\nx = 1\n[mcp_servers.more]\ncommand="b" # why\n',
        "a = 1\r\n[b]\r\nc = 1\r\n",
        '\ufeffmodel = "x"',
        'text = """\n[mcp_servers.guildry]\n"""\n',
        "# only a comment",
        "[[profiles]]\na = 1\n[[profiles]]\na = 2\n",
    ],
)
def test_toml_in_any_style_is_merged_or_refused_and_restored(text: str, tmp_path: Path) -> None:
    client, file = client_named("codex"), tmp_path / "config.toml"
    file.write_bytes(text.encode())
    before = tomllib.loads(text.removeprefix("\ufeff"))

    install(file, client)

    after = tomllib.loads(file.read_bytes().decode().removeprefix("\ufeff"))
    assert after["mcp_servers"].pop("guildry") == client.entry(COMMAND)
    assert after in (before, {**before, "mcp_servers": {}})
    for comment in ("# inline", "# why", "# only a comment"):
        assert file.read_text().count(comment) == text.count(comment)
    uninstall(file, client)
    assert file.read_bytes() == text.encode()


LINES = st.sampled_from(
    [
        "# a comment",
        "",
        "   ",
        'text = """\n[mcp_servers.guildry]\n"""',
        "list = [ # why\n  1,\n]",
        "day = 2026-01-01",
        "'quoted key' = 'x'  # y",
    ]
)
HEADERS = st.sampled_from(
    [
        "[mcp_servers.other]",
        "[mcp_servers.other.env] # of it",
        "[mcp_servers.more]",
        "[tui]",
        "[a.b.c]",
        "[mcp_servers]",
        "[[many]]",
        "[ a . d ]",
    ]
)


@st.composite
def toml_documents(draw: Any) -> str:
    """Write a TOML file as a person might: each table once, each key once in its table."""
    newline = draw(st.sampled_from(["\n", "\r\n"]))
    headers = draw(st.lists(HEADERS, max_size=5, unique_by=lambda each: each.strip("[] ")))
    parts: list[str] = []
    for header in ["", *headers]:
        parts += [header] if header else []
        parts += draw(st.lists(LINES, max_size=4, unique_by=lambda each: each.split(" ")[0]))
    text = "\n".join(parts) + str(draw(st.sampled_from(["", "\n", "\n\n"])))
    return text.replace("\n", str(newline))


def is_toml(text: str) -> bool:
    try:
        tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return False
    return True


def check_round_trip(client: Client, text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "file"
        file.write_bytes(text.encode())

        install(file, client)
        once = file.read_bytes()
        again = added(file, client, "guildry", client.entry(COMMAND))
        edited = once.decode() + ("\n# later\n" if client.kind == "toml" else "\n// later\n")
        uninstall(file, client)

        assert not again.is_needed
        assert file.read_bytes() == text.encode()

        file.write_bytes(edited.encode())
        uninstall(file, client)
        left = file.read_text()
        assert "later" in left
        assert "/opt/guildry" not in left


@given(toml_documents().filter(is_toml))
def test_any_toml_file_comes_back_as_it_was(text: str) -> None:
    check_round_trip(client_named("codex"), text)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    ),
    st.sampled_from([None, 0, 2, "\t"]),
    st.sampled_from(["", "\n", "// end\n", " /* end */ "]),
    st.sampled_from(["// begin\n", "\ufeff", "", "\r\n"]),
    st.booleans(),
)
def test_any_json_file_comes_back_as_it_was(
    value: Any, indent: Any, end: str, begin: str, has_servers: bool
) -> None:
    told = {"value": value, **({"mcpServers": {"x": {"command": "y"}}} if has_servers else {})}

    check_round_trip(client_named("cursor"), begin + json.dumps(told, indent=indent) + end)


def test_backups_are_numbered_and_none_is_lost(tmp_path: Path) -> None:
    client, file = client_named("cursor"), tmp_path / "mcp.json"
    file.write_text('{"n": 0}')

    kept: list[str] = []
    for n in range(1, 4):
        backup = install(file, client)
        assert backup is not None
        kept.append(backup.name)
        file.write_text(json.dumps({"n": n}))
    file.write_text('{"n": 1}')
    same = install(file, client)

    assert kept == [f"mcp.json.guildry-backup{end}" for end in ("", ".2", ".3")]
    assert [json.loads((tmp_path / name).read_text())["n"] for name in kept] == [0, 1, 2]
    assert same == tmp_path / kept[1]


def test_backups_that_are_of_no_use_do_no_harm(tmp_path: Path) -> None:
    client, file = client_named("cursor"), tmp_path / "mcp.json"
    (tmp_path / "mcp.json.guildry-backup").write_bytes(b"\xff")
    (tmp_path / "mcp.json.guildry-backup.2").write_text("{ broken")
    file.write_text('{"a": 1}')

    backup = install(file, client)
    file.write_text(file.read_text().replace("1", "2"))
    uninstall(file, client)

    assert backup == tmp_path / "mcp.json.guildry-backup.3"
    assert file.read_text() == '{"a": 2}'


def test_links_modes_and_other_files_stay(tmp_path: Path) -> None:
    client, real, link = client_named("cursor"), tmp_path / "real.json", tmp_path / "mcp.json"
    real.write_text('{"secret": 1}')
    real.chmod(0o600)
    link.symlink_to("real.json")

    backup = install(link, client)

    assert link.is_symlink()
    assert client.key in json.loads(real.read_text())
    assert real.stat().st_mode & 0o777 == 0o600
    assert backup is not None
    assert backup.stat().st_mode & 0o777 == 0o600
    assert sorted(os.listdir(tmp_path)) == ["mcp.json", "mcp.json.guildry-backup", "real.json"]


def test_a_file_that_changed_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    client, file = client_named("cursor"), tmp_path / "mcp.json"
    file.write_text("{}")
    edit = added(file, client, "guildry", client.entry(COMMAND))
    file.write_text('{"new": 1}')

    with pytest.raises(UsageError, match="has changed meanwhile: run this again"):
        write(edit)

    assert file.read_text() == '{"new": 1}'


def test_what_cannot_be_read_or_written_is_said(tmp_path: Path) -> None:
    client = client_named("cursor")
    latin = tmp_path / "latin.json"
    latin.write_bytes(b'{\n"a": "\xe9"}')
    table = tmp_path / "table.json"
    table.write_text('{"mcpServers": []}')
    array = tmp_path / "array.json"
    array.write_text("[]")
    huge = tmp_path / "huge.json"
    with huge.open("wb") as opened:
        opened.truncate(64 * 1024 * 1024 + 1)
    blocked = tmp_path / "file"
    blocked.write_text("")

    for file, told in (
        (latin, "is not UTF-8 on line 2"),
        (table, "`mcpServers` in .* is no table"),
        (array, "line 1, column 1: the whole is no object"),
        (huge, "that is no settings file"),
        (tmp_path, "cannot be read"),
    ):
        with pytest.raises(UsageError, match=told):
            added(file, client, "guildry", client.entry(COMMAND))
    edit = added(tmp_path / "new.json", client, "guildry", client.entry(COMMAND))
    with pytest.raises(UsageError, match="cannot be"):
        write(type(edit)(blocked / "in/it.json", None, edit.after))


def test_a_value_that_cannot_be_compared_is_left_to_be_changed_by_hand(tmp_path: Path) -> None:
    client, file = client_named("codex"), tmp_path / "config.toml"
    file.write_text("x = nan\n")

    with pytest.raises(UsageError, match="cannot be edited safely: change `mcp_servers` by hand"):
        added(file, client, "guildry", client.entry(COMMAND))

    assert file.read_text() == "x = nan\n"


def test_an_entry_that_is_no_table_is_replaced(tmp_path: Path) -> None:
    client, file = client_named("zed"), tmp_path / "settings.json"
    file.write_text('{"context_servers": {"guildry": null}}')

    install(file, client)

    assert read(client, file) == {"context_servers": {"guildry": client.entry(COMMAND)}}

"""What of the file system a confined command sees so that it can run, and no more."""

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from guildry.tools.sandbox.visible import needed, unseen


def made(path: Path, text: str = "", mode: int = 0o755) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)
    return path


def needs(*command: str | Path, home: Path, path: str = "/usr/bin:/bin") -> set[str]:
    words = [str(each) for each in command]
    found = needed(words, cwd=home, path=path, home=home)
    return {
        str(each.relative_to(home)) if each.is_relative_to(home) else str(each) for each in found
    }


def test_programs_of_the_system_need_nothing_more(tmp_path: Path) -> None:
    assert needs("ls", "/etc", home=tmp_path) == set()
    assert needs("/bin/sh", "-c", "true", home=tmp_path) == set()
    assert needs("no-such-program", home=tmp_path) == set()


def test_a_program_needs_its_libraries_and_what_it_links_to(tmp_path: Path) -> None:
    program = made(tmp_path / "node/bin/node")
    (tmp_path / "node/lib").mkdir()
    made(tmp_path / "node/share/private")
    link = tmp_path / "links/node"
    link.parent.mkdir()
    link.symlink_to(program)

    assert needs(link, home=tmp_path) == {"links/node", "node/bin/node", "node/bin", "node/lib"}


def test_a_virtual_environment_is_needed_whole_but_never_the_home(tmp_path: Path) -> None:
    made(tmp_path / "venv/pyvenv.cfg")
    made(tmp_path / "pyvenv.cfg")

    assert needs(made(tmp_path / "venv/bin/tool"), home=tmp_path) == {"venv"}
    assert needs(made(tmp_path / "bin/tool"), home=tmp_path) == {"bin/tool"}


def test_a_program_that_a_user_installed_needs_libraries_and_no_other_files(tmp_path: Path) -> None:
    program = made(tmp_path / ".local/bin/tool")
    made(tmp_path / ".local/lib/python3/tool.py")
    made(tmp_path / ".local/share/keyrings/login")

    assert needs(program, home=tmp_path) == {".local/bin/tool", ".local/lib"}


@pytest.mark.parametrize("first", ["#!{}/runtime/bin/run -x", "#!/usr/bin/env -S X=1 run"])
def test_a_script_needs_the_interpreter_that_it_names(tmp_path: Path, first: str) -> None:
    runtime = made(tmp_path / "runtime/bin/run").parent
    script = made(tmp_path / "tools/script", first.format(tmp_path) + "\nprint()\n")

    found = needs(script, home=tmp_path, path=f"{runtime}:/usr/bin:/bin")

    assert found == {"tools/script", "runtime/bin/run", "runtime/bin"}


def test_packages_of_node_are_needed_with_all_beside_them(tmp_path: Path) -> None:
    made(tmp_path / "project/.env")
    script = made(tmp_path / "project/node_modules/server/index.js")
    link = tmp_path / "project/node_modules/.bin/server"
    link.parent.mkdir()
    link.symlink_to(script)

    assert needs(link, home=tmp_path) == {"project/node_modules"}


def test_a_script_needs_its_folder_unless_that_is_the_home(tmp_path: Path) -> None:
    inside, outside = made(tmp_path / "tools/a.py"), made(tmp_path / "b.py")

    assert needs("sh", inside, home=tmp_path) == {"tools"}
    assert needs("sh", "tools/a.py", home=tmp_path) == {"tools"}
    assert needs("sh", f"--file={outside}", home=tmp_path) == {"b.py"}


def test_beside_the_settings_a_script_sees_scripts_alone(tmp_path: Path) -> None:
    script = made(tmp_path / "work/a.py")
    for name in ("guildry.toml", ".env", "b.py", "notes.txt"):
        made(tmp_path / "work" / name)

    assert needs("sh", script, home=tmp_path) == {"work/a.py", "work/b.py"}


def test_what_a_command_works_on_is_not_shown_by_itself_but_told(tmp_path: Path) -> None:
    folder = tmp_path / "notes"
    folder.mkdir()
    command = ["cat", "notes/", f"--root={folder}", "/usr/bin/env", "nothing.txt"]

    assert needs(*command, home=tmp_path) == set()
    assert unseen(command, cwd=tmp_path, seen=()) == (str(folder), str(folder))
    assert unseen(command, cwd=tmp_path, seen=(tmp_path,)) == ()


@given(
    st.lists(st.sampled_from([".", "..", "bin", "x.py", "/", "~", "a/x.py", "bin/x.py", "--a=."]))
)
def test_no_command_shows_the_home_or_what_it_is_in(
    tmp_path_factory: pytest.TempPathFactory, words: list[str]
) -> None:
    home = tmp_path_factory.getbasetemp() / "home"
    for name in ("x.py", "a/x.py", "bin/x.py", "pyvenv.cfg"):
        made(home / name)
    for name in ("x.py", "pyvenv.cfg"):
        made(home.parent / name)

    for command in (words, [str(home / "bin/x.py"), *words]):
        if command:
            found = needed(command, cwd=home, path=os.defpath, home=home)
            assert not [each for each in found if home.is_relative_to(each)]

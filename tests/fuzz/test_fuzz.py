"""Whatever a client sends, a real server answers or closes the connection, and goes on serving."""

import subprocess
import sys
from pathlib import Path

import pytest

FUZZER = Path(__file__).parent / "fuzzer.py"
UPSTREAM = Path(__file__).parent / "upstream.py"


@pytest.mark.requirement("responses.same-id")
def test_broken_messages_are_answered_and_tell_no_secret() -> None:
    command = [sys.executable, str(FUZZER), "--cases", "4000", "--seed", "2026"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)

    assert (done.returncode, done.stderr) == (0, "")
    assert "0 wrong" in done.stdout


def test_hostile_servers_hurt_their_own_calls_alone() -> None:
    command = [sys.executable, str(UPSTREAM), "--calls", "400", "--seed", "2026"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180)

    assert (done.returncode, done.stderr) == (0, "")
    assert "0 wrong" in done.stdout

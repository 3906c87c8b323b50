"""Fixtures for every test."""

import asyncio  # noqa: TID251 - the guard must see the running loop
import sys

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(  # shared machines are slow at times: no test asserts on time
    "guildry", deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("guildry")


def _forbid_sqlite_in_the_event_loop(event: str, _: object) -> None:
    if event == "sqlite3.connect":
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return
        raise RuntimeError("SQLite opened in the event loop: move the call to a thread")


sys.addaudithook(_forbid_sqlite_in_the_event_loop)


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"

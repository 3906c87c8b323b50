"""The agent frameworks: where each lives, and one measured run of one of them."""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from benchmarks.environments import HERE, clean_environment, python_of, versions
from benchmarks.wire import kill_group

RUN_TIMEOUT_S = 240


@dataclass(frozen=True)
class Framework:
    """A framework, its environment and the packages whose versions matter."""

    label: str
    group: str
    driver: str
    packages: tuple[str, ...]


FRAMEWORKS = {
    "floor": Framework("floor (aiohttp)", "guildry", "drive_floor.py", ("aiohttp",)),
    "guildry": Framework("Guildry", "guildry", "drive_guildry.py", ("guildry", "aiohttp")),
    "openai-agents": Framework(
        "openai-agents", "openai-agents", "drive_openai_agents.py", ("openai-agents", "openai")
    ),
    "pydantic-ai": Framework(
        "pydantic-ai", "pydantic-ai", "drive_pydantic_ai.py", ("pydantic-ai-slim", "openai")
    ),
    "langchain": Framework(
        "langchain create_agent",
        "langchain",
        "drive_langchain.py",
        ("langchain", "langgraph", "langchain-openai", "openai"),
    ),
    "agentscope": Framework(
        "agentscope", "agentscope", "drive_agentscope.py", ("agentscope", "openai")
    ),
}


@dataclass(frozen=True)
class Scenario:
    """What every framework is asked to do, and how long it would take at no cost."""

    name: str
    kind: str
    agents: int
    latency_ms: int
    ideal_s: float


def versions_of(names: list[str]) -> dict[str, str]:
    """Return the versions of the packages that the named frameworks are made of."""
    found: dict[str, str] = {}
    for name in names:
        framework = FRAMEWORKS[name]
        found |= versions(python_of(framework.group), list(framework.packages))
    return found


@contextmanager
def endpoint() -> Iterator[str]:
    """Run the endpoint in a process of its own and yield its address."""
    process = subprocess.Popen(
        [sys.executable, str(HERE / "endpoint.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    try:
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
    finally:
        kill_group(process.pid)
        process.wait(timeout=10)
        process.stdout.close()


async def measure(name: str, scenario: Scenario, url: str) -> dict[str, Any]:
    """Run a scenario once in a fresh process; a run that fails has the key `failed`."""
    framework = FRAMEWORKS[name]
    with tempfile.TemporaryDirectory(prefix="agents") as folder:
        process = await asyncio.create_subprocess_exec(
            python_of(framework.group),
            str(HERE / "drivers" / framework.driver),
            *("--url", url, "--scenario", scenario.kind, "--agents", str(scenario.agents)),
            *("--latency-ms", str(scenario.latency_ms), "--folder", folder),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            cwd=folder,
            env=clean_environment(),
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(RUN_TIMEOUT_S):
                stdout, stderr = await process.communicate()
        except TimeoutError:
            return {"failed": f"no end within {RUN_TIMEOUT_S} s"}
        finally:
            kill_group(process.pid)
            await process.wait()
    if process.returncode:
        return {"failed": stderr.decode(errors="replace")[-1500:]}
    return dict(json.loads(stdout.splitlines()[-1]))

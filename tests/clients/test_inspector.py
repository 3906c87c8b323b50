"""The Inspector's command line finds a server that is strict, quick and honest, in each era."""

import json
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path
from subprocess import DEVNULL
from typing import Any, NamedTuple

import anyio
import pytest
from serving import NODE, PROGRAMS, WAIT_S, Place, environment, served

HERE = Path(__file__).parent
ERAS = pytest.mark.parametrize("era", ["legacy", "auto", "modern"])


class Said(NamedTuple):
    code: int
    result: Any


@pytest.fixture(scope="module")
async def place(tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Place]:
    async with served(Place(tmp_path_factory.mktemp("home"), HERE)) as place:
        yield place


async def inspect(place: Place, era: str, method: str, *options: str) -> Said:
    """Run the Inspector once, and return its exit code and what it printed."""
    target = [place.url, "--transport", "http"] if place.url else [*place.command, "--stdio"]
    command = [NODE, PROGRAMS / "node_modules" / ".bin" / "inspector", "--cli", *target]
    asked = ["--protocol-era", era, "--method", method, *options, "--format", "json"]
    with anyio.fail_after(WAIT_S):
        done = await anyio.run_process(
            [*map(str, command), *asked],
            check=False,
            stdin=DEVNULL,
            env={**environment(), "HOME": str(place.home)},  # it keeps a catalog there
            cwd=place.folder,
        )
    return Said(done.returncode, [json.loads(line) for line in done.stdout.splitlines()])


@ERAS
@pytest.mark.requirement("tools.portable-schemas")
async def test_every_schema_is_portable_to_every_model(place: Place, era: str) -> None:
    said = await inspect(place, era, "tools/list", "--strict")

    (listed,) = said.result
    assert said.code == 0
    assert {"echo", "add", "find_tools"} <= {tool["name"] for tool in listed["result"]["tools"]}


@ERAS
async def test_a_call_is_answered(place: Place, era: str) -> None:
    arguments = json.dumps({"a": 1, "b": 2})
    said = await inspect(
        place, era, "tools/call", "--tool-name", "add", "--tool-args-json", arguments
    )

    (called,) = said.result
    assert said.code == 0
    assert called["result"]["structuredContent"] == {"total": 3}


@ERAS
async def test_a_call_that_fails_is_told_apart(place: Place, era: str) -> None:
    said = await inspect(place, era, "tools/call", "--tool-name", "fail", "--tool-arg", "why=so")

    (called,) = said.result
    assert said.code == 5
    assert called["result"]["isError"] is True


@ERAS
async def test_a_load_of_calls_has_no_error(place: Place, era: str) -> None:
    load = ["--load", "--load-concurrency", "16", "--load-requests", "300"]
    tool = ["--tool-name", "echo", "--tool-arg", "text=hello"]
    said = await inspect(place, era, "tools/call", *tool, *load)

    (summary,) = said.result
    counted = {key: summary["result"][key] for key in ("requests", "ok", "toolErrors", "errors")}
    assert said.code == 0
    assert counted == {"requests": 300, "ok": 300, "toolErrors": 0, "errors": 0}


@pytest.mark.parametrize("method", ["prompts/list", "resources/list", "resources/templates/list"])
@ERAS
async def test_prompts_and_resources_are_listed(place: Place, era: str, method: str) -> None:
    said = await inspect(place, era, method)

    assert said.code == 0


@pytest.mark.parametrize("era", ["auto", "modern"])
@pytest.mark.requirement("skills.listed")
async def test_every_skill_is_verified(place: Place, era: str) -> None:
    said = await inspect(place, era, "skills/list", "--verify", "--require-digests")

    assert said.code == 0, said.result
    assert said.result


@ERAS
async def test_the_server_is_inspected_over_its_pipes_too(
    place: Place, era: str, tmp_path: Path
) -> None:
    alone = replace(place, home=tmp_path / "home", url=None)

    said = await inspect(alone, era, "tools/call", "--tool-name", "echo", "--tool-arg", "text=hi")

    (called,) = said.result
    assert said.code == 0
    assert called["result"]["content"] == [{"type": "text", "text": "hi"}]

"""What the tests of the serving half share: tools that behave, and an app that offers them."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import anyio
import pytest

from guildry.server.app import App, open_app
from guildry.server.config import Settings
from guildry.teams.model import Model
from guildry.tools.base import READS, Call, Invoke, Outcome, Text, Tool


class MakeTool(Protocol):
    def __call__(
        self,
        name: str,
        invoke: Invoke,
        properties: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
    ) -> Tool: ...


class OpenApp(Protocol):
    def __call__(
        self, *tools: Tool, models: Mapping[str, Model] | None = None, **settings: Any
    ) -> AbstractAsyncContextManager[App]: ...


@pytest.fixture
def make_tool() -> MakeTool:
    def make(
        name: str,
        invoke: Invoke,
        properties: Mapping[str, Any] | None = None,
        output_schema: Mapping[str, Any] | None = None,
    ) -> Tool:
        shape = dict(properties or {})
        schema = {
            "type": "object",
            "properties": shape,
            "required": list(shape),
            "additionalProperties": False,
        }
        return Tool(
            name=name,
            plug="mine",
            description=f"Do what {name} does.",
            input_schema=schema,
            output_schema=output_schema,
            invoke=invoke,
            effects=READS,
        )

    return make


@pytest.fixture
def echo(make_tool: MakeTool) -> Tool:
    async def invoke(arguments: dict[str, Any], call: Call) -> Outcome:
        return Outcome((Text(arguments["text"]),))

    return make_tool("echo", invoke, {"text": {"type": "string"}})


@pytest.fixture
def hang(make_tool: MakeTool) -> tuple[Tool, anyio.Event, anyio.Event]:
    """A tool that never answers, with the events that it began and that it was cancelled."""
    began, cancelled = anyio.Event(), anyio.Event()

    async def invoke(arguments: dict[str, Any], call: Call) -> Outcome:
        began.set()
        try:
            await anyio.sleep_forever()
        finally:
            cancelled.set()
        return Outcome()

    return make_tool("hang", invoke), began, cancelled


@pytest.fixture
def opened(tmp_path: Path) -> OpenApp:
    @asynccontextmanager
    async def opening(
        *tools: Tool, models: Mapping[str, Model] | None = None, **settings: Any
    ) -> AsyncGenerator[App]:
        home = settings.pop("home", tmp_path / "home")
        async with open_app(Settings(home=home, **settings), models=models) as app:
            app.catalog.replace("mine", tools)
            with anyio.fail_after(10):
                await app.ready.wait()
            yield app

    return opening

"""What the tests of the serving half share: tools that behave, and an app that offers them."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, Literal, Protocol, cast

import anyio
import pytest
from anyio.streams.memory import MemoryObjectSendStream
from mcp import Client
from mcp.client.extension import (
    ClaimContext,
    ClientExtension,
    NotificationBinding,
    ResultClaim,
)
from mcp_types import CallToolResult, InputRequiredResult, NotificationParams, Request, Result
from pydantic import ConfigDict, RootModel

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


class _Task(Result):
    """A task as it comes in the answer to a call, with all that it has."""

    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"] = "task"


class _News(NotificationParams):
    """A task as a notification tells it, with all that it has."""

    model_config = ConfigDict(extra="allow")


class _Answer(RootModel[dict[str, Any]]):
    """Any result, as it came."""


class _TaskRequest(Request[dict[str, Any], str]):
    name_param = "taskId"


async def _refuse(task: _Task, context: ClaimContext) -> CallToolResult:
    raise AssertionError("tests ask for their tasks themselves")


class _Tasks(ClientExtension):
    identifier = "io.modelcontextprotocol/tasks"

    def __init__(self, heard: MemoryObjectSendStream[dict[str, Any]] | None = None) -> None:
        self._heard = heard

    def claims(self) -> list[ResultClaim[_Task]]:
        return [ResultClaim(result_type="task", model=_Task, resolve=_refuse)]

    def notifications(self) -> list[NotificationBinding[_News]]:
        method = "notifications/tasks"
        return [NotificationBinding(method=method, params_type=_News, handler=self._hear)]

    async def _hear(self, news: _News) -> None:
        if self._heard is not None:
            self._heard.send_nowait(news.model_dump(by_alias=True, mode="json"))


class TaskClient:
    """The official client, with tasks: plain JSON in and out."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def call(self, name: str, /, **arguments: Any) -> dict[str, Any]:
        return await self.call_with(name, arguments)

    async def call_with(
        self, name: str, arguments: dict[str, Any], **retried: Any
    ) -> dict[str, Any]:
        result: CallToolResult | InputRequiredResult | Result = await self.client.session.call_tool(
            name, arguments, allow_input_required=True, allow_claimed=True, **retried
        )
        return result.model_dump(by_alias=True, mode="json", exclude_none=True)

    async def begin(self, name: str, /, **arguments: Any) -> str:
        told = await self.call_with(name, arguments)
        assert told["resultType"] == "task", told
        return cast("str", told["taskId"])

    async def ask(self, method: str, id: Any, **params: Any) -> dict[str, Any]:
        kind = _TaskRequest if isinstance(id, str) else Request[dict[str, Any], str]
        request = kind(method=method, params={"taskId": id, **params})
        return (await self.client.session.send_request(request, _Answer)).root

    async def listen(self, ids: Any, **others: Any) -> dict[str, Any]:
        """Subscribe to tasks, until the server ends that."""
        params = {"notifications": {"taskIds": ids, **others}}
        request = Request[dict[str, Any], str](method="subscriptions/listen", params=params)
        return (await self.client.session.send_request(request, _Answer)).root

    async def get(self, id: str) -> dict[str, Any]:
        return await self.ask("tasks/get", id)

    async def update(self, id: str, **responses: Any) -> dict[str, Any]:
        return await self.ask("tasks/update", id, inputResponses=responses)

    async def cancel(self, id: str) -> dict[str, Any]:
        return await self.ask("tasks/cancel", id)

    async def until(self, id: str, *statuses: str) -> dict[str, Any]:
        """Ask until the task is in one of the statuses, or has ended."""
        while True:
            task = await self.get(id)
            if task["status"] in (*statuses, "completed", "failed", "cancelled"):
                return task


class WithTasks(Protocol):
    def __call__(self, target: Any, **options: Any) -> AbstractAsyncContextManager[TaskClient]: ...


@pytest.fixture
def with_tasks() -> WithTasks:
    """Connect the official client in the modern era, with the Tasks extension declared."""

    @asynccontextmanager
    async def connecting(target: Any, **options: Any) -> AsyncGenerator[TaskClient]:
        extension = _Tasks(options.pop("heard", None))
        given: dict[str, Any] = {"mode": "2026-07-28", "extensions": [extension], **options}
        with anyio.fail_after(60):
            async with Client(target, **given) as client:
                yield TaskClient(client)

    return connecting

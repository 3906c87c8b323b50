"""The official client for Python, in this process."""

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import anyio
import anyio.abc
import mcp_types as wire
from anyio.abc import TaskStatus
from connected import Box, CallError, Ongoing, refuse
from mcp import Client, MCPError, StdioServerParameters
from mcp.shared.subscriptions import (
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from serving import Json, Place, environment

__all__ = ["PythonClient", "python_client"]


@dataclass
class PythonCall:
    scope: anyio.CancelScope
    words: Box[Json]
    outcome: Box[Json | Exception]

    async def progress(self) -> Json:
        return await self.words.take()

    def cancel(self) -> None:
        self.scope.cancel()

    async def result(self) -> Json:
        outcome = await self.outcome.take()
        if isinstance(outcome, MCPError):
            raise CallError(outcome.error.code, outcome.error.message, outcome.error.data)
        if isinstance(outcome, Exception):
            raise outcome
        return outcome


class PythonClient:
    """The client for Python, in this process."""

    def __init__(self) -> None:
        self.hello: Json = {}
        self.answer: Callable[[str, Json], Json] = refuse
        self.client: Client | None = None
        self.notified = Box[str]()
        self.tasks: anyio.abc.TaskGroup | None = None

    def begin(self, method: str, params: Json) -> Ongoing:
        words, outcome, scope = Box[Json](), Box[Json | Exception](), anyio.CancelScope()

        async def progressed(progress: float, total: float | None, message: str | None) -> None:
            words.put({"progress": progress, "total": total, "message": message})

        async def perform() -> None:
            with scope:
                try:
                    result = await _METHODS[method](self, params, progressed)
                except Exception as error:
                    outcome.put(error)
                else:
                    plain = result.model_dump(by_alias=True, mode="json", exclude_none=True)
                    outcome.put(plain)
            if scope.cancelled_caught:
                outcome.put(CallError(None, "given up", None))

        assert self.tasks is not None
        self.tasks.start_soon(perform)
        return PythonCall(scope, words, outcome)

    async def call(self, method: str, params: Json | None = None) -> Json:
        return await self.begin(method, params or {}).result()

    async def listen(self, *uris: str) -> None:
        """Ask for announcements, as a client of the modern era has to, and follow resources."""
        assert self.client is not None and self.tasks is not None
        listening = self.client.listen(
            tools_list_changed=True,
            prompts_list_changed=True,
            resources_list_changed=True,
            resource_subscriptions=uris,
        )
        await self.tasks.start(self._listen, listening)

    async def _listen(self, listening: Any, *, task_status: TaskStatus[None]) -> None:
        async with listening as events:
            task_status.started()
            async for event in events:
                self.notified.put(_NOTIFICATIONS[type(event)])

    async def heard(self, method: str) -> None:
        """Wait for a notification."""
        await self.notified.take(lambda each: each == method)

    async def ask(self, method: str, model: Any, context: Any, params: Any = None) -> Any:
        """Answer a question of the server."""
        asked: Json = {} if params is None else params.model_dump(by_alias=True, exclude_none=True)
        return model.model_validate(self.answer(method, asked))

    async def hear(self, message: Any) -> None:
        """Take what the server said on its own."""
        if not isinstance(message, Exception) and hasattr(message, "method"):
            self.notified.put(message.method)


Performing = Callable[[Any, Json, Any], Awaitable[Any]]
_NOTIFICATIONS: Final[Mapping[type, str]] = {
    ToolsListChanged: "notifications/tools/list_changed",
    PromptsListChanged: "notifications/prompts/list_changed",
    ResourcesListChanged: "notifications/resources/list_changed",
    ResourceUpdated: "notifications/resources/updated",
}
_METHODS: Final[Mapping[str, Performing]] = {
    "listTools": lambda c, p, _: c.client.list_tools(cursor=p.get("cursor"), cache_mode="bypass"),
    "listPrompts": lambda c, p, _: c.client.list_prompts(cursor=p.get("cursor")),
    "listResources": lambda c, p, _: c.client.list_resources(cursor=p.get("cursor")),
    "listResourceTemplates": lambda c, p, _: c.client.list_resource_templates(),
    "callTool": lambda c, p, progressed: c.client.call_tool(
        p["name"], p["arguments"], progress_callback=progressed
    ),
    "subscribeResource": lambda c, p, _: c.client.session.subscribe_resource(p["uri"]),
    "readResource": lambda c, p, _: c.client.read_resource(p["uri"], cache_mode="bypass"),
    "getPrompt": lambda c, p, _: c.client.get_prompt(p["name"], p.get("arguments")),
    "complete": lambda c, p, _: c.client.complete(_reference(p["ref"]), p["argument"]),
}


def _reference(ref: Json) -> Any:
    kind = wire.PromptReference if ref["type"] == "ref/prompt" else wire.ResourceTemplateReference
    return kind.model_validate(ref)


@asynccontextmanager
async def python_client(place: Place, mode: str) -> AsyncGenerator[PythonClient]:
    client = PythonClient()
    command, *arguments = [*place.command, "--stdio"]
    target: Any = place.url or StdioServerParameters(
        command=command, args=arguments, env=environment(), cwd=place.folder
    )
    connecting = Client(
        target,
        mode=mode,
        message_handler=client.hear,
        elicitation_callback=partial(client.ask, "elicitation/create", wire.ElicitResult),
        sampling_callback=partial(client.ask, "sampling/createMessage", wire.CreateMessageResult),
        list_roots_callback=partial(client.ask, "roots/list", wire.ListRootsResult),
    )
    async with connecting as connected, anyio.create_task_group() as tasks:
        capabilities = connected.server_capabilities
        client.client, client.tasks = connected, tasks
        client.hello = {
            "connected": connected.protocol_version,
            "capabilities": capabilities.model_dump(by_alias=True, exclude_none=True),
        }
        yield client
        tasks.cancel_scope.cancel()

"""`tasks/get`, `tasks/update` and `tasks/cancel`, and the calls that become tasks (SEP-2663).

A client of the modern era declares the extension with each request. One that does not gets every
answer at once, except from tools that are tasks or nothing. Beside the specification, two names in
`_meta` are Guildry's own: `guildry/run`, on a task, is the run that it is; `guildry/steer`, on
`tasks/update`, is a message for the agents of that run.
"""

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, cast

from mcp.shared.exceptions import MCPError
from mcp.shared.inbound import MCP_NAME_HEADER, decode_header_value
from mcp_types import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_REQUIRED_CLIENT_CAPABILITY,
    RequestParams,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from guildry.errors import RunError, ToolProtocolError, ToolRetry
from guildry.server.asking.inputs import UnfitAnswer
from guildry.server.methods.answers import complete, hidden
from guildry.server.tasks.tasks import TaskCall, TaskPlan
from guildry.tools.registry import UnknownTool

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel.server import Server

    from guildry.memory.tasks import TaskRecord
    from guildry.server.surface import Surface
    from guildry.tools.asking.questions import Channel
    from guildry.tools.base import Json, Tool

__all__ = [
    "EXTENSION",
    "RUN",
    "STEER",
    "TaskCalls",
    "declares",
    "needs_extension",
    "register",
    "standing",
    "task_to_wire",
]

EXTENSION: Final = "io.modelcontextprotocol/tasks"
"""What clients and servers call the extension."""

RUN: Final = "guildry/run"
"""Key in the `_meta` of a task: the id of the run that it is."""

STEER: Final = "guildry/steer"
"""Key in the `_meta` of `tasks/update`: a message for the agents of the task's run."""

_FASTEST_POLL_MS: Final = 500
_SLOWEST_POLL_MS: Final = 5_000


def register(server: "Server[Any]", surface: "Surface") -> None:
    """Serve the methods about tasks, and say so."""
    tasks = _Tasks(surface)
    server.extensions[EXTENSION] = {}
    server.add_request_handler("tasks/get", RequestParams, tasks.on_get)
    server.add_request_handler("tasks/update", RequestParams, tasks.on_update)
    server.add_request_handler("tasks/cancel", RequestParams, tasks.on_cancel)


def declares(context: "ServerRequestContext[Any, Any]") -> bool:
    """Tell whether the client declared the extension with this request."""
    capabilities = context.session.client_capabilities
    return (
        context.protocol_version in MODERN_PROTOCOL_VERSIONS
        and capabilities is not None
        and EXTENSION in (capabilities.extensions or {})
    )


def needs_extension(what: str) -> MCPError:
    """Return the error that tells a client to declare the extension."""
    return MCPError(
        MISSING_REQUIRED_CLIENT_CAPABILITY,
        f"{what}: declare `{EXTENSION}` in the client capabilities of the request",
        {"requiredCapabilities": {"extensions": {EXTENSION: {}}}},
    )


class TaskCalls:
    """Make tasks of the tool calls of one principal."""

    def __init__(self, surface: "Surface") -> None:
        self._surface = surface

    async def wants(
        self, name: str, arguments: dict[str, "Json"], context: "ServerRequestContext[Any, Any]"
    ) -> bool:
        """Tell whether a call is to be a task.

        Raises:
            MCPError: it can be nothing else, and the client takes no tasks.
        """
        tool = await self._meant(name, arguments)
        if tool is None or tool.task == "never":
            return False
        if declares(context):
            return True
        if tool.task == "required":
            raise needs_extension(f"`{tool.name}` runs only as a task")
        return False

    async def begin(
        self,
        name: str,
        arguments: dict[str, "Json"],
        context: "ServerRequestContext[Any, Any]",
        channel: "Channel | None",
    ) -> dict[str, Any]:
        """Begin a call as a task, and return the task, or why there is none.

        What the call asks before it does anything is asked on `channel`, the way to the client
        that waits for this answer.

        Raises:
            UnknownTool: the tool is gone.
            StoreError: the task could not be kept, and was not begun.
        """
        surface, version = self._surface, context.protocol_version
        tool, grant = await self._meant(name, arguments), surface.caller.grant
        if tool is None:
            raise UnknownTool(name)
        capabilities = context.session.client_capabilities
        asks_first = tool.asks or surface.app.approval.asks(tool, grant)
        plan = TaskPlan(
            principal=grant.holder,
            tool=tool.name,
            is_run=tool.scope == "teams" and tool.task != "never",
            capabilities=capabilities,
            may_ask_first=channel is not None and asks_first,
        )

        async def work(call: TaskCall) -> Mapping[str, Any]:
            try:
                result = await surface.call(
                    name, arguments, version, call.progress, channel=call.channel, begins=call.run
                )
            except UnknownTool as error:
                return _failed(MCPError(INVALID_PARAMS, str(error)))
            except ToolProtocolError as error:
                return _failed(MCPError(error.code, error.message, error.data))
            except Exception as error:
                return _failed(hidden(error, "tool_call_crashed", tool=name))
            return {"result": complete(result)}

        try:
            record = await surface.app.tasks.begin(plan, work, channel)
        except ToolRetry as error:
            content = [{"type": "text", "text": str(error)}]
            return complete({"content": content, "isError": True})
        return {**task_to_wire(replace(record, requests={}), seed=True), "resultType": "task"}

    async def _meant(self, name: str, arguments: dict[str, "Json"]) -> "Tool | None":
        surface = self._surface
        name, _ = await surface.meant(name, arguments)
        tool = surface.app.catalog.current.tools.get(name)
        grant = surface.caller.grant
        if tool is None or tool.scope not in grant.scopes or not grant.allows(name):
            return None
        return tool


async def standing(surface: "Surface", id: str, version: str) -> "TaskRecord":
    """Return how a task of this principal stands, with what came of it once it has ended.

    Raises:
        TaskNotFound: there is no such task for this principal, or no longer.
    """
    tasks = surface.app.tasks
    record = await tasks.get(surface.caller.grant.holder, id)
    if record.status != "completed" or record.outcome is not None:
        return record
    # Its process was gone before it could say what came of it: its run tells.
    run = await surface.app.runs.get(record.run or "")
    result = await surface.call("run_result", {"run": record.run}, version)
    if run is not None and run.status == "failed":
        result["isError"] = True
    record = replace(record, outcome={"result": complete(result)})
    await tasks.settle(record)
    return record


class _Tasks:
    def __init__(self, surface: "Surface") -> None:
        self._surface = surface
        self._tasks = surface.app.tasks
        self._principal = surface.caller.grant.holder

    async def on_get(
        self, context: "ServerRequestContext[Any, Any]", params: RequestParams
    ) -> dict[str, Any]:
        id = _named(context)
        try:
            record = await standing(self._surface, id, context.protocol_version)
        except Exception as error:
            raise _refused(error) from error
        return complete(task_to_wire(record))

    async def on_update(
        self, context: "ServerRequestContext[Any, Any]", params: RequestParams
    ) -> dict[str, Any]:
        id, given = _named(context), context.params or {}
        meta = cast("Mapping[str, Any]", given.get("_meta") or {})
        responses, message = given.get("inputResponses"), meta.get(STEER)
        if not isinstance(responses, Mapping):
            raise MCPError(INVALID_PARAMS, "`inputResponses` is no object: give answers by key")
        if message is not None and not (isinstance(message, str) and message.strip()):
            raise MCPError(INVALID_PARAMS, f"`_meta` has an empty `{STEER}`: give it a text")
        answers = cast("Mapping[str, Any]", responses)
        try:
            await self._tasks.update(self._principal, id, answers, message)
        except Exception as error:
            raise _refused(error) from error
        return complete({})

    async def on_cancel(
        self, context: "ServerRequestContext[Any, Any]", params: RequestParams
    ) -> dict[str, Any]:
        id = _named(context)
        try:
            await self._tasks.cancel(self._principal, id)
        except Exception as error:
            raise _refused(error) from error
        return complete({})


def task_to_wire(record: "TaskRecord", *, seed: bool = False) -> dict[str, Any]:
    """Return a task as the wire has it.

    Args:
        record: how it stands.
        seed: without what it asks and what came of it.
    """
    told: dict[str, Any] = {
        "taskId": record.id,
        "status": record.status,
        "createdAt": _time(record.created_at),
        "lastUpdatedAt": _time(record.updated_at),
        "ttlMs": max(1, round((record.expires_at - record.created_at) * 1_000)),
        "pollIntervalMs": _poll_ms(record),
    }
    if record.message is not None:
        told["statusMessage"] = record.message
    if record.run is not None:
        told["_meta"] = {RUN: record.run}
    if seed:
        return told
    if record.status == "input_required":
        told["inputRequests"] = dict(record.requests)
    return {**told, **(record.outcome or {})}


def _poll_ms(record: "TaskRecord") -> int:
    """Return when to ask again: the longer nothing has changed, the later."""
    age_ms = (record.updated_at - record.created_at) * 100
    return round(min(_SLOWEST_POLL_MS, max(_FASTEST_POLL_MS, age_ms)))


def _time(seconds: float) -> str:
    told = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return told.replace("+00:00", "Z")


def _named(context: "ServerRequestContext[Any, Any]") -> str:
    """Return the id of the task that a request is about.

    Raises:
        MCPError: the client has no tasks, or the request is not what it should be.
    """
    if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        raise MCPError(METHOD_NOT_FOUND, "Method not found", context.method)
    if not declares(context):
        raise needs_extension(f"`{context.method}` is for clients with tasks")
    id = (context.params or {}).get("taskId")
    if not isinstance(id, str):
        raise MCPError(INVALID_PARAMS, "`taskId` is missing: give the id of a task")
    headers = getattr(context.request, "headers", None)
    if headers is not None and decode_header_value(headers.get(MCP_NAME_HEADER)) != id:
        raise MCPError(
            HEADER_MISMATCH,
            f"{MCP_NAME_HEADER} header does not match the request body's 'taskId' parameter",
        )
    return id


def _refused(error: Exception) -> MCPError:
    """Return what a client is told of an error about a task."""
    if isinstance(error, RunError | UnfitAnswer):
        return MCPError(INVALID_PARAMS, str(error))
    return hidden(error, "task_request_crashed")


def _failed(error: MCPError) -> Mapping[str, Any]:
    return {"error": error.error.model_dump(mode="json", exclude_none=True)}

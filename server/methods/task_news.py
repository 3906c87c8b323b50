"""What becomes of tasks, told on `subscriptions/listen` as `notifications/tasks`.

A client names tasks under `taskIds`. It hears how each stands now, and of each change in this
process; of tasks that go on in another one it hears once.
"""

from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Final, cast

import anyio
from mcp.shared.exceptions import MCPError
from mcp.shared.subscriptions import SUBSCRIPTION_ID_META_KEY
from mcp_types import (
    INVALID_PARAMS,
    Notification,
    SubscriptionFilter,
    SubscriptionsAcknowledgedNotification,
    SubscriptionsListenRequestParams,
)
from pydantic import Field, TypeAdapter, ValidationError

from guildry.errors import TaskNotFound
from guildry.server.methods.answers import hidden
from guildry.server.methods.tasks import declares, needs_extension, standing, task_to_wire

if TYPE_CHECKING:
    from mcp.server.context import ServerRequestContext
    from mcp.server.lowlevel.server import Server
    from mcp.server.session import ServerSession

    from guildry.memory.tasks import TaskRecord
    from guildry.server.surface import Surface

__all__ = ["register"]

_LISTEN: Final = "subscriptions/listen"
_KEY: Final = "taskIds"
_MOST: Final = 1_000
_IDS: Final = TypeAdapter(Annotated[list[str], Field(max_length=_MOST)])


def register(server: "Server[Any]", surface: "Surface") -> None:
    """Serve subscriptions to tasks, around the handler that serves all other ones."""
    entry = server.get_request_handler(_LISTEN)
    assert entry is not None, f"`{_LISTEN}` is served by an area that is registered before"

    async def on_listen(
        context: "ServerRequestContext[Any, Any]", params: SubscriptionsListenRequestParams
    ) -> Any:
        asked: Any = (params.notifications.model_extra or {}).get(_KEY)
        if asked is None:
            return await entry.handler(context, params)
        if not declares(context):
            raise needs_extension(f"`{_KEY}` is for clients with tasks")
        news = _News(surface, context, await _known(surface, context, asked))
        return await news.around(entry.handler(replace(context, session=news.session), params))

    server.add_request_handler(_LISTEN, SubscriptionsListenRequestParams, on_listen)


async def _known(
    surface: "Surface", context: "ServerRequestContext[Any, Any]", asked: Any
) -> "dict[str, TaskRecord]":
    """Return those of the tasks that there are for this client.

    Raises:
        MCPError: `asked` is no list of ids, or too long.
    """
    try:
        ids = _IDS.validate_python(asked)
    except ValidationError as error:
        told = f"`{_KEY}` takes a list of at most {_MOST} task ids"
        raise MCPError(INVALID_PARAMS, told) from error
    known: dict[str, TaskRecord] = {}
    for id in dict.fromkeys(ids):
        try:
            known[id] = await standing(surface, id, context.protocol_version)
        except TaskNotFound:
            continue
        except Exception as error:
            raise hidden(error, "task_request_crashed") from error
    return known


class _News:
    """What one subscription tells of tasks."""

    def __init__(
        self,
        surface: "Surface",
        context: "ServerRequestContext[Any, Any]",
        known: "dict[str, TaskRecord]",
    ) -> None:
        self._tasks = surface.app.tasks
        self._context = context
        self._ids = list(known)
        self._fresh = known
        self._moved = anyio.Event()
        self._acknowledged = anyio.Event()

    @property
    def session(self) -> "ServerSession":
        """The session of the request, with the tasks named in the acknowledgement."""
        return cast("ServerSession", _Acknowledging(self._context.session, self))

    async def around(self, serving: Any) -> Any:
        """Tell the news while the other subscriptions are served, and return what that does."""
        end = self._tasks.listen(self._hear)
        answer: Any = None
        failure: Exception | None = None
        try:
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(self._tell)
                try:
                    answer = await serving
                except Exception as error:  # raised below as it is, not in a group
                    failure = error
                tasks.cancel_scope.cancel()
        finally:
            end()
        if failure is not None:
            raise failure
        return answer

    def acknowledged(
        self, notification: SubscriptionsAcknowledgedNotification
    ) -> SubscriptionsAcknowledgedNotification:
        """Return the acknowledgement with the tasks that the client hears of."""
        honored = notification.params.notifications.model_dump(by_alias=True, exclude_none=True)
        named = SubscriptionFilter.model_validate({**honored, _KEY: self._ids}, by_name=False)
        params = notification.params.model_copy(update={"notifications": named})
        return notification.model_copy(update={"params": params})

    def begin(self) -> None:
        """Tell from now on."""
        self._acknowledged.set()

    def _hear(self, record: "TaskRecord") -> None:
        if record.id in self._ids:
            self._fresh[record.id] = record
            self._moved.set()

    async def _tell(self) -> None:
        await self._acknowledged.wait()
        with suppress(anyio.BrokenResourceError, anyio.ClosedResourceError):
            while True:
                self._moved = anyio.Event()
                for id in list(self._fresh):
                    await self._send(self._fresh.pop(id))
                if not self._fresh:
                    await self._moved.wait()

    async def _send(self, record: "TaskRecord") -> None:
        told, id = task_to_wire(record), self._context.request_id
        told["_meta"] = {**told.get("_meta", {}), SUBSCRIPTION_ID_META_KEY: id}
        notification = Notification[dict[str, Any], str](method="notifications/tasks", params=told)
        await self._context.session.send_notification(cast("Any", notification), id)


class _Acknowledging:
    """A session whose acknowledgement names tasks; all else is as it was."""

    def __init__(self, session: "ServerSession", news: _News) -> None:
        self._session = session
        self._news = news

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    async def send_notification(self, notification: Any, related_request_id: Any = None) -> None:
        """Send a notification as the session does."""
        is_first = isinstance(notification, SubscriptionsAcknowledgedNotification)
        told = self._news.acknowledged(notification) if is_first else notification
        await self._session.send_notification(told, related_request_id)
        if is_first:
            self._news.begin()

"""What an MCP server says unasked: questions and log messages during a call, and changes.

One `Hearing` serves a plug through all its connections, so that what is followed stays followed.
"""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Any, Final, cast

import anyio
import anyio.abc
import structlog

from guildry.errors import GuildryError, ToolFailed
from guildry.tools.mcp.errands import Errand, current_errand

if TYPE_CHECKING:
    from collections.abc import Callable

    import mcp_types as wire
    from mcp.client import Client, ClientRequestContext

    from guildry.tools.plugs.plug import PlugLimits

__all__ = ["Hearing"]

log = structlog.get_logger()

_AGAIN_S: Final = 5.0
_MAX_FOLLOWED: Final = 1_000
_LOGGED_CHARACTERS: Final = 1_000
_CALM_S: Final = 0.05
_CALM_MAX_S: Final = 1.0


class Hearing:
    """Take what a server says unasked to those whom it concerns.

    Args:
        plug: whose server it is.
        limits: how long a server may take to begin telling, and how soon it is asked again.
    """

    def __init__(self, plug: str, limits: "PlugLimits") -> None:
        self.changed: Callable[[], None] = lambda: None
        self.touched: Callable[[str], None] = lambda uri: None
        self.errands: set[Errand] = set()
        self._plug = plug
        self._wait_s = limits.start_s
        self._again_s = min(_AGAIN_S, limits.backoff_max_s)
        self._client: Client | None = None
        self._followed: dict[str, None] = {}
        self._told: set[str] = set()
        self._lists_changed = False
        self._touched: dict[str, None] = {}
        self._news = anyio.Event()
        self._grown = anyio.Event()
        self._turn = anyio.Event()

    @property
    def is_following(self) -> bool:
        """Whether somebody wants to hear when a resource changes."""
        return bool(self._followed)

    async def run(self, client: "Client") -> None:
        """Hear of changes over one connection, until cancelled."""
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        self._client, self._told = client, set()
        self._say_turn()
        for uri in self._followed:
            self.touched(uri)  # what changed while nobody listened
        try:
            async with anyio.create_task_group() as listening:
                listening.start_soon(self._tell_news)
                if client.protocol_version in MODERN_PROTOCOL_VERSIONS:
                    listening.start_soon(self._follow_lists, client)
                    listening.start_soon(self._follow_resources, client)
                else:
                    for uri in tuple(self._followed):
                        await self._subscribe(client, uri)
        finally:
            self._client = None
            self._say_turn()

    async def _tell_news(self) -> None:
        """Tell of what has changed: at once, and then the less often the more there is of it."""
        pause_s = _CALM_S
        while True:
            await self._news.wait()
            self._news = anyio.Event()
            changed, self._lists_changed = self._lists_changed, False
            touched, self._touched = self._touched, {}
            if changed:
                self.changed()
            for uri in touched:
                self.touched(uri)
            await anyio.sleep(pause_s)
            pause_s = min(2 * pause_s, _CALM_MAX_S) if self._news.is_set() else _CALM_S

    async def follow(self, uri: str) -> None:
        """Have the server tell when a resource changes, from now on.

        Raises:
            ToolFailed: the server does not tell of it, or not in time.
        """
        from mcp_types.version import MODERN_PROTOCOL_VERSIONS

        if uri in self._told:
            return
        if uri not in self._followed and len(self._followed) >= _MAX_FOLLOWED:
            raise ToolFailed(f"`{self._plug}` is asked to follow {_MAX_FOLLOWED} resources already")
        self._followed[uri] = None
        with anyio.move_on_after(self._wait_s):
            while (client := self._client) is None:
                await self._turn.wait()
            if client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
                await self._subscribe(client, uri)
            else:
                grown, self._grown = self._grown, anyio.Event()
                grown.set()
                while uri not in self._told and uri in self._followed and self._client is client:
                    await self._turn.wait()
        if uri not in self._told:
            self._followed.pop(uri, None)
            raise ToolFailed(f"`{self._plug}` does not tell of changes of {uri!r}")

    async def _subscribe(self, client: "Client", uri: str) -> None:
        """Follow a resource at a server of the handshake era."""
        import mcp_types as wire
        from mcp.shared.exceptions import MCPError

        request = wire.SubscribeRequest(params=wire.SubscribeRequestParams(uri=uri))
        try:
            await client.session.send_request(request, wire.EmptyResult)
        except MCPError as error:
            log.info("mcp_subscribe_failed", plug=self._plug, uri=uri, error=error.message)
        else:
            self._told.add(uri)

    async def _follow_lists(self, client: "Client") -> None:
        """Have a server of the modern era tell when its lists change."""
        offered = client.server_capabilities
        lists = {
            "tools_list_changed": offered.tools,
            "prompts_list_changed": offered.prompts,
            "resources_list_changed": offered.resources,
        }
        wanted = {key: True for key, each in lists.items() if each and each.list_changed}
        while wanted:
            await self._listen(client, wanted)
            await anyio.sleep(self._again_s)
            self.changed()  # what changed while nobody listened

    async def _follow_resources(self, client: "Client") -> None:
        """Keep one subscription to all that is followed; a larger one takes over before it ends."""
        async with anyio.create_task_group() as streams:
            old: anyio.CancelScope | None = None
            while True:
                grown = self._grown
                if self._followed:
                    new = anyio.CancelScope()
                    uris = tuple(self._followed)
                    if await streams.start(self._follow_these, client, uris, new):
                        if old is not None:
                            old.cancel()
                        old = new
                await grown.wait()

    async def _follow_these(
        self,
        client: "Client",
        uris: tuple[str, ...],
        scope: anyio.CancelScope,
        *,
        task_status: anyio.abc.TaskStatus[bool],
    ) -> None:
        """Follow `uris` until `scope` is cancelled. Says first whether that can be done at all."""
        is_followed = False

        def honored(subset: "wire.SubscriptionFilter") -> None:
            nonlocal is_followed
            self._told.update(subset.resource_subscriptions or ())
            for uri in set(uris) - self._told:
                self._followed.pop(uri, None)
            if not is_followed:
                is_followed = True
                task_status.started(True)
            self._say_turn()

        with scope:
            while True:
                await self._listen(client, {"resource_subscriptions": list(uris)}, honored)
                if not is_followed:
                    break
                await anyio.sleep(self._again_s)
                for uri in uris:
                    self.touched(uri)  # what changed while nobody listened
        for uri in set(uris) - self._told:
            self._followed.pop(uri, None)
        self._say_turn()
        if not is_followed:
            task_status.started(False)

    async def _listen(
        self,
        client: "Client",
        wanted: Mapping[str, Any],
        honored: "Callable[[wire.SubscriptionFilter], None]" = lambda subset: None,
    ) -> None:
        """Hold one subscription until it ends. What it tells of comes to `message` as well."""
        from mcp.client.subscriptions import SubscriptionLost
        from mcp.shared.exceptions import MCPError

        try:
            async with AsyncExitStack() as stack:
                with anyio.fail_after(self._wait_s):
                    events = await stack.enter_async_context(client.listen(**wanted))
                honored(events.honored)
                async for _ in events:
                    pass
        except (MCPError, SubscriptionLost, TimeoutError) as error:
            log.info("mcp_listen_ended", plug=self._plug, error=str(error))

    async def message(self, message: object) -> None:
        """Take a notification."""
        import mcp_types as wire

        if isinstance(message, wire.ResourceUpdatedNotification):
            self._touched[message.params.uri] = None
            self._news.set()
        elif isinstance(
            message,
            wire.ToolListChangedNotification
            | wire.PromptListChangedNotification
            | wire.ResourceListChangedNotification,
        ):
            self._lists_changed = True
            self._news.set()

    async def logged(self, params: "wire.LoggingMessageNotificationParams") -> None:
        """Take a log message."""
        said = f"{params.data!s:.{_LOGGED_CHARACTERS}}"
        log.debug(
            "upstream_logged", plug=self._plug, level=params.level, logger=params.logger, said=said
        )
        errand = self._errand()
        if errand is not None and errand.log is not None:
            await errand.log(params.level, params.data, params.logger)

    async def elicited(
        self, context: "ClientRequestContext", params: "wire.ElicitRequestParams"
    ) -> "wire.ElicitResult | wire.ErrorData":
        """Have a person fill in a form or visit a page."""
        import mcp_types as wire

        answer = await self._answer(wire.ElicitRequest(params=params))
        return cast("wire.ElicitResult | wire.ErrorData", answer)

    async def sampled(
        self, context: "ClientRequestContext", params: "wire.CreateMessageRequestParams"
    ) -> "wire.CreateMessageResult | wire.CreateMessageResultWithTools | wire.ErrorData":
        """Have the client's model complete a prompt."""
        import mcp_types as wire

        answer = await self._answer(wire.CreateMessageRequest(params=params))
        return cast("wire.CreateMessageResult | wire.ErrorData", answer)

    async def rooted(
        self, context: "ClientRequestContext"
    ) -> "wire.ListRootsResult | wire.ErrorData":
        """Have the client name its folders."""
        import mcp_types as wire

        answer = await self._answer(wire.ListRootsRequest())
        return cast("wire.ListRootsResult | wire.ErrorData", answer)

    async def _answer(self, request: "wire.InputRequest") -> "wire.InputResponse | wire.ErrorData":
        from mcp_types import INVALID_REQUEST, ErrorData

        errand = self._errand()
        if errand is None:
            return ErrorData(code=INVALID_REQUEST, message=self._unrelated())
        try:
            return await errand.answer(request)
        except GuildryError as error:
            return ErrorData(code=INVALID_REQUEST, message=str(error))

    def _errand(self) -> Errand | None:
        """Return the errand that something belongs to, as far as that can be told.

        Over HTTP what comes in is handled in the context of the request on whose stream it came.
        On stdio nothing says what it belongs to, unless there is only one request.
        """
        errand = current_errand()
        if errand in self.errands:
            return errand
        in_flight = self._in_flight()
        return in_flight[0] if len(in_flight) == 1 else None

    def _in_flight(self) -> list[Errand]:
        return [errand for errand in self.errands if not errand.is_between_rounds]

    def _unrelated(self) -> str:
        count = len(self._in_flight())
        if not count:
            return "There is no call in flight whose caller could be asked: ask during a call"
        return (
            f"There are {count} calls in flight, and nothing says which of their"
            " callers is to be asked: ask on the stream of the call"
        )

    def _say_turn(self) -> None:
        turn, self._turn = self._turn, anyio.Event()
        turn.set()

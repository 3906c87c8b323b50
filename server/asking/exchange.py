"""Exchanges: requests that may ask their client before they are answered, in both protocol eras.

In the modern era a question is the answer to a request, and the client makes the request again
with what it was asked. The work waits here meanwhile; its sealed name travels with the client.
"""

import secrets
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, cast

from anyio import to_thread
from mcp_types import INTERNAL_ERROR, INVALID_PARAMS
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from guildry.errors import QuestionNotFound, ToolRetry
from guildry.server.asking.channels import Contact, SessionChannel, log_of
from guildry.server.asking.held import Held, Work
from guildry.server.asking.inputs import UnfitAnswer, answer_of, client_takes
from guildry.server.asking.seal import Seal, binding_of
from guildry.tools.asking.questions import Channel
from guildry.tools.base import Json

if TYPE_CHECKING:
    from anyio.abc import TaskGroup
    from mcp.server.context import ServerRequestContext
    from mcp.shared.exceptions import MCPError
    from mcp_types import InputResponseRequestParams
    from pydantic import BaseModel

    from guildry.tools.asking.board import QuestionBoard

__all__ = ["Exchanges"]


class Exchanges:
    """Serve requests that may ask.

    Args:
        tasks: where work goes on while no request waits for it.
        secret: returns the key that seals state. May block; called once, in a thread.
        wait_s: seconds that one question may take.
        board: knows what calls of other processes ask.
        most_parked: how many calls are kept that no request waits for.
        most_parked_each: how many of one principal.
        most_ended: how many ended calls are remembered, lest they are begun anew.
    """

    def __init__(
        self,
        tasks: "TaskGroup",
        *,
        secret: Callable[[], bytes],
        wait_s: float,
        board: "QuestionBoard",
        most_parked: int = 1_024,
        most_parked_each: int = 64,
        most_ended: int = 4_096,
    ) -> None:
        self._tasks = tasks
        self._secret = secret
        self._wait_s = wait_s
        self._board = board
        self._most_parked = most_parked
        self._most_parked_each = most_parked_each
        self._most_ended = most_ended
        self._seal: Seal | None = None
        self._held: dict[str, Held] = {}
        self._ended: OrderedDict[str, None] = OrderedDict()

    async def serve(
        self,
        context: "ServerRequestContext[Any, Any]",
        params: "InputResponseRequestParams",
        *,
        principal: str,
        work: Work,
    ) -> dict[str, Any]:
        """Answer one request by `work`, or by what its client has to answer first.

        `work` returns the result as it goes on the wire; what it raises is raised here.

        Raises:
            MCPError: `params.request_state` is not of this request, or its call is not here.
        """
        capabilities = context.session.client_capabilities
        takes = client_takes(capabilities)
        if context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            channel = SessionChannel(context, limit_s=self._wait_s) if takes else None
            return await work(_contact(context, channel))
        if not takes and params.request_state is None:
            return await work(_contact(context, None))
        binding = _binding(context, params, principal)
        given = _responses(context)
        if params.request_state is None:
            held = self._begin(Held(_name(), principal, wait_s=self._wait_s, given=given), work)
        else:
            held = await self._found(params.request_state, binding, principal, given, work)
        return await self._attend(held, context, binding)

    def __len__(self) -> int:
        """Return how many calls are held."""
        return len(self._held)

    async def _attend(
        self, held: Held, context: "ServerRequestContext[Any, Any]", binding: bytes
    ) -> dict[str, Any]:
        """Wait in the name of one request until the call asks or has ended."""
        with held.attached(context):
            asked = await held.stopped()
            if asked:
                return {
                    "resultType": "input_required",
                    "inputRequests": asked,
                    "requestState": await self._state(held, binding),
                }
        outcome = held.outcome()
        if outcome is None:
            raise _error(INTERNAL_ERROR, "The call was ended before it had answered")
        return outcome

    async def _state(self, held: Held, binding: bytes) -> str:
        content: dict[str, Json] = {"id": held.id, "questions": held.open_questions()}
        if held.repeatable:
            content["answers"] = held.answers
        seal = await self._sealing()
        return seal.close(content, binding=binding, expires_at=held.expires_at())

    async def _sealing(self) -> Seal:
        if self._seal is None:
            self._seal = Seal(await to_thread.run_sync(self._secret))
        return self._seal

    async def _found(
        self, state: str, binding: bytes, principal: str, given: dict[str, Json], work: Work
    ) -> Held:
        """Return the call that sealed `state` names, begun anew where that does no harm."""
        content = (await self._sealing()).open(state, binding=binding)
        id, questions = str(content["id"]), cast("dict[str, str]", content["questions"])
        before: dict[str, Json] = content.get("answers", {})
        put, known = {*before, *questions}, {**given, **before}
        held = self._held.get(id)
        if held is not None and not held.is_over:
            held.feed(known, put)
            return held
        if "answers" not in content:
            raise await self._passed_on(questions, given, principal)
        ids = [each for each in questions.values() if each]
        if not await self._board.claim(ids, principal):
            raise _gone("it has been answered elsewhere")
        if id in self._ended:
            raise _gone("it has been answered, or was given up")
        again = self._held.get(id)  # another request may have been faster
        if again is None:
            again = self._begin(Held(id, principal, wait_s=self._wait_s, given={}), work)
        again.feed(known, put)
        return again

    async def _passed_on(
        self, questions: Mapping[str, str], given: Mapping[str, Json], principal: str
    ) -> "MCPError":
        """Hand the answers to the process that asked, and return what the client is told."""
        taken = False
        for asked in await self._board.open(principal=principal):
            for key in [key for key, id in questions.items() if id == asked.id and key in given]:
                with suppress(UnfitAnswer, ToolRetry, QuestionNotFound):
                    answer = answer_of(asked.question, given[key], principal)
                    await self._board.answer(asked.id, answer, principal=principal)
                    taken = True
        if taken:
            return _error(
                INVALID_PARAMS,
                "The answer has been taken, and the call goes on in the server process that began"
                " it: make this request again there to get its result",
            )
        return _gone("it waits in another process of the server, or that has ended")

    def _begin(self, held: Held, work: Work) -> Held:
        self._make_room(held.principal)
        self._held[held.id] = held
        self._tasks.start_soon(self._run, held, work)
        return held

    async def _run(self, held: Held, work: Work) -> None:
        try:
            with held.scope:
                await held.through(work)
        finally:
            del self._held[held.id]
            self._ended[held.id] = None
            if len(self._ended) > self._most_ended:
                self._ended.popitem(last=False)
            held.end()

    def _make_room(self, principal: str) -> None:
        """End the call that has been parked longest, of this principal or of all."""
        parked = [each for each in self._held.values() if not each.waiting and not each.is_over]
        mine = [each for each in parked if each.principal == principal]
        if len(mine) >= self._most_parked_each:
            mine[0].scope.cancel()
        elif len(parked) >= self._most_parked:
            parked[0].scope.cancel()


def _name() -> str:
    return secrets.token_urlsafe(12)


def _binding(
    context: "ServerRequestContext[Any, Any]", params: "BaseModel", principal: str
) -> bytes:
    name: str = getattr(params, "name", "") or getattr(params, "uri", "")
    arguments: dict[str, Json] = getattr(params, "arguments", None) or {}
    return binding_of(principal, context.method, name, arguments)


def _responses(context: "ServerRequestContext[Any, Any]") -> dict[str, Json]:
    """Return what the client answered, as it came."""
    found: Json = (context.params or {}).get("inputResponses")
    return cast("dict[str, Json]", found) if isinstance(found, dict) else {}


def _contact(context: "ServerRequestContext[Any, Any]", channel: Channel | None) -> Contact:
    return Contact(channel, context.session.report_progress, log_of(context))


def _error(code: int, message: str) -> "MCPError":
    from mcp.shared.exceptions import MCPError

    return MCPError(code, message)


def _gone(why: str) -> "MCPError":
    return _error(
        INVALID_PARAMS,
        f"The call that `requestState` names is not open here ({why}): make the call again without"
        " `requestState` and `inputResponses`",
    )

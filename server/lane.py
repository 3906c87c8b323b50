"""The lean lane: plain, valid `tools/call` requests answered without the SDK, in its very words.

It takes a request only if nothing about it is unusual: no progress token, no task, no input
responses, no log messages, a tool that is plugged and asks this client nothing, an envelope that
the SDK's own models have accepted before. Everything else is left to the SDK, so that there is one
place that knows the protocol.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    LOG_LEVEL_META_KEY,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    CallToolRequestParams,
    ClientCapabilities,
)
from mcp_types.methods import validate_client_request
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError
from pydantic_core import to_json

from guildry.errors import ToolProtocolError
from guildry.server.asking.inputs import client_takes
from guildry.server.builtin.calling import CALL_TOOL
from guildry.tools.registry import UnknownTool

if TYPE_CHECKING:
    from guildry.server.surface import Surface
    from guildry.tools.base import Tool

__all__ = ["LANE_VERSIONS", "Answer", "Lane", "Plain", "failure"]

log = structlog.get_logger()

LANE_VERSIONS: Final = frozenset({"2025-06-18", "2025-11-25", *MODERN_PROTOCOL_VERSIONS})
"""The protocol versions whose answers the lane can write."""

_REQUEST_KEYS: Final = {"jsonrpc", "id", "method", "params"}
_PARAMS: Final = frozenset({"name", "arguments", "_meta"})
_MAX_ENVELOPES: Final = 256
_MAX_ENVELOPE_BYTES: Final = 4_096
_SET_LEVEL: Final = "logging/setLevel"
_TASKS: Final = "io.modelcontextprotocol/tasks"

# What a call may want of its client, and what its client can do.
_MORE: Final = 1  # than wait for the answer: the SDK's way in any case
_ANSWERS: Final = 2  # to questions
_PATIENCE: Final = 4  # to come back for the answer, or to stay and be asked meanwhile


@dataclass(frozen=True, slots=True)
class Plain:
    """A `tools/call` with nothing unusual about it."""

    id: int | str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True)
class Answer:
    """A JSON-RPC response, and the code of the error that it is."""

    body: bytes
    code: int | None = None


class Lane:
    """Take and answer plain tool calls of one protocol version.

    Args:
        surface: what is served.
        version: of the protocol.
        capabilities: what a client of the handshake era declared, as it came.
    """

    def __init__(self, surface: "Surface", version: str, capabilities: Any = None) -> None:
        self._surface = surface
        self._version = version
        self._modern = version in MODERN_PROTOCOL_VERSIONS
        self._envelopes: OrderedDict[bytes, int] = OrderedDict()
        self._client: int | None = _can(capabilities)
        self._version_seen = -1
        self._wanted: dict[str, int] = {}
        self._stamp: dict[str, Any] = {}
        if self._modern:
            info = surface.server.server_info_stamp
            self._stamp = {"resultType": "complete", "_meta": {SERVER_INFO_META_KEY: info}}

    def take(self, message: Any) -> Plain | None:
        """Return the call that `message` is, or None when the SDK should see it."""
        if not isinstance(message, dict):
            return None
        request = cast("dict[str, Any]", message)
        if request.get("method") != "tools/call" or request.keys() != _REQUEST_KEYS:
            if request.get("method") == _SET_LEVEL and not self._modern:
                self._client = None
            return None
        number, params = request["id"], request["params"]
        if request["jsonrpc"] != "2.0" or type(number) not in (int, str):
            return None
        if not isinstance(params, dict) or not _PARAMS.issuperset(cast("dict[str, Any]", params)):
            return None
        return self._plain(number, cast("dict[str, Any]", params))

    def _plain(self, number: int | str, params: dict[str, Any]) -> Plain | None:
        name, arguments = params.get("name"), params.get("arguments", {})
        if type(name) is not str or type(arguments) is not dict:
            return None
        meta, client = params.get("_meta"), self._client
        if meta is not None:
            client = None if client is None else self._known(meta)
        elif self._modern or "_meta" in params:
            return None
        given = cast("dict[str, Any]", arguments)
        wants = self._wants(name, given)
        if client is None or wants is None or wants & client:
            return None
        return Plain(number, name, given)

    def _wants(self, name: str, arguments: dict[str, Any]) -> int | None:
        """Return what a call of that tool may want of its client; None where there is no tool."""
        registry = self._surface.app.catalog.current
        if registry.version != self._version_seen:
            self._version_seen = registry.version
            self._wanted.clear()
        if name == CALL_TOOL:
            inner = arguments.get("name")
            name = inner if isinstance(inner, str) and inner in registry.tools else name
        wants = self._wanted.get(name)
        if wants is None and (tool := registry.tools.get(name)) is not None:
            wants = self._wanted[name] = self._wants_of(tool)
        return wants

    def _wants_of(self, tool: "Tool") -> int:
        surface = self._surface
        if tool.task == "required" or surface.app.approval.asks(tool, surface.caller.grant):
            return _MORE
        return (_ANSWERS if tool.asks else 0) | (_PATIENCE if tool.task != "never" else 0)

    def _known(self, meta: Any) -> int | None:
        """Return what the client can do; None where it wants more, or the SDK's models refuse it.

        They are asked once for each one that differs.
        """
        if not isinstance(meta, dict) or "progressToken" in meta or LOG_LEVEL_META_KEY in meta:
            return None
        key = to_json(meta)
        client = self._envelopes.get(key)
        if client is not None:
            self._envelopes.move_to_end(key)
            return client
        envelope = cast("dict[str, Any]", meta)
        if len(key) > _MAX_ENVELOPE_BYTES or not self._accepted(envelope):
            return None
        declared = envelope.get(CLIENT_CAPABILITIES_META_KEY)
        client = _can(declared) if self._modern else self._client or _MORE
        self._envelopes[key] = client
        if len(self._envelopes) > _MAX_ENVELOPES:
            self._envelopes.popitem(last=False)
        return client

    def _accepted(self, meta: dict[str, Any]) -> bool:
        if not self._modern and PROTOCOL_VERSION_META_KEY in meta:
            return False
        if self._modern and (
            meta.get(PROTOCOL_VERSION_META_KEY) != self._version
            or CLIENT_CAPABILITIES_META_KEY not in meta
        ):
            return False
        params = {"name": "any", "_meta": meta}
        try:
            validate_client_request("tools/call", self._version, params)
            CallToolRequestParams.model_validate(params, by_name=False)
        except ValidationError:
            return False
        return True

    async def answer(self, call: Plain) -> Answer:
        """Run `call` and return the JSON-RPC response."""
        try:
            result = await self._surface.call(call.name, call.arguments, self._version)
            result.update(self._stamp)
            answer = {"jsonrpc": "2.0", "id": call.id, "result": result}
            return Answer(to_json(answer, inf_nan_mode="null"))
        except UnknownTool as error:
            return failure(call.id, INVALID_PARAMS, str(error))
        except ToolProtocolError as error:
            return failure(call.id, error.code, error.message, error.data)
        except Exception:
            log.exception("tool_call_crashed", tool=call.name)
            return failure(call.id, INTERNAL_ERROR, "Internal server error")


def _can(capabilities: Any) -> int:
    """Return what a client can do by its capabilities as they came; little, if they are wrong."""
    try:
        declared = ClientCapabilities.model_validate(capabilities or {}, by_name=False)
    except ValidationError:
        return _MORE
    asked = _ANSWERS | _PATIENCE if client_takes(declared) else 0
    return _MORE | asked | (_PATIENCE if _TASKS in (declared.extensions or {}) else 0)


def failure(number: int | str | None, code: int, message: str, data: Any = None) -> Answer:
    """Return a JSON-RPC error response."""
    error = {"code": code, "message": message}
    if data is not None:
        error["data"] = data
    return Answer(to_json({"jsonrpc": "2.0", "id": number, "error": error}), code)

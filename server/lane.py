"""The lean lane: plain, valid `tools/call` requests answered without the SDK, in its very words.

It takes a request only if nothing about it is unusual: no progress token, no task, no input
responses, a tool that is plugged, an envelope that the SDK's own models have accepted before.
Everything else is left to the SDK, so that there is one place that knows the protocol.
"""

from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

import structlog
from mcp_types import (
    CLIENT_CAPABILITIES_META_KEY,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    PROTOCOL_VERSION_META_KEY,
    SERVER_INFO_META_KEY,
    CallToolRequestParams,
)
from mcp_types.methods import validate_client_request
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import ValidationError
from pydantic_core import to_json

from guildry.tools.registry import UnknownTool

if TYPE_CHECKING:
    from guildry.server.surface import Surface

__all__ = ["LANE_VERSIONS", "Answer", "Lane", "Plain", "failure"]

log = structlog.get_logger()

LANE_VERSIONS: Final = frozenset({"2025-06-18", "2025-11-25", *MODERN_PROTOCOL_VERSIONS})
"""The protocol versions whose answers the lane can write."""

_REQUEST_KEYS: Final = {"jsonrpc", "id", "method", "params"}
_PARAMS: Final = frozenset({"name", "arguments", "_meta"})
_MAX_ENVELOPES: Final = 256
_MAX_ENVELOPE_BYTES: Final = 4_096


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
    """Take and answer plain tool calls of one protocol version."""

    def __init__(self, surface: "Surface", version: str) -> None:
        self._surface = surface
        self._version = version
        self._modern = version in MODERN_PROTOCOL_VERSIONS
        self._envelopes: OrderedDict[bytes, None] = OrderedDict()
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
        if name not in self._surface.app.catalog.current.tools:
            return None
        meta = params.get("_meta")
        if meta is None:
            if self._modern or "_meta" in params:
                return None
        elif not self._known(meta):
            return None
        return Plain(number, name, cast("dict[str, Any]", arguments))

    def _known(self, meta: Any) -> bool:
        """Tell whether the SDK's models take `meta`, asking them once for each one that differs."""
        if not isinstance(meta, dict) or "progressToken" in meta:
            return False
        key = to_json(meta)
        if key in self._envelopes:
            self._envelopes.move_to_end(key)
            return True
        if len(key) > _MAX_ENVELOPE_BYTES or not self._accepted(cast("dict[str, Any]", meta)):
            return False
        self._envelopes[key] = None
        if len(self._envelopes) > _MAX_ENVELOPES:
            self._envelopes.popitem(last=False)
        return True

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
        except Exception:
            log.exception("tool_call_crashed", tool=call.name)
            return failure(call.id, INTERNAL_ERROR, "Internal server error")


def failure(number: int | str | None, code: int, message: str) -> Answer:
    """Return a JSON-RPC error response."""
    error = {"code": code, "message": message}
    return Answer(to_json({"jsonrpc": "2.0", "id": number, "error": error}), code)

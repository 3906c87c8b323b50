"""The wire of OpenAI-style chat completions: requests out, completions in, streamed or whole.

Knows bytes only; opens no connection. A stream is put together from pieces of any size.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import count
from typing import Any, Final

from pydantic import BaseModel, Field, ValidationError

from guildry.errors import ModelReplyError
from guildry.teams.model import (
    Completion,
    Message,
    Request,
    ToolCall,
    ToolSpec,
    Usage,
    estimated_tokens,
)

__all__ = ["EndpointError", "StreamReader", "encode_request", "read_completion"]

_EXCERPT: Final = 200
_UNSAID: Final = 500
_STATUSES: Final = frozenset(map(str, range(400, 600)))
_call_numbers: Final = count(1)


class EndpointError(Exception):
    """An error that an endpoint put into the body of an answer it called successful."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


def encode_request(model: str, request: Request, *, stream: bool, extra: bytes = b"") -> bytes:
    """Return the body of a request. Messages and tools are encoded once in their life.

    Args:
        model: what the endpoint calls it.
        request: what is asked.
        stream: whether the reply is to come in pieces.
        extra: further members of the body, encoded, each with a comma after it.
    """
    parts = [b"{", extra, b'"model":', _json(model), b',"messages":[']
    for n, message in enumerate(request.messages):
        parts += (b"," if n else b"", message.encoded(_message))
    parts.append(b"]")
    if request.tools:
        parts.append(b',"tools":[')
        for n, tool in enumerate(request.tools):
            parts += (b"," if n else b"", tool.encoded(_tool))
        parts.append(b"]")
        if not request.parallel_calls:
            parts.append(b',"parallel_tool_calls":false')
    if request.response_schema is not None:
        wanted = {"name": "answer", "schema": request.response_schema}
        parts.append(b',"response_format":')
        parts.append(_json({"type": "json_schema", "json_schema": wanted}))
    if request.max_tokens is not None:
        parts.append(b',"max_tokens":%d' % request.max_tokens)
    if request.temperature is not None:
        parts.append(b',"temperature":' + _json(request.temperature))
    if stream:
        parts.append(b',"stream":true,"stream_options":{"include_usage":true}')
    parts.append(b"}")
    return b"".join(parts)


def read_completion(body: bytes, request: Request) -> Completion:
    """Return the completion that `body` holds, its usage estimated where it states none.

    Raises:
        EndpointError: the body is an error.
        ModelReplyError: the body is not a chat completion.
    """
    try:
        reply = _Body.model_validate_json(body)
    except ValidationError as error:
        raise _unreadable(body, error) from None
    _refuse_error(reply)
    if not reply.choices:
        raise ModelReplyError(f"it answered without a choice: {_excerpt(body)}")
    choice = reply.choices[0]
    said = choice.message or choice.delta or _Said()
    calls = tuple(
        ToolCall(asked.id or _new_id(), asked.function.name or "", asked.function.text())
        for asked in said.tool_calls or ()
        if asked.function is not None
    )
    return _counted(said.words(), calls, choice.finish_reason, reply.usage, request)


@dataclass(slots=True)
class _Growing:
    """A tool call of which only a part has come."""

    key: int
    id: str
    name: str
    arguments: list[str]


class StreamReader:
    """Put a completion together from the bytes of a server-sent event stream."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._data: list[bytes] = []
        self._text: list[str] = []
        self._calls: list[_Growing] = []
        self._usage: _Usage | None = None
        self._finish: str | None = None
        self.ended = False
        """Whether the reply is whole: a reason to finish came."""
        self.done = False
        """Whether the last event came; nothing follows it."""

    def feed(self, chunk: bytes) -> str:
        """Take the next bytes, cut anywhere; return the text that they complete.

        Raises:
            EndpointError: the stream carries an error.
            ModelReplyError: an event is not a piece of a chat completion.
        """
        buffer = self._buffer
        held = buffer.endswith(b"\r")
        buffer += chunk
        if not held and b"\n" not in chunk and b"\r" not in chunk:
            return ""
        lines = buffer.splitlines(keepends=True)
        rest = b"" if lines and lines[-1].endswith(b"\n") else bytes(lines.pop())
        self._buffer = bytearray(rest)
        return self._take(lines)

    def completion(self, request: Request) -> Completion:
        """Return what was put together, its usage estimated where the stream stated none."""
        calls = tuple(
            ToolCall(call.id or _new_id(), call.name, "".join(call.arguments))
            for call in self._calls
        )
        return _counted("".join(self._text), calls, self._finish, self._usage, request)

    def close(self) -> str:
        """Take what a stream left without a last line end; return the text that it completes.

        Half an event is nothing: the stream was cut there.
        """
        lines, self._buffer = [*self._buffer.splitlines(), bytearray()], bytearray()
        try:
            return self._take(lines)
        except ModelReplyError:
            return ""

    def _take(self, lines: Sequence[bytes | bytearray]) -> str:
        before = len(self._text)
        for line in lines:
            line = line.rstrip(b"\r\n")
            if not line:
                self._dispatch()
            elif line.startswith(b"data:"):
                self._data.append(bytes(line[5:]).strip())
        return "".join(self._text[before:])

    def _dispatch(self) -> None:
        pieces, self._data = self._data, []
        if not pieces:
            return
        whole = b"\n".join(pieces)
        try:
            self._event(whole)
        except ModelReplyError:
            if len(pieces) == 1:
                raise
            for piece in pieces:  # an endpoint that leaves out the blank line between events
                self._event(piece)

    def _event(self, data: bytes) -> None:
        if data == b"[DONE]":
            self.ended = self.done = True
            return
        if not data:
            return
        try:
            event = _Body.model_validate_json(data)
        except ValidationError as error:
            raise _unreadable(data, error) from None
        _refuse_error(event)
        self._usage = event.usage or self._usage
        if not event.choices:
            return
        choice = event.choices[0]
        if choice.finish_reason:
            self._finish = choice.finish_reason
            self.ended = True
        said = choice.delta or choice.message
        if said is not None:
            words = said.words()
            if words:
                self._text.append(words)
            for piece in said.tool_calls or ():
                self._grow(piece)

    def _grow(self, piece: "_Call") -> None:
        call = self._growing(piece)
        function = piece.function
        if function is None:
            return
        if function.name and not call.arguments and function.name != call.name:
            call.name += function.name
        text = function.text()
        if text:
            call.arguments.append(text)

    def _growing(self, piece: "_Call") -> _Growing:
        """Return the call that `piece` belongs to; some endpoints give no index, or always 0."""
        named = piece.function is not None and piece.function.name
        for call in reversed(self._calls):
            if named and piece.index is None and not piece.id and call.arguments:
                break
            if piece.id and call.id and piece.id != call.id:
                continue
            if piece.index is None or piece.index == call.key:
                call.id = call.id or piece.id or ""
                return call
        key = len(self._calls) if piece.index is None else piece.index
        call = _Growing(key, piece.id or "", "", [])
        self._calls.append(call)
        return call


class _Function(BaseModel):
    name: str | None = None
    arguments: str | dict[str, Any] | list[Any] | None = None

    def text(self) -> str:
        """Return the arguments as text; some endpoints send them parsed."""
        if self.arguments is None or isinstance(self.arguments, str):
            return self.arguments or ""
        return json.dumps(self.arguments)


class _Call(BaseModel):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Part(BaseModel):
    text: str | None = None


class _Said(BaseModel):
    content: str | list[_Part] | None = None
    refusal: str | None = None
    tool_calls: list[_Call] | None = None

    def words(self) -> str:
        """Return the text, or the refusal where there is none."""
        if isinstance(self.content, list):
            return "".join(part.text or "" for part in self.content)
        return self.content or self.refusal or ""


class _Choice(BaseModel):
    message: _Said | None = None
    delta: _Said | None = None
    finish_reason: str | None = None


class _Details(BaseModel):
    cached_tokens: int | None = None


class _Usage(BaseModel):
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    prompt_tokens_details: _Details | None = None


class _Trouble(BaseModel):
    message: str | None = None
    code: int | str | None = None


class _Body(BaseModel):
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    error: _Trouble | str | None = Field(default=None)


def _refuse_error(body: _Body) -> None:
    if body.error is None:
        return
    if isinstance(body.error, str):
        raise EndpointError(body.error, _UNSAID)
    code = str(body.error.code or "")
    status = int(code) if code in _STATUSES else _UNSAID
    raise EndpointError(body.error.message or "an error without a text", status)


def _counted(
    text: str,
    calls: tuple[ToolCall, ...],
    finish: str | None,
    usage: _Usage | None,
    request: Request,
) -> Completion:
    done = Completion(text=text, calls=calls, finish=finish or ("tool_calls" if calls else "stop"))
    if usage is None or usage.prompt_tokens is None:
        return replace(done, usage=estimated_tokens(request, done))
    details = usage.prompt_tokens_details
    cached = 0 if details is None else details.cached_tokens or 0
    counted = Usage(usage.prompt_tokens, usage.completion_tokens or 0, cached)
    return replace(done, usage=counted)


def _message(message: Message) -> bytes:
    body: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.calls:
        body["content"] = message.content or None
        body["tool_calls"] = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.calls
        ]
    if message.call_id is not None:
        body["tool_call_id"] = message.call_id
    return _json(body)


def _tool(tool: ToolSpec) -> bytes:
    function: dict[str, Any] = {
        "name": tool.name,
        "description": tool.description,
        "parameters": tool.parameters,
    }
    if tool.strict:
        function["strict"] = True
    return _json({"type": "function", "function": function})


def _json(value: Any) -> bytes:
    """Return compact JSON in UTF-8; what UTF-8 cannot hold (broken file names) becomes `?`."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")


def _new_id() -> str:
    return f"call_{next(_call_numbers)}"


def _unreadable(body: bytes, error: ValidationError) -> ModelReplyError:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(step) for step in first["loc"])
    what = f"`{where}`: {first['msg']}" if where else first["msg"]
    return ModelReplyError(f"its answer is not a chat completion ({what}): {_excerpt(body)}")


def _excerpt(body: bytes) -> str:
    text = body[: _EXCERPT * 4].decode("utf-8", "replace")
    return repr(text[:_EXCERPT] + ("…" if len(text) > _EXCERPT else ""))

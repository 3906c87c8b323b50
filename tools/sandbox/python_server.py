"""A Python plug as an MCP server on stdio, for a process that is confined. Knows no sandbox.

It is the program of that process: `python -m guildry.tools.sandbox.python_server WHAT`, `WHAT`
being JSON with the `name` and the `path` of the plug. What its functions print goes to stderr; a
file that is broken ends the program, saying so there.
"""

import base64
import json
import os
import sys
import traceback
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import BinaryIO, Final

import anyio
from anyio import to_thread

from guildry import __version__
from guildry.errors import PlugError, ToolError
from guildry.tools.base import Block, Call, Embedded, Icon, Json, Link, Media, Outcome, Text, Tool
from guildry.tools.offers import Offers, Prompt, Resource, Template
from guildry.tools.plugs.plug import LIMITS
from guildry.tools.python.plug import PythonPlug
from guildry.tools.schema import as_object

__all__ = ["OWN_META", "main"]

OWN_META: Final = "guildry"
"""The key of `_meta` with what the wire has no field for: time limit, tasks, admitted effects."""

_VERSIONS: Final = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
_NO_METHOD: Final = -32601
_BAD_PARAMETERS: Final = -32602
_INTERNAL: Final = -32603
_USAGE: Final = 64


class _Refused(Exception):
    """Report a request that is answered with an error of the protocol."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(text)
        self.code = code


class _Server:
    """Serve what a plug offers to one client."""

    def __init__(self, name: str, tools: Mapping[str, Tool], offers: Offers, out: BinaryIO) -> None:
        self._name = name
        self._tools = tools
        self._prompts = {each.name: each for each in offers.prompts}
        self._resources = {each.uri: each for each in offers.resources}
        self._templates = offers.templates
        self._out = out
        self._writing = anyio.Lock()
        self._calls: dict[str, anyio.CancelScope] = {}

    async def serve(self, lines: BinaryIO) -> None:
        """Serve until there are no more lines."""
        async with anyio.create_task_group() as tasks:
            while line := await to_thread.run_sync(lines.readline, abandon_on_cancel=True):
                try:
                    message = as_object(json.loads(line))
                except ValueError:
                    message = None
                if message is None:
                    continue
                if message.get("method") == "notifications/cancelled":
                    told = as_object(message.get("params")) or {}
                    if scope := self._calls.get(_key(told.get("requestId"))):
                        scope.cancel()
                elif "method" in message and "id" in message:
                    tasks.start_soon(self._answer, message)
            tasks.cancel_scope.cancel()

    async def _answer(self, message: Mapping[str, Json]) -> None:
        number = message["id"]
        answer: dict[str, Json] = {"jsonrpc": "2.0", "id": number}
        params = as_object(message.get("params")) or {}
        with anyio.CancelScope() as scope:
            self._calls[_key(number)] = scope
            try:
                answer["result"] = await self._result(message["method"], params)
            except _Refused as error:
                answer["error"] = {"code": error.code, "message": str(error)}
            except Exception as error:  # the server outlives what one function does
                text = f"{type(error).__name__}: {error}"
                answer["error"] = {"code": _INTERNAL, "message": text}
            finally:
                del self._calls[_key(number)]
        if not scope.cancelled_caught:
            await self._write(answer)

    async def _write(self, message: Mapping[str, Json]) -> None:
        line = json.dumps(message, ensure_ascii=True, separators=(",", ":"), default=str)
        with anyio.CancelScope(shield=True):  # half a line would spoil the next
            async with self._writing:
                await to_thread.run_sync(self._out.write, f"{line}\n".encode())

    async def _result(self, method: str, params: Mapping[str, Json]) -> Json:
        match method:
            case "initialize":
                return self._hello(params)
            case "ping":
                return {}
            case "tools/list":
                return {"tools": [_tool(each) for each in self._tools.values()]}
            case "tools/call":
                return await self._called(params)
            case "prompts/list":
                return {"prompts": [_prompt(each) for each in self._prompts.values()]}
            case "prompts/get":
                return await self._prompted(params)
            case "resources/list":
                return {"resources": [_resource(each) for each in self._resources.values()]}
            case "resources/templates/list":
                return {"resourceTemplates": [_template(each) for each in self._templates]}
            case "resources/read":
                return await self._read(str(params.get("uri")))
            case _:
                raise _Refused(_NO_METHOD, f"there is no method {method!r} here")

    def _hello(self, params: Mapping[str, Json]) -> Json:
        asked = params.get("protocolVersion")
        capabilities: dict[str, Json] = {"tools": {}}
        if self._prompts:
            capabilities["prompts"] = {}
        if self._resources or self._templates:
            capabilities["resources"] = {}
        return {
            "protocolVersion": asked if asked in _VERSIONS else _VERSIONS[0],
            "capabilities": capabilities,
            "serverInfo": {"name": self._name, "version": __version__},
        }

    async def _called(self, params: Mapping[str, Json]) -> Json:
        tool = self._tools.get(str(params.get("name")))
        if tool is None:
            raise _Refused(_BAD_PARAMETERS, f"there is no tool {params.get('name')!r} here")
        token = (as_object(params.get("_meta")) or {}).get("progressToken")
        progress = None if token is None else partial(self._progress, token)
        arguments = dict(as_object(params.get("arguments")) or {})
        try:
            return _outcome(await tool.invoke(arguments, Call(tool, None, progress)))
        except ToolError as error:
            text = str(error)
        except Exception as error:  # one function that crashes hurts its own calls alone
            traceback.print_exc()
            text = f"`{tool.name}` failed inside ({type(error).__name__})"
        return {"content": [{"type": "text", "text": text}], "isError": True}

    async def _progress(
        self, token: Json, done: float, total: float | None = None, message: str | None = None
    ) -> None:
        told = {"progressToken": token, "progress": done, "total": total, "message": message}
        params = {key: value for key, value in told.items() if value is not None}
        method = "notifications/progress"
        await self._write({"jsonrpc": "2.0", "method": method, "params": params})

    async def _prompted(self, params: Mapping[str, Json]) -> Json:
        prompt = self._prompts.get(str(params.get("name")))
        if prompt is None:
            raise _Refused(_BAD_PARAMETERS, f"there is no prompt {params.get('name')!r} here")
        try:
            filled = await prompt.get(dict(as_object(params.get("arguments")) or {}), None)
        except ToolError as error:
            raise _Refused(_BAD_PARAMETERS, str(error)) from error
        messages = [{"role": each.role, "content": _block(each.block)} for each in filled.messages]
        return _set(messages=messages, description=filled.description)

    async def _read(self, uri: str) -> Json:
        found: Resource | Template | None = self._resources.get(uri)
        found = found or next((each for each in self._templates if each.matches(uri)), None)
        if found is None:
            raise _Refused(_BAD_PARAMETERS, f"there is no resource {uri!r} here")
        try:
            return {"contents": [_contents(each) for each in await found.read(uri, None)]}
        except ToolError as error:
            raise _Refused(_BAD_PARAMETERS, str(error)) from error


def _key(number: Json) -> str:
    return json.dumps(number)


def _set(**fields: Json) -> dict[str, Json]:
    """Return the fields that have a value."""
    return {key: value for key, value in fields.items() if value not in (None, [], ())}


def _tool(tool: Tool) -> Json:
    schema = tool.output_schema
    effects = tool.effects
    annotations = {
        "readOnlyHint": effects.reads_only,
        "destructiveHint": effects.writes and effects.destructive,
        "idempotentHint": effects.repeatable,
        "openWorldHint": effects.egress,
    }
    own = {"timeout_s": tool.timeout_s, "task": tool.task, "admits": effects.admits}
    return {
        **_set(title=tool.title, icons=_icons(tool.icons)),
        "name": tool.name,
        "description": tool.description,
        "inputSchema": tool.input_schema,
        **({} if schema is None or schema.get("type") != "object" else {"outputSchema": schema}),
        "annotations": annotations,
        "_meta": {OWN_META: own},
    }


def _icons(icons: tuple[Icon, ...]) -> list[Json]:
    return [
        _set(src=each.src, mimeType=each.media_type, sizes=list(each.sizes), theme=each.theme)
        for each in icons
    ]


def _prompt(prompt: Prompt) -> Json:
    arguments = [
        {**_set(name=a.name, description=a.description, title=a.title), "required": a.required}
        for a in prompt.arguments
    ]
    return _set(
        name=prompt.name,
        title=prompt.title,
        description=prompt.description,
        arguments=arguments,
        icons=_icons(prompt.icons),
    )


def _resource(resource: Resource) -> Json:
    return _set(
        uri=resource.uri,
        name=resource.name,
        title=resource.title,
        description=resource.description,
        mimeType=resource.media_type,
        size=resource.size,
        icons=_icons(resource.icons),
    )


def _template(template: Template) -> Json:
    return _set(
        uriTemplate=template.uri_template,
        name=template.name,
        title=template.title,
        description=template.description,
        mimeType=template.media_type,
        icons=_icons(template.icons),
    )


def _outcome(outcome: Outcome) -> Json:
    content = [_block(each) for each in outcome.blocks]
    answer: dict[str, Json] = {"content": content, "isError": outcome.is_error}
    if outcome.has_structured and (members := as_object(outcome.structured)) is not None:
        answer["structuredContent"] = members
    if outcome.has_structured and not content:
        text = json.dumps(outcome.structured, ensure_ascii=False, default=str)
        answer["content"] = [{"type": "text", "text": text}]
    return answer


def _block(block: Block) -> Json:
    match block:
        case Text(text):
            return {"type": "text", "text": text}
        case Media(data, media_type):
            kind = media_type.partition("/")[0]
            if kind not in {"image", "audio"}:
                blob = base64.b64encode(data).decode()
                held = {"uri": "data:,", "mimeType": media_type, "blob": blob}
                return {"type": "resource", "resource": held}
            encoded = base64.b64encode(data).decode()
            return {"type": kind, "data": encoded, "mimeType": media_type}
        case Link():
            link = _set(uri=block.uri, name=block.name, mimeType=block.media_type, size=block.size)
            return {"type": "resource_link", **link, **_set(description=block.description)}
        case Embedded():
            return {"type": "resource", "resource": _contents(block)}


def _contents(held: Embedded) -> Json:
    about = _set(uri=held.uri, mimeType=held.media_type)
    if held.data is None:
        return {**about, "text": held.text or ""}
    return {**about, "blob": base64.b64encode(held.data).decode()}


async def _served(name: str, path: Path, lines: BinaryIO, out: BinaryIO) -> None:
    plug = PythonPlug(str(path), name, path=path, limits=LIMITS)
    try:
        loaded = await plug.open(lambda: None)
    except PlugError as error:
        sys.stderr.write(f"{error.reason}\n")
        sys.exit(1)
    for each in loaded.quarantined:
        sys.stderr.write(f"`{each.tool}` is left out: {each.reason}\n")
    sys.stderr.flush()
    await _Server(name, {each.name: each for each in loaded.tools}, loaded.offers, out).serve(lines)


def main() -> None:
    """Serve the plug that the command line names."""
    if len(sys.argv) != 2:
        sys.stderr.write(f"{__doc__}\n")
        sys.exit(_USAGE)
    what = json.loads(sys.argv[1])
    lines = os.fdopen(os.dup(0), "rb")
    out = os.fdopen(os.dup(1), "wb", buffering=0)
    os.dup2(2, 1)  # what functions print
    anyio.run(_served, what["name"], Path(what["path"]), lines, out)
    os._exit(0)  # functions that still run in threads are not waited for


if __name__ == "__main__":
    main()

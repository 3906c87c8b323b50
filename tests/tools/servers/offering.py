"""A server on the SDK that offers everything and asks everything.

`python offering.py [legacy] [PORT]`: of both eras, or of the handshake era alone; on stdio or HTTP.
"""

import json
import os
import sys
from base64 import b64encode
from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import mcp_types as wire
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ResourcesListChanged,
    ResourceUpdated,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError
from mcp.shared.message import SessionMessage

Context = ServerRequestContext[Any, Any]
Params = wire.CallToolRequestParams
Answer = wire.CallToolResult | wire.InputRequiredResult
Work = Callable[[Context, Params], Awaitable[Answer]]

IS_LEGACY = "legacy" in sys.argv
PNG = b"\x89PNG\r\n\x1a\nrest"
ICON = wire.Icon(src="https://example.org/a.png", mime_type="image/png", sizes=["48x48"])
FORM: dict[str, Any] = {"type": "object", "properties": {"name": {"type": "string"}}}
HEADERS = {"region": {"type": "string", "x-mcp-header": "Region"}}
bus = InMemorySubscriptionBus()
grown: set[str] = set()
followed: set[str] = set()
held = anyio.Event()
places: list[str] = []
tools: dict[str, Work] = {}


def tool(work: Work) -> Work:
    tools[work.__name__] = work
    return work


def said(text: str) -> wire.CallToolResult:
    return wire.CallToolResult(content=[wire.TextContent(type="text", text=text)])


@tool
async def grow(context: Context, params: Params) -> Answer:
    what = (params.arguments or {})["what"]
    grown.add(what)
    if what == "prompts":
        await bus.publish(PromptsListChanged())
        await context.session.send_prompt_list_changed()
    elif what == "resources":
        await bus.publish(ResourcesListChanged())
        await context.session.send_resource_list_changed()
    else:
        await bus.publish(ToolsListChanged())
        await context.session.send_tool_list_changed()
    return said("grown")


@tool
async def touch(context: Context, params: Params) -> Answer:
    uri = (params.arguments or {})["uri"]
    await bus.publish(ResourceUpdated(uri=uri))
    if uri in followed:
        await context.session.send_resource_updated(uri)
    return said("touched")


@tool
async def declared(context: Context, params: Params) -> Answer:
    capabilities = context.session.client_capabilities
    told = capabilities.model_dump(by_alias=True, exclude_none=True) if capabilities else {}
    return said(json.dumps(told, sort_keys=True))


@tool
async def fail(context: Context, params: Params) -> Answer:
    raise MCPError((params.arguments or {})["code"], "nope", {"requiredCapabilities": {"x": {}}})


@tool
async def report(context: Context, params: Params) -> Answer:
    for done in (0, 50, 100):
        await context.session.report_progress(done, 100)
    return said("reported")


@tool
async def tell(context: Context, params: Params) -> Answer:
    await context.session.send_log_message(  # pyright: ignore[reportDeprecated]
        "warning", {"words": "careful"}, "teller", related_request_id=context.request_id
    )
    return said("told")


@tool
async def hold(context: Context, params: Params) -> Answer:
    await context.session.report_progress(0)
    await held.wait()
    return said("held")


@tool
async def release(context: Context, params: Params) -> Answer:
    held.set()
    return said("released")


@tool
async def crash(context: Context, params: Params) -> Answer:
    os._exit(1)


@tool
async def wipe(context: Context, params: Params) -> Answer:
    return said("wiped")


@tool
async def move(context: Context, params: Params) -> Answer:
    places.append("Place")
    return said("moved")


@tool
async def moved(context: Context, params: Params) -> Answer:
    return said(json.dumps(params.arguments))


@tool
async def region(context: Context, params: Params) -> Answer:
    return said(json.dumps(params.arguments))


def questions(*kinds: str) -> dict[str, Any]:
    ask = wire.SamplingMessage(role="user", content=wire.TextContent(type="text", text="Hello?"))
    whole = {
        "form": wire.ElicitRequest(
            params=wire.ElicitRequestFormParams(message="Who?", requested_schema=FORM)
        ),
        "url": wire.ElicitRequest(
            params=wire.ElicitRequestURLParams(
                message="Visit", url="https://example.org", elicitation_id="e1"
            )
        ),
        "sampling": wire.CreateMessageRequest(
            params=wire.CreateMessageRequestParams(messages=[ask], max_tokens=7)
        ),
        "roots": wire.ListRootsRequest(),
    }
    return {f"the {kind}": whole[kind] for kind in kinds}


async def ask_legacy(context: Context, kinds: list[str]) -> list[Any]:
    session, related = context.session, context.request_id
    answers: list[Any] = []
    for kind in kinds:
        request: Any = questions(kind)[f"the {kind}"]
        try:
            if kind == "form":
                answers.append(await session.elicit_form("Who?", FORM, related))
            elif kind == "url":
                answers.append(
                    await session.elicit_url("Visit", "https://example.org", "e1", related)
                )
            elif kind == "sampling":
                answers.append(
                    await session.create_message(  # pyright: ignore[reportDeprecated]
                        request.params.messages, max_tokens=7, related_request_id=related
                    )
                )
            else:
                answers.append(await session.list_roots())  # pyright: ignore[reportDeprecated]
        except MCPError as error:
            answers.append(error.error)
    return answers


def listed(answers: list[Any]) -> str:
    plain = [each.model_dump(by_alias=True, mode="json", exclude_none=True) for each in answers]
    return json.dumps(plain, sort_keys=True)


@tool
async def ask(context: Context, params: Params) -> Answer:
    kinds: list[str] = (params.arguments or {})["kinds"]
    if IS_LEGACY:
        return said(listed(await ask_legacy(context, kinds)))
    if params.input_responses is None:
        return wire.InputRequiredResult(input_requests=questions(*kinds), request_state="s1")
    assert params.request_state == "s1"
    return said(listed([params.input_responses[f"the {kind}"] for kind in kinds]))


@tool
async def ask_twice(context: Context, params: Params) -> Answer:
    rounds = int(params.request_state or 0)
    if rounds < 2:
        asked = questions("form")
        return wire.InputRequiredResult(input_requests=asked, request_state=str(rounds + 1))
    return said("asked twice")


@tool
async def ask_later(context: Context, params: Params) -> Answer:
    if params.request_state is None:
        return wire.InputRequiredResult(request_state="come back")
    return said("came back")


@tool
async def ask_on(context: Context, params: Params) -> Answer:
    return wire.InputRequiredResult(input_requests=questions("form"))


def schema(name: str) -> dict[str, Any]:
    place: dict[str, Any] = {"type": "string"}
    if places:
        place["x-mcp-header"] = places[-1]
    known = {"region": HEADERS, "moved": {"place": place}}
    return {"type": "object", "properties": known.get(name, {})}


async def list_tools(
    context: Context, params: wire.PaginatedRequestParams | None
) -> wire.ListToolsResult:
    names = [*tools, *(["late"] if "tools" in grown else [])]
    return wire.ListToolsResult(
        tools=[
            wire.Tool(
                name=name,
                description=name,
                input_schema=schema(name),
                icons=[ICON],
                annotations=wire.ToolAnnotations(destructive_hint=True) if name == "wipe" else None,
            )
            for name in names
        ]
    )


async def call_tool(context: Context, params: Params) -> Answer:
    return await tools[params.name](context, params)


async def list_prompts(
    context: Context, params: wire.PaginatedRequestParams | None
) -> wire.ListPromptsResult:
    review = wire.Prompt(
        name="review",
        title="Review",
        description="Review code.",
        arguments=[
            wire.PromptArgument(name="code", description="What to review.", required=True),
            wire.PromptArgument(name="tone"),
        ],
        icons=[ICON],
        _meta={"k": "v"},
    )
    late = [wire.Prompt(name="late")] if "prompts" in grown else []
    if params is None or params.cursor is None:
        return wire.ListPromptsResult(prompts=[review, wire.Prompt(name="asking")], next_cursor="2")
    return wire.ListPromptsResult(prompts=late)


async def get_prompt(
    context: Context, params: wire.GetPromptRequestParams
) -> wire.GetPromptResult | wire.InputRequiredResult:
    if params.name == "asking":
        if IS_LEGACY:
            text = listed(await ask_legacy(context, ["form"]))
        elif params.input_responses is None:
            return wire.InputRequiredResult(input_requests=questions("form"))
        else:
            text = listed([params.input_responses["the form"]])
        return wire.GetPromptResult(messages=[message(wire.TextContent(type="text", text=text))])
    given = params.arguments or {}
    if "code" not in given:
        raise MCPError(wire.INVALID_PARAMS, "`code` is missing")
    data = "%%%" if given["code"] == "spoiled" else b64encode(PNG).decode()
    image = wire.ImageContent(type="image", data=data, mime_type="image/png")
    inside = wire.TextResourceContents(uri="note://today", mime_type="text/plain", text="inside")
    return wire.GetPromptResult(
        description="A review.",
        messages=[
            message(wire.TextContent(type="text", text=f"Review {given['code']}")),
            message(image),
            message(wire.EmbeddedResource(type="resource", resource=inside), "assistant"),
        ],
    )


def message(content: wire.ContentBlock, role: Any = "user") -> wire.PromptMessage:
    return wire.PromptMessage(role=role, content=content)


async def list_resources(
    context: Context, params: wire.PaginatedRequestParams | None
) -> wire.ListResourcesResult:
    today = wire.Resource(
        name="today",
        title="Today",
        uri="note://today",
        description="The note of today.",
        mime_type="text/plain",
        size=5,
        icons=[ICON],
        annotations=wire.Annotations(audience=["user"], priority=0.5),
        _meta={"k": "v"},
    )
    dot = wire.Resource(name="dot", uri="image://dot", mime_type="image/png")
    late = [wire.Resource(name="late", uri="note://late")] if "resources" in grown else []
    return wire.ListResourcesResult(resources=[today, dot, *late])


async def list_templates(
    context: Context, params: wire.PaginatedRequestParams | None
) -> wire.ListResourceTemplatesResult:
    notes = wire.ResourceTemplate(
        name="notes", uri_template="note://{day}", mime_type="text/plain", icons=[ICON]
    )
    return wire.ListResourceTemplatesResult(resource_templates=[notes])


async def read_resource(
    context: Context, params: wire.ReadResourceRequestParams
) -> wire.ReadResourceResult:
    uri = str(params.uri)
    if uri == "image://dot":
        blob = b64encode(PNG).decode()
        held = wire.BlobResourceContents(uri=uri, mime_type="image/png", blob=blob)
        return wire.ReadResourceResult(contents=[held])
    if uri == "note://spoiled":
        return wire.ReadResourceResult(contents=[wire.BlobResourceContents(uri=uri, blob="%%%")])
    if uri == "note://nowhere":
        code = -32002 if IS_LEGACY else wire.INVALID_PARAMS
        raise MCPError(code, "Resource not found", {"uri": uri})
    text = wire.TextResourceContents(uri=uri, mime_type="text/plain", text=f"at {uri}")
    return wire.ReadResourceResult(contents=[text])


async def complete(context: Context, params: wire.CompleteRequestParams) -> wire.CompleteResult:
    about = params.ref.name if params.ref.type == "ref/prompt" else params.ref.uri
    others = (params.context.arguments if params.context else None) or {}
    words = [about, params.argument.name, params.argument.value, json.dumps(others)]
    return wire.CompleteResult(completion=wire.Completion(values=words))


async def subscribe(context: Context, params: wire.SubscribeRequestParams) -> wire.EmptyResult:
    if str(params.uri) == "note://secret":
        raise MCPError(wire.INVALID_PARAMS, "not that one")
    followed.add(str(params.uri))
    return wire.EmptyResult()


class WithoutDiscovery:
    """Lines as they come, but for the message by which the modern era begins."""

    def __init__(self, reader: Any, writer: Any) -> None:
        self._reader = reader
        self._writer = writer

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)

    async def __aenter__(self) -> Any:
        await self._reader.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._reader.__aexit__(*error)

    def __aiter__(self) -> Any:
        return self

    async def __anext__(self) -> Any:
        while True:
            item = await self._reader.__anext__()
            if getattr(item.message, "method", None) != "server/discover":
                return item
            error = wire.ErrorData(code=wire.METHOD_NOT_FOUND, message="Method not found")
            answer = wire.JSONRPCError(jsonrpc="2.0", id=item.message.id, error=error)
            await self._writer.send(SessionMessage(answer))


async def handshake_only(scope: Any, receive: Any, send: Any) -> None:
    """Serve HTTP as if there were no modern era."""
    if (b"mcp-protocol-version", b"2026-07-28") in scope.get("headers", ()):
        await send({"type": "http.response.start", "status": 404, "headers": []})
        await send({"type": "http.response.body", "body": b""})
    else:
        await app(scope, receive, send)


server = Server[Any](
    "offering",
    version="1",
    get_tool_input_schema=schema,
    on_list_tools=list_tools,
    on_call_tool=call_tool,
    on_list_prompts=list_prompts,
    on_get_prompt=get_prompt,
    on_list_resources=list_resources,
    on_list_resource_templates=list_templates,
    on_read_resource=read_resource,
    on_subscribe_resource=subscribe,
    on_completion=complete,
    on_subscriptions_listen=ListenHandler(bus),
)


async def main() -> None:
    told = NotificationOptions(tools_changed=True, prompts_changed=True, resources_changed=True)
    async with stdio_server() as (read, write):
        reader: Any = WithoutDiscovery(read, write) if IS_LEGACY else read
        await server.run(reader, write, server.create_initialization_options(told))


if __name__ == "__main__":
    if sys.argv[-1].isdigit():
        import uvicorn

        app = server.streamable_http_app()
        uvicorn.run(handshake_only if IS_LEGACY else app, port=int(sys.argv[-1]))
    else:
        anyio.run(main)

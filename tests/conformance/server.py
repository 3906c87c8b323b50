"""The fixtures that an MCP server offers, for what Guildry has to pass on in both directions.

Raw schemas, log messages, lists that change, and questions that are asked by ending the request and
answered with the next one.
"""

import json
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import anyio
import mcp_types as wire
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel.server import NotificationOptions, Server
from mcp.server.stdio import stdio_server
from mcp.server.subscriptions import (
    InMemorySubscriptionBus,
    ListenHandler,
    PromptsListChanged,
    ToolsListChanged,
)
from mcp.shared.exceptions import MCPError

Context = ServerRequestContext[Any, Any]
Answer = wire.CallToolResult | wire.InputRequiredResult
Work = Callable[[Context, wire.CallToolRequestParams], Awaitable[Answer]]

NOTHING: Final[dict[str, Any]] = {"type": "object", "properties": {}}
ADDRESS_BOOK: Final[dict[str, Any]] = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "$defs": {
        "address": {
            "$anchor": "addressDef",
            "type": "object",
            "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
        }
    },
    "properties": {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
    "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
    "then": {"required": ["phone"]},
    "else": {"required": ["email"]},
    "additionalProperties": False,
}
REGION: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {"region": {"type": "string", "x-mcp-header": "Region"}},
}


@dataclass(frozen=True)
class Fixture:
    about: str
    work: Work
    schema: Mapping[str, Any]


FIXTURES: Final[dict[str, Fixture]] = {}
bus = InMemorySubscriptionBus()
extra: Final[set[str]] = set()
"""The lists that hold one entry more at the moment: `tools`, `prompts`."""


def fixture(name: str, about: str, schema: Mapping[str, Any] = NOTHING) -> Callable[[Work], Work]:
    def enter(work: Work) -> Work:
        FIXTURES[name] = Fixture(about, work, schema)
        return work

    return enter


def said(text: str) -> wire.CallToolResult:
    return wire.CallToolResult(content=[wire.TextContent(type="text", text=text)])


def form(message: str, **properties: str) -> wire.ElicitRequest:
    """Return a question with one required field for each name and type."""
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: {"type": kind} for name, kind in properties.items()},
        "required": [*properties],
    }
    return wire.ElicitRequest(
        params=wire.ElicitRequestFormParams(message=message, requested_schema=schema)
    )


def prompt_model(text: str, max_tokens: int) -> wire.CreateMessageRequest:
    message = wire.SamplingMessage(role="user", content=wire.TextContent(type="text", text=text))
    return wire.CreateMessageRequest(
        params=wire.CreateMessageRequestParams(messages=[message], max_tokens=max_tokens)
    )


Asked = wire.CallToolRequestParams | wire.GetPromptRequestParams


def filled(params: Asked, key: str, field: str) -> Any:
    """Return what was filled into a field of a form, or None where it was not accepted."""
    answer = (params.input_responses or {}).get(key)
    return (answer.content or {}).get(field) if isinstance(answer, wire.ElicitResult) else None


async def tell(context: Context, text: str) -> None:
    """Send a log message, as far as this client wants to hear them."""
    await context.session.send_log_message(  # pyright: ignore[reportDeprecated]
        "info", text, related_request_id=context.request_id
    )


@fixture("test_tool_with_logging", "Send three log messages.")
async def log_thrice(context: Context, params: wire.CallToolRequestParams) -> Answer:
    for text in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await tell(context, text)
    return said("Tool with logging executed successfully")


@fixture("test_logging_tool", "Send a log message to who asked for them.")
async def log_once(context: Context, params: wire.CallToolRequestParams) -> Answer:
    await tell(context, "A message for those who listen")
    return said("Told")


@fixture("test_missing_capability", "Work only for a client that has a model to share.")
async def need_sampling(context: Context, params: wire.CallToolRequestParams) -> Answer:
    capabilities = context.session.client_capabilities
    if capabilities is None or capabilities.sampling is None:
        raise MCPError(
            wire.MISSING_REQUIRED_CLIENT_CAPABILITY,
            "This tool requires the client capability `sampling`",
            {"requiredCapabilities": {"sampling": {}}},
        )
    return said("The client has a model.")


@fixture("test_trigger_tool_change", "Add a tool, or take it away again.")
async def change_tools(context: Context, params: wire.CallToolRequestParams) -> Answer:
    extra.symmetric_difference_update({"tools"})
    await bus.publish(ToolsListChanged())
    await context.session.send_tool_list_changed()
    return said("The list of tools has changed")


@fixture("test_trigger_prompt_change", "Add a prompt, or take it away again.")
async def change_prompts(context: Context, params: wire.CallToolRequestParams) -> Answer:
    extra.symmetric_difference_update({"prompts"})
    await bus.publish(PromptsListChanged())
    await context.session.send_prompt_list_changed()
    return said("The list of prompts has changed")


@fixture("test_x_mcp_header", "Say the region that a header names too.", REGION)
async def say_region(context: Context, params: wire.CallToolRequestParams) -> Answer:
    return said(f"region={(params.arguments or {}).get('region', 'none')}")


@fixture("json_schema_2020_12_tool", "Have a schema of many keywords.", ADDRESS_BOOK)
async def take_address(context: Context, params: wire.CallToolRequestParams) -> Answer:
    return said(json.dumps(params.arguments))


@fixture("test_streaming_elicitation", "Ask for a name while the answer is a stream.")
async def ask_on_stream(context: Context, params: wire.CallToolRequestParams) -> Answer:
    if name := filled(params, "user_name", "name"):
        return said(f"Hello, {name}!")
    return asking(user_name=form("What is your name?", name="string"))


@fixture("test_input_required_result_sampling", "Ask the client's model for a capital.")
async def ask_model(context: Context, params: wire.CallToolRequestParams) -> Answer:
    answer = (params.input_responses or {}).get("capital_question")
    if isinstance(answer, wire.CreateMessageResult):
        text = answer.content.text if isinstance(answer.content, wire.TextContent) else "?"
        return said(f"The model said: {text}")
    return asking(capital_question=prompt_model("What is the capital of France?", 100))


@fixture("test_input_required_result_list_roots", "Ask for the client's folders.")
async def ask_roots(context: Context, params: wire.CallToolRequestParams) -> Answer:
    answer = (params.input_responses or {}).get("client_roots")
    if isinstance(answer, wire.ListRootsResult):
        return said(f"The client has {len(answer.roots)} roots.")
    return asking(client_roots=wire.ListRootsRequest())


@fixture("test_input_required_result_request_state", "Ask, and want the state back unchanged.")
async def keep_state(context: Context, params: wire.CallToolRequestParams) -> Answer:
    if filled(params, "confirm", "ok") is not None and params.request_state == "asked-once":
        return said("state-ok: confirmed")
    return asking("asked-once", confirm=form("Please confirm", ok="boolean"))


@fixture("test_input_required_result_multiple_inputs", "Ask three things at the same time.")
async def ask_thrice(context: Context, params: wire.CallToolRequestParams) -> Answer:
    questions: dict[str, Any] = {
        "user_name": form("What is your name?", name="string"),
        "greeting": prompt_model("Generate a greeting", 50),
        "client_roots": wire.ListRootsRequest(),
    }
    if questions.keys() <= (params.input_responses or {}).keys():
        return said("All three were answered.")
    return asking("asked-three", **questions)


@fixture("test_input_required_result_multi_round", "Ask one thing after another.")
async def ask_in_turn(context: Context, params: wire.CallToolRequestParams) -> Answer:
    if color := filled(params, "step2", "color"):
        return said(f"{params.request_state} likes {color}.")
    if name := filled(params, "step1", "name"):
        question = form("Step 2: What is your favorite color?", color="string")
        return asking(str(name), step2=question)
    return asking("begun", step1=form("Step 1: What is your name?", name="string"))


def asking(state: str | None = None, **questions: Any) -> wire.InputRequiredResult:
    return wire.InputRequiredResult(input_requests=questions, request_state=state)


async def list_tools(
    context: Context, params: wire.PaginatedRequestParams | None
) -> wire.ListToolsResult:
    listed = dict(FIXTURES)
    if "tools" in extra:
        listed["test_dynamic_tool"] = Fixture("Come and go.", log_once, NOTHING)
    return wire.ListToolsResult(
        tools=[
            wire.Tool(name=name, description=each.about, input_schema=dict(each.schema))
            for name, each in listed.items()
        ]
    )


async def call_tool(context: Context, params: wire.CallToolRequestParams) -> Answer:
    called = FIXTURES.get(params.name)
    if called is None:
        raise MCPError(wire.INVALID_PARAMS, f"Unknown tool: {params.name}")
    return await called.work(context, params)


async def list_prompts(
    context: Context, params: wire.PaginatedRequestParams | None
) -> wire.ListPromptsResult:
    prompts = [
        wire.Prompt(name="test_input_required_result_prompt", description="Ask for the context.")
    ]
    if "prompts" in extra:
        prompts.append(wire.Prompt(name="test_dynamic_prompt", description="Come and go."))
    return wire.ListPromptsResult(prompts=prompts)


async def get_prompt(
    context: Context, params: wire.GetPromptRequestParams
) -> wire.GetPromptResult | wire.InputRequiredResult:
    about = filled(params, "user_context", "context")
    if about is None:
        question = form("What context should the prompt use?", context="string")
        return asking(user_context=question)
    text = wire.TextContent(type="text", text=f"Use the following context: {about}")
    return wire.GetPromptResult(messages=[wire.PromptMessage(role="user", content=text)])


async def set_level(context: Context, params: wire.SetLevelRequestParams) -> wire.EmptyResult:
    return wire.EmptyResult()


async def main() -> None:
    server = Server[Any](
        "conformance-fixtures",
        version="1",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_prompts=list_prompts,
        on_get_prompt=get_prompt,
        on_set_logging_level=set_level,
        on_subscriptions_listen=ListenHandler(bus),
    )
    told = NotificationOptions(tools_changed=True, prompts_changed=True)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options(told))


if __name__ == "__main__":
    anyio.run(main)

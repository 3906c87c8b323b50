"""`tools`, `find` and `call`: what is there, what fits, and what it answers."""

import json
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from guildry.errors import UsageError
from guildry.server.commands.arguments import AsJson, Config, Home
from guildry.server.commands.exits import Exit
from guildry.server.commands.perform import perform, write

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from mcp.client.client import Client

    from guildry.server.config import Settings

__all__ = ["call", "find", "parse_arguments", "tools"]


def tools(
    usage: Annotated[
        bool, typer.Option("--usage", help="Show how often, how well and how fast they answered.")
    ] = False,
    home: Home = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """List every tool that can be called, with its source."""
    from guildry.server.commands.usage import show_usage

    flags = {"home": home, "config": config}
    work = partial(show_usage if usage else _tools, as_json)
    raise typer.Exit(perform(work, flags, as_json=as_json))


async def _tools(as_json: bool, settings: "Settings") -> int:
    from guildry.server.commands.door import open_door

    async with open_door(settings) as door:
        listed = await _all_tools(door.client)
        plugs: list[dict[str, Any]] = (await door.ask("list_plugs", {}))["plugs"]
        seen = {tool["name"] for tool in listed}
        beyond = [name for plug in plugs for name in plug["tools"] if name not in seen]
        found: list[dict[str, Any]] = []
        if beyond:
            found = (await door.ask("describe_tools", {"names": beyond}))["tools"]
    source = {name: plug["name"] for plug in plugs for name in plug["tools"]}
    listed += [
        {"name": tool["name"], "description": tool["description"], "schema": tool["input_schema"]}
        for tool in found
    ]
    for tool in listed:
        tool["plug"] = source.get(tool["name"], "guildry")
        tool["listed"] = tool["name"] in seen
    if as_json:
        write(json.dumps({"tools": listed, "plugs": plugs}, ensure_ascii=False))
        return Exit.OK
    width = min(max((len(tool["name"]) for tool in listed), default=0), 40)
    for tool in sorted(listed, key=lambda each: each["plug"] == "guildry"):
        write(f"{tool['name']:<{width}}  {tool['plug']:<12}  {_first(tool['description'])}")
    for plug in plugs:
        if plug.get("error"):
            write(f"! {plug['name']} ({plug['state']}): {_first(plug['error'], 300)}")
        for left in plug.get("quarantined", ()):
            write(f"! {plug['name']}: `{left['tool']}` is left out: {_first(left['reason'], 300)}")
        if held := plug.get("held"):
            write(f"! {plug['name']}: {held} definition(s) are held: see `guildry review`")
    return Exit.OK


async def _all_tools(client: "Client") -> list[dict[str, Any]]:
    """Return the tools of every page of the listing."""
    found: list[dict[str, Any]] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor)
        found += [
            {"name": tool.name, "description": tool.description or "", "schema": tool.input_schema}
            for tool in page.tools
        ]
        cursor = page.next_cursor
        if cursor is None:
            return found


def find(
    queries: Annotated[list[str], typer.Argument(help="What is to be done, a step each.")],
    limit: Annotated[int, typer.Option(min=1, max=50, help="Number of tools to return.")] = 10,
    tag: Annotated[
        list[str] | None,
        typer.Option(help="A plug, a tag of one, or an effect such as `reads`; all must fit."),
    ] = None,
    home: Home = None,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Find the tools that fit a task."""
    flags = {"home": home, "config": config}
    asked = {"queries": queries, "limit": limit, **({"tags": tag} if tag else {})}
    raise typer.Exit(perform(partial(_find, asked, as_json), flags, as_json=as_json))


async def _find(asked: dict[str, Any], as_json: bool, settings: "Settings") -> int:
    from guildry.server.commands.door import open_door

    async with open_door(settings) as door:
        await door.client.list_tools()  # waits for plugs that are still starting
        answer = await door.ask("find_tools", asked)
    found: Sequence[Mapping[str, Any]] = answer["tools"]
    if as_json:
        write(json.dumps(answer, ensure_ascii=False))
    else:
        for tool in found:
            write(f"{tool['name']}  ({tool['plug']})  {_first(tool['description'])}")
        if not found:
            write("No tool fits: say it in other words, or see `guildry tools`.")
    return Exit.OK if found else Exit.NOT_FOUND


def call(
    tool: Annotated[str, typer.Argument(help="Name of the tool.")],
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            help="One JSON object, or `name=value` for each; `-` reads JSON from stdin."
        ),
    ] = None,
    home: Home = None,
    full: Annotated[
        bool, typer.Option("--full", help="Print a long answer whole, instead of its reference.")
    ] = False,
    config: Config = None,
    as_json: AsJson = False,
) -> None:
    """Call a tool and print its answer."""
    flags = {"home": home, "config": config}
    work = partial(_call, tool, arguments or [], full, as_json)
    raise typer.Exit(perform(work, flags, as_json=as_json))


async def _call(
    tool: str, given: list[str], full: bool, as_json: bool, settings: "Settings"
) -> int:
    from guildry.server.commands.door import answer_of, open_door, text_of

    raw = parse_arguments(given)
    async with open_door(settings) as door:
        schemas = {each["name"]: each["schema"] for each in await _all_tools(door.client)}
        result = await door.call(tool, _typed(raw, schemas.get(tool, {})), _hear)
        answer, text = answer_of(result), text_of(result)
        if full and not result.is_error:
            answer = await door.whole(answer)
            text = answer if isinstance(answer, str) else json.dumps(answer, ensure_ascii=False)
    if as_json:
        body: dict[str, Any] = {"is_error": bool(result.is_error), "answer": answer}
        write(json.dumps(body, ensure_ascii=False))
    elif result.is_error:
        typer.echo(f"guildry: {text}", err=True)
    else:
        write(text)
    return Exit.FAILED if result.is_error else Exit.OK


async def _hear(progress: float, total: float | None, message: str | None) -> None:
    """Tell, on the standard error, that the call waits for a person, and for which command."""
    from guildry.tools.asking.asked import WAITS

    if message is not None and message.startswith(WAITS):
        typer.echo(f"guildry: the call {message}", err=True)


def parse_arguments(given: "Sequence[str]") -> dict[str, Any]:
    """Return the arguments that were typed: a JSON object, `-`, or any number of `name=value`.

    The values of `name=value` are texts, which `call` turns into what the tool's schema wants.

    Raises:
        UsageError: it is none of these.
    """
    if len(given) == 1 and (given[0] == "-" or given[0].lstrip().startswith("{")):
        text = typer.get_text_stream("stdin").read() if given[0] == "-" else given[0]
        try:
            value = json.loads(text)
        except ValueError as error:
            raise UsageError(f"the arguments are no JSON ({error}): check the quotes") from error
        if not isinstance(value, dict):
            raise UsageError(f'the arguments are {text[:60]!r}: give an object, such as {{"a": 1}}')
        return cast("dict[str, Any]", value)
    pairs: dict[str, Any] = {}
    for text in given:
        name, equals, value = text.partition("=")
        if not equals or not name:
            raise UsageError(f"{text!r} is no argument: give `name=value`, or one JSON object")
        pairs[name] = _Typed(value)
    return pairs


class _Typed(str):
    """A text as it was typed after `name=`, of which the schema says what it is."""

    __slots__ = ()


def _typed(arguments: "Mapping[str, Any]", schema: "Mapping[str, Any]") -> dict[str, Any]:
    """Return the arguments with each typed text as what the schema wants: `a=1` is a number."""
    properties = schema.get("properties", {})
    return {
        name: _as_wanted(value, properties.get(name, {})) if isinstance(value, _Typed) else value
        for name, value in arguments.items()
    }


def _as_wanted(text: str, wanted: "Mapping[str, Any]") -> Any:
    """Read a text as JSON, unless the schema takes a text here."""
    kinds = wanted.get("type", [item.get("type") for item in wanted.get("anyOf", ())])
    if "string" in ([kinds] if isinstance(kinds, str) else kinds):
        return str(text)
    try:
        return json.loads(text)
    except ValueError:
        return str(text)


def _first(text: str, limit: int = 90) -> str:
    from guildry.server.console import plain

    return plain(text.strip().split("\n", 1)[0], limit)

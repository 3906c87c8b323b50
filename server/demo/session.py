"""A server process of the demo's own, and the official MCP client connected to it."""

import json
import shlex
import sys
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import anyio

from guildry.errors import PlugError, RunError
from guildry.server.demo.listing import git_root

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from mcp import Client

    from guildry.server.config import ModelSetting

__all__ = ["HERE", "answered", "configuration", "connected", "list_names", "plug_while_connected"]

HERE: Final = Path(__file__).parent
"""The folder of the demo: its tools, its late tools and its team."""

_START_S: Final = 60.0
_ANNOUNCED_S: Final = 20.0
_LOG_LINES: Final = 5


def configuration(home: Path, path: Path, model: "ModelSetting") -> str:
    """Return a `guildry.toml`: two MCP servers, the tools, the team and the model."""
    root = git_root(path)
    git = [] if root is None else ["--repository", str(root)]
    python = [sys.executable, "-P", "-m"]
    plugs = {
        "git": shlex.join([*python, "mcp_server_git", *git]),
        "time": shlex.join([*python, "mcp_server_time", "--local-timezone=UTC"]),
        "survey_tools": str(HERE / "tools"),
        "survey": str(HERE / "survey.toml"),
    }
    named = model.model_dump(exclude_none=True)
    lines = [
        f"home = {_toml(str(home))}",
        'model = "demo"',
        "sync = false",
        "startup_wait_s = 30.0",
        *(f"plugs.{name}.source = {_toml(source)}" for name, source in plugs.items()),
        *(f"models.demo.{key} = {_toml(value)}" for key, value in named.items()),
    ]
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


@asynccontextmanager
async def connected(config: Path, key: dict[str, str]) -> "AsyncGenerator[Client]":
    """Start `guildry serve --stdio` with a configuration, and connect to it.

    Args:
        config: its `guildry.toml`; its log goes beside it.
        key: variables that it needs beside the usual few, such as a model's key.

    Raises:
        RunError: it does not start; carries the end of its log.
    """
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client

    arguments = ["-P", "-m", "guildry.server", "serve", "--stdio", "--config", str(config)]
    server = StdioServerParameters(
        command=sys.executable, args=arguments, env=key, cwd=config.parent
    )
    log = config.with_name("server.log")
    with log.open("w", encoding="utf-8") as file:
        client = Client(stdio_client(server, errlog=file), read_timeout_seconds=_START_S)
        try:
            await client.__aenter__()
        except Exception as error:
            raise RunError(f"the server did not start: {_end_of(log) or error}") from error
        failure: BaseException | None = None
        try:
            yield client
        except BaseException as error:
            failure = error
            raise
        finally:
            kind = type(failure) if failure is not None else None
            await client.__aexit__(kind, failure, None)


def _end_of(log: Path) -> str:
    lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return " | ".join(lines[-_LOG_LINES:])


async def list_names(client: "Client") -> list[str]:
    """Return the names of all tools that are listed now."""
    names: list[str] = []
    cursor: str | None = None
    while True:
        page = await client.list_tools(cursor=cursor, cache_mode="bypass")
        names += [tool.name for tool in page.tools]
        cursor = page.next_cursor
        if cursor is None:
            return names


async def answered(client: "Client", tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Call a tool and return its structured answer.

    Raises:
        RunError: the call failed; carries what was said.
    """
    answer = await client.call_tool(tool, arguments)
    if answer.is_error or answer.structured_content is None:
        said = " ".join(getattr(block, "text", "") for block in answer.content)
        raise RunError(f"`{tool}` failed: {said[:500]}")
    found: dict[str, Any] = answer.structured_content
    return found


async def plug_while_connected(client: "Client", source: Path) -> list[str]:
    """Plug a source over the open connection; return its tools once they were announced.

    Raises:
        PlugError: no word of it came, or its tools are not listed then.
    """
    async with client.listen(tools_list_changed=True) as changes:
        report = await answered(client, "plug", {"source": str(source)})
        with anyio.move_on_after(_ANNOUNCED_S) as waiting:
            await anext(changes)
    if waiting.cancelled_caught:
        reason = f"no `tools/list_changed` came within {_ANNOUNCED_S:g} s"
        raise PlugError(str(source), reason, "Please report this defect of Guildry")
    tools: list[str] = report["tools"]
    unlisted = set(tools) - set(await list_names(client))
    if unlisted or not tools:
        reason = f"it was announced, and {sorted(unlisted) or 'no tool of it'} is not listed"
        raise PlugError(str(source), reason, "Please report this defect of Guildry")
    return tools

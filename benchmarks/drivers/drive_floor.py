"""The floor: a loop written by hand on aiohttp, with no framework at all."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import common


def schema(name: str, description: str, *parameters: str) -> dict[str, Any]:
    """Return a tool as the endpoint wants it."""
    properties = {parameter: {"type": "string"} for parameter in parameters}
    shape = {"type": "object", "properties": properties, "required": list(parameters)}
    function = {"name": name, "description": description, "parameters": shape}
    return {"type": "function", "function": function}


async def lookup(key: str) -> str:
    """Look a value up."""
    return f"value of {key}"


async def make_table() -> str:
    """Make the table."""
    return common.make_table_text()


async def count_rows(table: str) -> str:
    """Count its rows."""
    return str(common.count_rows_of(table))


async def sum_column(table: str, column: str) -> str:
    """Add up a column."""
    return str(common.sum_column_of(table, column))


LOOKUP = schema("lookup", common.LOOKUP, "key")
DELEGATE = schema("delegate", common.DELEGATE, "input")
TABLE = [
    schema("make_table", common.MAKE_TABLE),
    schema("count_rows", common.COUNT_ROWS, "table"),
    schema("sum_column", common.SUM_COLUMN, "table", "column"),
]
Tools = dict[str, Callable[..., Awaitable[str]]]


class Floor:
    """An agent is a list of messages and a loop."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session, self._url = session, f"{url}/v1/chat/completions"

    async def _loop(self, task: str, schemas: list[Any], tools: Tools) -> str:
        messages: list[dict[str, Any]] = [
            {"role": "system", "content": common.INSTRUCTIONS},
            {"role": "user", "content": task},
        ]
        while True:
            body = {"model": "bench", "messages": messages, "tools": schemas}
            async with self._session.post(self._url, json=body) as response:
                response.raise_for_status()
                message = (await response.json())["choices"][0]["message"]
            messages.append(message)
            calls = message.get("tool_calls")
            if not calls:
                return str(message["content"])
            results = await asyncio.gather(
                *(
                    tools[call["function"]["name"]](**json.loads(call["function"]["arguments"]))
                    for call in calls
                )
            )
            for call, result in zip(calls, results, strict=True):
                said = {"role": "tool", "tool_call_id": call["id"], "content": result}
                messages.append(said)

    async def chain(self, task: str) -> str:
        return await self._loop(task, [LOOKUP], {"lookup": lookup})

    async def _delegate(self, input: str) -> str:
        return await self.chain(input)

    async def parent(self, task: str) -> str:
        return await self._loop(task, [DELEGATE], {"delegate": self._delegate})

    async def many(self, tasks: list[str]) -> list[str]:
        return await common.gather(self, tasks)

    async def table(self, task: str) -> str:
        tools: Tools = {f.__name__: f for f in (make_table, count_rows, sum_column)}
        return await self._loop(task, TABLE, tools)


@asynccontextmanager
async def opened(url: str, folder: str) -> AsyncIterator[common.Driver]:
    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        yield Floor(session, url)


if __name__ == "__main__":
    common.main(opened)

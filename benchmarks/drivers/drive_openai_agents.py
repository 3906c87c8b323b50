"""openai-agents on its chat-completions model; tracing off, sub-agents by `as_tool`."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import common
from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI


@function_tool(description_override=common.LOOKUP)
async def lookup(key: str) -> str:
    return f"value of {key}"


@function_tool(description_override=common.MAKE_TABLE)
async def make_table() -> str:
    return common.make_table_text()


@function_tool(description_override=common.COUNT_ROWS)
async def count_rows(table: str) -> str:
    return str(common.count_rows_of(table))


@function_tool(description_override=common.SUM_COLUMN)
async def sum_column(table: str, column: str) -> str:
    return str(common.sum_column_of(table, column))


class OpenAIAgents:
    """One definition of each agent, shared by all runs."""

    def __init__(self, client: AsyncOpenAI) -> None:
        def agent(name: str, tools: list[object]) -> Agent:
            model = OpenAIChatCompletionsModel(model="bench", openai_client=client)
            instructions = common.INSTRUCTIONS
            return Agent(name=name, instructions=instructions, model=model, tools=tools)

        self._worker = agent("worker", [lookup])
        delegate = self._worker.as_tool("delegate", common.DELEGATE, max_turns=common.TURNS_LIMIT)
        self._parent = agent("parent", [delegate])
        self._analyst = agent("analyst", [make_table, count_rows, sum_column])

    async def _run(self, agent: Agent, task: str) -> str:
        found = await Runner.run(agent, task, max_turns=common.TURNS_LIMIT)
        return str(found.final_output)

    async def chain(self, task: str) -> str:
        return await self._run(self._worker, task)

    async def parent(self, task: str) -> str:
        return await self._run(self._parent, task)

    async def many(self, tasks: list[str]) -> list[str]:
        return await common.gather(self, tasks)

    async def table(self, task: str) -> str:
        return await self._run(self._analyst, task)


@asynccontextmanager
async def opened(url: str, folder: str) -> AsyncIterator[common.Driver]:
    set_tracing_disabled(True)
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        yield OpenAIAgents(client)


if __name__ == "__main__":
    common.main(opened)

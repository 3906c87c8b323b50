"""pydantic-ai on its chat model; sub-agents by a tool that awaits another agent."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import common
from openai import AsyncOpenAI
from pydantic_ai import Agent, Tool, UsageLimits
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

limits = UsageLimits(request_limit=common.TURNS_LIMIT)


async def lookup(key: str) -> str:
    return f"value of {key}"


async def make_table() -> str:
    return common.make_table_text()


async def count_rows(table: str) -> str:
    return str(common.count_rows_of(table))


async def sum_column(table: str, column: str) -> str:
    return str(common.sum_column_of(table, column))


class PydanticAI:
    """One definition of each agent, shared by all runs."""

    def __init__(self, client: AsyncOpenAI) -> None:
        model = OpenAIChatModel("bench", provider=OpenAIProvider(openai_client=client))

        def agent(*tools: Tool) -> Agent:
            return Agent(model, instructions=common.INSTRUCTIONS, tools=tools)

        async def delegate(input: str) -> str:
            return await self.chain(input)

        self._worker = agent(Tool(lookup, description=common.LOOKUP))
        self._parent = agent(Tool(delegate, description=common.DELEGATE))
        self._analyst = agent(
            Tool(make_table, description=common.MAKE_TABLE),
            Tool(count_rows, description=common.COUNT_ROWS),
            Tool(sum_column, description=common.SUM_COLUMN),
        )

    async def _run(self, agent: Agent, task: str) -> str:
        return str((await agent.run(task, usage_limits=limits)).output)

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
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        yield PydanticAI(client)


if __name__ == "__main__":
    common.main(opened)

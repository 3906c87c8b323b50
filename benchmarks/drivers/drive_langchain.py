"""langchain's create_agent on ChatOpenAI; sub-agents by a tool that awaits another agent."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import common
from langchain.agents import create_agent
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI


@tool(description=common.LOOKUP)
async def lookup(key: str) -> str:
    return f"value of {key}"


@tool(description=common.MAKE_TABLE)
async def make_table() -> str:
    return common.make_table_text()


@tool(description=common.COUNT_ROWS)
async def count_rows(table: str) -> str:
    return str(common.count_rows_of(table))


@tool(description=common.SUM_COLUMN)
async def sum_column(table: str, column: str) -> str:
    return str(common.sum_column_of(table, column))


class LangChain:
    """One definition of each agent, shared by all runs."""

    def __init__(self, url: str) -> None:
        model = ChatOpenAI(model="bench", base_url=f"{url}/v1", api_key="none")

        def agent(*tools: Any) -> Any:
            return create_agent(model, list(tools), system_prompt=common.INSTRUCTIONS)

        @tool(description=common.DELEGATE)
        async def delegate(input: str) -> str:
            return await self.chain(input)

        self._worker = agent(lookup)
        self._parent = agent(delegate)
        self._analyst = agent(make_table, count_rows, sum_column)

    async def _run(self, agent: Any, task: str) -> str:
        messages = [{"role": "user", "content": task}]
        return str((await agent.ainvoke({"messages": messages}))["messages"][-1].content)

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
    yield LangChain(url)


if __name__ == "__main__":
    common.main(opened)

"""agentscope on its chat model; a new agent for each run, as its agents keep state."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import common
from agentscope.agent import Agent
from agentscope.credential import OpenAICredential
from agentscope.message import UserMsg
from agentscope.model import OpenAIChatModel
from agentscope.permission import PermissionBehavior, PermissionDecision
from agentscope.tool import FunctionTool, Toolkit


async def lookup(key: str) -> str:
    return f"value of {key}"


async def make_table() -> str:
    return common.make_table_text()


async def count_rows(table: str) -> str:
    return str(common.count_rows_of(table))


async def sum_column(table: str, column: str) -> str:
    return str(common.sum_column_of(table, column))


def tool(function: Callable[..., Any], description: str) -> FunctionTool:
    allowed = PermissionDecision(behavior=PermissionBehavior.ALLOW, message="allowed")
    return FunctionTool(function, description=description, permission=allowed)


class AgentScope:
    """One model and tool set, shared; one agent a run."""

    def __init__(self, url: str) -> None:
        credential = OpenAICredential(api_key="none", base_url=f"{url}/v1")
        # The table of S4 is above the default context size and would be compressed.
        size = 1_000_000
        self._model = OpenAIChatModel(credential, "bench", stream=False, context_size=size)

        async def delegate(input: str) -> str:
            return await self.chain(input)

        self._worker = Toolkit([tool(lookup, common.LOOKUP)])
        self._parent = Toolkit([tool(delegate, common.DELEGATE)])
        self._analyst = Toolkit(
            [
                tool(make_table, common.MAKE_TABLE),
                tool(count_rows, common.COUNT_ROWS),
                tool(sum_column, common.SUM_COLUMN),
            ]
        )

    async def _run(self, toolkit: Toolkit, task: str) -> str:
        agent = Agent("worker", common.INSTRUCTIONS, self._model, toolkit=toolkit)
        return str((await agent.reply(UserMsg("user", task))).get_text_content())

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
    yield AgentScope(url)


if __name__ == "__main__":
    common.main(opened)

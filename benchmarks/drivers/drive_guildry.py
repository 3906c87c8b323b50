"""Guildry: a team for each scenario, run by the orchestrator with journal and budgets on."""

import sqlite3
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import common
from assembled import Parts, assemble

from guildry.teams.agent import AgentSpec
from guildry.teams.chat_model import ChatModel
from guildry.teams.messages import Report, Task
from guildry.teams.model import Model
from guildry.teams.orchestrator import Orchestrator
from guildry.teams.run import Run
from guildry.tools.caller import Caller
from guildry.tools.grants import Grant, Limits
from guildry.tools.python.functions import reads, tool_from
from guildry.tools.python.threads import DaemonThreads


@reads
async def lookup(key: str) -> str:
    return f"value of {key}"


@reads
async def make_table() -> list[dict[str, Any]]:
    return common.rows()


@reads
async def count_rows(table: list[dict[str, Any]]) -> int:
    return len(table)


@reads
async def sum_column(table: list[dict[str, Any]], column: str) -> int:
    return sum(int(row[column]) for row in table)


lookup.__doc__ = common.LOOKUP
make_table.__doc__ = common.MAKE_TABLE
count_rows.__doc__ = common.COUNT_ROWS
sum_column.__doc__ = common.SUM_COLUMN


@dataclass(frozen=True)
class Crew:
    """One agent for each line of the task, all at once."""

    name: str
    tools: tuple[str, ...]
    model: Model
    answers: list[str]
    description: str = "Do each line of the task with an agent of its own."
    default_limits: Limits = Limits()

    async def work(self, run: Run, task: Task) -> Report:
        lines = task.text.splitlines()
        spec = AgentSpec(
            name="worker",
            instructions=common.INSTRUCTIONS,
            model=self.model,
            tools=self.tools,
            max_turns=common.TURNS_LIMIT,
        )

        async def one(number: int) -> None:
            report = await run.spawn(spec, Task(lines[number]))
            self.answers[number] = f"{report.status}: {report.summary}"

        async with anyio.create_task_group() as group:
            for number in range(len(lines)):
                group.start_soon(one, number)
        return Report("done", f"{len(lines)} ended")


class Guildry:
    """One orchestrator and one model, shared by all runs."""

    def __init__(self, parts: Parts, model: Model, database: Path) -> None:
        self._database = database
        self._model = model
        self._orchestrator = Orchestrator(
            dispatch=parts.dispatch,
            catalog=parts.catalog,
            objects=parts.objects,
            journal=parts.journal,
            runs=parts.runs,
            models={"bench": model},
        )
        self._journal = parts.journal
        threads = DaemonThreads(4)
        functions = (lookup, make_table, count_rows, sum_column)
        plugged = [tool_from(each, plug="bench", threads=threads) for each in functions]
        parts.catalog.replace("bench", plugged)
        parts.catalog.replace("teams", self._orchestrator.tools())
        self._caller = Caller(grant=Grant.root("local"), run="local")

    async def _run(self, tasks: Sequence[str], *tools: str) -> list[str]:
        crew = Crew("crew", tools, self._model, [""] * len(tasks))
        task = Task("\n".join(tasks))
        await self._orchestrator.execute(crew, task, self._caller)
        # What the journal was told is on the disk before the clock stops.
        await self._journal.flush()
        return crew.answers

    def journaled(self) -> int:
        """Return how many model calls are on the disk."""
        connection = sqlite3.connect(f"file:{self._database}?mode=ro", uri=True)
        (count,) = connection.execute(
            "SELECT count(*) FROM entries WHERE kind = 'model'"
        ).fetchone()
        connection.close()
        return int(count)

    async def chain(self, task: str) -> str:
        return (await self._run([task], "lookup"))[0]

    async def parent(self, task: str) -> str:
        return (await self._run([task], "lookup", "spawn"))[0]

    async def many(self, tasks: list[str]) -> list[str]:
        return await self._run(tasks, "lookup")

    async def table(self, task: str) -> str:
        return (await self._run([task], "make_table", "count_rows", "sum_column"))[0]


@asynccontextmanager
async def opened(url: str, folder: str) -> AsyncIterator[common.Driver]:
    async with assemble(Path(folder)) as parts:
        model = ChatModel(url, "bench")
        try:
            yield Guildry(parts, model, Path(folder) / "guildry.db")
        finally:
            await model.aclose()


if __name__ == "__main__":
    common.main(opened)

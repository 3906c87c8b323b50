"""Tasks when things go wrong: clients that give up, tools that vanish, a database that refuses."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import anyio
import pytest
from anyio import lowlevel
from mcp import Client, MCPError
from mcp_types import ClientCapabilities
from structlog.testing import capture_logs

from guildry.errors import StoreError, TaskNotFound
from guildry.memory.store import Store
from guildry.memory.tasks import TaskStore
from guildry.server.surface import USER_SCOPES, build_server
from guildry.server.tasks.tasks import TaskCall, TaskPlan, Tasks
from guildry.tools.asking.questions import Answer, Question, QuestionKind

DONE: Mapping[str, Any] = {"result": {"content": []}}
PLAN = TaskPlan(principal="ann", tool="dig", may_ask_first=True)
ASKABLE = ClientCapabilities.model_validate({"elicitation": {"form": {}}})


class Silent:
    """A client that never answers. Satisfies `Channel`."""

    def __init__(self) -> None:
        self.asked = anyio.Event()

    def takes(self, kind: QuestionKind) -> bool:
        return True

    async def ask(self, question: Question) -> Answer:
        self.asked.set()
        await anyio.sleep_forever()
        raise AssertionError


async def done(call: TaskCall) -> Mapping[str, Any]:
    return DONE


async def execute(app: Any, sql: str) -> None:
    def run(connection: Any) -> None:
        connection.execute(sql)

    await app.store.write(run)


async def test_a_client_that_gives_up_before_there_is_a_task_leaves_nothing_behind(
    opened: Any,
) -> None:
    channel, stopped = Silent(), anyio.Event()

    async def work(call: TaskCall) -> Mapping[str, Any]:
        question = Question(key="n", kind="form", message="Name?", repeatable=True)
        try:
            await call.channel.ask(question)
        finally:
            stopped.set()
        return DONE

    async with opened(tasks_at_once=1) as app:
        with anyio.fail_after(20):
            async with anyio.create_task_group() as tasks:
                begin = partial(app.tasks.begin, replace(PLAN, capabilities=ASKABLE))
                tasks.start_soon(begin, work, channel)
                await channel.asked.wait()
                tasks.cancel_scope.cancel()
            await stopped.wait()
            await anyio.wait_all_tasks_blocked()
            after = await app.tasks.begin(PLAN, done)

    assert after.principal == "ann"


async def test_a_call_that_asks_nothing_after_all_becomes_a_task_all_the_same(opened: Any) -> None:
    go_on = anyio.Event()

    async def work(call: TaskCall) -> Mapping[str, Any]:
        await go_on.wait()
        return DONE

    async with opened() as app:
        with anyio.fail_after(20):
            begun = await app.tasks.begin(PLAN, work, Silent())
            go_on.set()
            while (task := await app.tasks.get("ann", begun.id)).is_open:
                await lowlevel.checkpoint()

    assert begun.status == "working"
    assert task.outcome == DONE


async def test_a_tool_that_vanishes_is_unknown(opened: Any, hang: Any, with_tasks: Any) -> None:
    tool = replace(hang[0], task="optional")
    async with opened(tool) as app:
        async with with_tasks(build_server(app)) as client:
            app.catalog.replace("mine", [])
            with pytest.raises(MCPError) as refused:
                await client.call("hang")

    assert refused.value.error.code == -32602


@pytest.mark.requirement("tasks.durable")
async def test_a_task_that_cannot_be_kept_is_not_begun(
    opened: Any, hang: Any, with_tasks: Any
) -> None:
    tool, began, _ = hang
    async with (
        opened(replace(tool, task="optional")) as app,
        with_tasks(build_server(app)) as client,
    ):
        await execute(
            app,
            "CREATE TRIGGER refuse BEFORE INSERT ON tasks BEGIN SELECT RAISE(ABORT, 'no'); END",
        )
        with capture_logs(), pytest.raises(MCPError, match="Internal server error"):
            await client.call("hang")
        with pytest.raises(Exception, match="no"):
            await app.tasks.begin(PLAN, done, Silent())

    assert not began.is_set()


async def test_an_end_that_cannot_be_written_down_is_told_and_written_down_later(
    opened: Any,
) -> None:
    async with opened() as app:
        await execute(
            app,
            "CREATE TRIGGER refuse BEFORE UPDATE ON tasks WHEN NEW.status = 'completed'"
            " BEGIN SELECT RAISE(ABORT, 'no'); END",
        )
        with anyio.fail_after(20), capture_logs() as logs:
            begun = await app.tasks.begin(replace(PLAN, may_ask_first=False), done)
            while (lost := await app.tasks.get("ann", begun.id)).is_open:
                await lowlevel.checkpoint()
            await execute(app, "DROP TRIGGER refuse")
            await app.tasks.tidy()
            kept = await TaskStore(app.store).get(begun.id)

    assert [each["event"] for each in logs] == ["task_not_recorded"]
    assert lost.outcome == DONE
    assert kept == lost


async def test_a_table_that_cannot_be_read_is_an_internal_error_and_is_looked_at_again(
    opened: Any, hang: Any, with_tasks: Any
) -> None:
    tool, began, _ = hang
    async with (
        opened(replace(tool, task="optional")) as app,
        with_tasks(build_server(app)) as client,
    ):
        id = await client.begin("hang")
        await began.wait()
        await execute(app, "ALTER TABLE tasks RENAME TO gone")
        with capture_logs() as logs:
            app.tasks.wake()
            with pytest.raises(MCPError, match="Internal server error"):
                await client.get("t" + "a" * 26)
            with pytest.raises(MCPError, match="Internal server error"):
                await client.listen(["t" + "a" * 26])
            while "tasks_not_read" not in [each["event"] for each in logs]:
                await client.get(id)
        await execute(app, "ALTER TABLE gone RENAME TO tasks")
        await client.cancel(id)
        ended = await client.get(id)

    assert ended["status"] == "cancelled"


async def test_word_that_fits_no_longer_is_passed_over(
    opened: Any, hang: Any, with_tasks: Any
) -> None:
    tool, _, _ = hang
    async with (
        opened(replace(tool, task="optional")) as app,
        with_tasks(build_server(app)) as client,
    ):
        id = await client.begin("hang")
        store = TaskStore(app.store)
        with capture_logs() as logs:
            await store.tell(id, {"message": "left", "responses": {}})
            app.tasks.wake()
            while "task_word_refused" not in [each["event"] for each in logs]:
                await client.get(id)
        await client.cancel(id)


async def test_a_store_that_is_closed_fails_no_call(opened: Any) -> None:
    go_on = anyio.Event()
    now = [0.0]

    async def work(call: TaskCall) -> Mapping[str, Any]:
        await go_on.wait()
        now[0] += 10
        await call.progress(1, 2)
        return DONE

    async with opened() as app, anyio.create_task_group() as group:
        with anyio.fail_after(20), capture_logs() as logs:
            async with Store.open(None) as store:
                kept = TaskStore(store, clock=lambda: now[0])
                tasks = Tasks(kept, app.orchestrator, group, ttl_s=60, limit=4)
                begun = await tasks.begin(replace(PLAN, may_ask_first=False), work)
            go_on.set()
            while (task := await tasks.get("ann", begun.id)).is_open:
                await lowlevel.checkpoint()
            with pytest.raises(StoreError):
                await tasks.begin(replace(PLAN, may_ask_first=False), done)
            with pytest.raises(TaskNotFound):
                await app.tasks.get("ann", begun.id)

            assert task.outcome == DONE
            assert [each["event"] for each in logs] == ["task_not_noted", "task_not_recorded"]


async def test_a_subscription_that_is_refused_is_refused_with_its_tasks(
    opened: Any, with_tasks: Any
) -> None:
    uris = [f"run://{number}" for number in range(1_001)]
    async with opened() as app, with_tasks(build_server(app)) as client:
        with pytest.raises(MCPError, match="too many") as refused:
            await client.listen([], resourceSubscriptions=uris)

    assert refused.value.error.code == -32602


async def test_what_a_principal_may_not_call_is_no_task(opened: Any, hang: Any) -> None:
    strict = replace(hang[0], scope="admin", task="required")
    async with opened(strict) as app:
        async with Client(build_server(app, scopes=USER_SCOPES)) as client:
            with pytest.raises(MCPError) as refused:
                await client.call_tool("hang", {})

    assert refused.value.error.code == -32602

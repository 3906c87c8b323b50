"""Programs that were cut off: by a crash, a stop or the clock; and how they go on."""

import json
import sqlite3
import sys
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio import to_thread

from guildry.server.app import App, open_app
from guildry.server.config import Settings
from guildry.tools.asking.board import OpenQuestion
from guildry.tools.asking.questions import Answer
from guildry.tools.base import READS, Call, Effects, Outcome, Result, Text, Tool
from guildry.tools.caller import Caller
from guildry.tools.grants import Grant

pytest.importorskip("pydantic_monty")

WRITES = Effects(writes=True, egress=False, destructive=False, idempotent=False)
ME = Caller(Grant.root("local"), "local")

DYING = """
import os, signal, sys
from pathlib import Path
import anyio
from guildry.server.app import open_app
from guildry.server.config import Settings
from guildry.tools.base import READS, Effects, Outcome, Text, Tool
from guildry.tools.caller import Caller
from guildry.tools.grants import Grant

home, how, code = Path(sys.argv[1]), sys.argv[2], sys.argv[3]
WRITES = Effects(writes=True, egress=False, destructive=False, idempotent=False)

stores = []

def die():
    os.kill(os.getpid(), signal.SIGKILL)

async def append(arguments, call):
    with (home / "lines").open("a") as lines:
        lines.write(arguments["text"] + "\\n")
    return Outcome((Text("appended " + arguments["text"]),))

async def strike(arguments, call):
    with (home / "lines").open("a") as lines:
        lines.write("strike\\n")
    await stores[0].flush()
    die()

def tool(name, invoke, effects, **properties):
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return Tool(name=name, plug="mine", description="", input_schema=schema, invoke=invoke,
                effects=effects)

async def main():
    ask_first = ("strike",) if how == "asked" else ()
    async with open_app(Settings(home=home, ask_first=ask_first)) as app:
        app.catalog.replace("mine", [
            tool("append", append, WRITES, text={"type": "string"}),
            tool("strike", strike, READS if how == "reads" else WRITES),
        ])
        stores.append(app.store)
        async def asked(question, is_open):
            await app.store.flush()
            die()
        async with anyio.create_task_group() as tasks:
            app.board.listen(lambda question, is_open: tasks.start_soon(asked, question, is_open))
            await app.ready.wait()
            caller = Caller(Grant.root("local"), "local")
            await app.dispatch.call(caller, "run_code", {"code": code})

anyio.run(main)
"""

CODE = """
print("begun")
a = append(text="one")
try:
    b = strike()
except RuntimeError as error:
    b = str(error)
print("going on")
[a, b, append(text="two")]
"""


def tool(name: str, invoke: Any, effects: Effects = READS, **properties: Any) -> Tool:
    schema = {"type": "object", "properties": properties, "required": list(properties)}
    return Tool(
        name=name,
        plug="mine",
        description="",
        input_schema=schema,
        invoke=invoke,
        effects=effects,
    )


async def die(folder: Path, how: str, code: str = CODE) -> Path:
    """Run a program in a process that is killed in the middle of it; return the home."""
    home, script = folder / "home", folder / "dying.py"
    home.mkdir()
    script.write_text(DYING)
    command = [sys.executable, str(script), str(home), how, code]
    with anyio.fail_after(60):
        done = await anyio.run_process(command, check=False)
    assert done.returncode == -9, done.stderr.decode()
    return home


@asynccontextmanager
async def opened(home: Path, *tools: Tool, **settings: Any) -> AsyncGenerator[App]:
    async with open_app(Settings(home=home, **settings)) as app:
        app.catalog.replace("mine", tools)
        with anyio.fail_after(60):
            await app.ready.wait()
            yield app


def appending(home: Path) -> Tool:
    async def append(arguments: dict[str, Any], call: Call) -> Outcome:
        with (home / "lines").open("a") as lines:
            lines.write(f"{arguments['text']}\n")
        return Outcome((Text(f"appended {arguments['text']}"),))

    return tool("append", append, WRITES, text={"type": "string"})


async def struck(arguments: dict[str, Any], call: Call) -> Outcome:
    return Outcome((Text("struck"),))


async def resume(app: App, id: str = "last", caller: Caller = ME) -> Result:
    return await app.dispatch.call(caller, "run_code", {"resume": id})


def lines(home: Path) -> list[str]:
    return (home / "lines").read_text().splitlines()


async def changed(home: Path, sql: str, *parameters: Any) -> None:
    def change() -> None:
        connection = sqlite3.connect(home / "guildry.db")
        try:
            connection.execute(sql, parameters)
            connection.commit()
        finally:
            connection.close()

    await to_thread.run_sync(change)


async def test_after_a_crash_a_program_goes_on_and_repeats_no_call_that_was_made(
    tmp_path: Path,
) -> None:
    home = await die(tmp_path, "writes")
    async with opened(home, appending(home), tool("strike", struck, WRITES), code=True) as app:
        result = await resumed(app, decline)
        twice = await resume(app)

    assert not result.is_error, result.text
    first, second, third = result.structured["result"]
    assert (first, third) == ("appended one", "appended two")
    assert "it is not known whether it was done" in second
    assert result.structured["printed"] == "begun\ngoing on\n"
    assert lines(home) == ["one", "strike", "two"]
    assert "none was cut off" in twice.text


async def resumed(app: App, answer: Callable[[App], Coroutine[Any, Any, None]]) -> Result:
    """Resume the last program, and let a person answer what is asked meanwhile."""
    results: list[Result] = []
    async with anyio.create_task_group() as tasks:

        def asked(question: OpenQuestion, is_open: bool) -> None:
            tasks.start_soon(answer, app)

        app.board.listen(asked)
        results.append(await resume(app))
    return results[0]


async def decline(app: App) -> None:
    for question in await app.board.open(principal="local"):
        assert "Call it again?" in question.question.message
        await app.board.answer(question.id, Answer("decline", by="local"), principal="local")


async def allow(app: App) -> None:
    for question in await app.board.open(principal="local"):
        await app.board.answer(question.id, Answer("accept", by="local"), principal="local")


async def test_a_call_of_which_nothing_is_known_is_made_again_when_a_person_says_so(
    tmp_path: Path,
) -> None:
    home = await die(tmp_path, "writes")
    async with opened(home, appending(home), tool("strike", struck, WRITES)) as app:
        result = await resumed(app, allow)

    assert result.structured["result"] == ["appended one", "struck", "appended two"]
    assert lines(home) == ["one", "strike", "two"]


async def test_a_call_that_only_reads_is_made_again_without_a_question(tmp_path: Path) -> None:
    home = await die(tmp_path, "reads")
    async with opened(home, appending(home), tool("strike", struck)) as app:
        result = await resume(app)

    assert result.structured["result"] == ["appended one", "struck", "appended two"]
    assert lines(home) == ["one", "strike", "two"]


async def test_a_call_that_is_known_to_be_made_gives_its_program_what_the_ledger_has(
    tmp_path: Path,
) -> None:
    home = await die(tmp_path, "writes")
    await changed(
        home, "UPDATE effects SET status = 'ok', outcome = 'struck before' WHERE tool = 'strike'"
    )
    async with opened(home, appending(home), tool("strike", struck, WRITES)) as app:
        result = await resume(app)

    assert result.structured["result"] == ["appended one", "struck before", "appended two"]
    assert lines(home) == ["one", "strike", "two"]


async def test_a_program_that_waited_for_a_person_goes_on_in_another_process(
    tmp_path: Path,
) -> None:
    home = await die(tmp_path, "asked")
    before = lines(home)
    async with opened(
        home, appending(home), tool("strike", struck, WRITES), ask_first=["strike"]
    ) as app:
        result = await resumed(app, allow)

    assert before == ["one"]
    assert result.structured["result"] == ["appended one", "struck", "appended two"]
    assert lines(home) == ["one", "two"]


async def test_awaited_calls_go_on_each_from_where_it_was(tmp_path: Path) -> None:
    code = """
import asyncio
a = append(text="zero")
[a, await asyncio.gather(append(text="one"), strike(), append(text="two"))]
"""
    home = await die(tmp_path, "reads", code)
    before = lines(home)
    async with opened(home, appending(home), tool("strike", struck)) as app:
        result = await resume(app)

    assert before == ["zero", "one", "strike"]
    assert result.structured["result"] == [
        "appended zero",
        ["appended one", "struck", "appended two"],
    ]
    assert lines(home) == ["zero", "one", "strike", "two"]


async def test_references_of_a_program_live_on_with_it(tmp_path: Path) -> None:
    rows = [{"id": n} for n in range(2_000)]

    async def give(arguments: dict[str, Any], call: Call) -> Outcome:
        return Outcome((Text(json.dumps(rows)),))

    began = anyio.Event()

    async def hang(arguments: dict[str, Any], call: Call) -> Outcome:
        began.set()
        await anyio.sleep_forever()
        raise AssertionError

    code = "rows = give()\nx = strike()\n[rows.value('#/7/id'), count(rows=rows), rows.size > 9, x]"

    async def count(arguments: dict[str, Any], call: Call) -> Outcome:
        return Outcome((Text(str(len(arguments["rows"]))),))

    counts = tool("count", count, rows={"type": "array"})
    async with opened(tmp_path, tool("give", give), counts, tool("strike", hang)) as app:
        await stopped_when(began, app, code)
    async with opened(tmp_path, tool("give", hang), counts, tool("strike", struck)) as app:
        result = await resume(app)

    assert result.structured["result"] == [7, "2000", True, "struck"]


async def stopped_when(began: anyio.Event, app: App, code: str) -> None:
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(app.dispatch.call, ME, "run_code", {"code": code})
        await began.wait()
        tasks.cancel_scope.cancel()


async def test_a_program_that_takes_too_long_is_set_aside_and_goes_on_later(
    tmp_path: Path,
) -> None:
    async def hang(arguments: dict[str, Any], call: Call) -> Outcome:
        await anyio.sleep_forever()
        raise AssertionError

    home = tmp_path
    strike = tool("strike", hang)
    async with opened(home, appending(home), strike, code_wall_s=0.5) as app:
        aside = await app.dispatch.call(ME, "run_code", {"code": CODE})
        id = aside.text.rpartition("'")[0].rpartition("'")[2]
        unknown = await resume(app, "code-0")
        foreign = await resume(app, id, Caller(Grant.root("other"), "other"))
        app.catalog.replace("mine", [appending(home), tool("strike", struck)])
        result = await resume(app, id)

    assert aside.is_error
    assert "stopped after 0.5 s" in aside.text
    assert id.startswith("code-")
    assert f"these can be gone on with: `{id}`" in unknown.text
    assert "none was cut off" in foreign.text
    assert result.structured["result"] == ["appended one", "struck", "appended two"]
    assert lines(home) == ["one", "two"]


async def test_what_is_read_before_a_program_is_cut_off_still_labels_its_answer(
    tmp_path: Path,
) -> None:
    began = anyio.Event()

    async def hang(arguments: dict[str, Any], call: Call) -> Outcome:
        began.set()
        await anyio.sleep_forever()
        raise AssertionError

    async with opened(tmp_path, tool("strike", hang)) as app:
        await app.objects.put(
            b"secret",
            media_type="text/plain",
            name="kept",
            namespace="local",
            owner="local",
            labels=["untrusted:web"],
        )
        await stopped_when(began, app, "x = ref('ref:kept').value()\nstrike()\nx")
    async with opened(tmp_path, tool("strike", struck)) as app:
        result = await resume(app)

    assert result.structured["result"] == "secret"
    assert "untrusted:web" in result.labels


async def test_programs_that_have_ended_and_old_ones_leave_nothing_behind(tmp_path: Path) -> None:
    began = anyio.Event()

    async def hang(arguments: dict[str, Any], call: Call) -> Outcome:
        began.set()
        await anyio.sleep_forever()
        raise AssertionError

    home = tmp_path
    async with opened(home, appending(home), tool("strike", hang)) as app:
        await app.dispatch.call(ME, "run_code", {"code": "append(text='a')"})
        await app.dispatch.call(ME, "run_code", {"code": "append(text='b')\n1/0"})
        none = await app.suspended.waiting("local", "local")
        await stopped_when(began, app, "strike()")
        (one,) = await app.suspended.waiting("local", "local")
        early = await app.suspended.forget(before=one.suspended_at)
        late = await app.suspended.forget(before=one.suspended_at + 1)

    assert none == []
    assert (early, late) == (0, 1)


def hanging(effects: Effects = READS) -> tuple[Tool, anyio.Event]:
    """Return a tool that never answers, and the event that it was called."""
    began = anyio.Event()

    async def hang(arguments: dict[str, Any], call: Call) -> Outcome:
        began.set()
        await anyio.sleep_forever()
        raise AssertionError

    return tool("strike", hang, effects), began


async def test_a_program_whose_state_is_too_large_goes_on_from_no_older_one(
    tmp_path: Path,
) -> None:
    code = "append(text='one')\nx = ['y' * 100 + str(n) for n in range(60000)]\nstrike()"
    strike, began = hanging(WRITES)
    async with opened(tmp_path, appending(tmp_path), strike) as app:
        await stopped_when(began, app, code)
        waiting = await app.suspended.waiting("local", "local")

    assert waiting == []


async def test_calls_that_may_be_repeated_do_not_write_a_large_state_each(tmp_path: Path) -> None:
    calls: list[int] = []

    async def echo(arguments: dict[str, Any], call: Call) -> Outcome:
        calls.append(arguments["n"])
        return Outcome((Text(str(arguments["n"])),))

    echoes = tool("echo", echo, n={"type": "integer"})
    code = """
x = ['y' * 100 + str(n) for n in range(5000)]
a = [echo(n) for n in range(3)]
strike()
[a, len(x)]
"""
    strike, began = hanging()
    async with opened(tmp_path, echoes, strike) as app:
        await stopped_when(began, app, code)
        (kept,) = await app.suspended.waiting("local", "local")
        app.catalog.replace("mine", [echoes, tool("strike", struck)])
        result = await resume(app)

    assert len(kept.state) > 500_000
    assert result.structured["result"] == [["0", "1", "2"], 5_000]
    assert calls == [0, 1, 2, 1, 2]


async def test_many_awaited_calls_are_all_answered_and_few_states_written(tmp_path: Path) -> None:
    async def echo(arguments: dict[str, Any], call: Call) -> Outcome:
        return Outcome((Text(str(arguments["n"])),))

    echoes = tool("echo", echo, n={"type": "integer"})
    code = """
import asyncio
sum([int(x) for x in await asyncio.gather(*[echo(n) for n in range(300)])])
"""
    async with opened(tmp_path, echoes) as app:
        result = await app.dispatch.call(ME, "run_code", {"code": code})

    assert result.structured == {"result": sum(range(300)), "calls": 300}


async def test_a_program_that_one_process_runs_is_not_taken_by_another(tmp_path: Path) -> None:
    strike, began = hanging()
    async with opened(tmp_path, strike) as app:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(app.dispatch.call, ME, "run_code", {"code": "strike()"})
            await began.wait()
            running = await resume(app)
            assert "none was cut off" in running.text
            tasks.cancel_scope.cancel()


async def test_a_call_that_failed_before_the_cut_fails_again_in_the_program(
    tmp_path: Path,
) -> None:
    home = await die(tmp_path, "writes")
    await changed(
        home, "UPDATE effects SET status = 'error', outcome = 'it broke' WHERE tool = 'strike'"
    )
    async with opened(home, appending(home), tool("strike", struck, WRITES)) as app:
        result = await resume(app)

    assert result.structured["result"] == ["appended one", "it broke", "appended two"]


async def test_a_state_that_cannot_be_read_is_told_and_forgotten(tmp_path: Path) -> None:
    strike, began = hanging()
    async with opened(tmp_path, strike) as app:
        await stopped_when(began, app, "strike()")
        await app.store.flush()
        await changed(tmp_path, "UPDATE suspended SET state = ?", b"from another time")
        result = await resume(app)
        twice = await resume(app)

    assert result.is_error
    assert "run the program from its first line" in result.text
    assert "none was cut off" in twice.text


async def test_code_and_resume_are_not_given_together(tmp_path: Path) -> None:
    async with opened(tmp_path) as app:
        both = await app.dispatch.call(ME, "run_code", {"code": "1", "resume": "last"})
        none = await app.dispatch.call(ME, "run_code", {})

    for result in (both, none):
        assert "give `code` to run a program, or `resume` to go on with one" in result.text
